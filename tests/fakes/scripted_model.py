"""A model behind the ordinary port whose answers a test scripts, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nanobot.core.chat import (
    ChatMessage,
    FinishReason,
    LLMResponse,
    ModelRequest,
    ToolCall,
    ToolChoice,
    ToolSpec,
    Usage,
)
from nanobot.core.events import Emit, TextDelta, ignore
from nanobot.core.ports import ChosenModel

Answer = LLMResponse | BaseException | Callable[[Sequence[ChatMessage]], LLMResponse]


@dataclass(frozen=True, slots=True)
class Request:
    """What the model was sent."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSpec, ...]
    tool_choice: ToolChoice


@dataclass(slots=True)
class ScriptedModel:
    """Gives its answers in order; ``gate``, where set, holds each call until it is released."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    gate: asyncio.Event | None = None
    called: asyncio.Event = field(default_factory=asyncio.Event)
    context_window: int = 100_000
    reflect: bool = False
    vision: bool = False

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        self.requests.append(
            Request(tuple(request.messages), tuple(request.tools), request.tool_choice)
        )
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if not isinstance(answer, LLMResponse):
            answer = answer(request.messages)
        for character in answer.content:
            on_delta(TextDelta(character))
        return answer

    async def aclose(self) -> None:
        """Nothing to close."""

    async def prepare(self, model: str | None, *, load: bool = True) -> str:
        """Nothing to find out."""
        return ""

    def choose(self, model: str | None) -> ChosenModel:
        """This model, whatever name is asked for."""
        return ChosenModel(
            self,
            model or "scripted",
            1000,
            0.0,
            self.context_window,
            reflect=self.reflect,
            vision=self.vision,
        )


def says(text: str, finish: FinishReason = FinishReason.STOP) -> LLMResponse:
    """An answer of text alone."""
    return LLMResponse(text, (), finish, Usage(10, 5), model="scripted")


def calls(*wanted: tuple[str, str, str], text: str = "") -> LLMResponse:
    """An answer with tool calls, each (id, tool, arguments as JSON)."""
    return LLMResponse(
        text,
        tuple(ToolCall(*call) for call in wanted),
        FinishReason.TOOL_CALLS,
        Usage(10, 5),
        model="scripted",
    )
