"""What one turn has put on the terminal: what is final, and what may still change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from nanobot.channels.socket_protocol import Reply
from nanobot.cli.markdown_view import Lines, clipped, wrapped
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

PATIENCE_S = 1.0
"""Silence after which the page says that the model is thinking."""
WORTH_SAYING_S = 1.0
"""Seconds from which on a tool's duration is shown."""
TAKEN_BACK = "(the answer broke off; it begins again)"
ONCE_MORE = "(the answer, as it is in the end:)"


@dataclass(frozen=True, slots=True)
class Frame:
    """Lines to print for good, and below them lines that the next frame replaces."""

    final: tuple[str, ...]
    live: tuple[str, ...]


class _Kind(Enum):
    TEXT = auto()
    ACTIVITY = auto()


@dataclass(frozen=True, slots=True)
class _Piece:
    kind: _Kind
    text: str


class TurnPage:
    """Takes a turn's events and lays them out; times are seconds of one steady clock.

    Text stays live as long as it fits the screen, so that it can be taken back; what is longer
    becomes final from above, block by block. Its display thread is its one user.
    """

    def __init__(self, lines: Lines, *, styled: bool, now: float) -> None:
        self._lines = lines
        self._dim, self._normal = ("\x1b[2m", "\x1b[0m") if styled else ("", "")
        self._settled: list[_Piece] = []
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
                self._tool_ended(line, name, ok=ok, seconds=seconds)
            case Notice(text):
                self.say(f"nanobot: {printable(text)}")
            case UsageReported():
                self._call_begins = len(self._text)
            case ReasoningDelta():
                pass

    def conclude(self, reply: Reply) -> None:
        """The turn has ended; what was streamed of its answer is not shown twice."""
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
        """A line about the turn, such as that it was stopped."""
        self._settled.append(_Piece(_Kind.ACTIVITY, text))

    def end(self) -> None:
        """Nothing more comes: all there is becomes final."""
        for line, _ in self._tools.values():
            self.say(line)
        self._tools.clear()
        self._settle_text()
        self._is_over = True

    def frame(self, width: int, height: int, now: float) -> Frame:
        """The next frame for a terminal of this size; its final lines are not given again."""
        final: list[str] = []
        for piece in self._settled:
            self._put(final, piece, width)
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
        """The blocks' lines; those of the last frame are not made again."""
        former, self._known = self._known, {}
        for block in blocks:
            key = (block, width)
            self._known[key] = former.get(key) or self._lines.lines(block, width)
        return [self._known[block, width] for block in blocks]

    @property
    def _text(self) -> str:
        """What this step has streamed."""
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
            self._settled.extend(_Piece(_Kind.TEXT, block) for block in blocks)
        self._settled_text += f"{self._text} "
        self._final_text = self._tail = ""
        self._call_begins = 0

    def _tool_ended(self, line: str, name: str, *, ok: bool, seconds: float) -> None:
        took = f" ({seconds:.1f} s)" if seconds >= WORTH_SAYING_S else ""
        self.say(line + took if ok else line)
        if not ok:
            self.say(failed_line(name, seconds))

    def _status(self, width: int, now: float) -> list[str]:
        """What goes on just now, a line each."""
        if self._is_over:
            return []
        lines = [
            f"{line} {now - since:.0f} s" if now - since >= WORTH_SAYING_S else line
            for line, since in self._tools.values()
        ]
        if not lines and now - self._heard >= PATIENCE_S:
            lines = [f"· thinking, {now - self._began:.0f} s (Ctrl-C stops)"]
        return [self._dimmed(clipped(line, width)) for line in lines]

    def _put(self, lines: list[str], piece: _Piece, width: int) -> None:
        if piece.kind is _Kind.TEXT:
            self._put_lines(lines, piece.kind, self._lines.lines(piece.text, width))
        else:
            parts = wrapped(piece.text, width)
            self._put_lines(lines, piece.kind, [self._dimmed(part) for part in parts])

    def _put_lines(self, lines: list[str], kind: _Kind, more: Sequence[str]) -> None:
        """Add lines, and empty ones where they stand apart from what is above."""
        gap = self._lines.gap if self._above is kind is _Kind.TEXT else int(self._above is not kind)
        lines.extend([""] * gap)
        lines.extend(more)
        self._above = kind

    def _dimmed(self, text: str) -> str:
        return f"{self._dim}{text}{self._normal}"


def _first_is_final(blocks: Sequence[str]) -> bool:
    """Whether nothing that follows can change the first block: the next has a whole line."""
    return len(blocks) > 2 or (len(blocks) == 2 and "\n" in blocks[1])


def _ends_with(text: str, end: str) -> bool:
    """Whether the last words of a text are those of another: of an answer in several parts, too."""
    words = end.split()
    return text.split()[-len(words) :] == words


def _rows(blocks: Sequence[Sequence[str]], gap: int) -> int:
    return sum(map(len, blocks)) + gap * (len(blocks) - 1)
