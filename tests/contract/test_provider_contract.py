"""What every adapter of a model provider does, over real HTTP against the fake model server.

A further adapter joins by an entry in ``ADAPTERS``. What litellm does not hand on is asked of our
own adapter ``only``.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanobot.config.schema import ModelOverride
from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    FinishReason,
    Image,
    LLMResponse,
    ModelRequest,
    SystemMessage,
    ToolCall,
    ToolChoice,
    ToolMessage,
    ToolSpec,
    Usage,
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
from nanobot.core.events import Event, ReasoningDelta, TextDelta, ignore
from nanobot.core.ports import LLMProvider
from nanobot.providers.litellm import LiteLLM, LiteLLMChat
from nanobot.providers.openai import OpenAIChat
from nanobot.providers.quirks import quirks_at
from tests.fakes.asked import Asked, asked
from tests.fakes.model_server import (
    Ending,
    Framing,
    Ids,
    Index,
    ModelServer,
    Reply,
    Request,
    Tokens,
)

KEY = "sk-fake-0123456789abcdef"
MODEL = "fake-model"
LOOK = ToolSpec(
    "look",
    "Looks at something.",
    {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
)
WRITE = ToolSpec("write", "Writes something.", {"type": "object", "properties": {}})
QUESTION: tuple[ChatMessage, ...] = (SystemMessage("You help."), UserMessage("Hello?"))


class MakeProvider(Protocol):
    """Makes an adapter for the endpoint at ``url``; the test's end closes it."""

    def __call__(
        self,
        url: str,
        *,
        api_key: str | None = KEY,
        idle_timeout_s: float = 20.0,
        total_timeout_s: float = 20.0,
    ) -> LLMProvider: ...


def openai_chat(
    url: str, api_key: str | None, idle_timeout_s: float, total_timeout_s: float
) -> LLMProvider:
    return OpenAIChat(
        name="fake",
        base_url=url,
        api_key=api_key,
        idle_timeout_s=idle_timeout_s,
        total_timeout_s=total_timeout_s,
    )


PACKAGE = LiteLLM()
SEEING = quirks_at("fake", through_litellm=True, overrides={MODEL: ModelOverride(vision=True)})


def litellm_anthropic(
    url: str, api_key: str | None, idle_timeout_s: float, total_timeout_s: float
) -> LLMProvider:
    return LiteLLMChat(
        name="fake",
        package=PACKAGE,
        prefix="anthropic",
        base_url=url,
        quirks=SEEING,
        api_key=api_key,
        idle_timeout_s=idle_timeout_s,
        total_timeout_s=total_timeout_s,
    )


def litellm_openai(
    url: str, api_key: str | None, idle_timeout_s: float, total_timeout_s: float
) -> LLMProvider:
    return LiteLLMChat(
        name="fake",
        package=PACKAGE,
        prefix="hosted_vllm",
        base_url=url,
        quirks=SEEING,
        api_key=api_key,
        idle_timeout_s=idle_timeout_s,
        total_timeout_s=total_timeout_s,
    )


ADAPTERS: dict[str, Callable[[str, str | None, float, float], LLMProvider]] = {
    "openai_chat": openai_chat,
    "litellm_anthropic": litellm_anthropic,
    "litellm_openai": litellm_openai,
}


def only(*adapters: str) -> pytest.MarkDecorator:
    """Run a test over these adapters alone."""
    return pytest.mark.parametrize("make", adapters, indirect=True)


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy stands between the tests and their server."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(params=ADAPTERS)
async def make(request: pytest.FixtureRequest) -> AsyncIterator[MakeProvider]:
    made: list[LLMProvider] = []

    def make_provider(
        url: str,
        *,
        api_key: str | None = KEY,
        idle_timeout_s: float = 20.0,
        total_timeout_s: float = 20.0,
    ) -> LLMProvider:
        provider = ADAPTERS[request.param](url, api_key, idle_timeout_s, total_timeout_s)
        made.append(provider)
        return provider

    yield make_provider
    for provider in made:
        await provider.aclose()
    await PACKAGE.aclose()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(require_key=KEY) as running:
        yield running


