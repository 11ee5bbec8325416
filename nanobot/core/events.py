"""Progress of a turn, for whoever displays it; events may be lost, nothing else may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from nanobot.core.chat import Usage


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning, which is never part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDiscarded:
    """The text streamed so far in this step is void (the stream broke and is tried again)."""


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call begins; ``summary`` is its arguments in a few words, secrets masked."""

    call_id: str
    name: str
    summary: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool call ended."""

    call_id: str
    name: str
    ok: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class UsageReported:
    """Tokens of one model call."""

    usage: Usage
    model: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the person who waits: a retry, a warning, another model answering."""

    text: str


Event: TypeAlias = (
    TextDelta | ReasoningDelta | TextDiscarded | ToolStarted | ToolFinished | UsageReported | Notice
)
Emit: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An ``Emit`` for turns that nobody watches."""
