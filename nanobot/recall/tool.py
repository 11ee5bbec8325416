"""The ``recall`` tool: searches HISTORY.md and all that was said before."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from nanobot.core.errors import StoreUnavailable, ToolError
from nanobot.core.messages import Trust
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.recall.recall import MOST_HITS, Found
from nanobot.recall.values import Asker
from nanobot.session.log import LiveSession


class Searcher(Protocol):
    """What the tool needs of ``Recall``; raises StoreUnavailable when nothing can be searched."""

    async def search(self, query: str, *, asker: Asker, limit: int) -> Found: ...


class LiveSessions(Protocol):
    """What the tool needs of the session log: what of a session the model sees."""

    async def live(self, key: str) -> LiveSession: ...


class RecallArguments(ToolArguments):
    query: str = Field(min_length=1)
    limit: int = Field(default=MOST_HITS, ge=1, le=MOST_HITS)


class RecallTool(Tool[RecallArguments]):
    """Shows excerpts, best first; what is untrusted in them taints the turn.

    A guest finds what was said in their own session. What guests said is untrusted for the owner.
    """

    name = "recall"
    description = (
        "Search all past conversations and HISTORY.md; put names, dates and words likely used "
        "then into the query."
    )
    effect = Effect.READ
    arguments = RecallArguments

    def __init__(self, searcher: Searcher, sessions: LiveSessions) -> None:
        self._searcher = searcher
        self._sessions = sessions

    async def run(self, args: RecallArguments, context: ToolContext) -> ToolOutput:
        from nanobot.recall.results import page_text

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
        if not found.page.excerpts:
            return ToolOutput("Nothing was found; try other words, names, or a date.")
        text = page_text(found.page)
        if found.page.left_out:
            text += f"\n\n[{found.page.left_out} weaker matches are not shown]"
        trust = Trust.TRUSTED
        for excerpt in found.page.excerpts:
            trust = trust.joined(excerpt.trust)
        return ToolOutput(text, trust)
