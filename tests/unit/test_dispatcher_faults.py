"""The dispatcher when the disk, a turn or the clock fails: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nanobot.agent.turn import Drain, TurnResult
from nanobot.bus import session_actor, settling
from nanobot.bus.bus import MessageBus
from nanobot.bus.dispatcher import COMMAND_FAILED, Dispatcher
from nanobot.bus.session_actor import QueueMode
from nanobot.bus.waiters import AskResult
from nanobot.core.commands import Command, CommandTable, Invocation
from nanobot.core.errors import BadRequest, RetryLater, StoreUnavailable
from nanobot.core.events import Emit
from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage
from tests.fakes.failing_database import FailingDatabase
from tests.fakes.hooks import NoHooks
from tests.unit.test_dispatcher import Bench, Turns, inbound, until

TERMINAL = AnswerRule(AnswerKind.TERMINAL)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is tried again at once."""
    monkeypatch.setattr(settling, "STORE_RETRY_S", (0.0,))
    monkeypatch.setattr(session_actor, "STORE_RETRY_S", (0.0,))


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[FailingDatabase]:
    database = FailingDatabase(tmp_path / "state.db")
    yield database
    database.close()


@pytest.fixture
async def bench(disk: FailingDatabase) -> AsyncIterator[Bench]:
    made = a_bench(disk)
    yield made
    await made.dispatcher.close()


def a_bench(
    database: FailingDatabase, *, max_queued: int = 1000, queue: QueueMode = QueueMode.STEER
) -> Bench:
    now = [datetime(2026, 3, 1, 12, 0, tzinfo=UTC)]
    bus = MessageBus(database, lambda: now[0], max_queued=max_queued)
    turns = Turns()

    async def ping(invocation: Invocation) -> str:
        if invocation.argument == "badly":
            raise LookupError("on purpose")
        return f"pong {invocation.argument}"

    commands = CommandTable([Command("ping", "at once", ping, control=True)])
    dispatcher = Dispatcher(bus, turns, commands, lambda: now[0], hooks=NoHooks(), queue=queue)
    return Bench(database, bus, turns, dispatcher, now)


class TakesAndFails(Turns):
    """Turns whose first takes in what has arrived, and then finds no model."""

    async def run_turn(self, inbound: InboundMessage, *, drain: Drain, emit: Emit) -> TurnResult:
        if self.log:
            return await Turns.run_turn(self, inbound, drain=drain, emit=emit)
        self.log.append(f"begin {inbound.id}")
        self.began.put_nowait(inbound.id)
        await self.gates[inbound.id].wait()
        drain()
        raise BadRequest("no such model")


@pytest.mark.parametrize("number", [2, 3])
async def test_a_write_that_fails_delays_an_answer_and_repeats_no_turn(
    bench: Bench, disk: FailingDatabase, number: int
) -> None:
    """The writes of a turn without tools: post, claim, settle."""
    disk.fail_at = frozenset({number})

    await bench.bus.post(inbound("a"))
    await bench.settled("a")

    assert disk.failures == 1
    assert (bench.turns.log, await bench.replies()) == (["begin a", "end a"], ["answer to a"])


async def test_what_could_not_be_accepted_was_not(bench: Bench, disk: FailingDatabase) -> None:
    disk.fail_at = frozenset({1})

    with pytest.raises(StoreUnavailable):
        await bench.bus.post_all([inbound("a")])
    await bench.bus.post_all([inbound("a")])

    await bench.settled("a")
    assert bench.turns.log == ["begin a", "end a"]


async def test_a_disk_that_is_full_for_long_costs_no_attempt(
    bench: Bench, disk: FailingDatabase
) -> None:
    bench.turns.errors["a"] = [StoreUnavailable("full") for _ in range(10)]

    await bench.bus.post_all([inbound("a"), inbound("b")])
    await bench.settled("a", "b")

    attempts = await disk.read(
        lambda connection: connection.execute("SELECT attempts FROM inbox").fetchall()
    )
    assert await bench.replies() == ["answer to a", "answer to b"]
    assert attempts == [(1,), (1,)]


async def test_a_full_disk_is_waited_out(bench: Bench, disk: FailingDatabase) -> None:
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post_all([inbound("a", "1"), inbound("b", "1"), inbound("c", "2")])
    await bench.turns.began.get()
    await bench.settled("c")
    disk.full = True
    bench.turns.gates["a"].set()
    await disk.has_failed(20)

    disk.full = False
    await bench.settled("a", "b")

    assert sorted(await bench.replies()) == ["answer to a", "answer to b", "answer to c"]


