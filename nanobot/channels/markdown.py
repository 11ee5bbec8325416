"""Models' Markdown rendered to formatted text or to plain text.

CommonMark with GitHub's tables, task lists and strikethrough, and with ``||spoilers||``. HTML is
shown as text. What the output cannot express stays readable: images become links, tables
become code, links whose target a platform would refuse are spelled out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from nanobot.channels.text import (
    ENTITY_LIMIT,
    MESSAGE_LIMIT,
    EntityKind,
    FormattedText,
    Span,
    cleaned,
    formatted,
    split,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.rules_inline.state_inline import Delimiter
    from markdown_it.token import Token

_BULLETS: Final = "•◦▪"
_INDENT: Final = "   "
_RULE: Final = "─" * 10
_TAB: Final = 4
_WIDEST_COLUMN: Final = 60
_SPOILER: Final = 0x7C
_STYLES: Final = {
    "strong": EntityKind.BOLD,
    "em": EntityKind.ITALIC,
    "s": EntityKind.STRIKETHROUGH,
    "spoiler": EntityKind.SPOILER,
}
# Telegram drops links with any other scheme.
_LINKABLE = re.compile(r"(?:https?://|tg:|ton:|tonsite:)", re.IGNORECASE)
_URL = re.compile(r"://[^\s<>\[\]()*`|\"\\]+")
_LANGUAGE = re.compile(r"[\w+#.-]{1,40}")
_ATTRIBUTES = re.compile(r"\{|[\w-]+=|:|\d+[,\d-]*$")
_TASK = re.compile(r"\[([ xX])\](?:\s+|$)")
_BLANK_START = re.compile(r"\A(?:[ \t]*\n)+")
_QUOTE_MARKS = re.compile(r"^[>\s]*")


def to_pieces(
    markdown: str, limit: int = MESSAGE_LIMIT, max_entities: int = ENTITY_LIMIT
) -> tuple[FormattedText, ...]:
    """``markdown`` rendered and cut as ``text.split`` says; no pieces when it shows nothing."""
    return split(to_formatted_text(markdown), limit, max_entities)


def to_formatted_text(markdown: str) -> FormattedText:
    """``markdown`` as a text with entities that nest as Telegram allows.

    Code is in no other entity than a quotation (within a link or a spoiler it is plain, bold and
    the like pause around it), ``pre`` is in none at all, quotations do not nest (inner ones
    are marked ``>``).
    """
    writer = _rendered(markdown, with_entities=True)
    return formatted("".join(writer.parts), writer.spans)


def to_plain_text(markdown: str) -> str:
    """``markdown`` without its markup, for channels that have no formatting."""
    return "".join(_rendered(markdown, with_entities=False).parts).strip()


def _rendered(markdown: str, *, with_entities: bool) -> _Writer:
    source = cleaned(markdown)
    env: dict[str, Any] = {}
    tokens = _parser().parse(source, env)
    definitions = _unused_definitions(tokens, env)
    writer = _Writer(with_entities, source.split("\n"), definitions)
    writer.write_document(tokens)
    return writer


# --- Parsing ------------------------------------------------------------------------------------


@cache
def _parser() -> MarkdownIt:
    # The parser costs 40 ms to import, and the command line needs it only in the REPL.
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "store_labels": True})
    parser.enable(["table", "strikethrough"])
    parser.block.ruler.before("table", "deepest", _keep_deepest)
    parser.inline.ruler.before("newline", "bare_url", _keep_bare_url)
    parser.inline.add_terminator_char("|")
    parser.inline.ruler.after("strikethrough", "spoiler", _mark_spoilers)
    parser.inline.ruler2.after("strikethrough", "spoiler", _open_and_close_spoilers)
    return parser


def _keep_deepest(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Make a paragraph of what is nested too deeply; the parser would drop it."""
    if silent or state.level < state.md.options.maxNesting - 2:
        return False
    line = start
    while line < end and (state.isEmpty(line) or state.sCount[line] >= state.blkIndent):
        line += 1
    state.line = line
    state.push("paragraph_open", "p", 1).map = [start, line]
    inline = state.push("inline", "", 0)
    inline.content = state.getLines(start, line, state.blkIndent, False).strip()
    inline.map = [start, line]
    inline.children = []
    state.push("paragraph_close", "p", -1)
    return True


