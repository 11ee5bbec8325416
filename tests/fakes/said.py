"""A home's log and HISTORY.md for what searches them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nanobot.core.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from nanobot.core.messages import Trust
from nanobot.recall.chunks import Asker, Sources
from nanobot.recall.tool import Recall, results_text
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import append_in
from nanobot.store.database import Database

NOW = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
OWNER, GUEST = "owner:cli:owner", "guest:telegram:9"


@dataclass(slots=True)
class Past:
    """What was said in one home; ``recall`` searches it as of ``NOW``."""

    folder: Path
    database: Database

    @property
    def sources(self) -> Sources:
        folder = self.folder
        return Sources(folder / "recall.db", folder / "state.db", folder / "HISTORY.md", UTC)

    @property
    def recall(self) -> Recall:
        return Recall(self.sources, lambda: NOW)

    async def say(
        self,
        text: str,
        *,
        session: str = "cli:direct",
        by: str = "user",
        days_ago: float = 100,
        principal: str = OWNER,
        trust: Trust = Trust.TRUSTED,
        inbound_id: str = "earlier",
    ) -> int:
        """Append a message; returns its number in the log."""
        kind = {"user": EntryKind.USER, "assistant": EntryKind.ASSISTANT}.get(by, EntryKind.TOOL)
        message: ChatMessage = ToolMessage("1", "message", "Sent.")
        if by in ("user", "assistant"):
            message = UserMessage(text) if by == "user" else AssistantMessage(text)
        draft = Draft(
            kind=kind,
            message=message,
            inbound_id=inbound_id,
            principal=principal,
            trust=trust,
            delivered=text if kind is EntryKind.TOOL else "",
        )
        at = NOW - timedelta(days=days_ago)
        (entry,) = await self.database.write(
            lambda connection: append_in(connection, session, [draft], at)
        )
        return entry.seq

    async def delete(self, session: str) -> None:
        """Delete a session as ``nanobot sessions delete`` does."""
        await self.database.write(
            lambda connection: (
                connection.execute("DELETE FROM log WHERE session = ?", (session,)),
                connection.execute("DELETE FROM session WHERE key = ?", (session,)),
            )
        )

    def write_history(self, text: str) -> None:
        """Write HISTORY.md as an editor does."""
        self.sources.history.write_text(text, encoding="utf-8")

    async def texts(self, query: str, asker: Asker = Asker()) -> list[str]:
        """The texts of the hits, best first."""
        found = await self.recall.search(query, asker=asker)
        return [hit.chunk.text for hit in found.hits]

    async def results(self, query: str, asker: Asker = Asker()) -> str:
        """The results of a search, as a model reads it."""
        found = await self.recall.search(query, asker=asker)
        return results_text(found.results, zone=UTC)
