"""Text with formatting as values, cut into pieces that a platform accepts.

Offsets and lengths are UTF-16 code units, as the Telegram Bot API counts them. Platforms that count
code points can use the same limits: a code point is one unit or two, never less.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

MESSAGE_LIMIT = 4096
"""UTF-16 code units in one Telegram message."""

ENTITY_LIMIT = 100
"""Entities in one Telegram message; the server silently drops those beyond."""

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]")
_LINE_ENDS = re.compile("\r\n?|[\u2028\u2029]")
# What Telegram does not count as content: a message of nothing else is refused as empty.
_VISIBLE = re.compile(
    "[^\\s\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2800\u3000\ufeff\ufffc"
    "\U000e0000-\U000e007f]"
)
_WHITESPACE = re.compile(r"\s+")
_BLANK_LINES = re.compile(r"(?:[ \t]*\n)+")
_CLOSERS = "\"')]}»”’*_"
_SENTENCE_ENDS = ".!?…:;"
_WIDE_SENTENCE_ENDS = "。！？；"
_GRAPHEME_REACH = 128


class EntityKind(StrEnum):
    """Formatting, by the Bot API's ``MessageEntity.type``; the outer kinds come first."""

    BLOCKQUOTE = "blockquote"
    EXPANDABLE_BLOCKQUOTE = "expandable_blockquote"
    PRE = "pre"
    TEXT_LINK = "text_link"
    SPOILER = "spoiler"
    BOLD = "bold"
    ITALIC = "italic"
    UNDERLINE = "underline"
    STRIKETHROUGH = "strikethrough"
    CODE = "code"


_RANK = {kind: rank for rank, kind in enumerate(EntityKind)}


@dataclass(frozen=True, slots=True)
class Entity:
    """Formatting of ``length`` UTF-16 code units from ``offset``.

    ``url`` belongs to text_link, ``language`` to pre.
    """

    kind: EntityKind
    offset: int
    length: int
    url: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class FormattedText:
    """A text and its entities, sorted by offset, the longer first; they nest, they never cross."""

    text: str
    entities: tuple[Entity, ...] = ()


class Span(NamedTuple):
    """Formatting of ``text[start:end]`` in code points, before it becomes an Entity."""

    kind: EntityKind
    start: int
    end: int
    url: str | None = None
    language: str | None = None


def utf16_length(text: str) -> int:
    """The length of ``text`` in UTF-16 code units."""
    return len(text) + sum(1 for _ in _ASTRAL.finditer(text))


def cleaned(text: str) -> str:
    """``text`` without characters that platforms refuse or that hide content.

    Control characters (NUL among them) and bidirectional overrides go, line ends become ``\\n``,
    surrogate pairs become their character and lone surrogates U+FFFD.
    """
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _REFUSED.sub("", _LINE_ENDS.sub("\n", text))


def is_blank(text: str) -> bool:
    """Whether ``text`` shows nothing: Telegram would refuse it as empty."""
    return _VISIBLE.search(text) is None


def formatted(text: str, spans: Iterable[Span]) -> FormattedText:
    """``text`` with ``spans`` as entities, without white space and empty entities at the edges."""
    return _piece(text, _Units(text), 0, len(text), spans)


def split(
    message: FormattedText, limit: int = MESSAGE_LIMIT, max_entities: int = ENTITY_LIMIT
) -> tuple[FormattedText, ...]:
    """Cut ``message`` into pieces of at most ``limit`` UTF-16 units and ``max_entities`` entities.

    Cuts fall, in this order of preference, between paragraphs, lines, sentences, words, graphemes
    and code points; a boundary in the second half of the room beats a better one in the first. An
    entity that fits into a message is never cut; a longer one is closed at the cut and opened
    again in the next piece. The pieces joined give the text again, except for white space
    at the cuts and at both ends (the indentation of code is kept) and except for pieces that show
    nothing, which platforms refuse. With ``limit`` 1 a character that needs two units is
    replaced by U+FFFD. Where more entities than ``max_entities`` cover one and the same place,
    the innermost are dropped.

    Raises ValueError when ``limit`` < 1 or ``max_entities`` < 0.
    """
    if limit < 1:
        raise ValueError("a piece needs room for at least one unit")
    if max_entities < 0:
        raise ValueError("the number of entities cannot be negative")
    return tuple(_Splitter(message, limit, max_entities).pieces())


