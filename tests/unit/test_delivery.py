"""The delivery worker: once, in order, marked where it may be twice, and never silently gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nanobot.bus import delivery
from nanobot.bus.bus import MessageBus
from nanobot.bus.delivery import DeliveryWorker
from nanobot.core.errors import ChannelRetryLater, Undeliverable
from nanobot.core.events import Emit, ignore
from nanobot.core.messages import InboundMessage, OutboundMessage
from nanobot.core.ports import ChannelState
from tests.fakes.failing_database import FailingDatabase

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Platform:
    """A channel whose chats a test reads; each text is sent in pieces of one word."""

    name = "fake"

    def __init__(self) -> None:
        self.chats: dict[str, list[str]] = {}
        self.errors: dict[str, list[BaseException]] = {}
        """Raised by the next sends of a word, one each."""
        self.arrives_anyway: set[str] = set()
        """Words that arrive although their send raises."""
        self.gates: dict[str, asyncio.Event] = {}
        self.tried: asyncio.Queue[str] = asyncio.Queue()

    def pieces(self, outbound: OutboundMessage) -> Sequence[str]:
        return outbound.content.split()

    async def send(self, outbound: OutboundMessage, piece: str, *, again: bool) -> str:
        self.tried.put_nowait(piece)
        if gate := self.gates.get(piece):
            await gate.wait()
        error = self.errors[piece].pop(0) if self.errors.get(piece) else None
        if error is None or piece in self.arrives_anyway:
            self.chats.setdefault(outbound.chat_id, []).append(("↻" if again else "") + piece)
        if error is not None:
            raise error
        return str(sum(map(len, self.chats.values())))

    async def run(self) -> None: ...

    async def wait_ready(self) -> None: ...

    def began(self, inbound: InboundMessage) -> Emit:
        return ignore

    def ended(self, inbound: InboundMessage) -> None: ...

    def state(self) -> ChannelState:
        return ChannelState(True)

    async def aclose(self) -> None: ...


class Bench:
    """A worker over a real outbox, with time in hand."""

    def __init__(self, database: FailingDatabase, *, max_queued: int = 1000) -> None:
        self.database = database
        self.wall = NOON
        self.seconds = 0.0
        self.platform = Platform()
        self.bus = MessageBus(database, lambda: self.wall, max_queued=max_queued)
        self.worker = self.start()

    def start(self) -> DeliveryWorker:
        return DeliveryWorker(
            self.bus, self.platform, lambda: self.wall, monotonic=lambda: self.seconds
        )

    async def restart(self) -> None:
        """A new worker takes up what the former one left when it was killed."""
        await self.worker.close(0)
        self.bus = MessageBus(self.database, lambda: self.wall, max_queued=self.bus.max_queued)
        self.worker = self.start()
        await self.worker.recover()

    async def states(self) -> dict[str, str]:
        return await self.database.read(
            lambda connection: dict(connection.execute("SELECT id, state FROM outbox").fetchall())
        )

    async def ended(self, *names: str) -> dict[str, str]:
        """Wait until these outbounds are sent or dead; the states of all."""

        async def are_ended() -> bool:
            states = await self.states()
            return all(states[name] != "pending" for name in names)

        await until(are_ended)
        return await self.states()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - what is awaited is in the database
            await asyncio.sleep(0.001)


def outbound(name: str, text: str = "", chat: str = "1") -> OutboundMessage:
    return OutboundMessage("fake", chat, text or name, id=name)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between tries take no time, as far as the loop is concerned."""
    monkeypatch.setattr(delivery, "BACKOFF_S", (0.0,) * 8)


@asynccontextmanager
async def open_bench(tmp_path: Path, **options: int) -> AsyncIterator[Bench]:
    database = FailingDatabase(tmp_path / "state.db")
    bench = Bench(database, **options)
    yield bench
    await bench.worker.close(0)
    database.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as made:
        yield made


async def test_a_chat_is_in_order_and_each_piece_is_sent_once(bench: Bench) -> None:
    await bench.bus.queue(outbound("a", "a1 a2"), outbound("b"))

    states = await bench.ended("a", "b")

    assert (states, bench.platform.chats) == ({"a": "sent", "b": "sent"}, {"1": ["a1", "a2", "b"]})


