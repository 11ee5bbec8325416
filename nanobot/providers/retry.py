"""A provider that asks another again when it may answer later."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from nanobot.core.chat import ChatMessage, LLMResponse, ToolChoice, ToolSpec
from nanobot.core.errors import ProviderError, RetryLater
from nanobot.core.events import (
    Emit,
    Event,
    Notice,
    ReasoningDelta,
    TextDelta,
    TextDiscarded,
    ignore,
)
from nanobot.core.ports import LLMProvider


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try; all times in seconds.

    The delay before attempt n + 1 is a random part of ``base_s`` · 2ⁿ⁻¹, at most ``cap_s`` (full
    jitter). A server that asks for more than ``longest_wait_s`` is not waited for, nor is
    anything that would end after ``total_s``: the caller can put the work off for longer.
    """

    attempts: int = 4
    base_s: float = 1.0
    cap_s: float = 30.0
    longest_wait_s: float = 60.0
    total_s: float = 900.0


class Retrying:
    """An ``LLMProvider`` round another one; the only place where model calls are retried."""

    def __init__(
        self,
        provider: LLMProvider,
        policy: RetryPolicy = RetryPolicy(),
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``chance`` gives numbers from 0 to 1; ``clock`` gives seconds."""
        self._provider = provider
        self._policy = policy
        self._sleep = sleep
        self._chance = chance
        self._clock = clock

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        model: str,
        max_tokens: int,
        temperature: float,
        reasoning_effort: str | None = None,
        tool_choice: ToolChoice = ToolChoice.AUTO,
        on_delta: Emit | None = None,
    ) -> LLMResponse:
        """See ``LLMProvider``. Whatever was streamed by a failed attempt is discarded."""
        watched = _Watched(on_delta or ignore)
        policy = self._policy
        end = self._clock() + policy.total_s
        limit = asyncio.timeout(policy.total_s)
        attempt = 1
        try:
            async with limit:
                while True:
                    try:
                        return await self._provider.chat(
                            messages,
                            tools,
                            model=model,
                            max_tokens=max_tokens,
                            temperature=temperature,
                            reasoning_effort=reasoning_effort,
                            tool_choice=tool_choice,
                            on_delta=watched,
                        )
                    except RetryLater as error:
                        watched.discard()
                        delay = self._delay(attempt, error.after)
                        if delay is None or self._clock() + delay >= end:
                            raise
                        attempt += 1
                        watched(Notice(self._notice(error, delay, attempt)))
                        await self._sleep(delay)
        except TimeoutError as error:
            if not limit.expired():
                raise
            watched.discard()
            text = f"no answer of {model} within {policy.total_s:g} s (attempt {attempt})"
            raise RetryLater(text) from error
        except ProviderError:
            watched.discard()
            raise

    async def aclose(self) -> None:
        await self._provider.aclose()

    def _delay(self, attempt: int, after: float | None) -> float | None:
        """Seconds to wait after this attempt, or None to give up."""
        policy = self._policy
        if attempt >= policy.attempts or (after is not None and after > policy.longest_wait_s):
            return None
        if after is not None:
            # Never before the server's time; not all of its clients at the same time after it.
            return after + self._chance() * policy.base_s
        ceiling: float = min(policy.cap_s, policy.base_s * 2 ** (attempt - 1))
        return self._chance() * ceiling

    def _notice(self, error: RetryLater, delay: float, attempt: int) -> str:
        seconds = max(1, round(delay))
        return f"{error}; retrying in {seconds} s (attempt {attempt} of {self._policy.attempts})"


class _Watched:
    """Passes events on and knows whether there is streamed text to discard."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._has_text = False

    def __call__(self, event: Event) -> None:
        match event:
            case TextDelta() | ReasoningDelta():
                self._has_text = True
            case TextDiscarded():
                self._has_text = False
            case _:
                pass
        self._emit(event)

    def discard(self) -> None:
        if self._has_text:
            self(TextDiscarded())