async def test_a_client_is_told_that_the_disk_is_full(bench: Bench, disk: FailingDatabase) -> None:
    bench.turns.gates["a"] = asyncio.Event()
    asking = asyncio.create_task(bench.dispatcher.ask(inbound("a", answer=TERMINAL)))
    await bench.turns.began.get()
    disk.full = True
    bench.turns.gates["a"].set()

    outcome = await asyncio.wait_for(asking, 20)
    disk.full = False
    await bench.settled("a")

    assert isinstance(outcome.error, StoreUnavailable)
    assert (await bench.states(), bench.turns.log) == ({"a": "done"}, ["begin a", "end a"])


async def test_a_turn_of_a_client_that_the_disk_fails_is_not_run_again(bench: Bench) -> None:
    bench.turns.errors["a"] = [StoreUnavailable("full")]

    outcome = await bench.dispatcher.ask(inbound("a", answer=TERMINAL))

    await bench.settled("a")
    assert isinstance(outcome.error, StoreUnavailable)
    assert (await bench.states(), bench.turns.log) == ({"a": "interrupted"}, ["begin a"])


async def test_what_a_failed_turn_had_taken_in_gets_a_turn_of_its_own(bench: Bench) -> None:
    bench.dispatcher.turns = turns = TakesAndFails()
    turns.gates["a"] = asyncio.Event()
    await bench.bus.post(inbound("a"))
    await turns.began.get()
    await bench.bus.post_all([inbound("b"), inbound("c")])

    turns.gates["a"].set()
    await bench.settled("a", "b", "c")

    refusal, *answers = await bench.replies()
    assert refusal.startswith("I could not answer")
    assert answers == ["answer to b", "answer to c"]


async def test_a_turn_that_is_cancelled_by_itself_is_tried_again(bench: Bench) -> None:
    bench.turns.errors["a"] = [asyncio.CancelledError()]

    await bench.bus.post(inbound("a"))

    async def is_put_back() -> bool:
        return bench.dispatcher.waiting("telegram:1") == 1

    await until(is_put_back)
    bench.now[0] += timedelta(minutes=1)
    await bench.bus.post(inbound("b"))
    await bench.settled("a", "b")

    assert await bench.replies() == ["answer to a", "answer to b"]


async def test_a_control_command_that_fails_is_answered_with_an_apology(bench: Bench) -> None:
    await bench.bus.post(inbound("a", text="/ping badly"))

    await bench.settled("a")

    assert (await bench.states(), await bench.replies()) == ({"a": "dead"}, [COMMAND_FAILED])


async def test_a_control_command_outlives_a_full_disk(bench: Bench, disk: FailingDatabase) -> None:
    disk.fail_at = frozenset({2, 3, 4})

    await bench.bus.post(inbound("a", text="/ping now"))
    await bench.settled("a")

    assert await bench.replies() == ["pong now"]


async def test_a_stop_outlives_a_full_disk(bench: Bench, disk: FailingDatabase) -> None:
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post_all([inbound("a"), inbound("b")])
    await bench.turns.began.get()
    disk.fail_at = frozenset({disk.writes + 1, disk.writes + 2})

    await bench.dispatcher.stop("telegram:1")
    await bench.settled("a", "b")

    assert disk.failures == 2
    assert (bench.turns.log, await bench.replies()) == (
        ["begin a", "begin b", "end b"],
        ["answer to b"],
    )


async def test_a_recovery_holds_no_more_than_the_bound_and_answers_all_in_order(
    disk: FailingDatabase,
) -> None:
    former = a_bench(disk)
    await former.dispatcher.close()
    names = [f"n{number}" for number in range(20)]
    await former.bus.post_all([inbound(name, "1") for name in names])
    bench = a_bench(disk, max_queued=4)
    bench.turns.gates["n0"] = asyncio.Event()

    await bench.dispatcher.recover()
    await bench.turns.began.get()
    held = bench.dispatcher.waiting("telegram:1") + 1
    await bench.bus.post(inbound("last", "1"))
    bench.turns.gates["n0"].set()
    await bench.settled(*names, "last")

    await bench.dispatcher.close()
    assert held == 4
    assert await bench.replies() == [f"answer to {name}" for name in (*names, "last")]


