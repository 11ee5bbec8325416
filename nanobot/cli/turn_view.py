"""A turn on the terminal while it runs: a thread that paints, and lines that can be repainted."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from loguru import logger

from nanobot.channels.socket_protocol import Reply
from nanobot.core.events import Event

if TYPE_CHECKING:
    from nanobot.cli.turn_page import TurnPage

FRAME_S = 1 / 20
"""Seconds between two paintings while text comes in."""
TICK_S = 0.5
"""Seconds between two paintings while nothing comes."""
_RESTING = 3
"""A painting that took long is followed by a rest this many times as long."""

Size: TypeAlias = Callable[[], os.terminal_size]


class Screen:
    """The end of a terminal's output: lines that stay, and below them lines that are replaced.

    Follows ECMA-48 (CUU, ED, EL) and DEC's private mode 7 (no wrapping of what is replaced). The
    cursor rests at the start of the line below. Only lines that differ are written again.
    """

    def __init__(self, write: Callable[[str], None], size: Size) -> None:
        self._write = write
        self._size = size
        self._live: list[str] = []
        self._columns = size().columns

    def paint(self, final: Sequence[str], live: Sequence[str]) -> None:
        """Replace the live lines by the final ones and new live ones."""
        out = [self._after_resizing()]
        wanted = [*final, *live]
        same = 0
        while same < min(len(self._live), len(wanted)) and self._live[same] == wanted[same]:
            same += 1
        above = len(self._live) - same
        out.append(f"\r\x1b[{above}A" if above else "")
        wrapped = len(final)
        out.extend(f"\x1b[2K{line}\n" for line in wanted[same:wrapped])
        if tail := wanted[max(same, wrapped) :]:
            out.append("\x1b[?7l" + "".join(f"\x1b[2K{line}\n" for line in tail) + "\x1b[?7h")
        out.append("\x1b[J" if above else "")
        self._live = list(live)
        if any(out):
            self._write("".join(out))

    def _after_resizing(self) -> str:
        """What removes the live lines where a changed size has moved them."""
        columns, rows = self._size()
        taken = len(self._live)
        if columns != self._columns:
            from nanobot.cli.markdown_view import columns_of

            # Terminals reflow: a line that has become too long takes several rows.
            taken = sum(max(1, math.ceil(columns_of(line) / columns)) for line in self._live)
        elif taken < rows:
            return ""
        self._columns = columns
        self._live = []
        above = min(taken, rows - 1)
        return f"\r\x1b[{above}A\x1b[J" if above else ""


class TurnView:
    """Shows one turn from a thread of its own; ``show`` may be called from any."""

    def __init__(
        self,
        *,
        markdown: bool,
        styled: bool,
        live: bool,
        write: Callable[[str], None],
        size: Size,
    ) -> None:
        """``live``: lines may be shown that are painted over later."""
        self._is_markdown = markdown
        self._is_styled = styled
        self._is_live = live
        self._size = size
        self._screen = Screen(write, size)
        self._inbox: SimpleQueue[Event | Reply | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="turn view")
        self.answer = ""
        self.failure: Exception | None = None

    def show(self, event: Event) -> None:
        """Take an event of the turn; never waits."""
        self._inbox.put(event)

    def conclude(self, reply: Reply) -> None:
        """Show how the turn ended."""
        self.answer = reply.answer
        self._inbox.put(reply)

    def __enter__(self) -> TurnView:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Paint the last frame and end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._paint_until_the_end()
        except Exception as error:
            # The turn goes on whatever becomes of its picture; the conversation prints the answer.
            logger.exception("the turn cannot be shown")
            self.failure = error

    def _paint_until_the_end(self) -> None:
        # Loading rich takes a tenth of a second, in which the model is being asked already.
        page = _page(markdown=self._is_markdown, styled=self._is_styled)
        next_at = time.monotonic()
        is_stale = is_over = False
        while not is_over:
            wait = max(next_at - time.monotonic(), 0) if is_stale else TICK_S
            with suppress(Empty):
                item = self._inbox.get(timeout=wait)
                is_stale = True
                is_over = item is None
                _take(page, item)
            if is_over or time.monotonic() >= next_at:
                next_at = self._paint(page)
                is_stale = False

    def _paint(self, page: TurnPage) -> float:
        """Paint the page as it is now; returns when the next painting may be."""
        began = time.monotonic()
        columns, rows = self._size()
        frame = page.frame(columns, rows if self._is_live else 1, began)
        self._screen.paint(frame.final, frame.live if self._is_live else ())
        ended = time.monotonic()
        return ended + max(FRAME_S, _RESTING * (ended - began))


def _page(*, markdown: bool, styled: bool) -> TurnPage:
    from nanobot.cli.markdown_view import MarkdownLines, PlainLines
    from nanobot.cli.turn_page import TurnPage

    lines = MarkdownLines() if markdown else PlainLines()
    return TurnPage(lines, styled=styled, now=time.monotonic())


def _take(page: TurnPage, item: Event | Reply | None) -> None:
    match item:
        case None:
            page.end()
        case Reply():
            page.conclude(item)
        case event:
            page.apply(event, time.monotonic())
