"""What commands print: text made safe for a terminal, JSON, times, and a turn's progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Container, Mapping, Sequence

import typer

from nanobot.core.events import Event, Notice, ToolFinished, ToolStarted
from nanobot.core.text import one_line

# Control characters become their visible pictures. Carriage returns and characters that reorder
# text (Unicode TR 9's embeddings, overrides and isolates) are removed.
_PICTURES: Mapping[int, str | None] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)},
    0x0D: None,
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A))),
}


def printable(text: str) -> str:
    """``text`` without what a terminal would interpret: escape sequences, reordering of text."""
    return text.translate(_PICTURES)


def clean(text: str, most: int = 400) -> str:
    """``text`` on one printable line of at most ``most`` characters."""
    return one_line(printable(text), most)


def print_json(value: object) -> None:
    """Print a value for a program."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Rows of cells as aligned lines; ``right`` are the columns aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if place in right else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def local_time(stamp: str) -> str:
    """An ISO time as this machine's clock shows it."""
    from datetime import datetime

    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M}"


def moves(environ: Mapping[str, str]) -> bool:
    """Whether the terminal supports cursor movement, by TERM."""
    return environ.get("TERM", "") not in ("", "dumb", "unknown")


def styled(environ: Mapping[str, str]) -> bool:
    """Whether the terminal supports and wants colours and weights, by TERM and NO_COLOR."""
    return moves(environ) and not environ.get("NO_COLOR")


def tool_line(name: str, summary: str) -> str:
    """A tool call on one line."""
    return printable(f"· {name} {summary}".replace("\n", " ").rstrip())


def failed_line(name: str, seconds: float) -> str:
    """A tool call that failed, on one line."""
    return printable(f"· {name} failed after {seconds:.1f} s")


class StderrProgress:
    """Prints notices to stderr, and tool calls where stderr is a terminal; never the answer."""

    def __init__(self) -> None:
        self._watched = sys.stderr.isatty()
        is_styled = self._watched and styled(os.environ)
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if is_styled else ("", "")

    def __call__(self, event: Event) -> None:
        match event:
            case Notice(text):
                print(f"nanobot: {printable(text)}", file=sys.stderr, flush=True)
            case ToolStarted(_, name, summary) if self._watched:
                self._line(tool_line(name, summary))
            case ToolFinished(_, name, ok, seconds) if self._watched and not ok:
                self._line(failed_line(name, seconds))
            case _:
                pass

    def _line(self, text: str) -> None:
        print(f"{self._dim}{text}{self._plain}", file=sys.stderr, flush=True)
