"""What every generator makes: dated messages, and questions with the words that answer them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a session, or with ``session`` "" an entry of HISTORY.md."""

    session: str
    speaker: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A question; ``evidence`` are the sentences that have to be shown, word for word."""

    text: str
    kind: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class World:
    """All that was said, oldest first, what is asked about it, and when that is asked."""

    name: str
    said: tuple[Said, ...]
    asked: tuple[Asked, ...]
    now: datetime
