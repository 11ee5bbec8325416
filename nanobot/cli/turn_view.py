"""The display of a running turn: its frames, the repainted screen, the thread that paints."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from loguru import logger

from nanobot.channels.socket_protocol import Reply
from nanobot.cli.show import failed_line, printable, tool_line
from nanobot.core.events import (
    Event,
    Notice,
    ReasoningDelta,
    TextDelta,
    TextDiscarded,
    ToolFinished,
    ToolStarted,
    UsageReported,
)

if TYPE_CHECKING:
    from nanobot.cli.markdown_view import Lines

FRAME_S = 1 / 20
"""Seconds between two paintings while text comes in."""
TICK_S = 0.5
"""Seconds between two paintings while nothing comes."""
_RESTING = 3
"""Pause after a painting, as a multiple of the time it took."""

Size: TypeAlias = Callable[[], os.terminal_size]
PATIENCE_S = 1.0
"""Seconds of silence after which the page says that the model is thinking."""
WORTH_SAYING_S = 1.0
"""Shortest duration of a tool call that is shown, in seconds."""
TAKEN_BACK = "(the answer broke off; it begins again)"
ONCE_MORE = "(the answer, as it is in the end:)"


@dataclass(frozen=True, slots=True)
class Frame:
    """Lines to print permanently, and below them lines that the next frame replaces."""

    final: tuple[str, ...]
    live: tuple[str, ...]


class _Kind(Enum):
    TEXT = auto()
    ACTIVITY = auto()


class TurnPage:
    """Lays a turn's events out as frames; times are seconds of one monotonic clock.

    Text stays live while it fits the screen, so that it can be taken back; longer text becomes
    final from the top, block by block. Not thread-safe: the display thread alone uses it.
    """

    def __init__(self, lines: Lines, *, styled: bool, now: float) -> None:
        self._lines = lines
        self._dim, self._normal = ("\x1b[2m", "\x1b[0m") if styled else ("", "")
        self._settled: list[tuple[_Kind, str]] = []
        self._above: _Kind | None = None
        self._settled_text = ""
        self._final_text = ""
        self._tail = ""
        self._call_begins = 0
        self._tools: dict[str, tuple[str, float]] = {}
        self._began = now
        self._heard = now
        self._is_over = False
        self._known: dict[tuple[str, int], Sequence[str]] = {}

    def apply(self, event: Event, now: float) -> None:
        """Take in one event."""
        self._heard = now
        match event:
            case TextDelta(text):
                shown = printable(text)
                self._tail += shown if self._text else shown.lstrip()
            case TextDiscarded():
                self._take_back()
            case ToolStarted(call_id, name, summary):
                self._settle_text()
                self._tools[call_id] = (tool_line(name, summary), now)
            case ToolFinished(call_id, name, ok, seconds):
                line, _ = self._tools.pop(call_id, (tool_line(name, ""), now))
                took = f" ({seconds:.1f} s)" if ok and seconds >= WORTH_SAYING_S else ""
                self.say(line + took)
                if not ok:
                    self.say(failed_line(name, seconds))
            case Notice(text):
                self.say(f"nanobot: {printable(text)}")
            case UsageReported():
                self._call_begins = len(self._text)
            case ReasoningDelta():
                pass

    def conclude(self, reply: Reply) -> None:
        """End the turn; the part of its answer that was streamed is not shown twice."""
        if reply.failure:
            self.end()
            stopped = reply.failure == "stopped"
            self.say("Stopped." if stopped else f"nanobot: {printable(reply.answer)}")
            return
        whole = printable(reply.answer).strip()
        if whole and not _ends_with(self._settled_text + self._text, whole):
            if whole.startswith(self._final_text):
                self._tail = whole.removeprefix(self._final_text)
            else:
                self._settle_text()
                self.say(ONCE_MORE)
                self._tail = whole
        self.end()

    def say(self, text: str) -> None:
        """Add a line about the turn, such as that it was stopped."""
        self._settled.append((_Kind.ACTIVITY, text))

    def end(self) -> None:
        """Make everything final; nothing more comes."""
        for line, _ in self._tools.values():
            self.say(line)
        self._tools.clear()
        self._settle_text()
        self._is_over = True

    def frame(self, width: int, height: int, now: float) -> Frame:
        """The next frame for a terminal of this size; each final line is in one frame only."""
        from nanobot.cli.markdown_view import wrapped

        final: list[str] = []
        for kind, text in self._settled:
            if kind is _Kind.TEXT:
                self._put_lines(final, kind, self._lines.lines(text, width))
            else:
                parts = wrapped(text, width)
                self._put_lines(final, kind, [self._dimmed(part) for part in parts])
        self._settled.clear()
        status = self._status(width, now)[-max(height // 2, 1) :]
        room = max(height - 1 - len(status) - 1, 1)
        blocks = list(self._lines.blocks(self._tail))
        laid_out = self._laid_out(blocks, width)
        while _first_is_final(blocks) and _rows(laid_out, self._lines.gap) > room:
            self._put_lines(final, _Kind.TEXT, laid_out.pop(0))
            block = blocks.pop(0)
            end = self._tail.index(block) + len(block)
            # A block ends before the line break that parts it from the next.
            self._final_text += self._tail[: end + 1]
            self._tail = self._tail[end + 1 :]
        live: list[str] = []
        above = self._above
        for lines in laid_out:
            self._put_lines(live, _Kind.TEXT, lines)
        if len(live) > room:
            live = [self._dimmed("⋮"), *live[len(live) - room + 1 :]] if room > 1 else live[-1:]
        if status:
            self._put_lines(live, _Kind.ACTIVITY, status)
        self._above = above
        return Frame(tuple(final), tuple(live))

    def _laid_out(self, blocks: Sequence[str], width: int) -> list[Sequence[str]]:
        """The blocks' lines; blocks of the last frame are not laid out again."""
        former, self._known = self._known, {}
        for block in blocks:
            key = (block, width)
            self._known[key] = former.get(key) or self._lines.lines(block, width)
        return [self._known[block, width] for block in blocks]

    @property
    def _text(self) -> str:
        """The text that this step has streamed."""
        return self._final_text + self._tail

    def _take_back(self) -> None:
        kept = self._text[: self._call_begins]
        if kept.startswith(self._final_text):
            self._tail = kept.removeprefix(self._final_text)
            return
        self._tail = ""
        self._settle_text()
        self.say(TAKEN_BACK)

    def _settle_text(self) -> None:
        text = self._tail.rstrip()
        if text:
            blocks = self._lines.blocks(text)
            self._settled.extend((_Kind.TEXT, block) for block in blocks)
        self._settled_text += f"{self._text} "
        self._final_text = self._tail = ""
        self._call_begins = 0

    def _status(self, width: int, now: float) -> list[str]:
        """The running tools, a line each, or that the model is thinking."""
        from nanobot.cli.markdown_view import clipped

        if self._is_over:
            return []
        lines = [
            f"{line} {now - since:.0f} s" if now - since >= WORTH_SAYING_S else line
            for line, since in self._tools.values()
        ]
        if not lines and now - self._heard >= PATIENCE_S:
            lines = [f"· thinking, {now - self._began:.0f} s (Ctrl-C stops)"]
        return [self._dimmed(clipped(line, width)) for line in lines]

    def _put_lines(self, lines: list[str], kind: _Kind, more: Sequence[str]) -> None:
        """Add lines, with a gap of empty lines between them and what is above."""
        gap = self._lines.gap if self._above is kind is _Kind.TEXT else int(self._above is not kind)
        lines.extend([""] * gap)
        lines.extend(more)
        self._above = kind

    def _dimmed(self, text: str) -> str:
        return f"{self._dim}{text}{self._normal}"


