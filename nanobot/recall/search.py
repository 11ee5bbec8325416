"""Searches the index: BM25 in SQLite finds candidates, a second pass ranks them."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from itertools import islice
from typing import Any, TypeAlias

from nanobot.recall.chunks import Asker
from nanobot.recall.index import HISTORY
from nanobot.recall.query import Question, read_question
from nanobot.recall.terms import folded, terms

_RANKED, CANDIDATES = 1200, 300
"""Chunks that the first pass looks through, and how many of them are weighed."""
_MOST_ALIKE = 20
"""Of those, how many may differ in figures alone."""
_EXPANDED = 40
"""How many of the best have their neighbours looked at, too."""
_IN_SPAN = 150
_MOST_HITS = 200
_TOGETHER_S = 6 * 3600.0
"""Messages of one session further apart than this are of two conversations."""

_K1, _B = 1.2, 0.5
_NAMED = re.compile(r"([A-Z][^\W\d_]{1,20}(?: [A-Z][^\W\d_]{1,20})?): ")
"""How transcripts name who speaks."""
_BY, _BY_ONE = 0.7, 1.4
"""A speaker match counts less than a mention; a speaker's own words count more."""
_OF_ONESELF, _OF_THE_ANSWER = 1.7, 1.15
"""Factors for the user's own messages, and for the assistant's, where the question is of them."""
_NEXT, _SECOND = 0.3, 0.1
"""Share of a neighbour's score that counts for a chunk: of the next, and the one after it."""
_FIGURES = re.compile(r"\d+")
_REPEATED = 0.7
"""Factor for each further message that differs in figures alone."""
_FIGURE = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|dozen|half|twice|hundred|"
    r"thousand|couple|second|third|once)\b|[一二三四五六七八九十百千万两]",
    re.IGNORECASE,
)
_MOMENT = re.compile(
    r"\d|\b(?:yesterday|today|tomorrow|tonight|morning|evening|ago|since|last|next|week(?:end)?|"
    r"month|year|(?:mon|tues|wednes|thurs|fri|satur|sun)day|"
    r"january|february|march|april|may|june|july|august|september|october|november|december)\b"
    r"|[昨今明去]|[年月日周週]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of what was said; ``at`` is None only in a HISTORY.md without dates.

    ``speaker`` is ``user``, ``assistant`` or, in HISTORY.md, ""; ``name`` is the user's, if known.
    """

    id: int
    session: str
    seq: int
    part: int
    speaker: str
    name: str
    at: datetime | None
    untrusted: bool
    guest: bool
    inbound_id: str
    text: str

    @property
    def is_history(self) -> bool:
        return self.session == HISTORY


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk with those right before and behind it, as far as they were looked for.

    ``score`` only compares hits of one search.
    """

    chunk: Chunk
    score: float
    before: Chunk | None = None
    after: Chunk | None = None


_COLUMNS = "id, session, seq, part, speaker, name, at, untrusted, guest, inbound_id, text"


def search(
    connection: sqlite3.Connection, query: str, *, asker: Asker, now: datetime
) -> tuple[Hit, ...]:
    """The chunks that may answer ``query``, best first; ``now`` is in the asker's zone."""
    question = read_question(connection, query, now)
    found = _candidates(connection, question, asker)
    if not found:
        return ()
    said = {one.id: _said(one, question) for one in found.values()}
    # In rough order, so that only the neighbours of the better ones are fetched.
    order = sorted(found.values(), key=lambda one: -sum(said[one.id]))
    near = _with_neighbours(connection, order[:_EXPANDED], found, asker)
    for chunk in found.values():
        if chunk.id not in said:
            said[chunk.id] = _said(chunk, question)
    newest = max((one.at for one in found.values() if one.at), default=now)
    hits = [
        Hit(
            one,
            _score(one, question, said, near.get(one.id, _ALONE), asker, newest),
            *near.get(one.id, _ALONE)[1:3],
        )
        for one in found.values()
    ]
    hits.sort(key=lambda hit: (-hit.score, -hit.chunk.id))
    return _without_repetitions(hit for hit in hits[:_MOST_HITS] if hit.score > 0)


def _candidates(
    connection: sqlite3.Connection, question: Question, asker: Asker
) -> dict[int, Chunk]:
    rows: list[tuple[object, ...]] = []
    allowed, values = _allowed(asker)
    if question.match:
        ranked = connection.execute(
            f"SELECT {_COLUMNS}, words.rank FROM words JOIN chunk ON chunk.id = words.rowid "
            f"WHERE words MATCH ? AND {allowed} ORDER BY words.rank LIMIT {_RANKED}",
            (question.match, *values),
        ).fetchall()
        if question.about_asker:
            # Long answers, which repeat the words of their subject, must not take all the places.
            ranked.sort(key=lambda row: row[-1] * (_OF_ONESELF if row[4] == "user" else 1))
        rows += islice(_varied(ranked), CANDIDATES)
    for span in question.spans:
        first = datetime.combine(span.first, time(), question.zone).timestamp()
        rows += connection.execute(
            f"SELECT {_COLUMNS} FROM chunk WHERE at >= ? AND at < ? AND {allowed} "
            f"ORDER BY at DESC LIMIT {_IN_SPAN}",
            (first, first + span.days * 86400, *values),
        )
    return {one.id: one for one in map(_chunk, rows)}


def _varied(ranked: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The rows without their rank; of those that say the same, only the first."""
    seen: set[str] = set()
    forms: Counter[str] = Counter()
    for *row, _ in ranked:
        form = _FIGURES.sub("0", row[-1])
        forms[form] += 1
        if row[-1] not in seen and forms[form] <= _MOST_ALIKE:
            seen.add(row[-1])
            yield tuple(row)


def _allowed(asker: Asker) -> tuple[str, tuple[str, ...]]:
    """What the asker may find: never the turn's own words, a guest their own session alone."""
    condition = "(chunk.inbound_id <> ? OR chunk.inbound_id = '')"
    if asker.is_owner:
        return condition, (asker.inbound_id,)
    return f"{condition} AND chunk.session = ?", (asker.inbound_id, asker.session)


def _chunk(row: Sequence[Any]) -> Chunk:
    id_, session, seq, part, speaker, name, at, untrusted, guest, inbound_id, text = row
    moment = None if at is None else datetime.fromtimestamp(at, UTC)
    return Chunk(
        *(id_, session, seq, part, speaker, name, moment),
        *(bool(untrusted), bool(guest), inbound_id, text),
    )


def _said(chunk: Chunk, question: Question) -> tuple[float, ...]:
    """How much a chunk says of each concept (BM25), nearness included."""
    speaker, words = chunk.name, chunk.text
    if named := _NAMED.match(words):
        speaker, words = f"{chunk.name} {named[1]}", words[named.end() :]
    by = frozenset(terms(speaker)) if speaker else frozenset()
    found = terms(words)
    counts = Counter(found)
    length = 1 - _B + _B * len(found) / question.average
    said: list[float] = []
    is_by_one = False
    for concept in question.concepts:
        best = 0.0
        for term, weight in concept.variants.items():
            if count := counts.get(term, 0):
                best = max(best, weight * count * (_K1 + 1) / (count + _K1 * length))
            if term in by:
                is_by_one = True
                best = max(best, weight * _BY)
        said.append(best)
    for place in range(len(question.concepts) - 1):
        if said[place] and said[place + 1] and _are_near(found, question, place):
            said[place] *= 1.2
            said[place + 1] *= 1.2
    return tuple(amount * _BY_ONE for amount in said) if is_by_one else tuple(said)


def _are_near(found: Sequence[str], question: Question, place: int) -> bool:
    """Whether two concepts that follow each other in the question do so in a text."""
    first, second = question.concepts[place].variants, question.concepts[place + 1].variants
    last = -10
    for position, term in enumerate(found):
        if term in second and position - last <= 3:
            return True
        if term in first:
            last = position
    return False


_Near: TypeAlias = tuple[Chunk | None, Chunk | None, Chunk | None, Chunk | None]
"""The second before, the one before, the one after and the second after a chunk."""
_ALONE: _Near = (None, None, None, None)


def _with_neighbours(
    connection: sqlite3.Connection,
    chunks: Iterable[Chunk],
    found: dict[int, Chunk],
    asker: Asker,
) -> dict[int, _Near]:
    """Add the neighbours of ``chunks`` to ``found``; returns whose neighbours are which."""
    near: dict[int, _Near] = {}
    for chunk in chunks:
        if chunk.is_history:
            continue
        before = _beside(connection, chunk, False, asker)
        after = _beside(connection, chunk, True, asker)
        row = (*(None,) * (2 - len(before)), *reversed(before), chunk)
        row = (*row, *after, *(None,) * (2 - len(after)))
        near[chunk.id] = (row[0], row[1], row[3], row[4])
        for place, one in enumerate(row):
            if one is not None and one.id not in found:
                found[one.id] = one
                # Of what is only a neighbour, half the surroundings are known.
                wide = (None, None, *row, None, None)
                known = near.get(one.id, _ALONE)
                seen = (wide[place], wide[place + 1], wide[place + 3], wide[place + 4])
                near[one.id] = (
                    *(known[0] or seen[0], known[1] or seen[1]),
                    *(known[2] or seen[2], known[3] or seen[3]),
                )
    return near


def _beside(connection: sqlite3.Connection, chunk: Chunk, ahead: bool, asker: Asker) -> list[Chunk]:
    """The two chunks before or behind one in its conversation, the nearest first."""
    sign, order = (">", "ASC") if ahead else ("<", "DESC")
    allowed, values = _allowed(asker)
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM chunk WHERE session = ? AND (seq, part) {sign} (?, ?) "
        f"AND {allowed} ORDER BY seq {order}, part {order} LIMIT 2",
        (chunk.session, chunk.seq, chunk.part, *values),
    )
    beside = map(_chunk, rows)
    return [one for one in beside if are_together(one, chunk)]


def are_together(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks of a session are of one conversation."""
    if one.at is None or other.at is None:
        return False
    return abs((one.at - other.at).total_seconds()) <= _TOGETHER_S


def _score(
    chunk: Chunk,
    question: Question,
    said: dict[int, tuple[float, ...]],
    near: _Near,
    asker: Asker,
    newest: datetime,
) -> float:
    together = list(said[chunk.id])
    for neighbour, share in zip(near, (_SECOND, _NEXT, _NEXT, _SECOND), strict=True):
        for place, amount in enumerate(said[neighbour.id] if neighbour else ()):
            together[place] = max(together[place], amount * share)
    total = sum(together)
    possible = sum(concept.weight for concept in question.concepts)
    if possible:
        covered = sum(
            concept.weight
            for concept, amount in zip(question.concepts, together, strict=True)
            if amount > 0
        )
        total *= 0.6 + 0.4 * covered / possible
    if question.spans:
        total = _dated(chunk, question, total)
    total *= _manner(chunk, question)
    if chunk.at is not None and question.wants_newest:
        age = max((newest - chunk.at).total_seconds() / 86400, 0.0)
        total *= 1 + 0.25 / (1 + age / 60)
    is_live = asker.live_from is not None and chunk.seq >= asker.live_from
    if is_live and chunk.session == asker.session:
        total *= 0.5  # the model sees it anyway
    return total


def _dated(chunk: Chunk, question: Question, total: float) -> float:
    """The score with regard to the spans that the question names."""
    if chunk.at is None:
        return total
    day = chunk.at.astimezone(question.zone).date()
    distance = min(span.distance(day) for span in question.spans)
    if distance == 0:
        # Also where the question names nothing but a time.
        return 1.5 * total + 0.3
    widest = max(span.days for span in question.spans)
    return total * (1.2 if distance <= max(widest // 4, 2) else 1.0)


def _manner(chunk: Chunk, question: Question) -> float:
    """What kind of chunk it is: a question answers nothing, people tell of themselves."""
    factor = 1.0
    if chunk.text.rstrip().endswith(("?", "？")) and len(chunk.text) < 200:
        factor *= 0.85
    if question.about_asker and not question.about_assistant and chunk.speaker == "user":
        factor *= _OF_ONESELF
    if question.about_assistant and chunk.speaker == "assistant":
        factor *= _OF_THE_ANSWER
    if question.wants_figures and _FIGURE.search(chunk.text):
        factor *= 1.15
    if question.wants_time and _MOMENT.search(chunk.text):
        factor *= 1.15
    return factor


def _without_repetitions(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Of hits that say the same, only the best; those that differ in figures alone come later.

    "Remind me to call Anna at 8" has been said often, and one of them says it all.
    """
    seen: set[str] = set()
    forms: Counter[str] = Counter()
    kept: list[Hit] = []
    for hit in hits:
        words = " ".join(folded(hit.chunk.text).split())
        if words in seen:
            continue
        seen.add(words)
        form = _FIGURES.sub("0", words)
        kept.append(replace(hit, score=hit.score * _REPEATED ** forms[form]))
        forms[form] += 1
    kept.sort(key=lambda hit: (-hit.score, -hit.chunk.id))
    return tuple(kept)
