"""What the OpenAI adapter does beyond the contract of all adapters, over real HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    LLMResponse,
    ModelRequest,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from nanobot.core.errors import BadRequest, ConfigError, ContextOverflow, RetryLater
from nanobot.core.events import Emit, Event, Notice, TextDelta, ignore
from nanobot.providers.openai import TLS, OpenAIChat
from nanobot.providers.quirks import Quirks, ReasoningBack
from tests.fakes.model_server import Ending, Framing, ModelServer, Reply, Request

KEY = "sk-fake-0123456789abcdef"
TOOLS = (ToolSpec("look", "Looks.", {"type": "object", "properties": {}}),)


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy stands between the tests and their server."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


async def ask(
    provider: OpenAIChat,
    messages: tuple[ChatMessage, ...] = (UserMessage("Hello?"),),
    *,
    keep_open: bool = False,
    on_delta: Emit = ignore,
    **options: Any,
) -> LLMResponse:
    chosen: dict[str, Any] = {"model": "m", "max_tokens": 8192, "temperature": 0.7, **options}
    try:
        return await provider.chat(ModelRequest(messages, TOOLS, **chosen), on_delta)
    finally:
        if not keep_open:
            await provider.aclose()


def adapter(url: str, **options: Any) -> OpenAIChat:
    return OpenAIChat(**{"name": "fake", "base_url": url, "api_key": KEY, **options})


def refusing(field: str, message: str = "Unrecognized request argument supplied: {}") -> Any:
    """An endpoint that does not take ``field``."""

    def answer(request: Request) -> Reply:
        if field in request.body:
            return Reply.error(400, message.format(field))
        return Reply.text("OK")

    return answer


def has(field: str, server: ModelServer) -> list[bool]:
    return [field in request.body for request in server.requests]


# -- what endpoints do not take ---------------------------------------------------------------


async def test_stream_options_are_given_up_for_the_whole_endpoint(server: ModelServer) -> None:
    server.answer_with(refusing("stream_options"))
    provider = adapter(server.url)

    first = await ask(provider, keep_open=True)
    await ask(provider, model="another")

    assert first.content == "OK"
    assert has("stream_options", server) == [True, False, False]


async def test_a_temperature_is_given_up_for_its_model_only(server: ModelServer) -> None:
    server.answer_with(refusing("temperature", "'{}' does not support 0.7 with this model"))
    provider = adapter(server.url)

    for model in ("m", "m", "another"):
        await ask(provider, model=model, keep_open=True)
    await provider.aclose()

    assert has("temperature", server) == [True, False, False, True, False]


async def test_the_newer_name_of_the_token_limit_is_found_out(server: ModelServer) -> None:
    server.answer_with(
        refusing("max_tokens", "Unsupported parameter: '{}'. Use 'max_completion_tokens' instead.")
    )

    await ask(adapter(server.url))

    assert [
        (request.body.get("max_tokens"), request.body.get("max_completion_tokens"))
        for request in server.requests
    ] == [(8192, None), (None, 8192)]


async def test_a_dropped_reasoning_effort_is_told_once(server: ModelServer) -> None:
    server.answer_with(refusing("reasoning_effort"))
    provider = adapter(server.url)
    events: list[Event] = []

    for _ in range(2):
        await ask(provider, reasoning_effort="high", on_delta=events.append, keep_open=True)
    await provider.aclose()

    assert [event for event in events if isinstance(event, Notice)] == [
        Notice("fake takes no reasoning effort for m; it was left out.")
    ]
    assert has("reasoning_effort", server) == [True, False, False]


async def test_a_shorter_answer_is_asked_for_where_the_window_is_small(
    server: ModelServer,
) -> None:
    def small(request: Request) -> Reply:
        if request.body["max_tokens"] + 1000 > 8192:
            return Reply.error(
                400,
                "This model's maximum context length is 8192 tokens and your request has 1000 "
                "input tokens.",
            )
        return Reply.text("OK")

    server.answer_with(small)

    response = await ask(adapter(server.url))

    assert response.content == "OK"
    assert [request.body["max_tokens"] for request in server.requests] == [8192, 7192]


async def test_a_refusal_that_nothing_mends_is_raised_and_nothing_is_learnt(
    server: ModelServer,
) -> None:
    server.script(*[Reply.error(400, "temperature, stream_options or so are wrong")] * 3)
    provider = adapter(server.url)

    with pytest.raises(BadRequest):
        await ask(provider, keep_open=True)
    await ask(provider)

    assert has("temperature", server) == [True, True, False, True]
    assert has("stream_options", server) == [True, False, False, True]


async def test_an_endpoint_that_always_finds_something_else_is_given_up(
    server: ModelServer,
) -> None:
    def smaller(request: Request) -> Reply:
        limit = request.body["max_tokens"] - 1
        return Reply.error(400, f"This model supports at most {limit} completion tokens")

    server.answer_with(smaller)

    with pytest.raises(RetryLater):
        await ask(adapter(server.url))

    assert len(server.requests) == 8


async def test_an_error_after_the_first_words_is_not_asked_round(server: ModelServer) -> None:
    server.script(
        Reply.stream_error("stream_options are wrong", code=400, content="a b", after_chunks=2)
    )
    events: list[Event] = []

    with pytest.raises(BadRequest):
        await ask(adapter(server.url), on_delta=events.append)

    assert (len(server.requests), events) == (1, [TextDelta("a")])


async def test_an_overflow_is_not_asked_round(server: ModelServer) -> None:
    server.script(Reply.context_overflow())

    with pytest.raises(ContextOverflow):
        await ask(adapter(server.url))

    assert len(server.requests) == 1


async def test_quirks_shape_the_request(server: ModelServer) -> None:
    quirks = Quirks(
        takes_max_completion_tokens=True,
        takes_temperature=False,
        effort_off="none",
        reasoning_back=ReasoningBack.CONTENT,
        short_call_ids=True,
    )
    history = (
        AssistantMessage("", (ToolCall("call_abc", "look", ""),), "hm"),
        ToolMessage("call_abc", "look", "x"),
    )

    await ask(adapter(server.url, quirks=lambda model: quirks), history, reasoning_effort="off")

    [request] = server.requests
    fields = {key: request.body.get(key) for key in ("max_tokens", "temperature")}
    assert fields == {"max_tokens": None, "temperature": None}
    assert request.body["max_completion_tokens"] == 8192
    assert request.body["reasoning_effort"] == "none"
    assert request.messages[0]["reasoning_content"] == "hm"
    assert request.messages[1]["tool_call_id"] == request.messages[0]["tool_calls"][0]["id"]
    assert len(request.messages[1]["tool_call_id"]) == 9


# -- the request ------------------------------------------------------------------------------


async def test_the_next_request_begins_with_the_bytes_of_the_one_before(
    server: ModelServer,
) -> None:
    provider = adapter(server.url)
    messages: tuple[ChatMessage, ...] = (SystemMessage("You help."), UserMessage("Grüße 🙂"))
    for step in range(5):
        response = await ask(provider, messages, keep_open=True)
        messages = (*messages, AssistantMessage(response.content), UserMessage(f"and {step}?"))
    await provider.aclose()

    raw = [request.raw for request in server.requests]

    for before, after in itertools.pairwise(raw):
        assert after.startswith(before[: before.rindex(b"]")])


async def test_a_big_request_arrives_whole(server: ModelServer) -> None:
    messages = tuple(UserMessage(f"{number} " + "ü" * 1000) for number in range(600))

    await ask(adapter(server.url), messages)

    assert [message["content"] for message in server.requests[0].messages] == [
        message.content for message in messages
    ]


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("{root}/v1", "/v1/chat/completions"),
        (" {root}/v1/ ", "/v1/chat/completions"),
        ("{root}/v1/chat/completions", "/v1/chat/completions"),
        ("{root}/v1?api-version=7", "/v1/chat/completions?api-version=7"),
    ],
)
async def test_the_base_url_may_be_written_in_several_ways(
    server: ModelServer, base: str, path: str
) -> None:
    await ask(adapter(base.format(root=server.root)))

    assert [request.path for request in server.requests] == [path]


async def test_a_user_in_the_url_is_sent_and_never_shown(server: ModelServer) -> None:
    server.script(Reply.text("OK"), Reply.error(404, "no hunter2-secret here"))
    url = server.url.replace("http://", "http://me:hunter2-secret@")
    provider = adapter(url, api_key=None)

    await ask(provider, keep_open=True)
    with pytest.raises(BadRequest) as caught:
        await ask(provider)

    assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert "hunter2" not in str(caught.value) and server.url in str(caught.value)


async def test_extra_headers_are_sent_and_win(server: ModelServer) -> None:
    extra = {"X-Title": "nanobot", "AUTHORIZATION": "Token fake-header-token"}

    await ask(adapter(server.url, extra_headers=extra))

    headers = server.requests[0].headers
    assert (headers["x-title"], headers["authorization"]) == ("nanobot", "Token fake-header-token")
    assert headers["user-agent"].startswith("nanobot/")


async def test_blanks_round_a_pasted_key_do_no_harm_and_no_key_sends_none(
    server: ModelServer,
) -> None:
    await ask(adapter(server.url, api_key=f" {KEY}\n"))
    await ask(adapter(server.url, api_key=""))

    assert [request.headers.get("authorization") for request in server.requests] == [
        f"Bearer {KEY}",
        None,
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"api_key": "sk-fäke"}, "providers.fake.apiKey"),
        ({"api_key": "sk-fake\nx"}, "providers.fake.apiKey"),
        ({"extra_headers": {"X-A": "sk-fake\r\nX-B: y"}}, "providers.fake.extraHeaders.'X-A'"),
        ({"extra_headers": {"X A": "y"}}, "providers.fake.extraHeaders.'X A'"),
        ({"base_url": "localhost:11434/v1"}, "providers.fake.apiBase"),
        ({"base_url": "http://"}, "providers.fake.apiBase"),
        ({"base_url": "http://me:sk-fake@host:port/v1"}, "providers.fake.apiBase"),
        ({"base_url": "ftp://host/v1"}, "providers.fake.apiBase"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_key_path(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        adapter(**{"url": "http://127.0.0.1/v1", **_renamed(options)})

    assert str(caught.value).startswith(text) and "sk-f" not in str(caught.value)


async def test_an_answer_is_whole_whatever_comes_after_its_end(server: ModelServer) -> None:
    chunk = {"choices": [{"delta": {"content": "Hello."}, "finish_reason": "stop"}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: {{nonsense\n\n".encode()
    server.script(Reply.raw(body))

    assert (await ask(adapter(server.url))).content == "Hello."


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    return {"url" if key == "base_url" else key: value for key, value in options.items()}


async def test_a_proxy_of_the_environment_is_used(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.root)

    with pytest.raises(BadRequest):  # the fake server is no proxy, but it was asked
        await ask(adapter("http://model.invalid/v1"))

    assert server.requests[0].path == "http://model.invalid/v1/chat/completions"


# -- the response -----------------------------------------------------------------------------


async def test_a_redirect_is_told_and_not_followed(server: ModelServer) -> None:
    elsewhere = f"{server.root}/elsewhere"
    server.script(
        Reply.raw(b"", "text/plain", 307, headers=(("Location", elsewhere),)),
    )

    with pytest.raises(BadRequest, match="leads elsewhere") as caught:
        await ask(adapter(server.url))

    assert elsewhere in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("ending", [Ending.CUT, Ending.RESET, Ending.CLOSED])
async def test_an_answer_that_was_finished_survives_what_comes_after(
    server: ModelServer, ending: Ending
) -> None:
    # Its chunks: the role, a word, the finish reason, the usage, [DONE].
    server.script(
        Reply.text("Done.", ending=ending, after_chunks=3),
        Reply.text("Done.", ending=ending, after_chunks=4),
    )
    provider = adapter(server.url)

    responses = [await ask(provider, keep_open=True) for _ in range(2)]
    await provider.aclose()

    assert [response.content for response in responses] == ["Done.", "Done."]
    if ending is not Ending.RESET:  # a reset may throw away what had arrived
        assert [response.usage for response in responses] == [None, Usage(10, 5)]


@pytest.mark.parametrize("after_chunks", [3, 5])
async def test_a_connection_left_open_does_not_hold_up_a_finished_answer(
    server: ModelServer, after_chunks: int
) -> None:
    server.script(Reply.text("Done.", ending=Ending.HANG, after_chunks=after_chunks))

    async with asyncio.timeout(10):
        response = await ask(adapter(server.url, idle_timeout_s=60, total_timeout_s=60))

    assert response.content == "Done."


async def test_a_date_to_wait_for_is_measured_by_the_given_clock(server: ModelServer) -> None:
    server.script(Reply.error(503, retry_after="Fri, 02 Jan 2026 03:04:35 GMT"))
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    with pytest.raises(RetryLater) as caught:
        await ask(adapter(server.url, now=lambda: now))

    assert caught.value.after == 30


async def test_keep_alive_comments_do_not_stand_for_an_answer(server: ModelServer) -> None:
    server.script(Reply.text("a " * 500, chunk_latency_s=0.05, framing=Framing(comments=True)))

    with pytest.raises(RetryLater, match=r"no whole answer within 0.3 s"):
        await ask(adapter(server.url, idle_timeout_s=5, total_timeout_s=0.3))


# -- connections ------------------------------------------------------------------------------


async def test_no_connection_is_left_after_closing(server: ModelServer) -> None:
    gate = server.gate()
    server.default = Reply.text("OK", gate=gate)
    provider = adapter(server.url, pools=4)
    tasks = [asyncio.create_task(ask(provider, keep_open=True)) for _ in range(20)]
    await gate.reached(times=20)
    opened = server.connections_open

    gate.release()
    await asyncio.gather(*tasks)
    await provider.aclose()
    await server.closed(20)

    assert (opened, server.connections_open) == (20, 0)


async def test_fifty_cancelled_chats_leave_no_connection_and_no_harm(server: ModelServer) -> None:
    provider = adapter(server.url, pools=2)
    server.default = Reply.hang("a b", after_chunks=2)
    tasks = [asyncio.create_task(ask(provider, keep_open=True)) for _ in range(50)]
    await server.arrived(50)

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for request in server.requests:
        await request.disconnected.wait()
    server.default = Reply.text("OK")
    response = await ask(provider)

    assert all(task.cancelled() for task in tasks)
    assert response.content == "OK"


async def test_the_tls_context_is_made_once_and_in_a_thread() -> None:
    threads: list[int] = []

    def create() -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    tls = TLS(create)
    contexts = await asyncio.gather(*(tls.context() for _ in range(5)))

    assert len({id(context) for context in contexts}) == 1
    assert len(threads) == 1 and threads[0] != threading.get_ident()


async def test_the_usual_tls_context_verifies() -> None:
    context = await TLS().context()

    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


async def test_only_an_https_endpoint_needs_a_tls_context(server: ModelServer) -> None:
    made: list[bool] = []

    def create() -> ssl.SSLContext:
        made.append(True)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    await ask(adapter(server.url, tls=TLS(create)))
    plain = list(made)
    secure = adapter(server.url.replace("http:", "https:"), tls=TLS(create))
    with pytest.raises(RetryLater, match="no connection"):  # the fake server speaks no TLS
        await ask(secure)

    assert (plain, made) == ([], [True])


def test_importing_the_adapter_imports_no_http_client() -> None:
    code = (
        "import sys, nanobot.providers.openai, nanobot.providers.resilient;"
        "print([name for name in ('httpx', 'pydantic', 'litellm') if name in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "[]\n"
