"""How many tokens a model makes of what the offline estimate counts as one."""

from __future__ import annotations

import sqlite3

from loguru import logger

from nanobot.core.errors import StoreError
from nanobot.store.database import Database

LOWEST, HIGHEST = 0.7, 2.0
"""No tokenizer is further off than that; a request is never judged by more."""

_BELIEVED = (0.5, 3.0)
"""A report beyond this is no count of the request (some leave out what was cached)."""
_LEAST = 500
"""Estimated tokens of a request that says anything: in a short one the overhead weighs most."""
_WEIGHT = 0.2
_WORTH_NOTING = 0.02


class Calibration:
    """A factor a model, from what its provider reports; kept in the state database.

    Each report moves the factor by a fifth of the way (the first one all of it), so that one odd
    request does not decide. The one owner of its table. A disk that does not take a factor costs
    nobody an answer: the next report tries again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._factors: dict[str, float] | None = None
        self._stored: dict[str, float] = {}

    async def factor(self, model: str) -> float:
        """What an estimate for ``model`` is to be multiplied by; 1.0 for one never heard of."""
        return (await self._known()).get(model, 1.0)

    async def observe(self, model: str, *, estimated: int, reported: int) -> None:
        """Learn from a request: its estimate (without factor) and what the provider counted."""
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
            logger.warning("the tokens of {} are not kept this time: {}", model, error)
        else:
            self._stored[model] = factor
