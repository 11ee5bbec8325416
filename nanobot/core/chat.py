"""What a model is told and what it answers, independent of any provider's wire format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool; ``arguments`` is the JSON text exactly as it was sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture for the model: ``path`` on disk, ``mime`` from its magic bytes."""

    path: str
    mime: str


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """The system prompt, the stable first part of every request."""

    content: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A user's words as rendered, header included."""

    content: str
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A model's own words and calls.

    ``reasoning`` and ``thinking_blocks`` (opaque, with signatures) are carried back to providers
    which require it and never shown as the answer.
    """

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    thinking_blocks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one tool call, as the model reads it."""

    call_id: str
    name: str
    content: str
    images: tuple[Image, ...] = ()


ChatMessage: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it; ``parameters`` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class ToolChoice(StrEnum):
    """Whether the model may call tools in this request."""

    AUTO = "auto"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model.

    ``max_tokens`` limits the answer. ``reasoning_effort``: None for the model's default, ``off``
    for no reasoning where the model allows that.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSpec]
    model: str
    max_tokens: int
    temperature: float
    reasoning_effort: str | None = None
    tool_choice: ToolChoice = ToolChoice.AUTO


class FinishReason(StrEnum):
    """Why the model stopped, as far as it matters; calls are told by their presence."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more calls; ``cached_tokens`` is the part of the input read from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            sum(costs) if costs else None,
        )


@dataclass(frozen=True, slots=True)
class LLMResponse:
    """One complete answer of a model.

    ``model`` is the name of the one that answered, ``provider`` the one it was asked through.
    ``footnote`` tells the person who reads the answer that another than the usual model gave it;
    it is never part of the history.
    """

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage | None = None
    reasoning_content: str = ""
    thinking_blocks: tuple[Mapping[str, Any], ...] = field(default=())
    model: str = ""
    provider: str = ""
    footnote: str = ""
