"""The dispatcher: order within a session, none between them, and every inbound settled once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nanobot.agent.turn import Drain, TurnResult
from nanobot.bus.bus import MessageBus
from nanobot.bus.dispatcher import Dispatcher
from nanobot.bus.session_actor import QueueMode
from nanobot.bus.waiters import TurnStopped
from nanobot.core.commands import Command, CommandTable, Invocation
from nanobot.core.errors import BadRequest, RetryLater
from nanobot.core.events import Emit
from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage, Origin, Role, Unanswered
from nanobot.session.entries import Draft
from nanobot.store.database import Database
from tests.fakes.hooks import NoHooks


def inbound(name: str, chat: str = "1", text: str = "", **more: object) -> InboundMessage:
    return InboundMessage(
        "telegram",
        "7",
        chat,
        text or name,
        id=name,
        role=Role.OWNER,
        **more,  # type: ignore[arg-type]
    )


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until ``condition`` holds, at most 5 s: what is awaited is in the database."""
    async with asyncio.timeout(5):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@dataclass(slots=True)
class Turns:
    """An agent whose turns a test holds, fails or lets take in what arrives."""

    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    errors: dict[str, list[BaseException]] = field(default_factory=dict)
    began: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    log: list[str] = field(default_factory=list)
    drains: bool = False

    async def run_turn(self, inbound: InboundMessage, *, drain: Drain, emit: Emit) -> TurnResult:
        self.log.append(f"begin {inbound.id}")
        self.began.put_nowait(inbound.id)
        if gate := self.gates.get(inbound.id):
            await gate.wait()
        if errors := self.errors.get(inbound.id):
            raise errors.pop(0)
        taken = drain() if self.drains else ()
        self.log.append(f"end {inbound.id}")
        return TurnResult(
            session=inbound.session_key,
            consumed=(inbound.id, *(message.id for message in taken)),
            answer=f"answer to {', '.join((inbound.id, *(message.id for message in taken)))}",
        )

    async def stopped(self, inbound: InboundMessage, consumed: Sequence[str]) -> TurnResult:
        return TurnResult(session=inbound.session_key, consumed=(inbound.id, *consumed), answer="")

    async def closing(self, inbound: InboundMessage, ending: Unanswered) -> tuple[Draft, ...]:
        return ()


@dataclass(slots=True)
class Bench:
    database: Database
    bus: MessageBus
    turns: Turns
    dispatcher: Dispatcher
    now: list[datetime]

    async def states(self) -> dict[str, str]:
        return await self.database.read(
            lambda connection: dict(connection.execute("SELECT id, state FROM inbox ORDER BY seq"))
        )

    async def replies(self) -> list[str]:
        waiting = await self.bus.outbox.undelivered("telegram")
        return [undelivered.message.content for undelivered in waiting]

    async def settled(self, *names: str) -> None:
        """Wait until the inbounds are settled."""

        async def are_settled() -> bool:
            states = await self.states()
            return {states[name] for name in names} <= {"done", "dead", "interrupted"}

        await until(are_settled)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    database = Database(tmp_path / "state.db")
    made = _bench(database)
    yield made
    await made.dispatcher.close()
    database.close()


def _bench(database: Database, slots: int = 64, queue: QueueMode = QueueMode.STEER) -> Bench:
    now = [datetime(2026, 3, 1, 12, 0, tzinfo=UTC)]
    bus = MessageBus(database, lambda: now[0])
    turns = Turns()

    async def ping(invocation: Invocation) -> str:
        return f"pong {invocation.argument}"

    commands = CommandTable(
        [Command("ping", "at once", ping, control=True), Command("later", "in order", ping)]
    )
    dispatcher = Dispatcher(
        bus, turns, commands, lambda: now[0], hooks=NoHooks(), slots=slots, queue=queue
    )
    return Bench(database, bus, turns, dispatcher, now)


async def test_an_inbound_is_answered_and_settled(bench: Bench) -> None:
    await bench.bus.post(inbound("a"))

    await bench.settled("a")
    assert (await bench.states(), await bench.replies()) == ({"a": "done"}, ["answer to a"])