def _keep_bare_url(state: StateInline, silent: bool) -> bool:
    """Keep a bare address as text; its underscores and tildes are no formatting."""
    if state.src[state.pos] != ":":
        return False
    if not state.src[max(state.pos - 5, 0) : state.pos].lower().endswith(("http", "https")):
        return False
    match = _URL.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    address = match[0].rstrip("_~.,;:!?'")
    if len(address) <= len("://"):
        return False
    if not silent:
        state.pending += address
    state.pos += len(address)
    return True


def _mark_spoilers(state: StateInline, silent: bool) -> bool:
    """Mark each ``||`` as a possible begin or end of a spoiler.

    As with ``_``, a mark inside a word does not count: in ``a||b`` it is an operator.
    """
    from markdown_it.rules_inline.state_inline import Delimiter

    if silent or state.src[state.pos] != "|":
        return False
    run = state.scanDelims(state.pos, False)
    for _ in range(run.length // 2):
        state.push("text", "", 0).content = "||"
        state.delimiters.append(
            Delimiter(
                marker=_SPOILER,
                length=0,
                token=len(state.tokens) - 1,
                end=-1,
                open=run.can_open,
                close=run.can_close,
            )
        )
    if run.length % 2:
        state.push("text", "", 0).content = "|"
    state.pos += run.length
    return True


def _open_and_close_spoilers(state: StateInline) -> None:
    """Turn pairs of marks into tokens."""
    lists: list[list[Delimiter]] = [state.delimiters]
    lists += [meta["delimiters"] for meta in state.tokens_meta if meta and "delimiters" in meta]
    for delimiters in lists:
        for delimiter in delimiters:
            if delimiter.marker == _SPOILER and delimiter.end != -1:
                begin = state.tokens[delimiter.token]
                begin.type, begin.nesting, begin.content = "spoiler_open", 1, ""
                end = state.tokens[delimiters[delimiter.end].token]
                end.type, end.nesting, end.content = "spoiler_close", -1, ""


def _unused_definitions(tokens: Sequence[Token], env: dict[str, Any]) -> list[tuple[int, int]]:
    """The lines (begin, end) of link definitions that no link uses; they are shown as text."""
    references: dict[str, Any] = env.get("references", {})
    if not references:
        return []
    used = {
        child.meta.get("label")
        for token in tokens
        for child in _with_descendants(token)
        if child.type in ("link_open", "image")
    }
    unused = [reference for label, reference in references.items() if label not in used]
    unused += env.get("duplicate_refs", [])
    return sorted((reference["map"][0], reference["map"][1]) for reference in unused)


def _with_descendants(token: Token) -> Iterator[Token]:
    yield token
    for child in token.children or ():
        yield from _with_descendants(child)


# --- Rendering ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Prefix:
    """The text before the first line of a list item or inner quotation, and before the others."""

    first: str
    rest: str
    is_used: bool = False


@dataclass(slots=True)
class _Link:
    """A link being written: its target, and where its label begins in positions and in parts."""

    url: str
    start: int
    part: int


class _Writer:
    """Writes tokens as text and spans; positions are code points of the parts joined."""

    def __init__(
        self,
        with_entities: bool,
        lines: Sequence[str] = (),
        definitions: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.parts: list[str] = []
        self.spans: list[Span] = []
        self._with_entities = with_entities
        self._lines = lines
        self._definitions = deque(definitions)
        self._length = 0
        self._last_line = 0
        self._prefixes: list[_Prefix] = []
        self._around_quote: list[_Prefix] = []
        self._quotes = 0
        self._quote_start: int | None = None
        self._lists = 0
        self._styles: dict[EntityKind, tuple[int, int]] = {}
        self._link: _Link | None = None

    # Blocks

    def write_document(self, tokens: Sequence[Token]) -> None:
        """Write every block of a document."""
        remaining = iter(tokens)
        items: list[int] = []
        for token in remaining:
            match token.type:
                case "heading_open":
                    self._begin_block(_lines_of(token))
                    self._open_style(EntityKind.BOLD)
                case "heading_close":
                    self._close_style(EntityKind.BOLD)
                case "paragraph_open":
                    # A check box at its start makes the list item a task.
                    inline = next(remaining)
                    children = self._without_check_box(inline.children or [])
                    self._begin_block(_lines_of(token))
                    self.write_inline(children)
                case "inline":
                    self.write_inline(token.children or [])
                case "fence" | "code_block":
                    self._write_code_block(token)
                case "hr":
                    self._begin_block(_lines_of(token))
                    self._write(_RULE)
                case "table_open":
                    self._write_table(token, takewhile(_is_before_table_end, remaining))
                case "blockquote_open":
                    self._open_quote()
                case "blockquote_close":
                    self._close_quote()
                case "bullet_list_open" | "ordered_list_open":
                    self._lists += 1
                case "bullet_list_close" | "ordered_list_close":
                    self._lists -= 1
                case "list_item_open":
                    items.append(_lines_of(token)[0])
                    bullet = _BULLETS[min(self._lists, len(_BULLETS)) - 1]
                    marker = f"{token.info}{token.markup}" if token.info else bullet
                    self._prefixes.append(_Prefix(f"{marker} ", _INDENT))
                case "list_item_close":
                    line = items.pop()
                    if not self._prefixes[-1].is_used:
                        self._begin_block((line, line + 1), is_empty=True)
                    self._prefixes.pop()
        self._write_definitions(len(self._lines))

    def _begin_block(self, lines: tuple[int, int], *, is_empty: bool = False) -> None:
        """Separate a block from the one before as its source does, and write its prefixes."""
        self._write_definitions(lines[0])
        self._separate(lines)
        if self._quotes and self._quote_start is None:
            self._quote_start = self._length
        prefix = self._line_prefix()
        self._write(prefix.rstrip() if is_empty else prefix)

    def _begin_code(self, lines: tuple[int, int]) -> None:
        """As ``_begin_block``, for code: on lines of its own, outside of any quotation."""
        self._write_definitions(lines[0])
        if any(prefix.first and not prefix.is_used for prefix in self._prefixes):
            self._begin_block((lines[0], lines[0]), is_empty=True)
        self._end_quote_entity()
        self._separate(lines)

    def _separate(self, lines: tuple[int, int]) -> None:
        begin, end = lines
        if self._length:
            self._write("\n\n" if begin > self._last_line else "\n")
        self._last_line = end

    def _line_prefix(self) -> str:
        """The text that the next line begins with; a marker is written once."""
        parts = [prefix.rest if prefix.is_used else prefix.first for prefix in self._prefixes]
        for prefix in self._prefixes:
            prefix.is_used = True
        return "".join(parts)

    def _write_definitions(self, before: int) -> None:
        """Write the link definitions above line ``before`` that nothing refers to."""
        while self._definitions and self._definitions[0][0] < before:
            begin, end = self._definitions.popleft()
            self._separate((begin, end))
            lines = (_QUOTE_MARKS.sub("", line) for line in self._lines[begin:end])
            self._write("\n".join(lines))

    def _without_check_box(self, children: list[Token]) -> list[Token]:
        """Move the check box that begins an item's text into the item's marker."""
        prefix = self._prefixes[-1] if self._prefixes else None
        if prefix is None or prefix.is_used or not children or children[0].type != "text":
            return children
        match = _TASK.match(children[0].content)
        if match is None:
            return children
        box = "☐ " if match[1] == " " else "☑ "
        is_bullet = prefix.first[0] in _BULLETS
        prefix.first = box if is_bullet else prefix.first + box
        children[0].content = children[0].content[match.end() :]
        return children

    def _open_quote(self) -> None:
        self._quotes += 1
        if self._quotes > 1 or not self._with_entities:
            self._prefixes.append(_Prefix("> ", "> "))
            return
        # The platform indents a quotation itself; only a marker not written yet moves into it.
        marker = "".join(prefix.first for prefix in self._prefixes if not prefix.is_used)
        for prefix in self._prefixes:
            prefix.is_used = True
        self._around_quote = self._prefixes
        self._prefixes = [_Prefix(marker, "")]

    def _close_quote(self) -> None:
        self._quotes -= 1
        if self._quotes or not self._with_entities:
            self._prefixes.pop()
            return
        self._end_quote_entity()
        self._prefixes = self._around_quote

    def _end_quote_entity(self) -> None:
        if self._quote_start is not None:
            self._add_span(EntityKind.BLOCKQUOTE, self._quote_start)
            self._quote_start = None

    def _write_code_block(self, token: Token) -> None:
        language, first_line = _language_of(token.info)
        code = _BLANK_START.sub("", f"{first_line}{token.content}".expandtabs(_TAB)).rstrip()
        if not code:
            return
        self._begin_code(_lines_of(token))
        start = self._length
        self._write(code)
        self._add_span(EntityKind.PRE, start, language=language)

    def _write_table(self, table: Token, tokens: Iterator[Token]) -> None:
        rows: list[list[str]] = []
        alignments: list[str] = []
        for token in tokens:
            match token.type:
                case "tr_open":
                    rows.append([])
                    line = self._lines[_lines_of(token)[0]]
                case "th_open":
                    alignments.append(str(token.attrs.get("style", "")).removeprefix("text-align:"))
                case "inline":
                    rows[-1].append(_plain(token.children or []))
                case "tr_close" if len(rows) > 1:
                    rows[-1] += _cells_beyond(len(alignments), line)
        self._begin_code(_lines_of(table))
        start = self._length
        self._write("\n".join(_laid_out(rows, alignments)))
        self._add_span(EntityKind.PRE, start)

    # Text within a block

    def write_inline(self, children: Sequence[Token]) -> None:
        """Write the tokens within one block."""
        for token in children:
            match token.type:
                case "softbreak" | "hardbreak":
                    self._write("\n" + self._line_prefix())
                case "code_inline":
                    self._write_code(token.content)
                case "link_open":
                    self._link = _Link(str(token.attrs["href"]), self._length, len(self.parts))
                case "link_close":
                    self._close_link()
                case "image":
                    self._write_image(token)
                case "strong_open" | "em_open" | "s_open" | "spoiler_open":
                    self._open_style(_STYLES[token.type.removesuffix("_open")])
                case "strong_close" | "em_close" | "s_close" | "spoiler_close":
                    self._close_style(_STYLES[token.type.removesuffix("_close")])
                case _:
                    self._write(token.content)

    def _open_style(self, kind: EntityKind) -> None:
        depth, start = self._styles.get(kind, (0, self._length))
        self._styles[kind] = (depth + 1, start)

    def _close_style(self, kind: EntityKind) -> None:
        depth, start = self._styles.pop(kind)
        if depth > 1:
            self._styles[kind] = (depth - 1, start)
        else:
            self._add_span(kind, start)

    def _write_code(self, code: str) -> None:
        if self._link is not None or EntityKind.SPOILER in self._styles:
            # Telegram allows no code within links and spoilers; a spoiler must hide its content.
            self._write(code)
            return
        for kind, (_, begin) in self._styles.items():
            self._add_span(kind, begin)
        start = self._length
        self._write(code)
        self._add_span(EntityKind.CODE, start)
        for kind, (depth, _) in self._styles.items():
            self._styles[kind] = (depth, self._length)

    def _write_image(self, token: Token) -> None:
        description = _plain(token.children or [])
        if self._link is not None:
            self._write(description)
            return
        self._link = _Link(str(token.attrs["src"]), self._length, len(self.parts))
        self._write(description)
        self._close_link()

    def _close_link(self) -> None:
        assert self._link is not None
        link, self._link = self._link, None
        label = "".join(self.parts[link.part :]).strip()
        target = _readable_target(link.url)
        if not label:
            label = target
            self._write(target)
        if self._with_entities and _LINKABLE.match(link.url):
            self._add_span(EntityKind.TEXT_LINK, link.start, url=link.url)
        elif target not in ("", label):
            self._write(f" ({target})")

    # Output

    def _write(self, text: str) -> None:
        # Character references bring back what ``cleaned`` took out of the source.
        text = cleaned(text)
        self.parts.append(text)
        self._length += len(text)

    def _add_span(
        self, kind: EntityKind, start: int, *, url: str | None = None, language: str | None = None
    ) -> None:
        if self._with_entities and start < self._length:
            self.spans.append(Span(kind, start, self._length, url, language))


def _lines_of(token: Token) -> tuple[int, int]:
    """The source lines (begin, end) of a block token, which the parser always notes."""
    assert token.map is not None
    return token.map[0], token.map[1]


def _is_before_table_end(token: Token) -> bool:
    return token.type != "table_close"


def _plain(children: Sequence[Token]) -> str:
    """Inline tokens on one line, without entities."""
    writer = _Writer(with_entities=False)
    writer.write_inline(children)
    return " ".join("".join(writer.parts).split())


def _language_of(info: str) -> tuple[str | None, str]:
    """The language that a fence names, and code that stands on the fence's own line."""
    word, _, rest = info.strip().partition(" ")
    if word and _LANGUAGE.fullmatch(word) is None:
        return None, "" if _ATTRIBUTES.match(word) else f"{info.strip()}\n"
    rest = rest.strip()
    return word or None, "" if not rest or _ATTRIBUTES.match(rest) else f"{rest}\n"


def _readable_target(url: str) -> str:
    """A link's target for reading; "" for one that leads nowhere outside its page."""
    if url.startswith(("#", "data:")):
        return ""
    text: str = _parser().normalizeLinkText(url)
    return text.removeprefix("mailto:").removeprefix("tel:")


def _cells_beyond(columns: int, line: str) -> list[str]:
    """The cells of a table row that GitHub's rule drops because the header has no column."""
    from markdown_it.rules_block.table import escapedSplit

    if line.count("|") < columns:
        return []
    cells = escapedSplit(_QUOTE_MARKS.sub("", line).strip())
    if cells and not cells[0]:
        cells.pop(0)
    if cells and not cells[-1]:
        cells.pop()
    tokens = [_parser().parseInline(cell.strip())[0] for cell in cells[columns:]]
    return [_plain(token.children or []) for token in tokens]


def _laid_out(rows: list[list[str]], alignments: list[str]) -> Iterator[str]:
    """The lines of a table, its columns padded to one width unless it would get too long."""
    sizes = [[_width(cell) for cell in row] for row in rows]
    columns = max(len(row) for row in rows)
    alignments = alignments + [""] * (columns - len(alignments))
    widths = [0] * columns
    for row_sizes in sizes:
        for column, size in enumerate(row_sizes):
            widths[column] = max(widths[column], min(size, _WIDEST_COLUMN))
    if sum(widths) * len(rows) > 20_000 + 4 * sum(map(sum, sizes)):
        widths = [0] * columns
    for index, row in enumerate(rows):
        if index == 0 and not any(row):
            continue
        cells = map(_padded, row, sizes[index], widths, alignments)
        yield " | ".join(cells).rstrip()
        if index == 0:
            yield "-+-".join("-" * max(width, 3) for width in widths[: len(row)])


def _padded(cell: str, size: int, width: int, alignment: str) -> str:
    room = max(width - size, 0)
    before = {"right": room, "center": room // 2}.get(alignment, 0)
    return f"{' ' * before}{cell}{' ' * (room - before)}"


def _width(text: str) -> int:
    """The columns that ``text`` takes in a monospaced font."""
    if text.isascii():
        return len(text)
    # wcwidth takes milliseconds to import, and most tables are ASCII.
    from wcwidth import wcswidth

    columns: int = wcswidth(text)
    return columns if columns >= 0 else len(text)