async def ask(
    provider: LLMProvider,
    messages: tuple[ChatMessage, ...] = QUESTION,
    events: list[Event] | None = None,
    **options: Any,
) -> LLMResponse:
    chosen: dict[str, Any] = {"model": MODEL, "max_tokens": 512, "temperature": 0.3, **options}
    request = ModelRequest(messages, (LOOK, WRITE), **chosen)
    return await provider.chat(request, ignore if events is None else events.append)


async def failure(provider: LLMProvider, **options: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await ask(provider, **options)
    return caught.value


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def reasoning_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


# -- answers ----------------------------------------------------------------------------------


async def test_text_arrives_in_deltas_and_whole(make: MakeProvider, server: ModelServer) -> None:
    server.script(Reply.text("Good morning to you. 🙂"))
    events: list[Event] = []

    response = await ask(make(server.url), events=events)

    assert (response.content, response.tool_calls) == ("Good morning to you. 🙂", ())
    assert (response.finish_reason, response.model) == (FinishReason.STOP, MODEL)
    assert text_of(events) == response.content
    assert len(events) > 1


async def test_a_delta_is_passed_on_before_the_answer_is_complete(
    make: MakeProvider, server: ModelServer
) -> None:
    gate = server.gate()
    server.script(Reply.text("one two", stream_gate=gate, stream_gate_after=2))
    first = asyncio.Event()
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        first.set()

    request = ModelRequest(QUESTION, (), MODEL, 9, 0.0)
    task = asyncio.create_task(make(server.url).chat(request, watch))
    await gate.reached()
    async with asyncio.timeout(10):
        await first.wait()
    early = text_of(events)
    gate.release()
    response = await task

    assert (early, response.content) == ("one", "one two")


async def test_the_request_says_what_was_asked(make: MakeProvider, server: ModelServer) -> None:
    messages = (
        *QUESTION,
        AssistantMessage("", (ToolCall("call_1", "look", '{"what": "ü"}'),)),
        ToolMessage("call_1", "look", "a cat"),
    )

    await ask(make(server.url), messages, tool_choice=ToolChoice.NONE)

    [request] = server.requests
    assert asked(request) == Asked(
        key=KEY,
        model=MODEL,
        stream=True,
        max_tokens=512,
        temperature=0.3,
        tools=((LOOK.name, dict(LOOK.parameters)), (WRITE.name, dict(WRITE.parameters))),
        tool_choice="none",
        talk=(("system", "You help."), ("user", "Hello?")),
        calls=(("call_1", "look", {"what": "ü"}),),
        results=(("call_1", "a cat"),),
        pictures=(),
        marks=0,
    )


async def test_parallel_calls_come_with_their_own_arguments(
    make: MakeProvider, server: ModelServer
) -> None:
    calls = [("look", {"what": "ü 🙂"}), ("write", {}), ("look", {"what": "x" * 500})]
    server.script(Reply.tool_calls(calls, text="Let me see."))

    response = await ask(make(server.url))

    assert response.content == "Let me see."
    assert response.finish_reason is FinishReason.TOOL_CALLS
    assert response.tool_calls == (
        ToolCall("call_1_0", "look", '{"what": "ü 🙂"}'),
        ToolCall("call_1_1", "write", "{}"),
        ToolCall("call_1_2", "look", '{"what": "' + "x" * 500 + '"}'),
    )


async def test_broken_arguments_are_handed_over_as_they_are(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.tool_calls([("look", '{"what": tru')]))

    response = await ask(make(server.url))

    assert [call.arguments for call in response.tool_calls] == ['{"what": tru']


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    framing=st.builds(
        Framing,
        newline=st.sampled_from(["\n", "\r\n"]),
        space=st.booleans(),
        comments=st.booleans(),
        done=st.booleans(),
        text_size=st.integers(0, 4),
        argument_size=st.integers(0, 9),
        sizes=st.lists(st.integers(1, 60), max_size=4).map(tuple),
        interleave=st.booleans(),
        ids=st.sampled_from([Ids.FIRST, Ids.EVERY]),
    )
)
async def test_any_chunking_gives_the_same_answer(
    make: MakeProvider, server: ModelServer, framing: Framing
) -> None:
    calls = [("look", {"what": "ü 🙂"}), ("write", {})]
    reply = Reply.tool_calls(calls, text="Ja, 🙂 gern.", reasoning="Hm … 🙂", framing=framing)
    server.script(reply)
    events: list[Event] = []

    response = await ask(make(server.url), events=events)

    assert (response.content, response.reasoning_content) == ("Ja, 🙂 gern.", "Hm … 🙂")
    assert [(call.name, call.arguments) for call in response.tool_calls] == [
        ("look", '{"what": "ü 🙂"}'),
        ("write", "{}"),
    ]
    assert response.usage == Usage(10, 5)
    assert (text_of(events), reasoning_of(events)) == ("Ja, 🙂 gern.", "Hm … 🙂")


