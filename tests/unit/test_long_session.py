"""A session of five million characters: the next turn costs what is in its window, counted."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from nanobot.agent import compaction
from nanobot.agent.context import ContextBuilder
from nanobot.agent.loop import AgentLoop
from nanobot.agent.window import Spill
from nanobot.core import text
from nanobot.core.chat import AssistantMessage, ToolCall, ToolMessage, UserMessage
from nanobot.core.messages import InboundMessage, Role, Trust
from nanobot.prompts import render
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import SessionLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.images import Pictures
from nanobot.tools.registry import ToolRegistry
from tests.fakes.scripted_model import ScriptedModel, says

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LONG, FRESH = "cli:long", "cli:fresh"
T = TypeVar("T")


@dataclass(slots=True)
class Cost:
    """What was done since the last look: rows and characters read, steps of SQLite's machine,
    characters tokenised."""

    rows: int = 0
    read: int = 0
    steps: int = 0
    tokenised: int = 0


class CountingDatabase(Database):
    """A database that counts what its readers fetch and how hard SQLite works for it."""

    cost = Cost()

    async def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        def counted(connection: sqlite3.Connection) -> T:
            def tick() -> int:
                self.cost.steps += 1
                return 0

            connection.set_progress_handler(tick, 1)
            try:
                return function(cast(sqlite3.Connection, _Connection(connection, self.cost)))
            finally:
                connection.set_progress_handler(None, 0)

        return await super().read(counted)


@dataclass(slots=True)
class _Connection:
    connection: sqlite3.Connection
    cost: Cost

    def execute(self, *arguments: Any) -> _Rows:
        return _Rows(self.connection.execute(*arguments), self.cost)


@dataclass(slots=True)
class _Rows:
    cursor: sqlite3.Cursor
    cost: Cost

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for row in self.cursor:
            yield self._counted(row)

    def fetchone(self) -> tuple[Any, ...] | None:
        row = self.cursor.fetchone()
        return None if row is None else self._counted(row)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self)

    def _counted(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self.cost.rows += 1
        self.cost.read += sum(len(value) for value in row if isinstance(value, str))
        return row


@dataclass(slots=True)
class Bench:
    """An agent loop over a real log that counts."""

    loop: AgentLoop
    model: ScriptedModel
    sessions: SessionLog
    database: CountingDatabase
    names: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    async def turn(self, key: str, *answers: object) -> Cost:
        """The cost of one turn."""
        self.model.answers = [*answers] or [says("ok")]  # type: ignore[list-item]
        inbound = InboundMessage(
            *("cli", "owner", "direct", "And now?"),
            id=f"in-{next(self.names)}",
            role=Role.OWNER,
            session=key,
        )
        cost = self.database.cost = Cost()
        result = await self.loop.run_turn(inbound)
        await self.sessions.append(result.session, result.entries)
        return cost

    def shown(self) -> int:
        """Characters of the last request, the system prompt aside."""
        _, *rest = self.model.requests[-1].messages
        return sum(len(message.content) for message in rest)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    (tmp_path / "no-skills").mkdir()
    database = CountingDatabase(tmp_path / "state.db")
    sessions = SessionLog(database, lambda: NOW)
    model = ScriptedModel(context_window=32_000)
    home = Home(tmp_path / "home")
    loop = AgentLoop(
        sessions=sessions,
        models=model,
        context=ContextBuilder(tmp_path, SkillsLoader(tmp_path, tmp_path / "no-skills")),
        tools=ToolRegistry([]),
        spill=Spill(home, cap=16_000),
        pictures=Pictures(home),
        clock=lambda: NOW,
    )
    count = text.text_tokens

    def counted(text: str) -> int:
        database.cost.tokenised += len(text)
        return count(text)

    monkeypatch.setattr(text, "text_tokens", counted)
    monkeypatch.setattr(compaction, "text_tokens", counted)
    yield Bench(loop, model, sessions, database)
    database.close()


async def grow(
    sessions: SessionLog, messages: int, length: int, *, results: int = 0, key: str = LONG
) -> None:
    """Append exchanges as an import would: ``messages`` in all, each of ``length`` characters."""
    for exchange in range(messages // 2):
        name = f"old-{exchange}"
        drafts = [_draft(name, EntryKind.USER, UserMessage("why " * (length // 4)))]
        for number in range(results):
            call = ToolCall(f"{exchange}-{number}", "look", "{}")
            drafts += [
                _draft(name, EntryKind.ASSISTANT, AssistantMessage("", (call,))),
                _draft(name, EntryKind.TOOL, ToolMessage(call.id, "look", "see " * (length // 4))),
            ]
        drafts.append(_draft(name, EntryKind.ASSISTANT, AssistantMessage("thus " * (length // 5))))
        await sessions.append(key, drafts)


def _draft(name: str, kind: EntryKind, message: Any) -> Draft:
    return Draft(
        kind=kind,
        message=message,
        inbound_id=name,
        principal="owner:cli:owner",
        trust=Trust.TRUSTED,
    )


async def test_five_million_characters_cost_a_turn_no_more_than_its_window(bench: Bench) -> None:
    await grow(bench.sessions, 1000, 5000)
    fresh = await bench.turn(FRESH)
    asked_fresh = bench.shown()
    await bench.turn(LONG, says("A summary."), says("ok"))  # finds it as it is, and makes room

    cost = await bench.turn(LONG)

    window = bench.shown() - asked_fresh
    assert window < 32_000 * 5
    assert cost.tokenised - fresh.tokenised <= window
    assert cost.read - fresh.read <= 1.2 * window + 1000
    assert cost.rows - fresh.rows <= len(bench.model.requests[-1].messages) + 2


async def test_even_the_first_turn_reads_no_more_than_a_window_can_hold(bench: Bench) -> None:
    await grow(bench.sessions, 1000, 5000)

    cost = await bench.turn(LONG, says("A summary."), says("ok"))

    # What is read is summed up, for which it is looked at a few times.
    assert cost.read < 32_000 * 6 + 10_000
    assert cost.tokenised < 4 * 32_000 * 6
    assert cost.rows < 60
    first = (await bench.sessions.live(LONG)).entries[0]
    assert (first.kind, first.message is not None) == (EntryKind.COMPACTED, True)
    assert len(await bench.sessions.entries(LONG, limit=-1)) > 1000


async def test_what_was_left_out_unread_is_told_to_the_model(bench: Bench) -> None:
    bench.model.context_window = 12_000
    await grow(bench.sessions, 100, 5000)

    await bench.turn(LONG, says("A summary."), says("ok"))

    transcript = bench.model.requests[0].messages[1].content
    assert render.compacted() in transcript


async def test_a_turn_costs_the_same_after_ten_thousand_messages_as_after_a_thousand(
    bench: Bench,
) -> None:
    costs = []
    for key, messages in (("cli:some", 1000), ("cli:many", 10_000)):
        await grow(bench.sessions, messages, 400, key=key)
        await bench.turn(key, says("A summary."), says("ok"))
        costs.append(await bench.turn(key))

    some, many = costs
    assert many.rows == some.rows
    assert abs(many.read - some.read) < 200
    assert abs(many.tokenised - some.tokenised) < 200
    assert many.steps <= 1.1 * some.steps


async def test_results_that_gave_way_are_not_read(bench: Bench) -> None:
    await grow(bench.sessions, 20, 1000, results=4)
    for _ in range(8):
        await grow(bench.sessions, 2, 6000, results=4)
        await bench.turn(LONG, says("ok"), says("ok"))
    live = await bench.sessions.live(LONG)
    gave_way = [entry for entry in live.entries if entry.is_trimmed]
    assert len(gave_way) >= 8

    cost = await bench.turn(LONG)

    assert cost.read < 1.3 * bench.shown() + 10_000
    whole = {entry.seq: entry for entry in await bench.sessions.entries(LONG, limit=-1)}
    assert sum(len(str(whole[entry.seq].message)) for entry in gave_way) > 40_000