async def test_the_same_id_is_accepted_once(bench: Bench) -> None:
    accepted = [await bench.bus.post(inbound("a")), await bench.bus.post(inbound("a"))]

    await bench.settled("a")
    assert (accepted, bench.turns.log) == ([True, False], ["begin a", "end a"])


async def test_one_session_is_in_order_and_two_run_side_by_side(bench: Bench) -> None:
    bench.turns.gates = {name: asyncio.Event() for name in ("a1", "b1")}
    for message in (inbound("a1", "a"), inbound("a2", "a"), inbound("b1", "b")):
        await bench.bus.post(message)
    began = {await bench.turns.began.get() for _ in range(2)}

    bench.turns.gates["b1"].set()
    await bench.settled("b1")
    bench.turns.gates["a1"].set()
    await bench.settled("a1", "a2")

    assert began == {"a1", "b1"}
    assert bench.turns.log.index("end a1") < bench.turns.log.index("begin a2")


async def test_no_more_turns_run_at_once_than_there_are_slots(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    bench = _bench(database, slots=2)
    bench.turns.gates = {str(n): asyncio.Event() for n in range(4)}
    for n in range(4):
        await bench.bus.post(inbound(str(n), str(n)))
    for _ in range(2):
        await bench.turns.began.get()

    running = bench.dispatcher.running_turns()
    for gate in bench.turns.gates.values():
        gate.set()
    await bench.settled("0", "1", "2", "3")

    await bench.dispatcher.close()
    database.close()
    assert running == 2


async def test_a_control_command_answers_while_a_turn_runs(bench: Bench) -> None:
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post(inbound("a"))
    await bench.turns.began.get()

    await bench.bus.post(inbound("b", text="/ping now"))
    await bench.settled("b")
    replies = await bench.replies()

    bench.turns.gates["a"].set()
    assert replies == ["pong now"]


async def test_other_commands_keep_their_place_and_never_steer(bench: Bench) -> None:
    bench.turns.drains = True
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post(inbound("a"))
    await bench.turns.began.get()
    await bench.bus.post(inbound("b", text="/later x"))
    await bench.bus.post(inbound("c"))

    bench.turns.gates["a"].set()
    await bench.settled("a", "b", "c")

    assert await bench.replies() == ["answer to a", "pong x", "answer to c"]


async def test_what_arrives_during_a_turn_steers_it(bench: Bench) -> None:
    bench.turns.drains = True
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post(inbound("a"))
    await bench.turns.began.get()
    await bench.bus.post(inbound("b"))
    await bench.bus.post(inbound("other", answer=AnswerRule(AnswerKind.NOTHING)))

    bench.turns.gates["a"].set()
    await bench.settled("a", "b", "other")

    assert await bench.replies() == ["answer to a, b"]
    assert "begin b" not in bench.turns.log
    assert "begin other" in bench.turns.log


async def test_what_waited_before_a_turn_gets_turns_of_its_own(bench: Bench) -> None:
    bench.turns.drains = True
    await bench.bus.post_all([inbound("a"), inbound("b"), inbound("c")])

    await bench.settled("a", "b", "c")
    assert await bench.replies() == ["answer to a", "answer to b", "answer to c"]


@pytest.mark.parametrize(
    ("queue", "replies"),
    [
        (QueueMode.STEER, ["answer to a, b, c"]),
        (QueueMode.FOLLOWUP, ["answer to a", "answer to b", "answer to c"]),
        (QueueMode.COLLECT, ["answer to a", "answer to b, c"]),
        (QueueMode.INTERRUPT, ["answer to b", "answer to c"]),
    ],
)
async def test_the_queue_mode_says_what_messages_during_a_turn_do(
    tmp_path: Path, queue: QueueMode, replies: list[str]
) -> None:
    database = Database(tmp_path / "state.db")
    bench = _bench(database, queue=queue)
    bench.turns.drains = True
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post(inbound("a"))
    await bench.turns.began.get()
    await bench.bus.post_all([inbound("b"), inbound("c")])

    bench.turns.gates["a"].set()
    await bench.settled("a", "b", "c")

    seen = await bench.replies()
    await bench.dispatcher.close()
    database.close()
    assert seen == replies


async def test_another_person_in_the_same_chat_does_not_steer(bench: Bench) -> None:
    bench.turns.drains = True
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post(inbound("a"))
    await bench.turns.began.get()
    stranger = InboundMessage("telegram", "8", "1", "me too", id="b", role=Role.GUEST)
    await bench.bus.post(stranger)

    bench.turns.gates["a"].set()
    await bench.settled("a", "b")

    assert await bench.replies() == ["answer to a", "answer to b"]


async def test_services_never_take_all_the_slots(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    bench = _bench(database, slots=4)
    jobs = [f"job{n}" for n in range(6)]
    bench.turns.gates = {name: asyncio.Event() for name in jobs}
    for name in jobs:
        await bench.bus.post(inbound(name, name, origin=Origin.CRON))
    await bench.turns.began.get()

    await bench.bus.post(inbound("person", "person"))
    await bench.settled("person")
    running = bench.dispatcher.running_turns()

    for gate in bench.turns.gates.values():
        gate.set()
    await bench.settled(*jobs)
    await bench.dispatcher.close()
    database.close()
    assert running == 2


async def test_a_flood_in_one_chat_does_not_starve_another(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    bench = _bench(database, slots=1)
    flood = [inbound(f"f{n}", "flood", answer=AnswerRule(AnswerKind.NOTHING)) for n in range(50)]
    bench.turns.gates["f0"] = asyncio.Event()
    await bench.bus.post_all(flood)
    await bench.turns.began.get()
    await bench.bus.post(inbound("other", "other"))

    bench.turns.gates["f0"].set()
    await bench.settled("other", *(message.id for message in flood))

    await bench.dispatcher.close()
    database.close()
    assert bench.turns.log.index("begin other") <= 4


async def test_stop_ends_the_turn_and_leaves_the_queue(bench: Bench) -> None:
    bench.turns.gates["a"] = asyncio.Event()
    await bench.bus.post_all([inbound("a"), inbound("b")])
    await bench.turns.began.get()

    stopped = await bench.dispatcher.stop("telegram:1")
    await bench.settled("a", "b")

    assert (stopped, await bench.replies()) == (True, ["answer to b"])
    assert await bench.dispatcher.stop("telegram:1") is False


async def test_a_model_that_refuses_is_told_and_not_tried_again(bench: Bench) -> None:
    bench.turns.errors["a"] = [BadRequest("no such model")]
    await bench.bus.post(inbound("a"))

    await bench.settled("a")
    assert await bench.replies() == ["I could not answer: no such model"]
    assert (await bench.states())["a"] == "dead"


async def test_no_model_is_told_once_and_tried_again_at_the_next_message(bench: Bench) -> None:
    asleep = RetryLater("the model is asleep")
    bench.turns.errors["a"] = [asleep, asleep]
    for waiting, name in enumerate(("a", "b"), start=1):
        await bench.bus.post(inbound(name))
        await bench.turns.began.get()

        async def is_put_off(waiting: int = waiting) -> bool:
            return bench.dispatcher.waiting("telegram:1") >= waiting

        await until(is_put_off)
    await bench.bus.post(inbound("c"))

    await bench.settled("a", "b", "c")
    told, *answers = await bench.replies()
    assert "Your message is kept" in told
    assert answers == ["answer to a", "answer to b", "answer to c"]


async def test_a_kept_message_is_answered_after_a_restart_without_being_told_again(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path / "state.db")
    first = _bench(database)
    first.turns.errors["a"] = [RetryLater("the model is asleep")]
    await first.bus.post(inbound("a"))

    async def is_told() -> bool:
        return bool(await first.replies())

    await until(is_told)
    await first.dispatcher.close()
    second = _bench(database)
    second.now[0] += timedelta(hours=1)

    await second.dispatcher.recover()
    await second.settled("a")

    replies = await second.replies()
    await second.dispatcher.close()
    database.close()
    assert [text.partition(" ")[0] for text in replies] == ["No", "answer"]


async def test_a_poison_message_is_parked_with_an_apology_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path / "state.db")
    former = MessageBus(database, lambda: datetime(2026, 3, 1, tzinfo=UTC))
    await former.post(inbound("a"))
    for _ in range(3):  # three processes that die in its turn
        await former.inbox.claim("a")
    bench = _bench(database)
    await bench.bus.post(inbound("b"))
    await bench.dispatcher.recover()

    await bench.settled("a", "b")

    replies = await bench.replies()
    states = await bench.states()
    letters = await bench.bus.dead_letters.newest()
    await bench.dispatcher.close()
    database.close()
    assert states == {"a": "dead", "b": "done"}
    assert sorted(text.partition(":")[0] for text in replies) == ["Sorry", "answer to b"]
    assert [letter.id for letter in letters] == ["a"]


async def test_a_client_that_goes_away_takes_its_question_along(bench: Bench) -> None:
    bench.turns.gates["a"] = asyncio.Event()
    rule = AnswerRule(AnswerKind.TERMINAL)
    asking = asyncio.create_task(bench.dispatcher.ask(inbound("a", answer=rule)))
    queued = asyncio.create_task(bench.dispatcher.ask(inbound("b", answer=rule)))
    await bench.turns.began.get()

    queued.cancel()
    await asyncio.wait({queued})
    waiting = bench.dispatcher.waiting("telegram:1")
    asking.cancel()
    await asyncio.wait({asking})

    await bench.settled("a", "b")
    assert (waiting, await bench.states()) == (0, {"a": "done", "b": "interrupted"})
    assert bench.turns.log == ["begin a"]


async def test_a_client_that_goes_away_while_it_posts_is_not_answered_to_nobody(
    bench: Bench,
) -> None:
    disk_moves = threading.Event()
    holding = asyncio.create_task(bench.database.write(lambda connection: disk_moves.wait(20)))
    asking = asyncio.create_task(
        bench.dispatcher.ask(inbound("a", answer=AnswerRule(AnswerKind.TERMINAL)))
    )
    for _ in range(5):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})

    disk_moves.set()
    await holding

    async def is_closed() -> bool:
        return await bench.states() == {"a": "interrupted"}

    await until(is_closed)
    assert bench.turns.log == []


