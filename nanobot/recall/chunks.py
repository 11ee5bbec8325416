"""The sources of a search, and how their texts are cut into chunks."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path

from nanobot.store.home import Home


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of the index: itself, the state database and HISTORY.md.

    ``zone`` is the time zone of HISTORY.md's stamps; None: the machine's.
    """

    index: Path
    state: Path
    history: Path
    zone: tzinfo | None = None

    @classmethod
    def of(cls, home: Home, workspace: Path) -> Sources:
        """The sources of a home and its workspace."""
        return cls(home.recall_index, home.database, workspace / "memory" / "HISTORY.md")


@dataclass(frozen=True, slots=True)
class Indexed:
    """The number of chunks, sessions and paragraphs in the index."""

    chunks: int
    sessions: int
    paragraphs: int


@dataclass(frozen=True, slots=True)
class Asker:
    """The one who searches: in which session and turn, as owner or guest.

    ``live_from`` is the first entry of the session that the model still sees.
    """

    session: str = ""
    inbound_id: str = ""
    is_owner: bool = True
    live_from: int | None = None


LONGEST = 900
"""Most characters of a chunk."""
_PIECE = 600
"""Characters that a piece of a longer message should have."""
_MOST_PIECES = 400
"""Pieces of one message that are indexed: 240,000 characters, more than a person types."""

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(?::\d\d)?)?\]")
_BREAKS = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?…])\s|(?<=[。！？])"),
    re.compile(r"\s"),
)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One paragraph of HISTORY.md: ``at`` is its date, or that of the paragraph before it.

    ``digest`` is a hash of its words, its date and the number of equal paragraphs before it.
    """

    at: datetime | None
    text: str
    digest: str


def pieces(text: str) -> list[str]:
    """``text`` cut into pieces of at most ``LONGEST`` characters, at its best breaks."""
    found: list[str] = []
    rest = text.strip()
    while len(rest) > LONGEST and len(found) < _MOST_PIECES:
        cut = _cut(rest)
        found.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    if rest and len(found) < _MOST_PIECES:
        found.append(rest)
    return found


def _cut(text: str) -> int:
    """Where to end the first piece, at the best break near the usual size."""
    for pattern in _BREAKS:
        ends = [match.end() for match in pattern.finditer(text, _PIECE // 2, LONGEST)]
        if ends:
            return min(ends, key=lambda end: abs(end - _PIECE))
    return _PIECE


def paragraphs(text: str, zone: tzinfo | None) -> Iterator[Paragraph]:
    """The paragraphs of HISTORY.md; stamps are in the time zone ``zone``.

    A paragraph begins at a stamp, or behind a blank line; one without a stamp has the date of
    the paragraph before it. Headings alone say nothing and are left out.
    """
    seen: Counter[str] = Counter()
    at: datetime | None = None
    for block in re.split(r"\n\s*\n|\n(?=\[\d{4}-\d\d-\d\d)", text.replace("\r\n", "\n")):
        words = block.strip()
        stamp = _STAMP.match(words)
        if stamp is not None:
            with contextlib.suppress(ValueError, OverflowError):  # an impossible date
                moment = datetime.fromisoformat(f"{stamp[1]}T{stamp[2] or '00:00'}")
                at = moment.replace(tzinfo=zone) if zone else moment.astimezone()
            words = words[stamp.end() :].strip()
        if not words or re.fullmatch(r"#+ .*", words):
            continue
        name = f"{at.isoformat() if at else ''}\n{words}"
        seen[name] += 1
        digest = hashlib.blake2b(f"{seen[name]}\n{name}".encode(), digest_size=12).hexdigest()
        yield Paragraph(at, words, digest)
