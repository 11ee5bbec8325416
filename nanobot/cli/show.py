"""What a person at the terminal sees of a running turn."""

from __future__ import annotations

import os
import sys

from nanobot.core.events import Event, Notice, ToolFinished, ToolStarted


class StderrProgress:
    """Notices always, tool calls only where a person watches; the answer is not shown here."""

    def __init__(self) -> None:
        self._watched = sys.stderr.isatty()
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if _colours() else ("", "")

    def __call__(self, event: Event) -> None:
        match event:
            case Notice(text):
                print(f"nanobot: {text}", file=sys.stderr, flush=True)
            case ToolStarted(_, name, summary) if self._watched:
                self._line(f"· {name} {summary}")
            case ToolFinished(_, name, ok, seconds) if self._watched and not ok:
                self._line(f"· {name} failed after {seconds:.1f} s")
            case _:
                pass

    def _line(self, text: str) -> None:
        print(f"{self._dim}{text}{self._plain}", file=sys.stderr, flush=True)


def _colours() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
