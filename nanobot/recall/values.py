"""What a search is asked with and made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

from nanobot.store.home import Home


@dataclass(frozen=True, slots=True)
class Sources:
    """What the index is made of and where it is; ``zone`` is that of HISTORY.md's stamps.

    Without ``zone`` it is the machine's.
    """

    index: Path
    state: Path
    history: Path
    zone: tzinfo | None = None

    @classmethod
    def of(cls, home: Home, workspace: Path) -> Sources:
        """Those of a home and its workspace."""
        return cls(home.recall_index, home.database, workspace / "memory" / "HISTORY.md")


@dataclass(frozen=True, slots=True)
class Indexed:
    """How much the index holds."""

    passages: int
    sessions: int
    paragraphs: int


@dataclass(frozen=True, slots=True)
class Asker:
    """Who searches: from which ``session``, in the turn of ``inbound_id``, as owner or guest.

    ``live_from`` is where the part of that session begins which the model still sees.
    """

    session: str = ""
    inbound_id: str = ""
    is_owner: bool = True
    live_from: int | None = None