async def test_what_is_urgent_passes_a_full_inbox(disk: FailingDatabase) -> None:
    bench = a_bench(disk, max_queued=2, queue=QueueMode.FOLLOWUP)
    bench.turns.gates["n0"] = asyncio.Event()
    for number in range(5):
        await bench.bus.post(inbound(f"n{number}", "1"))
    await bench.turns.began.get()

    await bench.bus.post(inbound("p", "1", text="/ping now"))
    outcome = await bench.dispatcher.ask(inbound("q", "2", answer=TERMINAL))
    await bench.settled("p")

    bench.turns.gates["n0"].set()
    await bench.settled("n4")
    await bench.dispatcher.close()
    assert outcome == AskResult("answer to q")
    assert await bench.replies() == [
        "pong now",
        *(f"answer to n{number}" for number in range(5)),
    ]


async def test_a_clock_set_back_makes_no_message_wait_for_ever(
    disk: FailingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = a_bench(disk)
    former.turns.errors["a"] = [RetryLater("the model is asleep")]
    await former.bus.post(inbound("a"))

    async def is_told() -> bool:
        return bool(await former.replies())

    await until(is_told)
    await former.dispatcher.close()
    monkeypatch.setattr(session_actor, "LONGEST_WAIT", timedelta(0))
    bench = a_bench(disk)
    bench.now[0] -= timedelta(days=4000)

    await bench.dispatcher.recover()
    await bench.settled("a")

    await bench.dispatcher.close()
    assert (await bench.replies())[-1] == "answer to a"


async def test_a_dead_letter_of_the_inbox_is_answered_when_it_is_retried(bench: Bench) -> None:
    bench.turns.errors["a"] = [BadRequest("no such model")]
    await bench.bus.post(inbound("a"))
    await bench.settled("a")
    (letter,) = await bench.bus.dead_letters.newest()

    await bench.bus.dead_letters.retry(letter)
    await bench.settled("a")

    assert (await bench.states(), bench.turns.log) == (
        {"a": "done"},
        ["begin a", "begin a", "end a"],
    )


async def test_a_defect_between_two_messages_stops_no_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_actor, "RESTART_S", 0.0)

    class Broken(NoHooks):
        def idle(self, session_key: str) -> None:
            raise LookupError("a defect")

    bench.dispatcher.hooks = Broken()

    await bench.bus.post(inbound("a"))
    await bench.settled("a")
    await bench.bus.post(inbound("b"))
    await bench.settled("b")

    assert await bench.replies() == ["answer to a", "answer to b"]


async def test_a_message_that_not_even_an_apology_ends_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*arguments: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(bench.dispatcher.settler, "dead_letter", broken)
    monkeypatch.setattr(session_actor, "MAX_ATTEMPTS", 1)
    bench.turns.errors["a"] = [RuntimeError("a defect, too")]

    await bench.bus.post_all([inbound("a"), inbound("b")])
    await bench.settled("b")

    assert await bench.states() == {"a": "pending", "b": "done"}


async def test_new_mail_burns_no_attempt_of_a_message_that_failed(bench: Bench) -> None:
    bench.turns.errors["a"] = [RuntimeError("a defect"), RuntimeError("a defect")]
    await bench.bus.post(inbound("a"))

    async def is_put_back() -> bool:
        return bench.dispatcher.waiting("telegram:1") == 1

    await until(is_put_back)
    await bench.bus.post(inbound("b"))
    await bench.bus.post(inbound("p", text="/ping"))
    await bench.settled("p")
    tried = bench.turns.log.count("begin a")
    bench.now[0] += timedelta(minutes=1)
    bench.turns.errors.clear()
    await bench.bus.post(inbound("c"))
    await bench.settled("a", "b", "c")

    assert tried == 1
    assert await bench.replies() == ["pong ", "answer to a", "answer to b", "answer to c"]


async def test_a_shutdown_gives_the_attempt_back(bench: Bench, disk: FailingDatabase) -> None:
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post(inbound("a"))
    await bench.turns.began.get()

    await bench.dispatcher.close()

    (pending,) = await bench.bus.inbox.pending()
    assert pending.attempts == 0


async def test_stop_drops_what_waits_to_be_tried_again(bench: Bench) -> None:
    bench.turns.errors["a"] = [RuntimeError("a defect")]
    await bench.bus.post(inbound("a"))

    async def is_put_back() -> bool:
        return bench.dispatcher.waiting("telegram:1") == 1

    await until(is_put_back)

    assert await bench.dispatcher.stop("telegram:1")
    assert await bench.states() == {"a": "done"}
    assert await bench.dispatcher.stop("telegram:1") is False
