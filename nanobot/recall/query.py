"""Reads a question: its words with their variants and weights, and the spans of time it names."""

from __future__ import annotations

import calendar
import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from itertools import combinations

from nanobot.recall.terms import (
    STOP_WORDS,
    SYNONYMS,
    UNSPACED_STOP,
    folded,
    is_grammar,
    is_unspaced,
    pairs,
    stem,
    tokens,
)

MOST_CONCEPTS = 24
"""How many concepts of a question are searched, the rarest first."""
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
class Span:
    """The days from ``first`` to ``last``, both included, in the asker's zone."""

    first: date
    last: date

    def distance(self, day: date) -> int:
        """Days between ``day`` and the span; 0 inside."""
        return max((self.first - day).days, (day - self.last).days, 0)

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1


@dataclass(frozen=True, slots=True)
class Concept:
    """One word of a question: the terms that match it, each with its weight.

    A term weighs by its rarity (inverse document frequency) and by how closely it matches;
    ``weight`` is the largest of them.
    """

    variants: Mapping[str, float]
    weight: float


@dataclass(frozen=True, slots=True)
class Question:
    """A query as it is searched; ``match`` is an FTS5 expression, "" when no term is indexed.

    The question is about the person who asks (``about_asker``), the assistant's answers
    (``about_assistant``) or the present (``wants_newest``), or asks how many (``wants_figures``)
    or when (``wants_time``).
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
    """Read any text as a question to the index; no text raises an error."""
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
        # People say "I" when they talk about themselves.
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
    """The concept of ``term``: no variant weighs more than the term itself would."""

    def rarity(frequency: int) -> float:
        return math.log(1 + (chunks - frequency + 0.5) / (frequency + 0.5))

    most = rarity(counts[term]) if term in counts else rarity(1)
    amounts = {
        one: share * weight * min(most, rarity(counts[one])) for one, weight in present.items()
    }
    return Concept(amounts, max(amounts.values()))


def _content_terms(words: Iterable[str]) -> dict[str, float]:
    """The content words as terms in order, each with its share; all words if none is content."""
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
    """The terms that match a term: itself, those that begin with it, its synonyms."""
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
    """The number of chunks with each term, for terms that occur."""
    counts: dict[str, int] = {}
    for term in found:
        row = connection.execute("SELECT doc FROM vocabulary WHERE term = ?", (term,)).fetchone()
        if row is not None:
            counts[term] = row[0]
    return counts


_MOST_POSTINGS = 10_000
"""Most postings that the first pass ranks: rare terms first, common ones only in pairs."""
_MOST_TERMS, _MOST_PAIRS = 200, 6


def _match(connection: sqlite3.Connection, concepts: Iterable[Concept]) -> str:
    """The FTS5 expression of the first pass, bounded in cost."""
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


# -- spans of time ------------------------------------------------------------------------------

MONTHS = (
    *(("january", "jan", "januar", "janvier", "enero"), ("february", "feb", "februar", "fevrier")),
    *(("march", "mar", "marz", "mars", "marzo"), ("april", "apr", "avril", "abril")),
    *(("may", "mai", "mayo"), ("june", "jun", "juni", "juin", "junio")),
    *(("july", "jul", "juli", "juillet", "julio"), ("august", "aug", "aout", "agosto")),
    *(("september", "sept", "sep", "septembre", "septiembre"), ("october", "oct", "oktober")),
    *(("november", "nov", "novembre", "noviembre"), ("december", "dec", "dezember", "decembre")),
)
_MONTH = {name: number for number, names in enumerate(MONTHS, start=1) for name in names}
_NAMES = "|".join(sorted(_MONTH, key=len, reverse=True))
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMERALS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
_NUMBERS = {
    **{word: n for n, word in enumerate(_NUMERALS, 1)},
    **{word: n for n, word in enumerate("一二三四五六七八", 1)},
    **{"a": 1, "an": 1, "couple": 2, "few": 3, "两": 2, "兩": 2, "几": 3},
}
_YEAR = r"(?:19|20)\d\d"
_AMBIGUOUS = frozenset({"may", "march", "mar", "sep", "dec", "jan", "jun", "mars", "mai"})
"""Names that mean a month only behind a preposition, beside a number, or written large."""


def spans(query: str, now: datetime) -> tuple[Span, ...]:
    """The spans that ``query`` names, seen from ``now`` (aware, in the asker's zone).

    A month without a year is the last one that has begun; impossible dates name nothing.
    """
    text = folded(query)
    found: list[Span] = []
    for pattern, read in _PATTERNS:
        rest: list[str] = []
        end = 0
        for match in pattern.finditer(text):
            try:
                span = read(match, now.date(), query)
            except (ValueError, OverflowError):
                span = None
            if span is not None:
                found.append(span)
                rest.append(text[end : match.start()] + " \0 ")
                end = match.end()
        text = "".join(rest) + text[end:]
    return tuple(dict.fromkeys(found))


_Reader = Callable[["re.Match[str]", date, str], Span | None]


def _exact(match: re.Match[str], today: date, query: str) -> Span:
    return _day(date(int(match["y"]), int(match["m"]), int(match["d"])))


def _day_and_month(match: re.Match[str], today: date, query: str) -> Span:
    month = _MONTH.get(match["m"]) or int(match["m"])
    year = match["y"]
    if year:
        return _day(date(int(year), month, int(match["d"])))
    day = date(today.year, month, int(match["d"]))
    return _day(day if day <= today else day.replace(year=today.year - 1))


def _month(match: re.Match[str], today: date, query: str) -> Span | None:
    name = match["m"]
    year = match["y"]
    is_plain = not year and not match["before"]
    if name in _AMBIGUOUS and is_plain and name.capitalize() not in query:
        return None
    if name == "may" and is_plain and re.match(r"\s*may\b", query, re.IGNORECASE):
        return None
    return _month_of(_MONTH[name], int(year) if year else None, today)


def _month_in_figures(match: re.Match[str], today: date, query: str) -> Span:
    year = match["y"]
    return _month_of(int(match["m"]), int(year) if year else None, today)


def _month_of(month: int, year: int | None, today: date) -> Span:
    if year is None:
        year = today.year if month <= today.month else today.year - 1
    return _whole_month(year, month)


def _year(match: re.Match[str], today: date, query: str) -> Span:
    return _whole_year(int(match["y"]))


def _ago(match: re.Match[str], today: date, query: str) -> Span:
    number = int(match["n"]) if match["n"].isdecimal() else _NUMBERS[match["n"]]
    unit = _UNITS[match["u"]]
    if unit in {"month", "year"}:
        return _back(number, unit, today)
    days, about = (number, number // 7) if unit == "day" else (7 * number, 3)
    day = today - timedelta(days=days)
    return Span(day - timedelta(days=about), day + timedelta(days=about))


def _relative(match: re.Match[str], today: date, query: str) -> Span:
    return _back(*_RELATIVES[match[0].replace(" ", "")], today)


def _back(number: int, unit: str, today: date) -> Span:
    """The calendar's day, week, month or year, ``number`` of them before today's."""
    if unit == "day":
        return _day(today - timedelta(days=number))
    if unit == "week":
        monday = today - timedelta(days=today.weekday() + 7 * number)
        return Span(monday, monday + timedelta(days=6))
    if unit == "month":
        year, month = divmod(today.year * 12 + today.month - 1 - number, 12)
        return _whole_month(year, month + 1)
    return _whole_year(today.year - number)


def _weekday(match: re.Match[str], today: date, query: str) -> Span:
    back = (today.weekday() - _DAYS.index(match["d"])) % 7 or 7
    return _day(today - timedelta(days=back))


def _day(day: date) -> Span:
    return Span(day, day)


def _whole_month(year: int, month: int) -> Span:
    return Span(date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1]))


def _whole_year(year: int) -> Span:
    return Span(date(year, 1, 1), date(year, 12, 31))


_UNITS = {
    **dict.fromkeys(("day", "days", "天", "日"), "day"),
    **dict.fromkeys(("week", "weeks", "周", "週", "星期", "个星期", "週間", "個星期"), "week"),
    **dict.fromkeys(("month", "months", "个月", "個月", "か月", "ヶ月", "カ月"), "month"),
    **dict.fromkeys(("year", "years", "年"), "year"),
}
_RELATIVES = {
    **dict.fromkeys(("today", "今天", "今日", "heute", "오늘"), (0, "day")),
    **dict.fromkeys(("yesterday", "昨天", "昨日", "gestern", "hier", "ayer", "어제"), (1, "day")),
    **dict.fromkeys(("前天", "一昨日", "vorgestern"), (2, "day")),
    **dict.fromkeys(("thisweek", "这周", "本周", "這週", "今週", "这个星期"), (0, "week")),
    **dict.fromkeys(
        ("lastweek", "上周", "上週", "先週", "上个星期", "上星期", "letztewoche", "지난주"),
        (1, "week"),
    ),
    **dict.fromkeys(("thismonth", "这个月", "本月", "這個月", "今月"), (0, "month")),
    **dict.fromkeys(
        ("lastmonth", "上个月", "上個月", "上月", "先月", "letztenmonat", "지난달"), (1, "month")
    ),
    **dict.fromkeys(("thisyear", "今年"), (0, "year")),
    **dict.fromkeys(("lastyear", "去年", "昨年", "letztesjahr", "작년"), (1, "year")),
}


def _relatives() -> Iterator[str]:
    for word in sorted(_RELATIVES, key=len, reverse=True):
        if word.isascii():
            spaced = re.sub(r"^(this|last|letzte[ns]?)(?=\w)", r"\1 +", word)
            yield rf"\b{spaced}\b"
        else:
            yield word


_PATTERNS: tuple[tuple[re.Pattern[str], _Reader], ...] = (
    (re.compile(rf"(?P<y>{_YEAR})[-/.年](?P<m>\d\d?)[-/.月](?P<d>\d\d?)日?(?!\d)"), _exact),
    (re.compile(rf"\b(?P<d>\d\d?)\.(?P<m>\d\d?)\.(?P<y>{_YEAR})\b"), _exact),
    (
        re.compile(
            rf"\b(?P<d>\d\d?)(?:st|nd|rd|th|\.)? +(?:of +)?(?P<m>{_NAMES})\b\.?"
            rf"(?:,? +(?P<y>{_YEAR}))?"
        ),
        _day_and_month,
    ),
    (
        re.compile(rf"\b(?P<m>{_NAMES})\.? +(?P<d>\d\d?)(?:st|nd|rd|th)?\b(?:,? +(?P<y>{_YEAR}))?"),
        _day_and_month,
    ),
    (re.compile(rf"(?:(?P<y>{_YEAR})年)?(?P<m>\d\d?)月(?P<d>\d\d?)[日号號]"), _day_and_month),
    (re.compile(rf"(?:(?P<y>{_YEAR})年)?(?<!\d)(?P<m>\d\d?)月"), _month_in_figures),
    (re.compile(rf"\b(?P<y>{_YEAR})-(?P<m>0[1-9]|1[0-2])\b"), _month_in_figures),
    (
        re.compile(
            rf"(?P<before>\b(?:in|since|during|of|last|im|en|until|by|early|late|mid) +)?"
            rf"\b(?P<m>{_NAMES})\b(?:,? +(?:of +)?(?P<y>{_YEAR}))?"
        ),
        _month,
    ),
    (
        re.compile(
            rf"(?P<n>\d{{1,3}}|\b(?:{'|'.join(w for w in _NUMBERS if w.isascii())})"
            r"|[一二三四五六七八两兩几])\s*(?:of +)?"
            r"(?P<u>days?|weeks?|months?|years?|[个個]?星期|[个個かヶカ]月|週間|[天日周週年])"
            r"\s*(?:ago|before|earlier|前|之前|以前)"
        ),
        _ago,
    ),
    (re.compile("|".join(_relatives())), _relative),
    (re.compile(rf"\b(?:last|on|this past) +(?P<d>{'|'.join(_DAYS)})\b"), _weekday),
    (re.compile(rf"(?<![\d.,/-])(?P<y>{_YEAR})(?![\d/-]|[.,]\d)年?"), _year),
)