class _Units:
    """Converts between code points and UTF-16 units of one text in O(log n)."""

    def __init__(self, text: str) -> None:
        self._points = [match.start() for match in _ASTRAL.finditer(text)]
        self._units = [point + index for index, point in enumerate(self._points)]

    def at(self, point: int) -> int:
        """The unit at which code point ``point`` begins."""
        return point + bisect_left(self._points, point)

    def point(self, unit: int) -> int:
        """The code point that holds ``unit``; the second half of a pair belongs to the first."""
        return unit - bisect_left(self._units, unit)


def _piece(text: str, units: _Units, start: int, end: int, spans: Iterable[Span]) -> FormattedText:
    """``text[start:end]`` without white space at its edges, with what ``spans`` leave of it."""
    while end > start and text[end - 1].isspace():
        end -= 1
    kept: list[Span] = []
    for span in spans:
        low, high = max(span.start, start), min(span.end, end)
        while high > low and text[high - 1].isspace():
            high -= 1
        if span.kind is EntityKind.PRE:
            while low < high and text[low] == "\n":
                low += 1
        else:
            while low < high and text[low].isspace():
                low += 1
        if low < high:
            kept.append(span._replace(start=low, end=high))
    # Only code keeps its indentation: nothing else may begin a piece with white space.
    first = min((span.start for span in kept), default=end)
    while start < first and text[start].isspace():
        start += 1
    kept.sort(key=lambda span: (span.start, -span.end, _RANK[span.kind]))
    origin = units.at(start)
    return FormattedText(
        text[start:end],
        tuple(
            Entity(
                span.kind,
                units.at(span.start) - origin,
                units.at(span.end) - units.at(span.start),
                span.url,
                span.language,
            )
            for span in kept
        ),
    )


