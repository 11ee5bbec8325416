"""The bus: what it holds back, what it takes for a double, and what becomes of dead letters."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.turn import TurnResult
from nanobot.bus.bus import KEPT_ROWS, MessageBus
from nanobot.bus.inbox import Pending, Poison, post_in
from nanobot.bus.outbox import Undelivered
from nanobot.core.messages import AnswerRule, InboundMessage, OutboundMessage, ParentTurn
from tests.fakes.failing_database import FailingDatabase


def inbound(name: str, text: str = "hello") -> InboundMessage:
    return InboundMessage("telegram", "42", "42", text, id=name)


def outbound(name: str, channel: str = "telegram") -> OutboundMessage:
    return OutboundMessage(channel, "42", f"text of {name}", id=name)


def settled(*names: str) -> TurnResult:
    return TurnResult(session="telegram:42", consumed=names, answer="")


@dataclass(slots=True)
class Bench:
    database: FailingDatabase
    bus: MessageBus
    now: list[datetime]
    arrived: list[Pending] = field(default_factory=list)
    queued: list[Undelivered] = field(default_factory=list)

    async def store(self, *messages: InboundMessage) -> None:
        """Put many messages into the inbox at once."""
        stamp = self.now[0].timestamp()
        await self.database.write(lambda connection: post_in(connection, messages, stamp))

    async def states(self, box: str = "inbox") -> dict[str, str]:
        return await self.database.read(
            lambda connection: dict(
                connection.execute(f"SELECT id, state FROM {box} ORDER BY seq").fetchall()
            )
        )


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    database = FailingDatabase(tmp_path / "state.db")
    now = [datetime(2026, 3, 1, 12, 0, tzinfo=UTC)]
    bus = MessageBus(database, lambda: now[0], max_queued=3)
    made = Bench(database, bus, now)
    bus.on_inbound(made.arrived.append)
    bus.on_outbound(made.queued.append)
    yield made
    database.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another thread
            await asyncio.sleep(0.001)


async def is_held(task: asyncio.Task[object]) -> bool:
    """Whether a task does not end in as long as many writes take."""
    _, waiting = await asyncio.wait({task}, timeout=0.2)
    return bool(waiting)


async def test_intake_waits_while_the_inbox_is_full(bench: Bench) -> None:
    await bench.bus.post_all([inbound(name) for name in "abc"])
    posting: asyncio.Task[object] = asyncio.create_task(bench.bus.post_all([inbound("d")]))
    held = await is_held(posting)

    await bench.bus.settle(settled("a"))
    await asyncio.wait_for(posting, 5)

    assert held
    assert await bench.states() == {"a": "done", "b": "pending", "c": "pending", "d": "pending"}


async def test_intake_waits_while_its_channel_delivers_too_little(bench: Bench) -> None:
    await bench.bus.queue(*(outbound(name) for name in "abc"))
    posting: asyncio.Task[object] = asyncio.create_task(bench.bus.post_all([inbound("d")]))
    held = await is_held(posting)

    await bench.bus.outbox.dead_letter("a", "blocked")
    await asyncio.wait_for(posting, 5)

    assert held


async def test_a_full_outbox_of_one_channel_does_not_hold_back_another(bench: Bench) -> None:
    await bench.bus.queue(*(outbound(name, "matrix") for name in "abc"))

    accepted = await bench.bus.post_all([inbound("d")])

    assert [message.id for message in accepted] == ["d"]


async def test_what_the_assistant_posts_itself_is_never_held_back(bench: Bench) -> None:
    await bench.bus.post_all([inbound(name) for name in "abc"])

    posted = await bench.bus.post(inbound("cron:1:0"))

    assert posted


async def test_unreadable_updates_are_taken_in_although_the_inbox_is_full(bench: Bench) -> None:
    await bench.bus.post_all([inbound(name) for name in "abc"])

    await bench.bus.post_all([], [Poison("p", "telegram", "{", "no message")])

    assert (await bench.states())["p"] == "dead"


async def test_the_same_id_is_a_double_for_two_days_and_a_new_message_later(bench: Bench) -> None:
    await bench.bus.post_all([inbound("telegram:1:7", "first")])
    await bench.bus.settle(settled("telegram:1:7"))
    bench.now[0] += timedelta(hours=47)
    doubled = await bench.bus.post_all([inbound("telegram:1:7", "first")])
    bench.now[0] += timedelta(hours=2)

    renamed = await bench.bus.post_all([inbound("telegram:1:7", "another week")])
    again = await bench.bus.post_all([inbound("telegram:1:7", "another week")])

    assert (doubled, again) == ((), ())
    assert [(one.id, one.content) for one in renamed] == [("telegram:1:7~2", "another week")]


async def test_the_same_message_is_a_double_however_far_the_clock_has_jumped(
    bench: Bench,
) -> None:
    await bench.bus.post_all([inbound("telegram:1:7", "first")])
    await bench.bus.settle(settled("telegram:1:7"))
    bench.now[0] += timedelta(days=400)

    assert await bench.bus.post_all([inbound("telegram:1:7", "first")]) == ()


async def test_what_is_committed_is_announced_although_its_writer_was_cancelled(
    bench: Bench,
) -> None:
    """A stopped turn has queued a message, a channel that is restarted has posted one."""
    await bench.bus.post(inbound("q"))
    bench.arrived.clear()
    disk_moves = threading.Event()
    holding = asyncio.create_task(bench.database.write(lambda connection: disk_moves.wait(20)))
    writers: list[asyncio.Task[Any]] = [
        asyncio.create_task(bench.bus.queue(outbound("x"))),
        asyncio.create_task(bench.bus.post_all([inbound("a")])),
        asyncio.create_task(bench.bus.settle(settled("q"), [outbound("y")], [inbound("b")])),
    ]
    await until(lambda: bench.database.writes == 5)
    for writer in writers:
        writer.cancel()
    await asyncio.wait(writers)

    disk_moves.set()
    await holding
    await until(lambda: len(bench.arrived) + len(bench.queued) == 4)

    assert all(writer.cancelled() for writer in writers)
    assert {pending.message.id for pending in bench.arrived} == {"a", "b"}
    assert {undelivered.message.id for undelivered in bench.queued} == {"x", "y"}


async def test_an_old_message_that_still_waits_is_no_other_message(bench: Bench) -> None:
    await bench.bus.post_all([inbound("telegram:1:7")])
    bench.now[0] += timedelta(days=30)

    assert await bench.bus.post_all([inbound("telegram:1:7")]) == ()


async def test_damaged_rows_become_dead_letters_and_end_no_page(bench: Bench) -> None:
    await bench.bus.post_all([inbound(name) for name in "ab"])
    await bench.bus.queue(outbound("x"), outbound("y"))
    with closing(sqlite3.connect(bench.database.path, isolation_level=None)) as raw:
        raw.execute("UPDATE inbox SET payload = '{' WHERE id = 'a'")
        raw.execute("UPDATE outbox SET payload = '[]' WHERE id = 'x'")

    page = await bench.bus.inbox.pending(limit=1)
    unsent = await bench.bus.outbox.undelivered("telegram", limit=1)

    assert [pending.message.id for pending in page] == ["b"]
    assert [undelivered.message.id for undelivered in unsent] == ["y"]
    assert (await bench.states())["a"] == (await bench.states("outbox"))["x"] == "dead"


async def test_a_dead_letter_is_retried_with_all_its_attempts(bench: Bench) -> None:
    await bench.bus.post_all([inbound("a")])
    for _ in range(3):
        await bench.bus.inbox.claim("a")
    await bench.bus.settle(settled("a"), state="dead", error="it failed too often")
    bench.arrived.clear()
    (letter,) = await bench.bus.dead_letters.newest()

    retried = await bench.bus.dead_letters.retry(letter)

    (pending,) = bench.arrived
    assert (letter.handle, letter.text, letter.error) == ("in-1", "hello", "it failed too often")
    assert (retried, pending.message.id, pending.retried) == (True, "a", True)
    assert await bench.bus.inbox.claim("a") == 1
    assert await bench.bus.dead_letters.retry(letter) is False


async def test_a_dead_reply_is_retried_from_the_piece_that_failed(bench: Bench) -> None:
    await bench.bus.queue(outbound("x"))
    await bench.bus.outbox.plan("x", ["one", "two"])
    await bench.bus.outbox.sent("x", 0, "11", last=False)
    await bench.bus.outbox.attempting("x", 1)
    await bench.bus.outbox.dead_letter("x", "blocked")
    bench.queued.clear()
    bench.now[0] += timedelta(days=9)

    answer = await bench.bus.dead_letters.answer({"do": "retry", "names": ["out-1"]})

    (undelivered,) = bench.queued
    assert answer == {"changed": ["out-1"], "refused": {}}
    assert [piece.state.value for piece in undelivered.pieces] == ["sent", "attempting"]
    assert undelivered.expires_at == bench.now[0] + timedelta(hours=48)


async def test_letters_are_listed_retried_and_dropped_by_name(bench: Bench) -> None:
    await bench.bus.post_all([inbound("a")], [Poison("p", "telegram", '{"odd": 1}', "no message")])
    await bench.bus.settle(settled("a"), state="dead", error="failed")
    await bench.bus.queue(outbound("x"))

    listed = await bench.bus.dead_letters.answer({"do": "list"})
    retried = await bench.bus.dead_letters.answer({"do": "retry", "names": ["all", "b", "a"]})
    dropped = await bench.bus.dead_letters.answer({"do": "drop", "names": ["p"]})

    assert listed["waiting"] == {"inbox": 0, "outbox": 1}
    assert {letter["name"]: letter["text"] for letter in listed["dead"]} == {
        "in-1": "",
        "in-2": "hello",
    }
    assert retried == {
        "changed": ["in-2"],
        "refused": {
            "b": "there is no such dead letter",
            "in-1": "it cannot be read; drop it",
        },
    }
    assert dropped == {"changed": ["in-1"], "refused": {}}
    assert await bench.states() == {"p": "dropped", "a": "pending"}


async def test_a_request_about_letters_that_is_none_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="no request"):
        await bench.bus.dead_letters.answer({"do": "explode"})


async def test_a_purge_takes_what_is_settled_and_old_and_nothing_else(bench: Bench) -> None:
    old = [inbound(f"old-{number}") for number in range(KEPT_ROWS + 700)]
    await bench.store(*old, inbound("dead"), inbound("waits"))
    await bench.bus.settle(settled(*(message.id for message in old)))
    await bench.bus.settle(settled("dead"), state="dead", error="failed")
    await bench.bus.queue(outbound("x"))
    await bench.bus.outbox.plan("x", ["one"])
    await bench.bus.outbox.sent("x", 0, "11", last=True)
    bench.now[0] += timedelta(days=31)

    removed = await bench.bus.purge(timedelta(days=30))

    states = await bench.states()
    assert (removed, len(states)) == (702, KEPT_ROWS)
    assert (states["dead"], states["waits"]) == ("dead", "pending")
    assert "old-701" not in states
    assert "old-702" in states


async def test_a_purge_never_takes_what_prevents_doubles(bench: Bench) -> None:
    names = [f"n-{number}" for number in range(KEPT_ROWS + 5)]
    await bench.store(*map(inbound, names))
    await bench.bus.settle(settled(*names))
    bench.now[0] += timedelta(hours=47)

    assert await bench.bus.purge(timedelta(0)) == 0


async def test_a_parent_turn_has_the_key_of_older_rows_in_the_store(bench: Bench) -> None:
    parent = ParentTurn("look", "p", "telegram:1", "chat", AnswerRule())
    task = replace(inbound("subagent:1"), parent=parent)

    await bench.bus.post(task)
    (stored,) = await bench.database.read(
        lambda connection: connection.execute("SELECT payload FROM inbox").fetchone()
    )

    assert json.loads(stored)["errand"]["label"] == "look"
    assert await bench.bus.inbox.find("subagent:1") == task