async def test_a_stopped_question_is_told_to_its_client(bench: Bench) -> None:
    bench.turns.gates["a"] = asyncio.Event()
    rule = AnswerRule(AnswerKind.TERMINAL)
    asking = asyncio.create_task(bench.dispatcher.ask(inbound("a", answer=rule)))
    await bench.turns.began.get()

    await bench.dispatcher.stop("telegram:1")

    outcome = await asking
    assert isinstance(outcome.error, TurnStopped)


async def test_a_question_whose_terminal_is_gone_is_closed_and_not_replayed(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path / "state.db")
    first = _bench(database)
    first.turns.gates["a"] = asyncio.Event()
    asking = asyncio.create_task(
        first.dispatcher.ask(inbound("a", answer=AnswerRule(AnswerKind.TERMINAL)))
    )
    await first.turns.began.get()
    await first.dispatcher.close()
    second = _bench(database)

    await second.dispatcher.recover()

    states = await second.states()
    asking.cancel()
    await asyncio.wait({asking})
    await second.dispatcher.close()
    database.close()
    assert (states, second.turns.log) == ({"a": "interrupted"}, [])


async def test_a_damaged_row_becomes_a_dead_letter(bench: Bench, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as raw:
        raw.execute(
            "INSERT INTO inbox (id, session, channel, payload, received_at) "
            "VALUES ('x', 's', 'telegram', '{}', 0)"
        )
    raw.close()

    await bench.dispatcher.recover()

    assert (await bench.states())["x"] == "dead"
