"""Usage of model calls, and the calibration of token estimates per model."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from loguru import logger

from nanobot.core.chat import Usage
from nanobot.core.errors import StoreError
from nanobot.core.ports import Clock
from nanobot.store.database import Database


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One answered call: the ``model`` that answered, and the ``provider`` that was asked."""

    model: str
    provider: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class UsageLine:
    """The calls of one model added up; ``usage.cost_usd`` covers only the ``priced`` calls."""

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
    """Reads the usage per day, session and model."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def record(self, session: str, calls: Sequence[ModelCall]) -> None:
        """Count calls whose answers are not logged, such as those of consolidation."""
        now = self._clock()
        await self._database.write(lambda connection: record_in(connection, session, calls, now))

    def today(self) -> date:
        """The present day in the local time zone."""
        return day_of(self._clock())

    async def of_days(self, days: int, *, session: str | None = None) -> tuple[UsageLine, ...]:
        """Usage of the last ``days`` days, today included, of one session or of all."""
        first = self.today() - timedelta(days=days - 1)
        return await self._database.read(lambda connection: lines_in(connection, first, session))

    async def of_session(self, session: str) -> tuple[UsageLine, ...]:
        """All usage of a session."""
        return await self._database.read(lambda connection: lines_in(connection, None, session))


def lines_in(
    connection: sqlite3.Connection, first: date | None, session: str | None
) -> tuple[UsageLine, ...]:
    """Usage by model since the day ``first`` (or ever), of one session or of all."""
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
    """The sum of ``lines``, without a name."""
    return sum(lines, UsageLine("", "", 0, 0, Usage()))


def record_in(
    connection: sqlite3.Connection, session: str, calls: Iterable[ModelCall], now: datetime
) -> None:
    """Count calls within the caller's transaction; ``now`` is aware, the day is local."""
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
    """The local day of a moment."""
    return moment.astimezone().date()


def in_words(lines: Sequence[UsageLine]) -> str:
    """The sum of ``lines`` for a person: calls, tokens and, if known, the cost."""
    if not lines:
        return "nothing"
    total = added_up(lines)
    usage = total.usage
    cached = f" ({usage.cached_tokens:,} from the cache)" if usage.cached_tokens else ""
    calls = f"{total.calls:,} call{'' if total.calls == 1 else 's'}"
    tokens = f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"
    return f"{calls}, {tokens}, {cost_in_words(total)}"


def cost_in_words(total: UsageLine) -> str:
    """The cost of the calls whose price is known, for a person."""
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


LOWEST, HIGHEST = 0.7, 2.0
"""Bounds of the factor; no tokenizer is further off than that."""

_BELIEVED = (0.5, 3.0)
"""Bounds of a credible report (some providers leave out cached tokens)."""
_LEAST = 500
"""Smallest request used, in estimated tokens; overhead dominates shorter ones."""
_WEIGHT = 0.2
_WORTH_NOTING = 0.02


class Calibration:
    """A correction factor per model, learnt from its provider's reports and stored.

    The first report sets the factor, each later one moves it by a fifth of the difference. A
    failed write does not fail the turn: the next report tries again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._factors: dict[str, float] | None = None
        self._stored: dict[str, float] = {}

    async def factor(self, model: str) -> float:
        """The factor for estimates of ``model``; 1.0 without a report."""
        return (await self._known()).get(model, 1.0)

    async def observe(self, model: str, *, estimated: int, reported: int) -> None:
        """Learn from a request: its uncalibrated estimate and the provider's count."""
        if estimated < _LEAST:
            return
        ratio = reported / estimated
        if not _BELIEVED[0] <= ratio <= _BELIEVED[1]:
            return
        factors = await self._known()
        former = factors.get(model)
        factor = ratio if former is None else former + _WEIGHT * (ratio - former)
        factors[model] = factor = min(max(factor, LOWEST), HIGHEST)
        if abs(factor - self._stored.get(model, 0.0)) > _WORTH_NOTING:
            await self._store(model, factor)

    async def _known(self) -> dict[str, float]:
        if self._factors is None:
            rows = await self._database.read(
                lambda connection: connection.execute(
                    "SELECT model, factor FROM calibration"
                ).fetchall()
            )
            if self._factors is None:
                self._stored = dict(rows)
                self._factors = dict(rows)
        return self._factors

    async def _store(self, model: str, factor: float) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO calibration (model, factor) VALUES (?, ?) "
                "ON CONFLICT (model) DO UPDATE SET factor = excluded.factor",
                (model, factor),
            )

        try:
            await self._database.write(write)
        except StoreError as error:
            logger.warning("cannot store the calibration of {}: {}", model, error)
        else:
            self._stored[model] = factor