async def test_a_chat_that_hangs_delays_no_other(bench: Bench) -> None:
    bench.platform.gates["a"] = asyncio.Event()
    await bench.bus.queue(outbound("a", chat="1"), outbound("b", chat="2"))

    states = await bench.ended("b")

    bench.platform.gates["a"].set()
    assert states == {"a": "pending", "b": "sent"}


async def test_a_refusal_that_may_pass_is_tried_again_and_keeps_the_order(bench: Bench) -> None:
    bench.platform.errors["a"] = [ChannelRetryLater("busy"), OSError("a defect")]
    await bench.bus.queue(outbound("a"), outbound("b"))

    await bench.ended("a", "b")

    # After the defect nobody knows whether it arrived.
    assert bench.platform.chats == {"1": ["↻a", "b"]}


async def test_what_was_certainly_not_taken_is_sent_again_unmarked(bench: Bench) -> None:
    bench.platform.errors["a"] = [ChannelRetryLater("429")] * 3
    await bench.bus.queue(outbound("a"))

    await bench.ended("a")

    assert bench.platform.chats == {"1": ["a"]}


async def test_what_may_have_arrived_is_marked(bench: Bench) -> None:
    bench.platform.errors["a2"] = [ChannelRetryLater("no answer", maybe_sent=True)]
    bench.platform.arrives_anyway = {"a2"}
    await bench.bus.queue(outbound("a", "a1 a2 a3"))

    await bench.ended("a")

    assert bench.platform.chats == {"1": ["a1", "a2", "↻a2", "a3"]}


async def test_a_refusal_for_good_is_a_dead_letter_and_the_next_goes_on(bench: Bench) -> None:
    bench.platform.errors["a"] = [Undeliverable("blocked")]
    await bench.bus.queue(outbound("a"), outbound("b"))

    states = await bench.ended("a", "b")

    (letter,) = await bench.bus.dead_letters.newest()
    assert (states, letter.error) == ({"a": "dead", "b": "sent"}, "blocked")


async def test_the_wait_a_platform_asks_for_is_kept(bench: Bench) -> None:
    bench.platform.errors["a"] = [ChannelRetryLater("429", after=30)]
    await bench.bus.queue(outbound("a"))
    await bench.platform.tried.get()

    async def is_noted() -> bool:
        (undelivered,) = await bench.bus.outbox.undelivered("fake")
        return undelivered.not_before == NOON + timedelta(seconds=30)

    await until(is_noted)
    assert bench.platform.chats == {}


async def test_a_piece_that_was_being_sent_at_a_kill_is_marked(bench: Bench) -> None:
    await bench.worker.close(0)
    await bench.bus.queue(outbound("a", "a1 a2 a3"))
    await bench.bus.outbox.plan("a", ["a1", "a2", "a3"])
    await bench.bus.outbox.sent("a", 0, "1", last=False)
    await bench.bus.outbox.attempting("a", 1)

    await bench.restart()
    await bench.ended("a")

    assert bench.platform.chats == {"1": ["↻a2", "a3"]}


async def test_an_outbound_of_which_nothing_is_left_to_send_is_closed(bench: Bench) -> None:
    await bench.worker.close(0)
    await bench.bus.queue(outbound("a", "a1"))
    await bench.bus.outbox.plan("a", ["a1"])
    await bench.bus.outbox.sent("a", 0, "1", last=False)

    await bench.restart()

    assert await bench.ended("a") == {"a": "sent"}
    assert bench.platform.chats == {}


@pytest.mark.parametrize("number", range(2, 9))
async def test_a_write_that_fails_anywhere_loses_nothing_and_doubles_nothing(
    tmp_path: Path, number: int
) -> None:
    """Writes: queue, plan, sent, attempting, sent, bury of b, plan of c, sent."""
    async with open_bench(tmp_path) as bench:
        bench.database.fail_at = frozenset({number})
        bench.platform.errors["b"] = [Undeliverable("blocked")] * 2
        await bench.bus.queue(outbound("a", "a1 a2"), outbound("b"), outbound("c"))

        states = await bench.ended("a", "b", "c")

        failures = bench.database.failures
    assert failures == 1
    assert states == {"a": "sent", "b": "dead", "c": "sent"}
    assert Counter(bench.platform.chats["1"]) == Counter({"a1": 1, "a2": 1, "c": 1})


