"""Markdown as terminal lines, block by block; loads rich, so import it late."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from nanobot.cli.show import printable

# HTML and link definitions stay text, so that an answer about them shows them.
_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["reference"])
)
# No backgrounds and only the terminal's sixteen colours: readable on dark and light terminals.
_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
        "markdown.code": "cyan",
        "markdown.block_quote": "dim",
        "markdown.link": "bold",
        "markdown.link_url": "cyan",
        "markdown.hr": "dim",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
_PLAIN = Console(file=io.StringIO(), color_system=None, legacy_windows=False)
_TRAILING = re.compile(r" +((?:\x1b\[[\d;]*m)*)$")


class MarkdownLines:
    """Markdown, rendered with colours and weights."""

    gap = 1

    def __init__(self) -> None:
        self._console = Console(
            file=io.StringIO(), force_terminal=True, theme=_THEME, legacy_windows=False
        )

    def blocks(self, text: str) -> Sequence[str]:
        """The top-level blocks of the document, each with the empty lines after it."""
        starts = [
            token.map[0]
            for token in _PARSER.parse(text)
            if token.level == 0 and token.nesting >= 0 and token.map is not None
        ]
        if not starts:
            return []
        lines = text.split("\n")
        ends = [*starts[1:], len(lines)]
        return ["\n".join(lines[start:end]) for start, end in zip(starts, ends, strict=True)]

    def lines(self, block: str, width: int) -> Sequence[str]:
        """The block as lines with SGR sequences, each complete in itself, without empty margins."""
        with self._console.capture() as captured:
            self._console.print(_Document(block), width=width)
        lines = [_TRAILING.sub(r"\1", line) for line in captured.get().split("\n")]
        filled = [place for place, line in enumerate(lines) if columns_of(line)]
        return lines[filled[0] : filled[-1] + 1] if filled else []


class PlainLines:
    """Text as it was written, wrapped."""

    gap = 0

    def blocks(self, text: str) -> Sequence[str]:
        """The lines of the text."""
        return text.split("\n") if text else []

    def lines(self, block: str, width: int) -> Sequence[str]:
        """The line, wrapped at spaces where it has some."""
        return wrapped(block, width)


Lines: TypeAlias = MarkdownLines | PlainLines
"""Turns text (printable, see ``show.printable``) into lines no wider than the terminal.

``blocks`` splits a text that may still grow: a block is final once the next one has a whole line
(``#`` at the end is a heading until it grows to ``#1``). ``lines`` lays one block out for
``width`` columns. ``gap`` empty lines stand between blocks.
"""


def wrapped(line: str, width: int) -> Sequence[str]:
    """One line (no SGR) as lines of at most ``width`` columns."""
    parts = Text(line.expandtabs(8)).wrap(_PLAIN, width)
    return [part.plain.rstrip() for part in parts] or [""]


def rendered(text: str, width: int) -> str:
    """A whole Markdown text for a terminal of ``width`` columns."""
    document = MarkdownLines()
    return "\n\n".join("\n".join(document.lines(each, width)) for each in document.blocks(text))


def clipped(line: str, width: int) -> str:
    """``line`` (no SGR) cut to ``width`` columns, with an ellipsis where it was longer."""
    text = Text(line)
    text.truncate(max(width, 1), overflow="ellipsis")
    return text.plain


def columns_of(line: str) -> int:
    """The width of a line in columns, without its SGR sequences."""
    return Text.from_ansi(line).cell_len


class _Heading(Heading):
    """A heading at the left edge, of whatever level."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        yield text


class _Code(CodeBlock):
    """Code between dim fences and not indented, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        language = "" if self.lexer_name == "text" else self.lexer_name
        yield Text(f"```{language}", style="dim")
        code = str(self.text).rstrip("\n")
        if code:
            yield Syntax(code, self.lexer_name, theme="ansi_dark", word_wrap=True)
        yield Text("```", style="dim")


class _Document(Markdown):
    """rich's Markdown, changed so that no text is hidden or lost."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str) -> None:
        # A link shows its address, so that its text cannot mislead.
        super().__init__("", hyperlinks=False, style=Style())
        self.parsed = _PARSER.parse(text)
        for token in self.parsed:
            if token.children:
                token.children = list(_simpler(token.children))


def _simpler(tokens: Sequence[Token]) -> Iterator[Token]:
    """Inline tokens with line breaks kept, pictures as text, bare links written once."""
    bare = False
    for place, token in enumerate(tokens):
        if token.type == "text":
            # Parsing has turned entities such as &#x202e; into characters.
            yield Token("text", "", 0, content=printable(token.content))
        elif token.type == "softbreak":
            yield Token("hardbreak", "br", 0)
        elif token.type == "image":
            yield Token("text", "", 0, content=_picture(token))
        elif token.type == "link_open" and _is_bare(tokens, place):
            bare = True
        elif token.type == "link_close" and bare:
            bare = False
        else:
            yield token


def _is_bare(tokens: Sequence[Token], place: int) -> bool:
    """Whether a link's text is its address."""
    address = str(tokens[place].attrs.get("href", ""))
    after = tokens[place + 1 : place + 3]
    return (
        len(after) == 2
        and after[0].type == "text"
        and after[1].type == "link_close"
        and address.removeprefix("mailto:") == after[0].content
    )


def _picture(token: Token) -> str:
    return printable(f"{token.content or 'picture'} ({token.attrs.get('src', '')})")
