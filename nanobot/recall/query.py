"""A question read as concepts: its words with their variants, rare ones weighing more."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import combinations

from nanobot.recall.dates import Span, spans
from nanobot.recall.terms import (
    STOP_WORDS,
    SYNONYMS,
    UNSPACED_STOP,
    is_grammar,
    is_unspaced,
    pairs,
    stem,
    tokens,
)

MOST_CONCEPTS = 24
"""Concepts of a question that are searched, the rarest: a pasted results is no question."""
_LONGEST_QUERY = 4000
_MOST_VARIANTS = 24
_OF_ONESELF = 0.4
_ONESELF = ("i", "my", "we", "our", "ich", "mein", "wir")
_SYNONYM = 0.5
_INFLECTED = 0.8
_BEGINNING = 0.6
_WEAK_PAIR = 0.4
FIRST_PERSON = frozenset(
    (
        *("i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "im", "ive"),
        *("ich", "mir", "mich", "mein", "meine", "wir", "uns", "unser"),
    )
)
_ADDRESSED = frozenset(("you", "your", "yours", "du", "dir", "dein", "tu", "vous", "te", "ustedes"))
_NEWEST = frozenset(
    ("now", "current", "currently", "latest", "newest", "recent", "recently", "last", "still")
)
_FIGURES = re.compile(
    r"\bhow (?:many|much|long|old|far|often|big|high|tall)\b|\bwieviele?\b|\bwie (?:viele?|lange)\b"
    r"|\bcombien\b|\bcuant[oa]s?\b|多少|几[个個天次]|いくら|いくつ|何[回個人時]"
)
_TIME = re.compile(
    r"\bwhen\b|\bwhat (?:date|day|time|year|month)\b|\bwann\b|\bquand\b|什么时候|いつ"
)
_WEAK = frozenset("的了吗呢吧啊是在有和与跟把被给对就都也还那这我你他她它はがをにのでともかへ")
_STOP_RUN = re.compile("|".join(sorted(UNSPACED_STOP, key=len, reverse=True)))
_KANA_TAIL = re.compile(r"([\u4e00-\u9fff])(?=[\u3041-\u309f])")


def _neighbours() -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for first, *others in SYNONYMS:
        for other in others:
            found.setdefault(stem(first), set()).add(stem(other))
            found.setdefault(stem(other), set()).add(stem(first))
    return {word: frozenset(near - {word}) for word, near in found.items()}


_NEAR = _neighbours()


@dataclass(frozen=True, slots=True)
class Concept:
    """One thing a question speaks of: the terms that stand for it and how well each does.

    Each counts by its rarity (inverse document frequency) and by how much such a word says at
    all; ``weight`` is the most that one of them counts.
    """

    variants: Mapping[str, float]
    weight: float


@dataclass(frozen=True, slots=True)
class Question:
    """A query as it is searched; ``match`` is an FTS5 expression, "" when no term is indexed.

    ``about_asker``: it speaks of the one who asks; ``about_assistant``: of what was answered;
    ``wants_newest``: of how things are now; ``wants_figures``, ``wants_time``: it asks how many, or
    when.
    """

    concepts: tuple[Concept, ...]
    spans: tuple[Span, ...]
    match: str
    chunks: int
    average: float
    about_asker: bool
    about_assistant: bool
    wants_newest: bool
    wants_figures: bool
    wants_time: bool
    zone: tzinfo | None


def read_question(connection: sqlite3.Connection, query: str, now: datetime) -> Question:
    """Read any text as a question to the index; never raises because of what it says."""
    query = query[:_LONGEST_QUERY]
    facts = dict(connection.execute("SELECT name, value FROM fact"))
    chunks = max(int(facts["chunks"]), 1)
    words = tokens(query)
    found = _concepts(connection, words, chunks)
    return Question(
        concepts=found,
        spans=spans(query, now),
        match=_match(connection, found),
        chunks=chunks,
        average=max(int(facts["terms"]) / chunks, 1.0),
        about_asker=not FIRST_PERSON.isdisjoint(words),
        about_assistant=not _ADDRESSED.isdisjoint(words),
        wants_newest=not _NEWEST.isdisjoint(words),
        wants_figures=_FIGURES.search(query.casefold()) is not None,
        wants_time=_TIME.search(query.casefold()) is not None,
        zone=now.tzinfo,
    )


def _concepts(
    connection: sqlite3.Connection, words: Sequence[str], chunks: int
) -> tuple[Concept, ...]:
    said = _content_terms(words)
    found: list[Concept] = []
    wanted = [(term, share, _variants(connection, term)) for term, share in said.items()]
    if not FIRST_PERSON.isdisjoint(words):
        # What people say of themselves they say so.
        wanted.append(("i", _OF_ONESELF, dict.fromkeys(_ONESELF, 1.0)))
    for term, share, variants in wanted:
        counts = _frequencies(connection, variants)
        present = {one: weight for one, weight in variants.items() if one in counts}
        if not present:
            continue
        found.append(_concept(present, counts, term, share, chunks))
    if len(found) > MOST_CONCEPTS:
        floor = sorted((one.weight for one in found), reverse=True)[MOST_CONCEPTS - 1]
        found = [one for one in found if one.weight >= floor][:MOST_CONCEPTS]
    return tuple(found)


def _concept(
    present: Mapping[str, float], counts: Mapping[str, int], term: str, share: float, chunks: int
) -> Concept:
    """A concept of ``term``: what stands for it counts no more than the term itself would."""

    def rarity(frequency: int) -> float:
        return math.log(1 + (chunks - frequency + 0.5) / (frequency + 0.5))

    most = rarity(counts[term]) if term in counts else rarity(1)
    amounts = {
        one: share * weight * min(most, rarity(counts[one])) for one, weight in present.items()
    }
    return Concept(amounts, max(amounts.values()))


def _content_terms(words: Iterable[str]) -> dict[str, float]:
    """The terms that say something, in order, each with how much; all when none does."""
    content: dict[str, float] = {}
    rest: dict[str, float] = {}
    for word in words:
        if is_unspaced(word):
            runs = [run for run in _STOP_RUN.split(word) if run] or [word]
            for run in runs:
                for term, share in _unspaced_terms(run).items():
                    content.setdefault(term, share)
        else:
            term = stem(word)
            is_said = word not in STOP_WORDS and (len(word) > 1 or word.isdecimal())
            (content if is_said else rest).setdefault(term, 1.0)
    return content or rest


def _unspaced_terms(run: str) -> dict[str, float]:
    if len(run) == 1:
        return {f"{run}*": 1.0}
    found: dict[str, float] = {}
    for pair in pairs(run):
        weak = is_grammar(pair) or not _WEAK.isdisjoint(pair)
        found.setdefault(pair, _WEAK_PAIR if weak else 1.0)
    for match in _KANA_TAIL.finditer(run):
        # A noun of one ideograph, before a particle: 猫の, 駅で.
        place = match.start()
        if place == 0 or not "\u4e00" <= run[place - 1] <= "\u9fff":
            found.setdefault(f"{match[1]}*", 0.6)
    return found


def _variants(connection: sqlite3.Connection, term: str) -> dict[str, float]:
    """What may stand for a term: itself, what begins with it, words of the same meaning."""
    if term.endswith("*"):
        start = term[:-1]
        return dict.fromkeys(_beginning(connection, start, start + "\U0010ffff", 64), 1.0)
    variants = {term: 1.0}
    for synonym in _NEAR.get(term, ()):
        variants[synonym] = _SYNONYM
    if len(term) >= 5 and not is_unspaced(term) and not term.isdecimal():
        for longer in _beginning(connection, term, term + "\U0010ffff", _MOST_VARIANTS):
            near = len(longer) - len(term) <= 3
            variants.setdefault(longer, _INFLECTED if near else _BEGINNING)
        for length in range(max(len(term) - 2, 5), len(term)):
            variants.setdefault(term[:length], _BEGINNING)
    return variants


def _beginning(connection: sqlite3.Connection, start: str, end: str, most: int) -> list[str]:
    rows = connection.execute(
        "SELECT term FROM vocabulary WHERE term >= ? AND term < ? LIMIT ?", (start, end, most)
    )
    return [term for (term,) in rows]


def _frequencies(connection: sqlite3.Connection, found: Iterable[str]) -> dict[str, int]:
    """In how many chunks each term is; only those that are in any."""
    counts: dict[str, int] = {}
    for term in found:
        row = connection.execute("SELECT doc FROM vocabulary WHERE term = ?", (term,)).fetchone()
        if row is not None:
            counts[term] = row[0]
    return counts


_MOST_POSTINGS = 10_000
"""Postings that the first pass ranks: rare terms first, the commoner ones only in pairs."""
_MOST_TERMS, _MOST_PAIRS = 200, 6


def _match(connection: sqlite3.Connection, concepts: Iterable[Concept]) -> str:
    """The FTS5 expression of the first pass, which stays quick whatever is asked."""
    owners = {term: number for number, one in enumerate(concepts) for term in one.variants}
    counts = _frequencies(connection, owners)
    chosen: list[str] = []
    common: list[str] = []
    postings = 0
    for term, count in sorted(counts.items(), key=lambda one: one[1]):
        if len(chosen) >= _MOST_TERMS:
            break
        if chosen and postings + count > _MOST_POSTINGS:
            common.append(term)
        else:
            chosen.append(term)
            postings += count
    together = [
        f'("{one}" AND "{other}")'
        for one, other in combinations(common[:_MOST_PAIRS], 2)
        if owners[one] != owners[other]
    ]
    return " OR ".join([*(f'"{term}"' for term in chosen), *together[:_MOST_PAIRS]])
