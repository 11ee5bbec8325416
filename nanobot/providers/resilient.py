"""Providers round others: ``Retrying`` the same model, and ``Fallback`` to other models."""

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
    """Limits of retrying; all times in seconds.

    The delay before attempt n + 1 is a random part of ``base_s`` · 2ⁿ⁻¹, at most ``cap_s`` (full
    jitter). The call fails where a server asks for a wait over ``longest_wait_s``, or the next
    attempt would start after ``total_s``: its caller can postpone the work for longer.
    """

    attempts: int = 4
    base_s: float = 1.0
    cap_s: float = 30.0
    longest_wait_s: float = 60.0
    total_s: float = 900.0


class Retrying:
    """An ``LLMProvider`` round another one; no other class retries model calls."""

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
        """See ``LLMProvider``; text streamed by a failed attempt is discarded."""
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
                        wait = f"retrying in {max(1, round(delay))} s"
                        place = f"attempt {attempt} of {policy.attempts}"
                        watched(Notice(f"{error}; {wait} ({place})"))
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
            # Not before the time the server asks for, and spread over the clients after it.
            return after + self._chance() * policy.base_s
        ceiling: float = min(policy.cap_s, policy.base_s * 2 ** (attempt - 1))
        return self._chance() * ceiling


class _Watched:
    """An ``Emit`` that records whether there is streamed text to discard."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._has_text = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, TextDelta | ReasoningDelta | TextDiscarded):
            self._has_text = not isinstance(event, TextDiscarded)
        self._emit(event)

    def discard(self) -> None:
        if self._has_text:
            self(TextDiscarded())


REST_S = 60.0
"""Seconds during which a model that failed is asked after the others."""
_LONGEST_REST_S = 600.0
_REASON_LENGTH = 150


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to ask: ``name`` as the owner writes it, ``model`` as the provider is sent it.

    ``provider`` None: it cannot be asked, because of ``error``.
    """

    name: str
    model: str = ""
    provider: LLMProvider | None = None
    max_tokens: int = 0
    error: ProviderError | None = None


class Outages:
    """The models that failed lately, with their errors; shared by all turns of an app."""

    def __init__(
        self, *, rest_s: float = REST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` gives seconds."""
        self._rest_s = rest_s
        self._clock = clock
        self._resting: dict[str, tuple[float, ProviderError]] = {}

    def of(self, name: str) -> ProviderError | None:
        """The error of a model that failed lately; None for any other model."""
        until, error = self._resting.get(name, (0.0, None))
        return error if self._clock() < until else None

    def began(self, name: str, error: ProviderError) -> None:
        """Record that a model failed."""
        asked = error.after if isinstance(error, RetryLater) else None
        rest_s = min(max(asked or 0.0, self._rest_s), _LONGEST_REST_S)
        self._resting[name] = (self._clock() + rest_s, error)

    def ended(self, name: str) -> None:
        """Record that a model has answered."""
        self._resting.pop(name, None)


class Fallback:
    """An ``LLMProvider`` over several models, the usual one first; made for one turn.

    The next model is asked when one cannot be reached, does not accept its key, or refuses the
    request's form; not when the content is refused or the usual model's window is too small.
    Models that failed lately are asked last, so that not every call waits for them. If all fail,
    the error is RetryLater if any of them may answer later.
    """

    def __init__(self, candidates: Sequence[Candidate], outages: Outages) -> None:
        self._candidates = tuple(candidates)
        self._outages = outages
        self._told = False

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        """See ``LLMProvider``; each candidate replaces ``model`` by its own.

        ``LLMResponse.footnote`` names the model that answered if it was not the usual one.
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
        """Nothing to close: the candidates' providers have other owners."""


def _leads_on(error: ProviderError, *, usual: bool) -> bool:
    """Whether to ask the next model after ``error``.

    A fallback whose window is too small is skipped: shortening the conversation for it would also
    shorten it for the usual model.
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
    """The error when all models failed: the usual model's, or a RetryLater that names them all."""
    first = next((error for candidate, error in failures), ProviderError("no model is configured"))
    text = "; ".join(_reason(candidate, error) for candidate, error in failures)
    later = [error for _, error in failures if isinstance(error, RetryLater)]
    if not later:
        return first
    waits = [error.after for error in later]
    known = [wait for wait in waits if wait is not None]
    return RetryLater(text, after=min(known) if len(known) == len(waits) else None)
