"""What waits in a box of the bus, taken up in order and no more of it at once than fits a bound."""

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
    """Decides for each row whether it is taken up now, or later with its page from the disk.

    There is one for each session of the inbox and each chat of an outbox, so that none keeps
    another waiting, and one reader at a time. While fewer than ``limit`` rows are held, a new row
    is taken up as it comes. Beyond that rows stay on the disk and are read in pages once half of
    the bound is free again, so that memory is bounded and the order is kept. Rows have to be
    announced in the order of their numbers.
    """

    def __init__(
        self,
        read: Callable[[int, int], Awaitable[Sequence[RowT]]],
        take: Callable[[RowT], Awaitable[None]],
        held: Callable[[], int],
        *,
        limit: int,
    ) -> None:
        """``read(after, limit)``: a page of rows past ``after``; ``held()``: how many are taken."""
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
        """Whether rows may wait on the disk that are not taken up."""
        return self._is_behind

    def recover(self) -> asyncio.Task[None]:
        """Take up what is in the box, up to the bound; the task ends once that is done.

        Rows announced from now on keep their order. Call once, before any row is announced.
        """
        self._is_behind = True
        self._loading = asyncio.create_task(self._load(), name="backlog")
        return self._loading

    def admits(self, row: RowT) -> bool:
        """Whether a row just stored is taken up by the caller, now."""
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
        """Something taken up is done with: go on reading when there is room."""
        is_idle = self._loading is None or self._loading.done()
        if self._is_behind and is_idle and self._held() <= self._limit // 2:
            self._loading = asyncio.create_task(self._insist(), name="backlog")

    async def close(self) -> None:
        """Read no more."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading})

    async def _insist(self) -> None:
        while True:
            try:
                await self._load()
                return
            except StoreError as error:
                logger.error("what waits on the disk cannot be read: {}", error)
            except Exception:
                logger.exception("taking up what waits on the disk failed")
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
