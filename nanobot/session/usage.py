"""What model calls used, by day, session and model: counted as they enter the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from nanobot.core.chat import Usage
from nanobot.core.ports import Clock
from nanobot.store.database import Database


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One answered call: the ``model`` that answered, the ``provider`` it was asked through."""

    model: str
    provider: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Calls of one model added up; ``usage.cost_usd`` is that of the ``priced`` calls alone.

    For the others no price is known.
    """

    model: str
    provider: str
    calls: int
    priced: int
    usage: Usage

    def __add__(self, other: UsageLine) -> UsageLine:
        """Both together, under this one's names."""
        return UsageLine(
            self.model,
            self.provider,
            self.calls + other.calls,
            self.priced + other.priced,
            self.usage + other.usage,
        )


class UsageLog:
    """Reads what was used, and records calls that enter no session's log."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def record(self, session: str, calls: Sequence[ModelCall]) -> None:
        """Count calls whose answers are not logged (digests, answers that were empty)."""
        now = self._clock()
        await self._database.write(lambda connection: record_in(connection, session, calls, now))

    def today(self) -> date:
        """The present day where this machine is."""
        return day_of(self._clock())

    async def of_days(self, days: int, *, session: str | None = None) -> tuple[UsageLine, ...]:
        """What the last ``days`` days used, today included, of one session or of all."""
        first = self.today() - timedelta(days=days - 1)
        return await self._database.read(lambda connection: lines_in(connection, first, session))

    async def of_session(self, session: str) -> tuple[UsageLine, ...]:
        """What a session has used since it exists."""
        return await self._database.read(lambda connection: lines_in(connection, None, session))


def lines_in(
    connection: sqlite3.Connection, first: date | None, session: str | None
) -> tuple[UsageLine, ...]:
    """What was used since the day ``first`` (or ever), of one session or of all, by model."""
    conditions, values = ["day >= ?"], [first.isoformat() if first else ""]
    if session is not None:
        conditions.append("session = ?")
        values.append(session)
    rows = connection.execute(
        "SELECT model, provider, sum(calls), sum(priced), sum(input), sum(output), "
        f"sum(cached), sum(cost) FROM usage WHERE {' AND '.join(conditions)} "
        "GROUP BY model, provider ORDER BY sum(input) + sum(output) DESC, model",
        values,
    )
    return tuple(_line(*row) for row in rows)


def added_up(lines: Sequence[UsageLine]) -> UsageLine:
    """All of ``lines`` together, under no name."""
    return sum(lines, UsageLine("", "", 0, 0, Usage()))


def record_in(
    connection: sqlite3.Connection, session: str, calls: Iterable[ModelCall], now: datetime
) -> None:
    """Count calls within the caller's transaction; ``now`` is aware, the day is the machine's."""
    day = day_of(now).isoformat()
    for call in calls:
        usage = call.usage
        connection.execute(
            "INSERT INTO usage (day, session, model, provider, calls, input, output, cached, "
            "cost, priced) VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?) "
            "ON CONFLICT (day, session, model, provider) DO UPDATE SET calls = calls + 1, "
            "input = input + excluded.input, output = output + excluded.output, "
            "cached = cached + excluded.cached, cost = cost + excluded.cost, "
            "priced = priced + excluded.priced",
            (
                day,
                session,
                call.model,
                call.provider,
                usage.input_tokens,
                usage.output_tokens,
                usage.cached_tokens,
                usage.cost_usd or 0.0,
                int(usage.cost_usd is not None),
            ),
        )


def day_of(moment: datetime) -> date:
    """The day of a moment, where this machine is."""
    return moment.astimezone().date()


def in_words(lines: Sequence[UsageLine]) -> str:
    """All of ``lines`` together, for a person: calls, tokens and, as far as known, the cost."""
    if not lines:
        return "nothing"
    total = added_up(lines)
    usage = total.usage
    cached = f" ({usage.cached_tokens:,} from the cache)" if usage.cached_tokens else ""
    calls = f"{total.calls:,} call{'' if total.calls == 1 else 's'}"
    tokens = f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"
    return f"{calls}, {tokens}, {cost_in_words(total)}"


def cost_in_words(total: UsageLine) -> str:
    """What the calls cost, as far as prices are known."""
    if not total.priced:
        return "cost unknown"
    cost = total.usage.cost_usd or 0.0
    amount = f"${cost:.4f}" if cost < 1 else f"${cost:,.2f}"
    if total.priced == total.calls:
        return amount
    return f"{amount} for {total.priced:,} of the calls, the others' cost unknown"


def _line(
    model: str,
    provider: str,
    calls: int,
    priced: int,
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int,
    cost: float,
) -> UsageLine:
    known = cost if priced else None
    usage = Usage(input_tokens, output_tokens, cached_tokens, known)
    return UsageLine(model, provider, calls, priced, usage)
