"""Reasoning that a model writes into its answer between think tags, told apart while streaming."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

_OPEN = "<think>"
_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Split:
    """The reasoning and the answer in a piece of text; the reasoning comes first."""

    reasoning: str = ""
    answer: str = ""


class _Place(Enum):
    START = auto()
    REASONING = auto()
    GAP = auto()
    ANSWER = auto()


class ThinkSplitter:
    """Splits one answer, given in any pieces.

    Only a tag at the very beginning (white space aside) counts: later ones are part of an answer
    that talks about tags. White space between the closing tag and the answer is dropped.
    """

    def __init__(self) -> None:
        self._place = _Place.START
        self._held = ""

    def feed(self, text: str) -> Split:
        """What ``text`` makes certain; up to a tag's length of it may be held back."""
        self._held += text
        reasoning = ""
        if self._place is _Place.START:
            self._start()
        if self._place is _Place.REASONING:
            reasoning = self._reason()
        if self._place is _Place.GAP:
            self._held = self._held.lstrip()
            if self._held:
                self._place = _Place.ANSWER
        if self._place is not _Place.ANSWER:
            return Split(reasoning)
        answer, self._held = self._held, ""
        return Split(reasoning, answer)

    def end(self) -> Split:
        """What was held back when the text ends."""
        held, self._held = self._held, ""
        return Split(reasoning=held) if self._place is _Place.REASONING else Split(answer=held)

    def _start(self) -> None:
        text = self._held.lstrip()
        if text.startswith(_OPEN):
            self._place = _Place.REASONING
            self._held = text[len(_OPEN) :]
        elif not _OPEN.startswith(text):
            self._place = _Place.ANSWER

    def _reason(self) -> str:
        before, tag, after = self._held.partition(_CLOSE)
        if tag:
            self._place = _Place.GAP
            self._held = after
            return before
        kept = next(
            length for length in range(len(_CLOSE) - 1, -1, -1) if before.endswith(_CLOSE[:length])
        )
        cut = len(before) - kept
        self._held = before[cut:]
        return before[:cut]
