"""Providers that ask again: the same model after a wait, then other models in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from nanobot.core.chat import LLMResponse, ModelRequest
from nanobot.core.errors import AuthFailed, BadRequest, ContextOverflow, ProviderError, RetryLater
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
from nanobot.core.text import one_line


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

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        """See ``LLMProvider``. Whatever was streamed by a failed attempt is discarded."""
        watched = _Watched(on_delta)
        policy = self._policy
        end = self._clock() + policy.total_s
        limit = asyncio.timeout(policy.total_s)
        attempt = 1
        try:
            async with limit:
                while True:
                    try:
                        return await self._provider.chat(request, watched)
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
            text = f"no answer of {request.model} within {policy.total_s:g} s (attempt {attempt})"
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


REST_S = 60.0
"""Seconds for which a model that could not answer is asked after the others."""
_LONGEST_REST_S = 600.0
_REASON_LENGTH = 150


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to be asked: ``name`` as its owner writes it, ``model`` as the provider is sent it.

    ``provider`` None: it cannot be asked at all, because of ``error``.
    """

    name: str
    model: str = ""
    provider: LLMProvider | None = None
    max_tokens: int = 0
    error: ProviderError | None = None


class Outages:
    """Which models could not answer lately and why; one for all turns of an app."""

    def __init__(
        self, *, rest_s: float = REST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` gives seconds."""
        self._rest_s = rest_s
        self._clock = clock
        self._resting: dict[str, tuple[float, ProviderError]] = {}

    def of(self, name: str) -> ProviderError | None:
        """Why a model is not to be asked before the others; None when it is."""
        until, error = self._resting.get(name, (0.0, None))
        return error if self._clock() < until else None

    def began(self, name: str, error: ProviderError) -> None:
        """Note that a model could not answer."""
        asked = error.after if isinstance(error, RetryLater) else None
        rest_s = min(max(asked or 0.0, self._rest_s), _LONGEST_REST_S)
        self._resting[name] = (self._clock() + rest_s, error)

    def ended(self, name: str) -> None:
        """Note that a model has answered."""
        self._resting.pop(name, None)


class Fallback:
    """An ``LLMProvider`` over several models, the usual one first; made anew for each turn.

    Another model is asked where one cannot be reached, its key is not accepted, or it refuses the
    request as it stands; not where the content was refused or the usual model's window is too
    small. One that could not answer a moment ago is asked last, so that not every call waits for
    it. When nobody answers the error is RetryLater if any of them may answer later.
    """

    def __init__(self, candidates: Sequence[Candidate], outages: Outages) -> None:
        self._candidates = tuple(candidates)
        self._outages = outages
        self._told = False

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        """See ``LLMProvider``; each candidate replaces ``model`` by its own.

        ``LLMResponse.footnote`` says who answered when it was not the usual model.
        """
        usual = self._candidates[0]
        why = self._outages.of(usual.name)
        resting = {one.name for one in self._candidates if self._outages.of(one.name)}
        order = sorted(self._candidates, key=lambda one: one.name in resting)
        failures: list[tuple[Candidate, ProviderError]] = []
        for place, candidate in enumerate(order):
            try:
                if candidate.provider is None:
                    raise candidate.error or AuthFailed(f"{candidate.name} cannot be asked")
                max_tokens = min(request.max_tokens, candidate.max_tokens)
                adapted = replace(request, model=candidate.model, max_tokens=max_tokens)
                response = await candidate.provider.chat(adapted, on_delta)
            except ProviderError as error:
                if not _leads_on(error, usual=candidate is usual):
                    raise
                failures.append((candidate, error))
                if isinstance(error, RetryLater | AuthFailed) and candidate.provider is not None:
                    self._outages.began(candidate.name, error)
                if candidate is usual:
                    why = error
                if place + 1 < len(order):
                    self._told = True
                    on_delta(Notice(f"{_reason(candidate, error)}; asking {order[place + 1].name}"))
                continue
            self._outages.ended(candidate.name)
            if candidate is usual or why is None:
                return response
            footnote = _footnote(candidate, usual, why)
            if not self._told:
                self._told = True
                on_delta(Notice(footnote.strip("()")))
            return replace(response, footnote=footnote)
        raise _total(sorted(failures, key=lambda failure: self._candidates.index(failure[0])))

    async def aclose(self) -> None:
        """Nothing to close: the candidates' providers belong to whoever made them."""


def _leads_on(error: ProviderError, *, usual: bool) -> bool:
    """Whether another model may do better.

    A fallback with a smaller window is passed over: to cut the conversation down for a stand-in
    would lose it for the usual model, too.
    """
    if isinstance(error, ContextOverflow):
        return not usual
    return isinstance(error, RetryLater | AuthFailed | BadRequest) or type(error) is ProviderError


def _reason(candidate: Candidate, error: ProviderError) -> str:
    return one_line(f"{candidate.name} does not answer: {error}", _REASON_LENGTH)


def _footnote(answered: Candidate, usual: Candidate, why: ProviderError) -> str:
    match why:
        case RetryLater():
            reason = "cannot be reached"
        case AuthFailed():
            reason = "does not accept the key"
        case _:
            reason = "refuses the request"
    return f"(answered by {answered.name}, because {usual.name} {reason})"


def _total(failures: Sequence[tuple[Candidate, ProviderError]]) -> ProviderError:
    """The error of a call that nobody answered: the usual model's, with a word on the others."""
    first = next((error for candidate, error in failures), ProviderError("no model is configured"))
    text = "; ".join(_reason(candidate, error) for candidate, error in failures)
    later = [error for _, error in failures if isinstance(error, RetryLater)]
    if not later:
        return first
    waits = [error.after for error in later]
    known = [wait for wait in waits if wait is not None]
    return RetryLater(text, after=min(known) if len(known) == len(waits) else None)