async def test_several_events_in_one_write_are_all_read(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.text("all of it at once", framing=Framing(sizes=(100_000,))))

    response = await ask(make(server.url))

    assert response.content == "all of it at once"


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_reasoning_is_never_part_of_the_answer(
    make: MakeProvider, server: ModelServer, size: int
) -> None:
    framing = Framing(text_size=size)
    server.script(
        Reply.text("So.", reasoning="Hm, let me think.", framing=framing),
        Reply.text("<think>Hm, let me think.</think>\n\nSo.", framing=framing),
    )
    provider = make(server.url)

    apart, inside = list[Event](), list[Event]()
    responses = [await ask(provider, events=apart), await ask(provider, events=inside)]

    assert [(one.reasoning_content, one.content) for one in responses] == [
        ("Hm, let me think.", "So.")
    ] * 2
    assert [(reasoning_of(one), text_of(one)) for one in (apart, inside)] == [
        ("Hm, let me think.", "So.")
    ] * 2


async def test_usage_counts_cached_tokens(make: MakeProvider, server: ModelServer) -> None:
    server.script(Reply.text("OK", usage=Tokens(prompt=1200, completion=34, cached=1024)))

    response = await ask(make(server.url))

    assert response.usage == Usage(input_tokens=1200, output_tokens=34, cached_tokens=1024)


async def test_an_answer_without_usage_has_none(make: MakeProvider, server: ModelServer) -> None:
    server.script(Reply.text("OK", usage=None))

    assert (await ask(make(server.url))).usage is None


