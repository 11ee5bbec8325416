"""The real state database on a disk that fails when a test says so."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nanobot.core.errors import StoreUnavailable
from nanobot.store.database import Database

T = TypeVar("T")


class FailingDatabase(Database):
    """``fail_at`` numbers the writes (from 1) that fail; ``full`` makes all of them fail.

    A write that fails changes nothing, as on a full disk.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes = 0
        self.failures = 0
        self.fail_at: frozenset[int] = frozenset()
        self.full = False
        self._failed = asyncio.Condition()

    async def write(
        self, function: Callable[[sqlite3.Connection], T], *, durable: bool = False
    ) -> T:
        """Write, or raise StoreUnavailable."""
        self.writes += 1
        await asyncio.sleep(0)  # as a real write, it lets others run
        if self.full or self.writes in self.fail_at:
            self.failures += 1
            async with self._failed:
                self._failed.notify_all()
            raise StoreUnavailable("the disk is full, as the test wants it")
        return await super().write(function, durable=durable)

    async def has_failed(self, times: int) -> None:
        """Return once so many writes have failed; raises TimeoutError."""
        async with asyncio.timeout(20), self._failed:
            await self._failed.wait_for(lambda: self.failures >= times)
