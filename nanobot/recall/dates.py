"""The spans of time that a question names: dates, months, "last week", 上个月."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from nanobot.recall.terms import folded

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