async def test_pictures_are_sent_as_data(
    make: MakeProvider, server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "cat.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40)
    image = Image(str(file), "image/png")
    messages = (
        UserMessage("What is it?", (image,)),
        AssistantMessage("", (ToolCall("c1", "look", "{}"),)),
        ToolMessage("c1", "look", "see below", (image,)),
    )

    await ask(make(server.url), messages)

    picture = ("image/png", base64.b64encode(file.read_bytes()).decode())
    [request] = server.requests
    assert asked(request).pictures == (picture, picture)
    assert asked(request).results == (("c1", "see below"),)
    assert request.messages[-1]["role"] == "user"


async def test_an_answer_cut_by_the_token_limit_says_so(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.cut_by_length("Once upon a"))

    response = await ask(make(server.url))

    assert (response.content, response.finish_reason) == ("Once upon a", FinishReason.LENGTH)


async def test_a_call_cut_by_the_token_limit_is_handed_on_as_it_came(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.tool_calls([("look", '{"what": "half of a na')]).but(finish="length"))

    response = await ask(make(server.url))

    assert [call.arguments for call in response.tool_calls] == ['{"what": "half of a na']
    assert response.finish_reason is FinishReason.LENGTH


async def test_calls_count_whatever_the_finish_reason_says(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.tool_calls([("look", {"what": "x"})], finish="stop"))

    response = await ask(make(server.url))

    assert response.finish_reason is FinishReason.TOOL_CALLS
    assert [call.name for call in response.tool_calls] == ["look"]


async def test_an_empty_answer_is_an_answer(make: MakeProvider, server: ModelServer) -> None:
    server.script(Reply.empty())

    response = await ask(make(server.url))

    assert (response.content, response.tool_calls) == ("", ())
    assert response.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("ids", [Ids.NONE, Ids.SAME])
async def test_calls_get_ids_that_are_unique_in_the_conversation(
    make: MakeProvider, server: ModelServer, ids: Ids
) -> None:
    server.default = Reply.tool_calls(
        [("look", {"what": "a"}), ("look", {"what": "a"})], framing=Framing(ids=ids)
    )
    provider = make(server.url)

    first = await ask(provider)
    again = await ask(provider)
    history = (*QUESTION, AssistantMessage("", first.tool_calls))
    second = await ask(provider, history)

    assert [call.arguments for call in first.tool_calls] == ['{"what": "a"}'] * 2
    assert len({call.id for call in (*first.tool_calls, *second.tool_calls)} - {""}) == 4
    if isinstance(provider, OpenAIChat):
        assert first.tool_calls == again.tool_calls


@pytest.mark.parametrize("index", [Index.ZERO, Index.MISSING])
async def test_calls_with_wrong_indexes_are_not_mixed_up(
    make: MakeProvider, server: ModelServer, index: Index
) -> None:
    server.script(
        Reply.tool_calls(
            [("look", {"what": "a"}), ("write", {})], framing=Framing(index=index, argument_size=0)
        )
    )

    response = await ask(make(server.url))

    assert [(call.name, call.arguments) for call in response.tool_calls] == [
        ("look", '{"what": "a"}'),
        ("write", "{}"),
    ]


@only("openai_chat")
async def test_a_document_instead_of_a_stream_is_an_answer(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.tool_calls([("look", {"what": "a"})], text="Well.", as_json=True))
    events: list[Event] = []

    response = await ask(make(server.url), events=events)

    assert (response.content, text_of(events)) == ("Well.", "Well.")
    assert [call.arguments for call in response.tool_calls] == ['{"what": "a"}']
    assert response.usage == Usage(10, 5)


async def test_many_chats_at_once_each_get_their_own_answer(
    make: MakeProvider, server: ModelServer
) -> None:
    gate = server.gate()

    def echo(request: Request) -> Reply:
        return Reply.text(f"You said {request.last_user}.", gate=gate)

    server.answer_with(echo)
    provider = make(server.url)

    tasks = [
        asyncio.create_task(ask(provider, (UserMessage(f"number {number}"),)))
        for number in range(100)
    ]
    await gate.reached(times=100)
    gate.release()
    responses = await asyncio.gather(*tasks)

    assert [response.content for response in responses] == [
        f"You said number {number}." for number in range(100)
    ]


async def test_one_conversation_after_another_uses_one_connection(
    make: MakeProvider, server: ModelServer
) -> None:
    provider = make(server.url)

    for _ in range(5):
        await ask(provider)

    assert (len(server.requests), server.connections_made) == (5, 1)


# -- failures ---------------------------------------------------------------------------------


OPENAI_SHAPED = ("openai_chat", "litellm_openai")
ANTHROPIC_SHAPED = ("litellm_anthropic",)
OURS = ("openai_chat",)
EACH = tuple(ADAPTERS)
FAILURES: list[tuple[Reply, type[ProviderError], tuple[str, ...]]] = [
    (Reply.error(400, "no"), BadRequest, EACH),
    (Reply.error(401, "no"), AuthFailed, EACH),
    (Reply.error(402, "no"), AuthFailed, EACH),
    (Reply.error(403, "no"), AuthFailed, EACH),
    (Reply.error(404, "no"), BadRequest, EACH),
    (Reply.error(408, "no"), RetryLater, EACH),
    (Reply.error(409, "no"), RetryLater, EACH),
    (Reply.error(422, "no"), BadRequest, EACH),
    (Reply.error(429, "no"), RetryLater, EACH),
    (Reply.error(429, "no", code="insufficient_quota"), AuthFailed, OPENAI_SHAPED),
    (Reply.error(400, "Your credit balance is too low to use it."), AuthFailed, EACH),
    (Reply.error(500, "no"), RetryLater, EACH),
    (Reply.error(502, "no"), RetryLater, EACH),
    (Reply.error(503, "no"), RetryLater, EACH),
    (Reply.error(529, "no"), RetryLater, EACH),
    (Reply.html(502), RetryLater, EACH),
    (Reply.context_overflow(), ContextOverflow, EACH),
    (Reply.error(400, "no", code="content_filter"), Refused, OPENAI_SHAPED),
    (Reply.filtered("Half a"), Refused, EACH),
    (Reply.html(), RetryLater, EACH),
    (Reply.raw(b""), RetryLater, EACH),
    (Reply.raw(b"nothing of use"), RetryLater, EACH),
    (Reply.invalid_json_chunk(), RetryLater, EACH),
    (Reply.raw(b'{"choices": [', "application/json"), RetryLater, EACH),
    (Reply.raw(b'{"error": {"message": "no", "code": 503}}', "application/json"), RetryLater, EACH),
    (Reply.stream_error(content="a b c", after_chunks=2), RetryLater, EACH),
    (Reply.stream_error(code="context_length_exceeded"), ContextOverflow, OURS),
    (Reply.stream_error("prompt is too long: 3 > 2"), ContextOverflow, ANTHROPIC_SHAPED),
    (Reply.truncated("a b c d"), RetryLater, EACH),
    (Reply.truncated("a b c d", ending=Ending.CUT), RetryLater, EACH),
    (Reply.truncated("a b c d", after_chunks=0), RetryLater, EACH),
    (
        Reply.tool_calls([("look", {"what": "x" * 40})], after_chunks=3, ending=Ending.CLOSED),
        RetryLater,
        EACH,
    ),
    (
        Reply.tool_calls([("look", {"what": "x" * 40})], after_chunks=3, ending=Ending.CUT),
        RetryLater,
        EACH,
    ),
    (Reply.reset(), RetryLater, EACH),
    (Reply.reset("a b c d", after_chunks=2), RetryLater, EACH),
]


@pytest.mark.parametrize(
    ("make", "reply", "kind"),
    [(adapter, reply, kind) for reply, kind, adapters in FAILURES for adapter in adapters],
    indirect=["make"],
)
async def test_each_failure_has_its_class_and_leaves_the_adapter_in_order(
    make: MakeProvider, server: ModelServer, reply: Reply, kind: type[ProviderError]
) -> None:
    server.default = reply  # litellm repeats a request whose connection was reset
    provider = make(server.url)

    error = await failure(provider)
    server.default = Reply.text("OK")
    response = await ask(provider)

    assert type(error) is kind
    assert str(error).isprintable() and 0 < len(str(error)) <= 300
    assert response.content == "OK"


async def test_a_refused_key_is_told_with_the_command_that_sets_it(
    make: MakeProvider, server: ModelServer
) -> None:
    wrong = await failure(make(server.url, api_key="sk-fake-wrong-key"))
    missing = await failure(make(server.url, api_key=None))

    for error in (wrong, missing):
        assert isinstance(error, AuthFailed)
        assert "fake" in str(error) and "config set providers.fake.apiKey" in str(error)


async def test_an_unknown_model_is_told_with_its_name_and_the_address(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.error(404, "The model does not exist", code="model_not_found"))

    error = await failure(make(server.url), model="no-such-model")

    assert isinstance(error, BadRequest)
    assert "no-such-model" in str(error) and server.root in str(error)


@only("openai_chat")
async def test_a_web_page_is_told_by_its_title(make: MakeProvider, server: ModelServer) -> None:
    server.script(Reply.html())

    assert "Sign in to WiFi" in str(await failure(make(server.url)))


@pytest.mark.parametrize(("header", "seconds"), [("17", 17.0), ("0.5", 0.5), (None, None)])
async def test_the_wait_a_server_asks_for_is_passed_on(
    make: MakeProvider, server: ModelServer, header: str | None, seconds: float | None
) -> None:
    server.script(Reply.error(429, "slow down", retry_after=header))

    error = await failure(make(server.url))

    assert isinstance(error, RetryLater)
    assert error.after == seconds


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
async def test_the_key_is_never_in_an_error_text(
    make: MakeProvider, server: ModelServer, status: int
) -> None:
    echoed = f"Bad key {KEY} in header 'Bearer {KEY}'"
    server.script(
        Reply.error(status, echoed),
        Reply.raw(echoed.encode(), "text/plain", status),
        Reply.stream_error(echoed),
    )
    provider = make(server.url)

    errors = [await failure(provider) for _ in range(3)]

    assert not any("sk-fake" in str(error) for error in errors)
    assert all("Bad key" in str(error) for error in errors[:2])


async def test_no_server_at_all_is_worth_another_try(make: MakeProvider) -> None:
    async with ModelServer() as server:
        root, url = server.root, server.url

    error = await failure(make(url))

    assert isinstance(error, RetryLater)
    assert "refused" in str(error).lower() and root in str(error)


async def test_an_answer_that_broke_off_still_streamed_its_beginning(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.truncated("one two three four", after_chunks=3))
    events: list[Event] = []

    with pytest.raises(RetryLater):
        await ask(make(server.url), events=events)

    assert text_of(events) == "one two"


# -- time and cancellation --------------------------------------------------------------------


@pytest.mark.parametrize("after_chunks", [None, 0, 2])
async def test_silence_is_ended_by_the_idle_limit(
    make: MakeProvider, server: ModelServer, after_chunks: int | None
) -> None:
    server.script(Reply.hang("a b c d", after_chunks=after_chunks))

    error = await failure(make(server.url, idle_timeout_s=0.2))
    await server.requests[0].disconnected.wait()

    assert isinstance(error, RetryLater)


async def test_a_stream_that_never_ends_is_ended_by_the_total_limit(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.text("a " * 1000, chunk_latency_s=0.05))

    error = await failure(make(server.url, total_timeout_s=0.5))
    await server.requests[0].disconnected.wait()

    assert isinstance(error, RetryLater)


async def test_an_answer_that_is_slow_but_alive_is_waited_for(
    make: MakeProvider, server: ModelServer
) -> None:
    server.script(Reply.text("a b c d e f g h", latency_s=0.3, chunk_latency_s=0.1))

    response = await ask(make(server.url, idle_timeout_s=0.8))

    assert response.content == "a b c d e f g h"


async def test_cancelling_before_the_answer_closes_the_connection(
    make: MakeProvider, server: ModelServer
) -> None:
    gate = server.gate()
    server.script(Reply.text("never", gate=gate))
    provider = make(server.url)
    task = asyncio.create_task(ask(provider))
    await gate.reached()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.requests[0].disconnected.wait()

    assert (await ask(provider)).content == "OK"


async def test_cancelling_in_the_middle_of_a_stream_closes_the_connection(
    make: MakeProvider, server: ModelServer
) -> None:
    gate = server.gate()
    server.script(Reply.text("one two three", stream_gate=gate, stream_gate_after=2))
    provider = make(server.url)
    events: list[Event] = []
    task = asyncio.create_task(ask(provider, events=events))
    await gate.reached()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.requests[0].disconnected.wait()

    assert (await ask(provider)).content == "OK"


async def test_cancelling_one_chat_leaves_the_others_alone(
    make: MakeProvider, server: ModelServer
) -> None:
    gate = server.gate()
    server.answer_with(lambda request: Reply.text(request.last_user, gate=gate))
    provider = make(server.url)
    tasks = [asyncio.create_task(ask(provider, (UserMessage(f"{n}"),))) for n in range(40)]
    await gate.reached(times=40)

    for task in tasks[::2]:
        task.cancel()
    gate.release()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert [result.content for result in results[1::2] if isinstance(result, LLMResponse)] == [
        f"{n}" for n in range(1, 40, 2)
    ]


async def test_closing_twice_is_closing_once(make: MakeProvider, server: ModelServer) -> None:
    provider = make(server.url)
    await ask(provider)

    await provider.aclose()
    await provider.aclose()

    assert server.requests[0].answered.is_set()
