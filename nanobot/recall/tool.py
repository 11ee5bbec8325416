"""The recall tool: searches past conversations and shows what it found as excerpts."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING

from loguru import logger
from pydantic import Field

from nanobot.core.errors import StoreUnavailable, ToolError
from nanobot.core.messages import Trust
from nanobot.core.ports import Clock
from nanobot.core.text import fence, one_line
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.recall.chunks import Asker, Indexed, Sources
from nanobot.session.log import SessionLog

if TYPE_CHECKING:
    from nanobot.recall.index import RecallIndex
    from nanobot.recall.search import Chunk, Hit


HISTORY_NAME = "HISTORY.md"
_WITH_NEIGHBOURS = 2
_HEAD, _FENCE = 14, 24
"""Tokens of an excerpt's heading, and of the marks round what is untrusted."""
_NEIGHBOURLY = 80
"""The first hits are shown with the messages beside them, where these have so few tokens."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Chunks that follow each other in one source, the oldest first.

    ``hits`` are the ids of those that were found for themselves; ``source`` is ``HISTORY.md`` or
    the session's key; ``guest``: somebody else than the owner, who asks, took part.
    """

    chunks: tuple[Chunk, ...]
    hits: frozenset[int]
    score: float
    guest: bool

    @property
    def source(self) -> str:
        first = self.chunks[0]
        return HISTORY_NAME if first.is_history else first.session

    @property
    def at(self) -> datetime | None:
        return self.chunks[0].at

    @property
    def trust(self) -> Trust:
        """Untrusted where a chunk is, and what somebody else said is for the owner."""
        doubtful = self.guest or any(chunk.untrusted for chunk in self.chunks)
        return Trust.UNTRUSTED if doubtful else Trust.TRUSTED


@dataclass(frozen=True, slots=True)
class Results:
    """The excerpts that fit, best first, and how many chunks found are not among them."""

    excerpts: tuple[Excerpt, ...]
    left_out: int


@dataclass(slots=True)
class _Draft:
    """An excerpt in the making."""

    chunks: list[Chunk]
    hits: set[int]
    score: float


def as_results(hits: Sequence[Hit], *, tokens: int, limit: int, for_owner: bool = True) -> Results:
    """Fill ``tokens`` with the best of at most ``limit`` hits, neighbours joined to one excerpt."""
    drafts: list[_Draft] = []
    shown: dict[int, _Draft] = {}
    room = float(tokens)
    count = 0
    for place, hit in enumerate(hits):
        if count >= limit or room < 20:
            break
        chunk = hit.chunk
        if chunk.id in shown:
            shown[chunk.id].hits.add(chunk.id)
            count += 1
            continue
        beside = [one for one in (hit.before, hit.after) if one is not None]
        wanted = [chunk]
        if place < _WITH_NEIGHBOURS:
            wanted += [one for one in beside if _cost([one]) <= _NEIGHBOURLY]
        wanted = [one for one in wanted if one.id not in shown]
        draft = next((shown[one.id] for one in beside if one.id in shown), None)
        cost = _cost(wanted)
        if draft is None:
            cost += _HEAD + (_FENCE if chunk.untrusted or chunk.guest else 0)
        if cost > room:
            continue
        if draft is None:
            draft = _Draft([], set(), hit.score)
            drafts.append(draft)
        draft.chunks += wanted
        draft.hits.add(chunk.id)
        shown.update((one.id, draft) for one in wanted)
        room -= cost
        count += 1
    excerpts = tuple(
        Excerpt(
            tuple(sorted(one.chunks, key=lambda p: (p.seq, p.part))),
            frozenset(one.hits),
            one.score,
            for_owner and any(chunk.guest for chunk in one.chunks),
        )
        for one in drafts
    )
    return Results(excerpts, len(hits) - count)


def _cost(chunks: Iterable[Chunk]) -> float:
    return sum(token_estimate(one.text) + 3 for one in chunks)


def token_estimate(text: str) -> float:
    """Tokens of a text, offline: a quarter of one an ASCII character, one any other."""
    if text.isascii():
        return len(text) / 4
    wide = sum(character > "\u007f" for character in text)
    return (len(text) - wide) / 4 + wide


def results_text(results: Results, *, zone: tzinfo | None = None) -> str:
    """The results as the model reads them, dates in ``zone``, untrusted excerpts between marks."""
    blocks: list[str] = []
    for excerpt in results.excerpts:
        head, body = heading(excerpt, zone), excerpt_body(excerpt)
        is_fenced = excerpt.trust is Trust.UNTRUSTED
        blocks.append(fence(body, source=head) if is_fenced else f"[{head}] {body}")
    return "\n\n".join(blocks)


def heading(excerpt: Excerpt, zone: tzinfo | None) -> str:
    """Date, time and source of an excerpt in a line."""
    when = f"{excerpt.at.astimezone(zone):%Y-%m-%d %H:%M} " if excerpt.at else ""
    guest = ", a guest's" if excerpt.guest else ""
    return f"{when}{one_line(excerpt.source, 120)}{guest}"


