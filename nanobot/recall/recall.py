"""Recall: what a search finds for one who asks, as a page of excerpts."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from loguru import logger

from nanobot.core.errors import StoreUnavailable
from nanobot.core.ports import Clock
from nanobot.recall.values import Asker, Indexed, Sources

if TYPE_CHECKING:
    from nanobot.recall.index import RecallIndex
    from nanobot.recall.results import Page
    from nanobot.recall.search import Hit

TOKENS = 3900
"""Tokens of a page, so that it stays under what a tool's result may have."""
MOST_HITS = 100
_PAUSE_S = 0.02
_ROUND_S = 600.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: the page, and every hit, best first."""

    page: Page
    hits: tuple[Hit, ...]


class Recall:
    """Searches HISTORY.md and every session, on threads of their own.

    What it searches with is imported then: most processes end without a search.
    """

    def __init__(self, sources: Sources, clock: Clock) -> None:
        self._sources = sources
        self._zone = sources.zone
        self._clock = clock

    async def search(
        self, query: str, *, asker: Asker = Asker(), limit: int = MOST_HITS, tokens: int = TOKENS
    ) -> Found:
        """What ``asker`` may find, at most ``limit`` hits on at most about ``tokens`` tokens.

        Raises StoreUnavailable when the index can be neither read nor made.
        """
        return await asyncio.to_thread(self.search_now, query, asker, limit, tokens)

    def search_now(
        self, query: str, asker: Asker = Asker(), limit: int = MOST_HITS, tokens: int = TOKENS
    ) -> Found:
        """``search``, blocking."""
        from nanobot.recall.results import compose
        from nanobot.recall.search import search

        now = self._clock().astimezone(self._zone)

        def find(connection: sqlite3.Connection) -> tuple[Hit, ...]:
            return search(connection, query, asker=asker, now=now)

        hits = self._index.search(find)
        return Found(compose(hits, tokens=tokens, limit=limit, for_owner=asker.is_owner), hits)

    async def catch_up(self) -> None:
        """Take in what is new, in steps that leave others room. Raises StoreUnavailable."""
        await asyncio.to_thread(lambda: self._index.catch_up(pause=lambda: time.sleep(_PAUSE_S)))

    async def keep_up(self) -> None:
        """Take in what is new once in a while until cancelled, so that no search has much to do."""
        while True:
            try:
                await self.catch_up()
            except StoreUnavailable as error:
                logger.warning("the search index is not up to date: {}", error)
            await asyncio.sleep(_ROUND_S)

    async def rebuild(self) -> Indexed:
        """Make the index anew. Raises StoreUnavailable."""
        return await asyncio.to_thread(lambda: self._index.rebuild())

    async def forget(self, session: str) -> None:
        """Remove a session that was deleted from the index file. Raises StoreUnavailable."""
        await asyncio.to_thread(lambda: self._index.forget(session))

    @cached_property
    def _index(self) -> RecallIndex:
        from nanobot.recall.index import RecallIndex

        return RecallIndex(self._sources)
