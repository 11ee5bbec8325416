"""Tests of retrying model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nanobot.core.chat import (
    LLMResponse,
    ModelRequest,
    ToolChoice,
    ToolSpec,
    UserMessage,
)
from nanobot.core.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ProviderError,
    Refused,
    RetryLater,
)
from nanobot.core.events import (
    Emit,
    Event,
    Notice,
    ReasoningDelta,
    TextDelta,
    TextDiscarded,
    ignore,
)
from nanobot.providers.resilient import Retrying, RetryPolicy

ANSWER = LLMResponse("done", model="m")
BUSY = RetryLater("p cannot answer now (503)")
TOOLS = (ToolSpec("look", "Looks.", {"type": "object"}),)
REQUEST = ModelRequest((UserMessage("hi"),), TOOLS, "m", 7, 0.3, "low", ToolChoice.NONE)

Step = Callable[[Emit], None] | ProviderError | LLMResponse


class Scripted:
    """A provider that goes through its steps: each attempt emits until it raises or answers."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self.calls: list[ModelRequest] = []
        self.is_closed = False

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        self.calls.append(request)
        while True:
            step = self._steps.pop(0) if self._steps else BUSY
            if isinstance(step, ProviderError):
                raise step
            if isinstance(step, LLMResponse):
                return step
            step(on_delta)

    async def aclose(self) -> None:
        self.is_closed = True


