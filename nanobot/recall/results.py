"""What a search found as a page: excerpts, best first, each with its date and source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from nanobot.core.messages import Trust
from nanobot.core.text import fence, one_line
from nanobot.recall.search import Hit, Passage

HISTORY_NAME = "HISTORY.md"
_WITH_NEIGHBOURS = 2
_HEAD, _FENCE = 14, 24
"""Tokens of an excerpt's heading, and of the marks round what is untrusted."""
_NEIGHBOURLY = 80
"""The first hits are shown with the messages beside them, where these have so few tokens."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Passages that follow each other in one source, the oldest first.

    ``hits`` are the ids of those that were found for themselves; ``source`` is ``HISTORY.md`` or
    the session's key; ``guest``: somebody else than the owner, who asks, took part.
    """

    passages: tuple[Passage, ...]
    hits: frozenset[int]
    score: float
    guest: bool

    @property
    def source(self) -> str:
        first = self.passages[0]
        return HISTORY_NAME if first.is_history else first.session

    @property
    def at(self) -> datetime | None:
        return self.passages[0].at

    @property
    def trust(self) -> Trust:
        """Untrusted where a passage is, and what somebody else said is for the owner."""
        doubtful = self.guest or any(passage.untrusted for passage in self.passages)
        return Trust.UNTRUSTED if doubtful else Trust.TRUSTED


@dataclass(frozen=True, slots=True)
class Page:
    """The excerpts that fit, best first, and how many passages found are not among them."""

    excerpts: tuple[Excerpt, ...]
    left_out: int


@dataclass(slots=True)
class _Draft:
    """An excerpt in the making."""

    passages: list[Passage]
    hits: set[int]
    score: float


def compose(hits: Sequence[Hit], *, tokens: int, limit: int, for_owner: bool = True) -> Page:
    """Fill ``tokens`` with the best of at most ``limit`` hits, neighbours joined to one excerpt."""
    drafts: list[_Draft] = []
    shown: dict[int, _Draft] = {}
    room = float(tokens)
    count = 0
    for place, hit in enumerate(hits):
        if count >= limit or room < 20:
            break
        passage = hit.passage
        if passage.id in shown:
            shown[passage.id].hits.add(passage.id)
            count += 1
            continue
        beside = [one for one in (hit.before, hit.after) if one is not None]
        wanted = [passage]
        if place < _WITH_NEIGHBOURS:
            wanted += [one for one in beside if _cost([one]) <= _NEIGHBOURLY]
        wanted = [one for one in wanted if one.id not in shown]
        draft = next((shown[one.id] for one in beside if one.id in shown), None)
        cost = _cost(wanted)
        if draft is None:
            cost += _HEAD + (_FENCE if passage.untrusted or passage.guest else 0)
        if cost > room:
            continue
        if draft is None:
            draft = _Draft([], set(), hit.score)
            drafts.append(draft)
        draft.passages += wanted
        draft.hits.add(passage.id)
        shown.update((one.id, draft) for one in wanted)
        room -= cost
        count += 1
    excerpts = tuple(
        Excerpt(
            tuple(sorted(one.passages, key=lambda p: (p.seq, p.part))),
            frozenset(one.hits),
            one.score,
            for_owner and any(passage.guest for passage in one.passages),
        )
        for one in drafts
    )
    return Page(excerpts, len(hits) - count)


def _cost(passages: Iterable[Passage]) -> float:
    return sum(token_estimate(one.text) + 3 for one in passages)


def token_estimate(text: str) -> float:
    """Tokens of a text, offline: a quarter of one an ASCII character, one any other."""
    if text.isascii():
        return len(text) / 4
    wide = sum(character > "\u007f" for character in text)
    return (len(text) - wide) / 4 + wide


def page_text(page: Page, *, zone: tzinfo | None = None, fenced: bool = True) -> str:
    """The page, dates in ``zone``; what is untrusted stands between marks (when ``fenced``)."""
    blocks = [_excerpt_text(excerpt, zone, fenced) for excerpt in page.excerpts]
    return "\n\n".join(blocks)


def _excerpt_text(excerpt: Excerpt, zone: tzinfo | None, fenced: bool) -> str:
    head = heading(excerpt, zone)
    body = excerpt_body(excerpt)
    if fenced and excerpt.trust is Trust.UNTRUSTED:
        return fence(body, source=head)
    return f"[{head}] {body}"


def heading(excerpt: Excerpt, zone: tzinfo | None) -> str:
    """Date, time and source of an excerpt in a line."""
    when = f"{excerpt.at.astimezone(zone):%Y-%m-%d %H:%M} " if excerpt.at else ""
    guest = ", a guest's" if excerpt.guest else ""
    return f"{when}{one_line(excerpt.source, 120)}{guest}"


def excerpt_body(excerpt: Excerpt) -> str:
    """The words of an excerpt, each message under its speaker."""
    lines: list[str] = []
    last: Passage | None = None
    for passage in excerpt.passages:
        same = last is not None and (last.session, last.seq) == (passage.session, passage.seq)
        if same or not passage.speaker:
            lines.append(passage.text)
        else:
            lines.append(f"{passage.name or passage.speaker}: {passage.text}")
        last = passage
    return "\n".join(lines)