def excerpt_body(excerpt: Excerpt) -> str:
    """The words of an excerpt, each message under its speaker."""
    lines: list[str] = []
    last: Chunk | None = None
    for chunk in excerpt.chunks:
        same = last is not None and (last.session, last.seq) == (chunk.session, chunk.seq)
        if same or not chunk.speaker:
            lines.append(chunk.text)
        else:
            lines.append(f"{chunk.name or chunk.speaker}: {chunk.text}")
        last = chunk
    return "\n".join(lines)


TOKENS = 3900
"""Tokens of the results shown, so that it stays under what a tool's result may have."""
MOST_HITS = 100
_PAUSE_S = 0.02
_ROUND_S = 600.0


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search: the results that fit, and every hit, best first."""

    results: Results
    hits: tuple[Hit, ...]


class Recall:
    """Searches HISTORY.md and every session, on threads of their own.

    The index and the search are imported on first use: most processes never search.
    """

    def __init__(self, sources: Sources, clock: Clock) -> None:
        self._sources = sources
        self._zone = sources.zone
        self._clock = clock

    async def search(
        self, query: str, *, asker: Asker = Asker(), limit: int = MOST_HITS, tokens: int = TOKENS
    ) -> Found:
        """Search what ``asker`` may see: at most ``limit`` hits in about ``tokens`` tokens.

        Raises StoreUnavailable when the index can be neither read nor made.
        """
        return await asyncio.to_thread(self.search_now, query, asker, limit, tokens)

    def search_now(
        self, query: str, asker: Asker = Asker(), limit: int = MOST_HITS, tokens: int = TOKENS
    ) -> Found:
        """``search``, blocking."""
        from nanobot.recall.search import search

        now = self._clock().astimezone(self._zone)

        def find(connection: sqlite3.Connection) -> tuple[Hit, ...]:
            return search(connection, query, asker=asker, now=now)

        hits = self._index.search(find)
        return Found(as_results(hits, tokens=tokens, limit=limit, for_owner=asker.is_owner), hits)

    async def catch_up(self) -> None:
        """Index what is new, with pauses for other work. Raises StoreUnavailable."""
        await asyncio.to_thread(lambda: self._index.catch_up(pause=lambda: time.sleep(_PAUSE_S)))

    async def keep_up(self) -> None:
        """Index what is new every ten minutes until cancelled, so that searches start at once."""
        while True:
            try:
                await self.catch_up()
            except StoreUnavailable as error:
                logger.warning("the search index is not up to date: {}", error)
            await asyncio.sleep(_ROUND_S)

    async def rebuild(self) -> Indexed:
        """Rebuild the index. Raises StoreUnavailable."""
        return await asyncio.to_thread(lambda: self._index.rebuild())

    async def forget(self, session: str) -> None:
        """Remove a session that was deleted from the index file. Raises StoreUnavailable."""
        await asyncio.to_thread(lambda: self._index.forget(session))

    @cached_property
    def _index(self) -> RecallIndex:
        from nanobot.recall.index import RecallIndex

        return RecallIndex(self._sources)


class RecallArguments(ToolArguments):
    query: str = Field(min_length=1)
    limit: int = Field(default=MOST_HITS, ge=1, le=MOST_HITS)


class RecallTool(Tool[RecallArguments]):
    """Shows excerpts, best first; an untrusted excerpt taints the turn.

    Guests find only their own session. For the owner, guests' words are untrusted.
    """

    name = "recall"
    description = (
        "Search all past conversations and HISTORY.md; put names, dates and words likely used "
        "then into the query."
    )
    effect = Effect.READ
    arguments = RecallArguments

    def __init__(self, searcher: Recall, sessions: SessionLog) -> None:
        self._searcher = searcher
        self._sessions = sessions

    async def run(self, args: RecallArguments, context: ToolContext) -> ToolOutput:
        live = await self._sessions.live(context.session_key)
        asker = Asker(
            session=context.session_key,
            inbound_id=context.inbound_id,
            is_owner=context.principal.is_owner,
            live_from=min((entry.seq for entry in live.entries), default=None),
        )
        try:
            found = await self._searcher.search(args.query, asker=asker, limit=args.limit)
        except StoreUnavailable as error:
            raise ToolError(f"What was said before cannot be searched now: {error}") from error
        if not found.results.excerpts:
            return ToolOutput("Nothing was found; try other words, names, or a date.")
        text = results_text(found.results)
        if found.results.left_out:
            text += f"\n\n[{found.results.left_out} weaker matches are not shown]"
        trust = Trust.TRUSTED
        for excerpt in found.results.excerpts:
            trust = trust.joined(excerpt.trust)
        return ToolOutput(text, trust)