def _first_is_final(blocks: Sequence[str]) -> bool:
    """Whether the next block has a whole line, so that the first one can no longer change."""
    return len(blocks) > 2 or (len(blocks) == 2 and "\n" in blocks[1])


def _ends_with(text: str, end: str) -> bool:
    """Whether the last words of ``text`` are those of ``end``, however they are spaced."""
    words = end.split()
    return text.split()[-len(words) :] == words


def _rows(blocks: Sequence[Sequence[str]], gap: int) -> int:
    return sum(map(len, blocks)) + gap * (len(blocks) - 1)


class Screen:
    """The end of a terminal's output: permanent lines, and below them replaceable ones.

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
        """The sequence that erases the live lines after a resize has moved them."""
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
    """Displays one turn from its own thread; ``show`` may be called from any thread."""

    def __init__(
        self,
        *,
        markdown: bool,
        styled: bool,
        live: bool,
        write: Callable[[str], None],
        size: Size,
    ) -> None:
        """``live``: whether lines may be shown that are replaced later."""
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
        """Queue an event for display; never blocks."""
        self._inbox.put(event)

    def conclude(self, reply: Reply) -> None:
        """Show how the turn ended."""
        self.answer = reply.answer
        self._inbox.put(reply)

    def __enter__(self) -> TurnView:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Paint the last frame and end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._paint_until_the_end()
        except Exception as error:
            # The turn goes on without its display; the conversation prints the answer.
            logger.exception("the turn cannot be shown")
            self.failure = error

    def _paint_until_the_end(self) -> None:
        # Loading rich takes a tenth of a second; the model is asked meanwhile.
        from nanobot.cli.markdown_view import MarkdownLines, PlainLines

        lines = MarkdownLines() if self._is_markdown else PlainLines()
        page = TurnPage(lines, styled=self._is_styled, now=time.monotonic())
        next_at = time.monotonic()
        is_stale = is_over = False
        while not is_over:
            wait = max(next_at - time.monotonic(), 0) if is_stale else TICK_S
            with suppress(Empty):
                item = self._inbox.get(timeout=wait)
                is_stale = True
                match item:
                    case None:
                        is_over = True
                        page.end()
                    case Reply():
                        page.conclude(item)
                    case event:
                        page.apply(event, time.monotonic())
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
