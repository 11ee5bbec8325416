"""What model calls used: counted with the log, added up by day, session and model."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nanobot.core.chat import AssistantMessage, Usage, UserMessage
from nanobot.core.messages import Trust
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import SessionLog
from nanobot.session.usage import ModelCall, UsageLine, UsageLog, in_words
from nanobot.store.database import Database

KNOWN = ModelCall("claude-x", "anthropic", Usage(100, 10, 80, 0.25))
UNKNOWN = ModelCall("llama-3", "groq", Usage(1000, 5))


class Clock:
    """A day that a test turns over."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "state.db")
    yield database
    database.close()


@pytest.fixture
def usage(database: Database, clock: Clock) -> UsageLog:
    return UsageLog(database, clock)


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine twelve hours ahead of Greenwich."""
    monkeypatch.setenv("TZ", "Etc/GMT-12")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def said(call: ModelCall) -> Draft:
    return Draft(
        kind=EntryKind.ASSISTANT,
        message=AssistantMessage("Hello."),
        inbound_id="in-1",
        principal="owner:cli:owner",
        trust=Trust.TRUSTED,
        model=call.model,
        provider=call.provider,
        usage=call.usage,
    )


async def test_calls_of_one_model_are_added_up(usage: UsageLog) -> None:
    await usage.record("cli:direct", [KNOWN, KNOWN])
    await usage.record("cli:direct", [KNOWN])

    assert await usage.of_days(1) == (
        UsageLine("claude-x", "anthropic", 3, 3, Usage(300, 30, 240, 0.75)),
    )


async def test_models_are_told_apart_the_most_used_first(usage: UsageLog) -> None:
    await usage.record("cli:direct", [KNOWN, UNKNOWN])

    assert await usage.of_days(1) == (
        UsageLine("llama-3", "groq", 1, 0, Usage(1000, 5, 0, None)),
        UsageLine("claude-x", "anthropic", 1, 1, Usage(100, 10, 80, 0.25)),
    )


async def test_a_session_is_told_apart_from_the_others(usage: UsageLog) -> None:
    await usage.record("cli:direct", [KNOWN])
    await usage.record("telegram:1", [KNOWN, KNOWN])

    calls = [
        sum(line.calls for line in lines)
        for lines in (
            await usage.of_session("cli:direct"),
            await usage.of_days(7, session="telegram:1"),
            await usage.of_days(7),
            await usage.of_session("telegram:2"),
        )
    ]

    assert calls == [1, 2, 3, 0]


async def test_days_are_told_apart(usage: UsageLog, clock: Clock) -> None:
    for _ in range(3):
        await usage.record("cli:direct", [KNOWN])
        clock.now += timedelta(days=1)
    await usage.record("cli:direct", [KNOWN])

    calls = [sum(line.calls for line in await usage.of_days(days)) for days in (1, 2, 3, 4, 7)]

    assert calls == [1, 2, 3, 4, 4]


@pytest.mark.usefixtures("far_east")
async def test_a_day_is_the_machines_own(usage: UsageLog, clock: Clock) -> None:
    clock.now = datetime(2026, 3, 1, 11, 59, tzinfo=UTC)
    await usage.record("cli:direct", [KNOWN])
    clock.now += timedelta(minutes=2)

    assert (usage.today().isoformat(), await usage.of_days(1)) == ("2026-03-02", ())


async def test_an_answer_is_counted_as_it_enters_the_log(
    usage: UsageLog, database: Database, clock: Clock
) -> None:
    log = SessionLog(database, clock)
    question = Draft(
        kind=EntryKind.USER,
        message=UserMessage("Hello?"),
        inbound_id="in-1",
        principal="owner:cli:owner",
        trust=Trust.TRUSTED,
    )

    await log.append("cli:direct", [question, said(KNOWN)])
    await log.spend("cli:direct", UNKNOWN)

    assert [(line.model, line.calls) for line in await usage.of_session("cli:direct")] == [
        ("llama-3", 1),
        ("claude-x", 1),
    ]
    _, entry = await log.entries("cli:direct")
    assert (entry.model, entry.provider, entry.usage) == ("claude-x", "anthropic", KNOWN.usage)


async def test_entries_without_a_cost_are_read_as_before(database: Database, clock: Clock) -> None:
    log = SessionLog(database, clock)

    await log.append("cli:direct", [said(UNKNOWN)])

    (entry,) = await log.entries("cli:direct")
    assert entry.usage == Usage(1000, 5, 0, None)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "nothing"),
        (
            (UsageLine("m", "p", 1, 0, Usage(1234, 56)),),
            "1 call, 1,234 tokens in, 56 out, cost unknown",
        ),
        (
            (UsageLine("m", "p", 1200, 1200, Usage(1_000_000, 56, 900_000, 0.5)),),
            "1,200 calls, 1,000,000 tokens in (900,000 from the cache), 56 out, $0.5000",
        ),
        (
            (
                UsageLine("m", "p", 2, 2, Usage(10, 1, 0, 12.345)),
                UsageLine("n", "p", 3, 0, Usage(10, 1)),
            ),
            "5 calls, 20 tokens in, 2 out, $12.35 for 2 of the calls, the others' cost unknown",
        ),
    ],
)
def test_usage_in_words(lines: tuple[UsageLine, ...], words: str) -> None:
    assert in_words(lines) == words
