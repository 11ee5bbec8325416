"""Backlog: loads waiting rows of the inbox or outbox in order, within a bound on memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from loguru import logger

from nanobot.core.errors import StoreError

PAGE = 200
RETRY_S = 5.0


class Numbered(Protocol):
    """A row; ``seq`` grows with time, unless it was ``retried`` after having been settled."""

    @property
    def seq(self) -> int: ...

    @property
    def retried(self) -> bool: ...


RowT = TypeVar("RowT", bound=Numbered)


class Backlog(Generic[RowT]):
    """Decides for each row whether it is worked on now, or read from the store later.

    Each session of the inbox and each chat of the outbox has its own backlog with one reader
    task, so that none delays another. While fewer than ``limit`` rows are in memory, a new row is
    admitted at once. Further rows stay in the store and are read in pages once half of the limit
    is free again; the order is kept. Rows must be announced in the order of their numbers.
    """

    def __init__(
        self,
        read: Callable[[int, int], Awaitable[Sequence[RowT]]],
        take: Callable[[RowT], Awaitable[None]],
        held: Callable[[], int],
        *,
        limit: int,
    ) -> None:
        """``read(after, limit)`` returns rows past ``after``; ``take`` receives each row that was
        read; ``held()`` is the number of rows in memory.
        """
        self._read = read
        self._take = take
        self._held = held
        self._limit = limit
        self._cursor = 0
        self._is_behind = False
        self._came_meanwhile = False
        self._loading: asyncio.Task[None] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether rows may wait in the store that are not in memory."""
        return self._is_behind

    def recover(self) -> asyncio.Task[None]:
        """Load the rows that are in the store, up to the limit; the task ends when it is done.

        Rows announced from now on keep their order. Call once, before any row is announced.
        """
        self._is_behind = True
        self._loading = asyncio.create_task(self._load(), name="backlog")
        return self._loading

    def admits(self, row: RowT) -> bool:
        """Whether the caller works on a row just stored now; if not, it is read later."""
        seq = row.seq
        if row.retried:
            return not self._is_behind or seq <= self._cursor
        if seq <= self._cursor:
            return False  # it came with its page
        if self._is_behind:
            self._came_meanwhile = True
            return False
        if self._held() >= self._limit:
            self._is_behind = True
            self._cursor = seq - 1
            return False
        return True

    def released(self) -> None:
        """Note that a row is done: read on if there is room."""
        is_idle = self._loading is None or self._loading.done()
        if self._is_behind and is_idle and self._held() <= self._limit // 2:
            self._loading = asyncio.create_task(self._load_with_retry(), name="backlog")

    async def close(self) -> None:
        """Stop reading."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading})

    async def _load_with_retry(self) -> None:
        while True:
            try:
                await self._load()
                return
            except StoreError as error:
                logger.error("waiting rows cannot be read: {}", error)
            except Exception:
                logger.exception("loading waiting rows failed")
            await asyncio.sleep(RETRY_S)

    async def _load(self) -> None:
        while self._is_behind and (room := self._limit - self._held()) > 0:
            self._came_meanwhile = False
            page = await self._read(self._cursor, min(room, PAGE))
            for row in page:
                self._cursor = row.seq
                await self._take(row)
            if not page and not self._came_meanwhile:
                self._is_behind = False