async def test_a_full_disk_holds_deliveries_until_there_is_room(bench: Bench) -> None:
    bench.platform.gates["a"] = asyncio.Event()
    await bench.bus.queue(outbound("a"), outbound("b"))
    await bench.platform.tried.get()
    bench.database.full = True
    bench.platform.gates["a"].set()
    await bench.database.has_failed(5)

    bench.database.full = False
    states = await bench.ended("a", "b")

    assert (states, bench.platform.chats) == ({"a": "sent", "b": "sent"}, {"1": ["a", "b"]})


async def test_what_could_not_be_delivered_in_time_expires(bench: Bench) -> None:
    bench.platform.gates["a"] = asyncio.Event()
    bench.platform.errors["a"] = [ChannelRetryLater("busy")]
    await bench.bus.queue(outbound("a"))
    await bench.platform.tried.get()

    bench.seconds += 48 * 3600
    bench.platform.gates["a"].set()

    assert await bench.ended("a") == {"a": "dead"}


async def test_what_expired_while_nothing_ran_is_a_dead_letter_at_the_next_start(
    bench: Bench,
) -> None:
    await bench.worker.close(0)
    await bench.bus.queue(outbound("a"))
    bench.wall += timedelta(hours=47)
    await bench.bus.queue(outbound("b"))
    bench.wall += timedelta(hours=2)

    await bench.restart()
    states = await bench.ended("a", "b")

    (letter,) = await bench.bus.dead_letters.newest()
    assert (states, letter.id) == ({"a": "dead", "b": "sent"}, "a")
    assert letter.error == "it could not be delivered in time"


async def test_a_clock_that_jumps_ahead_buries_nothing(bench: Bench) -> None:
    bench.platform.gates["a"] = asyncio.Event()
    bench.platform.errors["a"] = [ChannelRetryLater("busy")]
    await bench.bus.queue(outbound("a"))
    await bench.platform.tried.get()

    bench.wall += timedelta(days=400)
    bench.platform.gates["a"].set()

    assert await bench.ended("a") == {"a": "sent"}


async def test_a_clock_set_back_makes_nothing_wait_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "LONGEST_WAIT_S", 0.0)
    await bench.worker.close(0)
    await bench.bus.queue(outbound("a"))
    await bench.bus.outbox.retry_at("a", NOON + timedelta(minutes=5), "busy")
    bench.wall -= timedelta(days=4000)

    await bench.restart()

    assert await bench.ended("a") == {"a": "sent"}


async def test_no_more_is_in_memory_than_the_bound(tmp_path: Path) -> None:
    async with open_bench(tmp_path, max_queued=4) as bench:
        await bench.worker.close(0)
        names = [f"n{number}" for number in range(20)]
        await bench.bus.queue(*map(outbound, names))
        bench.platform.gates["n0"] = asyncio.Event()

        await bench.restart()
        waiting = bench.worker.waiting()
        bench.platform.gates["n0"].set()
        await bench.ended(*names)

    assert (waiting, bench.platform.chats["1"]) == (4, names)


async def test_a_dead_letter_is_delivered_when_it_is_retried(bench: Bench) -> None:
    bench.platform.errors["a"] = [Undeliverable("blocked")]
    await bench.bus.queue(outbound("a"))
    await bench.ended("a")
    (letter,) = await bench.bus.dead_letters.newest()

    await bench.bus.dead_letters.retry(letter)

    assert await bench.ended("a") == {"a": "sent"}


async def test_a_defect_in_one_delivery_stops_no_other_of_its_chat(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(outbound_id: str, error: str) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(bench.bus.outbox, "dead_letter", broken)
    bench.platform.errors["a"] = [Undeliverable("blocked")]

    await bench.bus.queue(outbound("a"), outbound("b"))

    assert await bench.ended("b") == {"a": "pending", "b": "sent"}


async def test_a_chat_with_more_than_the_bound_keeps_no_other_waiting(tmp_path: Path) -> None:
    async with open_bench(tmp_path, max_queued=2) as bench:
        bench.platform.gates["n0"] = asyncio.Event()
        await bench.bus.queue(*(outbound(f"n{number}") for number in range(5)))

        await bench.bus.queue(outbound("other", chat="2"))
        states = await bench.ended("other")
        bench.platform.gates["n0"].set()
        await bench.ended("n4")

    assert states["n0"] == "pending"
