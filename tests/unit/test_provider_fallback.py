"""Other models answer when the usual one cannot, in order, and somebody says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nanobot.core.chat import LLMResponse, ModelRequest, UserMessage
from nanobot.core.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ProviderError,
    Refused,
    RetryLater,
)
from nanobot.core.events import Emit, Event, Notice, ignore
from nanobot.providers.resilient import REST_S, Candidate, Fallback, Outages
from tests.fakes.scripted_model import Answer, ScriptedModel, says

DOWN = RetryLater("one is down")


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Three:
    """The models one (the usual), two and three behind one outage record."""

    def __init__(self, *scripts: Sequence[Answer]) -> None:
        self.clock = Clock()
        self.outages = Outages(clock=self.clock)
        self.events: list[Event] = []
        self.models = {
            name: ScriptedModel(list(script))
            for name, script in zip(("one", "two", "three"), scripts, strict=True)
        }

    def turn(self) -> Fallback:
        """The provider of a new turn."""
        candidates = [
            Candidate(f"acme/{name}", name, model, 500) for name, model in self.models.items()
        ]
        return Fallback(candidates, self.outages)

    async def ask(self, turn: Fallback | None = None, **options: Any) -> LLMResponse:
        chosen: dict[str, Any] = {"max_tokens": 1000, "temperature": 0.5, **options}
        request = ModelRequest((UserMessage("Hello?"),), (), "one", **chosen)
        return await (turn or self.turn()).chat(request, self.events.append)

    async def error(self) -> ProviderError:
        with pytest.raises(ProviderError) as caught:
            await self.ask()
        return caught.value

    @property
    def asked(self) -> list[int]:
        return [len(model.requests) for model in self.models.values()]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


async def test_the_usual_model_answers_without_a_word() -> None:
    three = Three([says("Hello.")], [], [])

    response = await three.ask()

    assert (response.content, response.footnote) == ("Hello.", "")
    assert (three.asked, three.notices) == ([1, 0, 0], [])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RetryLater("down"), "cannot be reached"),
        (AuthFailed("who are you"), "does not accept the key"),
        (BadRequest("no such model"), "refuses the request"),
        (ProviderError("not installed"), "refuses the request"),
    ],
)
async def test_the_next_one_answers_and_the_reader_is_told_why(
    error: ProviderError, reason: str
) -> None:
    three = Three([error], [says("Hello.")], [])

    response = await three.ask()

    footnote = f"(answered by acme/two, because acme/one {reason})"
    assert (response.content, response.footnote) == ("Hello.", footnote)
    assert three.asked == [1, 1, 0]
    assert three.notices == [f"acme/one does not answer: {error}; asking acme/two"]


async def test_all_are_tried_in_order() -> None:
    three = Three([DOWN], [RetryLater("so is two")], [says("Hello.")])

    response = await three.ask()

    assert response.footnote == "(answered by acme/three, because acme/one cannot be reached)"
    assert three.asked == [1, 1, 1]


@pytest.mark.parametrize("error", [Refused("no"), ContextOverflow("too large")])
async def test_a_refused_content_or_a_full_window_is_no_reason_to_ask_others(
    error: ProviderError,
) -> None:
    three = Three([error], [says("Hello.")], [])

    assert await three.error() is error
    assert three.asked == [1, 0, 0]


async def test_a_fallback_with_a_small_window_is_passed_over() -> None:
    three = Three([DOWN], [ContextOverflow("too large")], [says("Hello.")])

    assert (await three.ask()).content == "Hello."


async def test_a_fallback_is_given_its_own_name_and_its_own_limit() -> None:
    seen: list[tuple[str, int]] = []

    class Recording(ScriptedModel):
        async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
            seen.append((request.model, request.max_tokens))
            return await super().chat(request, on_delta)

    outages = Outages()
    candidates = [
        Candidate("acme/one", "one", Recording([DOWN]), 8000),
        Candidate("emca/two", "two", Recording([says("Hello.")]), 200),
    ]

    request = ModelRequest((UserMessage("Hello?"),), (), "one", 8000, 0.5)
    await Fallback(candidates, outages).chat(request)

    assert seen == [("one", 8000), ("two", 200)]


# -- resting ----------------------------------------------------------------------------------


async def test_a_model_that_is_down_is_not_waited_for_at_every_step() -> None:
    three = Three([DOWN, says("I am back.")], [says("a"), says("b"), says("c")], [])
    turn = three.turn()

    answers = [await three.ask(turn) for _ in range(3)]

    assert three.asked == [1, 3, 0]
    assert {answer.footnote for answer in answers} == {
        "(answered by acme/two, because acme/one cannot be reached)"
    }
    assert len(three.notices) == 1


async def test_a_new_turn_says_once_that_another_model_answers() -> None:
    three = Three([DOWN], [says("a"), says("b"), says("c")], [])
    await three.ask()
    three.events.clear()
    turn = three.turn()

    for _ in range(2):
        await three.ask(turn)

    assert three.notices == ["answered by acme/two, because acme/one cannot be reached"]


async def test_after_its_rest_the_usual_model_is_asked_first_again() -> None:
    three = Three([DOWN, says("I am back.")], [says("a")], [])
    await three.ask()
    three.clock.now += REST_S

    response = await three.ask()

    assert (response.content, response.footnote) == ("I am back.", "")


async def test_a_server_that_says_when_is_left_alone_until_then() -> None:
    three = Three([RetryLater("full", after=300)], [says("a"), says("b")], [])
    await three.ask()
    three.clock.now += 299

    await three.ask()

    assert three.asked == [1, 2, 0]


async def test_a_resting_model_is_asked_when_the_others_fail() -> None:
    three = Three([DOWN, says("I am back.")], [says("a"), DOWN], [DOWN])
    await three.ask()

    response = await three.ask()

    assert (response.content, response.footnote) == ("I am back.", "")
    assert three.asked == [2, 2, 1]


async def test_an_answer_ends_a_rest() -> None:
    three = Three([DOWN, says("I am back."), says("Still here.")], [says("a"), DOWN], [DOWN])
    for _ in range(2):
        await three.ask()

    assert (await three.ask()).content == "Still here."
    assert three.outages.of("acme/one") is None


async def test_a_bad_request_is_no_outage() -> None:
    three = Three([BadRequest("no"), says("Hello.")], [says("a")], [])
    await three.ask()

    assert (await three.ask()).content == "Hello."


# -- nobody answers ---------------------------------------------------------------------------


async def test_when_nobody_answers_it_is_tried_later_if_any_of_them_may_answer() -> None:
    three = Three([AuthFailed("no key")], [RetryLater("two is down", after=90)], [BadRequest("?")])

    error = await three.error()

    assert isinstance(error, RetryLater) and error.after == 90
    assert str(error) == (
        "acme/one does not answer: no key; acme/two does not answer: two is down; "
        "acme/three does not answer: ?"
    )


async def test_the_wait_is_unknown_where_one_of_them_says_none() -> None:
    three = Three([DOWN], [RetryLater("two is down", after=90)], [BadRequest("?")])

    error = await three.error()

    assert isinstance(error, RetryLater) and error.after is None


async def test_the_usual_models_error_counts_where_none_can_ever_answer() -> None:
    first = AuthFailed("no key")
    three = Three([first], [BadRequest("?")], [BadRequest("?")])

    assert await three.error() is first


async def test_a_model_that_cannot_be_asked_at_all_is_passed_over() -> None:
    model = ScriptedModel([says("Hello.")])
    missing = AuthFailed("acme has no key")
    candidates = [
        Candidate("acme/one", error=missing),
        Candidate("emca/two", "two", model, 500),
    ]

    request = ModelRequest((UserMessage("Hello?"),), (), "one", 9, 0.5)
    response = await Fallback(candidates, Outages()).chat(request)

    assert response.footnote == "(answered by emca/two, because acme/one does not accept the key)"
