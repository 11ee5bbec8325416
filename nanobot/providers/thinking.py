"""Reasoning in answers: between think tags, and as blocks that a provider wants back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from nanobot.core.chat import AssistantMessage, ChatMessage
from nanobot.providers.quirks import Quirks, ReasoningBack

_JOINED = ("text", "summary", "thinking")


class ThinkingBlocks:
    """Puts blocks together from the fragments they are streamed in."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []

    def add(self, fragment: Mapping[str, Any]) -> None:
        """Add a fragment: it goes on with the last block, or begins a new one.

        OpenRouter numbers its blocks (``index``); Anthropic's ``thinking`` ends with its signature.
        """
        last = self._blocks[-1] if self._blocks else {}
        keys = [key for key in _JOINED if key in fragment and key in last]
        ended = "thinking" in keys and bool(last.get("signature"))
        if not keys or ended or any(last.get(k) != fragment.get(k) for k in ("type", "index")):
            self._blocks.append(dict(fragment))
            return
        joined = {key: (last[key] or "") + (fragment[key] or "") for key in keys}
        told = {key: value for key, value in fragment.items() if value not in (None, "")}
        self._blocks[-1] = last | told | joined

    def whole(self) -> tuple[Mapping[str, Any], ...]:
        """The blocks so far."""
        return tuple(self._blocks)


def of_openrouter(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of ``blocks`` that OpenRouter made."""
    return [dict(one) for one in blocks if str(one.get("type", "")).startswith("reasoning.")]


def of_anthropic(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of ``blocks`` that Anthropic's API made and signed."""
    return [
        dict(one)
        for one in blocks
        if (one.get("type") == "thinking" and one.get("signature"))
        or (one.get("type") == "redacted_thinking" and one.get("data"))
    ]


def may_think(messages: Sequence[ChatMessage], quirks: Quirks) -> bool:
    """Whether a reasoning effort can go with ``messages``.

    Anthropic's extended thinking refuses it where the last assistant message called tools without
    blocks of that API: reasoning was switched on, or the model changed, in between.
    """
    if quirks.reasoning_back is not ReasoningBack.BLOCKS:
        return True
    last = next((one for one in reversed(messages) if isinstance(one, AssistantMessage)), None)
    return last is None or not last.tool_calls or bool(of_anthropic(last.thinking_blocks))


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