class _Intervals:
    """Disjoint intervals in order; finds the one that a cut would divide."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, span: Span) -> None:
        """Append ``span`` unless it lies inside the last interval."""
        if not self.ends or span.start >= self.ends[-1]:
            self.starts.append(span.start)
            self.ends.append(span.end)

    def begin_of_cut(self, point: int) -> int | None:
        """The begin of the interval that a cut before ``point`` would divide, or None."""
        index = bisect_left(self.starts, point) - 1
        return self.starts[index] if index >= 0 and point < self.ends[index] else None


_Finder: TypeAlias = Callable[[int, int], int]
"""Finds the last boundary of one kind between two code points, both included, or -1."""


class _Splitter:
    """One run of ``split``; positions are code points."""

    def __init__(self, message: FormattedText, limit: int, max_entities: int) -> None:
        units = _Units(message.text)
        self._spans = sorted(
            (
                Span(
                    entity.kind,
                    units.point(entity.offset),
                    units.point(entity.offset + entity.length),
                    entity.url,
                    entity.language,
                )
                for entity in message.entities
                if max_entities
            ),
            key=lambda span: (span.start, -span.end, _RANK[span.kind]),
        )
        self._text = _ASTRAL.sub("\ufffd", message.text) if limit == 1 else message.text
        self._units = _Units(self._text)
        self._limit = limit
        self._max_entities = max_entities
        self._end = len(self._text.rstrip())
        self._starts = [span.start for span in self._spans]
        self._whole, self._long, self._pre = self._classified()
        self._carried: list[Span] = []
        self._next = 0

    def _classified(self) -> tuple[_Intervals, _Intervals, _Intervals]:
        """The outermost entities that fit into a piece, those that do not, and all of code."""
        whole, long, pre = _Intervals(), _Intervals(), _Intervals()
        for index, span in enumerate(self._spans):
            fits = self._units.at(span.end) - self._units.at(span.start) <= self._limit
            inside = bisect_left(self._starts, span.end) - index
            (whole if fits and inside <= self._max_entities else long).add(span)
            if span.kind is EntityKind.PRE:
                pre.add(span)
        return whole, long, pre

    def pieces(self) -> Iterator[FormattedText]:
        start = self._after_white_space(0)
        while start < self._end:
            self._advance(start)
            end = self._cut(start)
            if _VISIBLE.search(self._text, start, end):
                upto = bisect_left(self._starts, end)
                spans = self._carried + self._spans[self._next : upto]
                yield _piece(self._text, self._units, start, end, spans[: self._max_entities])
            start = self._after_white_space(end)

    def _advance(self, start: int) -> None:
        """Carry the entities that are open at ``start`` into the piece that begins there."""
        following = bisect_left(self._starts, start)
        begun = self._carried + self._spans[self._next : following]
        self._carried = [span for span in begun if span.end > start]
        self._next = following

    def _after_white_space(self, point: int) -> int:
        """Where the next piece begins: white space at a cut goes, indentation of code stays."""
        blank = _WHITESPACE.match(self._text, point)
        if blank is None:
            return point
        index = bisect_right(self._pre.starts, point) - 1
        if index < 0 or point >= self._pre.ends[index]:
            index += 1
            if index == len(self._pre.starts) or self._pre.starts[index] >= blank.end():
                return blank.end()
            point = self._pre.starts[index]
        lines = _BLANK_LINES.match(self._text, point, self._pre.ends[index])
        if lines is None:
            return point
        return lines.end() if lines.end() < self._pre.ends[index] else blank.end()

    def _room(self, start: int) -> int:
        """The last place where the piece from ``start`` may end."""
        room = min(self._units.point(self._units.at(start) + self._limit), self._end)
        surplus = self._next + max(self._max_entities - len(self._carried), 0)
        if surplus < len(self._spans) and self._starts[surplus] <= start:
            surplus = bisect_right(self._starts, start)
        if surplus < len(self._spans):
            room = min(room, self._starts[surplus])
        return room

    def _cut(self, start: int) -> int:
        """The end of the piece that begins at ``start``; always beyond it."""
        room = self._room(start)
        if room >= self._end:
            return self._end
        first, half = start + 1, start + max((room - start) // 2, 1)
        outside, within = (self._whole, self._long), (self._whole,)
        for low, high, avoid in (
            (half, room, outside),
            (half, room, within),
            (first, half, outside),
            (first, half, within),
        ):
            point = self._boundary(low, high, avoid)
            if point is not None:
                return point
        begin = self._whole.begin_of_cut(room)
        if begin is not None and begin > start:
            return begin
        if begin is not None:
            point = self._boundary(first, room, ())
            if point is not None:
                return point
        return self._between_graphemes(start, room)

    def _boundary(self, low: int, high: int, avoid: tuple[_Intervals, ...]) -> int | None:
        """The last boundary of the best kind between ``low`` and ``high`` that cuts no entity."""
        finders: tuple[_Finder, ...] = (
            self._last_paragraph,
            self._last_line,
            self._last_sentence,
            self._last_word,
        )
        for find in finders:
            last = high
            while (point := find(low, last)) >= low:
                begins = [
                    begin
                    for intervals in avoid
                    if (begin := intervals.begin_of_cut(point)) is not None
                ]
                if not begins:
                    return point
                last = min(begins)
        return None

    def _last_paragraph(self, low: int, high: int) -> int:
        return self._text.rfind("\n\n", low, high + 2)

    def _last_line(self, low: int, high: int) -> int:
        return self._text.rfind("\n", low, high + 1)

    def _last_word(self, low: int, high: int) -> int:
        return max(self._text.rfind(" ", low, high + 1), self._last_line(low, high))

    def _last_sentence(self, low: int, high: int) -> int:
        wide = max(self._text.rfind(end, low - 1, high) for end in _WIDE_SENTENCE_ENDS) + 1
        space = high
        while (space := self._text.rfind(" ", max(low, wide), space + 1)) >= 0:
            last = space - 1
            while last > 0 and self._text[last] in _CLOSERS:
                last -= 1
            if self._text[last] in _SENTENCE_ENDS:
                return space
            space -= 1
        return wide if wide >= low else -1

    def _between_graphemes(self, start: int, room: int) -> int:
        """``room``, or the begin of the grapheme that it would cut."""
        # wcwidth takes milliseconds to import and most texts have no run as long as a message.
        from wcwidth import grapheme_boundary_before

        low = max(start, room - _GRAPHEME_REACH)
        cluster = self._text[low : room + 1]
        point = low + grapheme_boundary_before(cluster, len(cluster))
        if point <= start or self._whole.begin_of_cut(point) is not None:
            return room
        return point