class Hanging(Scripted):
    """A provider that never answers; knows whether it was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cancelled = False
        self.is_asked = asyncio.Event()

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        self.is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled = True
        raise AssertionError


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def text(words: str) -> Callable[[Emit], None]:
    return lambda emit: emit(TextDelta(words))


def reasoning(words: str) -> Callable[[Emit], None]:
    return lambda emit: emit(ReasoningDelta(words))


def retrying(
    provider: Scripted, time: Time, policy: RetryPolicy = RetryPolicy(), chance: float = 1.0
) -> Retrying:
    return Retrying(provider, policy, sleep=time.sleep, chance=lambda: chance, clock=time.clock)


async def ask(provider: Retrying, events: list[Event] | None = None) -> LLMResponse:
    return await provider.chat(REQUEST, ignore if events is None else events.append)


async def test_an_answer_passes_through_with_its_deltas() -> None:
    inner, time, events = Scripted(text("do"), text("ne"), ANSWER), Time(), list[Event]()

    answer = await ask(retrying(inner, time), events)

    assert answer == ANSWER
    assert events == [TextDelta("do"), TextDelta("ne")]
    assert inner.calls == [REQUEST]
    assert time.slept == []


async def test_delays_double_and_each_retry_is_announced() -> None:
    inner, time, events = Scripted(BUSY, BUSY, BUSY, ANSWER), Time(), list[Event]()

    answer = await ask(retrying(inner, time), events)

    assert answer == ANSWER
    assert time.slept == [1, 2, 4]
    assert events == [
        Notice("p cannot answer now (503); retrying in 1 s (attempt 2 of 4)"),
        Notice("p cannot answer now (503); retrying in 2 s (attempt 3 of 4)"),
        Notice("p cannot answer now (503); retrying in 4 s (attempt 4 of 4)"),
    ]
    assert len(inner.calls) == 4 and len(set(map(repr, inner.calls))) == 1


async def test_jitter_takes_any_part_of_the_delay() -> None:
    inner, time = Scripted(BUSY, BUSY, BUSY, ANSWER), Time()

    await ask(retrying(inner, time, chance=0.25))

    assert time.slept == [0.25, 0.5, 1]


async def test_a_delay_has_a_ceiling() -> None:
    inner, time = Scripted(*[BUSY] * 7, ANSWER), Time()

    await ask(retrying(inner, time, RetryPolicy(attempts=8, cap_s=5)))

    assert time.slept == [1, 2, 4, 5, 5, 5, 5]


async def test_the_last_error_is_raised_when_the_attempts_are_used_up() -> None:
    last = RetryLater("the fourth", after=2)
    inner, time, events = Scripted(BUSY, BUSY, BUSY, last, ANSWER), Time(), list[Event]()

    with pytest.raises(RetryLater) as caught:
        await ask(retrying(inner, time), events)

    assert caught.value is last
    assert len(inner.calls) == 4
    assert len(events) == 3


@pytest.mark.parametrize(
    "error", [AuthFailed("no"), BadRequest("no"), ContextOverflow("no"), Refused("no")]
)
async def test_what_repeating_cannot_mend_is_raised_at_once(error: ProviderError) -> None:
    inner, time = Scripted(error, ANSWER), Time()

    with pytest.raises(type(error)) as caught:
        await ask(retrying(inner, time))

    assert caught.value is error
    assert (len(inner.calls), time.slept) == (1, [])


@pytest.mark.parametrize(("chance", "slept"), [(0.0, 17.0), (1.0, 18.0)])
async def test_the_servers_own_delay_is_kept_and_never_undercut(
    chance: float, slept: float
) -> None:
    inner, time, events = Scripted(RetryLater("wait", after=17), ANSWER), Time(), list[Event]()

    await ask(retrying(inner, time, chance=chance), events)

    assert time.slept == [slept]
    assert events == [Notice(f"wait; retrying in {slept:.0f} s (attempt 2 of 4)")]


async def test_a_server_that_wants_a_long_pause_is_not_waited_for() -> None:
    inner, time, events = Scripted(RetryLater("wait", after=61), ANSWER), Time(), list[Event]()

    with pytest.raises(RetryLater) as caught:
        await ask(retrying(inner, time), events)

    assert caught.value.after == 61
    assert (time.slept, events) == ([], [])


async def test_a_delay_that_would_pass_the_total_limit_is_not_begun() -> None:
    inner, time = Scripted(BUSY, BUSY, BUSY, ANSWER), Time()

    with pytest.raises(RetryLater) as caught:
        await ask(retrying(inner, time, RetryPolicy(total_s=5)))

    assert caught.value is BUSY
    assert time.slept == [1, 2]


async def test_the_total_limit_ends_an_attempt_that_hangs() -> None:
    inner, time, events = Hanging(), Time(), list[Event]()

    with pytest.raises(RetryLater, match=r"no answer of m within 0.05 s \(attempt 1\)"):
        await ask(retrying(inner, time, RetryPolicy(total_s=0.05)), events)

    assert inner.is_cancelled


async def test_streamed_text_is_discarded_before_the_next_attempt() -> None:
    inner, time = Scripted(text("Hel"), text("lo"), BUSY, text("Hello"), ANSWER), Time()
    events: list[Event] = []

    await ask(retrying(inner, time), events)

    assert events == [
        TextDelta("Hel"),
        TextDelta("lo"),
        TextDiscarded(),
        Notice("p cannot answer now (503); retrying in 1 s (attempt 2 of 4)"),
        TextDelta("Hello"),
    ]


async def test_streamed_reasoning_is_discarded_too_and_only_once() -> None:
    inner, time = Scripted(reasoning("hm"), BUSY, BUSY, ANSWER), Time()
    events: list[Event] = []

    await ask(retrying(inner, time), events)

    assert events.count(TextDiscarded()) == 1
    assert events[:2] == [ReasoningDelta("hm"), TextDiscarded()]


async def test_text_streamed_before_a_final_error_is_discarded() -> None:
    inner, time, events = Scripted(text("Half"), Refused("filtered")), Time(), list[Event]()

    with pytest.raises(Refused):
        await ask(retrying(inner, time), events)

    assert events == [TextDelta("Half"), TextDiscarded()]


async def test_cancelling_reaches_the_attempt_and_is_not_retried() -> None:
    inner, time = Hanging(), Time()
    task = asyncio.create_task(ask(retrying(inner, time)))
    await inner.is_asked.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (inner.is_cancelled, time.slept) == (True, [])


async def test_cancelling_ends_the_wait_between_attempts() -> None:
    inner, asleep = Scripted(BUSY, ANSWER), asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(ask(Retrying(inner, sleep=sleep, chance=lambda: 1.0)))
    await asleep.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(inner.calls) == 1


async def test_closing_closes_the_provider_inside() -> None:
    inner = Scripted()

    await Retrying(inner).aclose()

    assert inner.is_closed
