"""What the litellm adapter does beyond the contract of all adapters, over real HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nanobot.config.schema import ModelOverride
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
from nanobot.core.errors import (
    AuthFailed,
    BadRequest,
    ConfigError,
    ContextOverflow,
    ProviderError,
    Refused,
    RetryLater,
)
from nanobot.core.events import Emit, Event, Notice, ignore
from nanobot.providers.litellm import LiteLLM, LiteLLMChat
from nanobot.providers.quirks import quirks_at
from tests.fakes import gemini_replies
from tests.fakes.anthropic_replies import SIGNATURE
from tests.fakes.asked import asked
from tests.fakes.gemini_replies import SIGNATURE as GEMINI_SIGNATURE
from tests.fakes.model_server import Ending, ModelServer, Reply, Tokens

KEY = "sk-fake-0123456789abcdef"
CLAUDE = "claude-sonnet-4-5"
TOOLS = (ToolSpec("look", "Looks.", {"type": "object", "properties": {}}),)
HELLO: tuple[ChatMessage, ...] = (SystemMessage("You help."), UserMessage("Hello?"))


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy stands between the tests and their server."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def package() -> AsyncIterator[LiteLLM]:
    package = LiteLLM()
    yield package
    await package.aclose()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


async def ask(
    provider: LiteLLMChat,
    messages: tuple[ChatMessage, ...] = HELLO,
    *,
    on_delta: Emit = ignore,
    **options: Any,
) -> LLMResponse:
    chosen: dict[str, Any] = {"model": CLAUDE, "max_tokens": 8192, "temperature": 0.7, **options}
    return await provider.chat(ModelRequest(messages, TOOLS, **chosen), on_delta)


def anthropic(package: LiteLLM, url: str, **options: Any) -> LiteLLMChat:
    return LiteLLMChat(
        **{
            "name": "anthropic",
            "package": package,
            "prefix": "anthropic",
            "base_url": url,
            "api_key": KEY,
            **options,
        }
    )


# -- thinking ---------------------------------------------------------------------------------


async def test_thoughts_come_with_their_signature_and_are_sent_back_before_the_call(
    package: LiteLLM, server: ModelServer
) -> None:
    server.script(Reply.tool_calls([("look", {})], reasoning="Hm, let me see."))
    provider = anthropic(package, server.url)

    first = await ask(provider, reasoning_effort="low")
    (call,) = first.tool_calls
    await ask(
        provider,
        (
            *HELLO,
            AssistantMessage("", first.tool_calls, first.reasoning_content, first.thinking_blocks),
            ToolMessage(call.id, "look", "a cat"),
        ),
        reasoning_effort="low",
    )

    block = {"type": "thinking", "thinking": "Hm, let me see.", "signature": SIGNATURE}
    assert (first.reasoning_content, first.thinking_blocks) == ("Hm, let me see.", (block,))
    assert [part["type"] for part in server.requests[1].messages[1]["content"]] == [
        "thinking",
        "tool_use",
    ]
    assert server.requests[1].messages[1]["content"][0] == block


@pytest.mark.parametrize(("effort", "budget"), [("low", 1024), ("medium", 2048), ("high", 4096)])
async def test_a_reasoning_effort_is_a_budget_of_thoughts_without_a_temperature(
    package: LiteLLM, server: ModelServer, effort: str, budget: int
) -> None:
    await ask(anthropic(package, server.url), reasoning_effort=effort)

    body = server.requests[0].body
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("effort", "max_tokens", "messages"),
    [
        (None, 8192, HELLO),
        ("off", 8192, HELLO),
        ("high", 4096, HELLO),
        (
            "high",
            8192,
            (
                *HELLO,
                AssistantMessage("", (ToolCall("c1", "look", "{}"),)),
                ToolMessage("c1", "look", "a cat"),
            ),
        ),
    ],
    ids=["unset", "off", "no room beside the thoughts", "a call without thoughts"],
)
async def test_no_thoughts_are_asked_for_where_there_can_be_none(
    package: LiteLLM,
    server: ModelServer,
    effort: str | None,
    max_tokens: int,
    messages: tuple[ChatMessage, ...],
) -> None:
    provider = anthropic(package, server.url)

    await ask(provider, messages, reasoning_effort=effort, max_tokens=max_tokens)

    body = server.requests[0].body
    assert "thinking" not in body and body["temperature"] == 0.7


async def test_thoughts_of_another_provider_are_not_sent(
    package: LiteLLM, server: ModelServer
) -> None:
    foreign = ({"type": "reasoning.text", "text": "Hm", "index": 0}, {"type": "thinking"})
    messages = (*HELLO, AssistantMessage("Yes.", (), "Hm", foreign), UserMessage("Sure?"))

    await ask(anthropic(package, server.url), messages)

    assert server.requests[0].messages[1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "Yes."}],
    }


async def test_a_reasoning_effort_that_litellm_refuses_is_left_out_and_told(
    package: LiteLLM, server: ModelServer
) -> None:
    provider = LiteLLMChat(
        name="fake", package=package, prefix="openai", base_url=server.url, api_key=KEY
    )
    events: list[Event] = []

    response = await ask(
        provider, model="unheard-of", reasoning_effort="high", on_delta=events.append
    )

    assert response.content == "OK"
    assert "reasoning_effort" not in server.requests[0].body
    assert [event for event in events if isinstance(event, Notice)] == [
        Notice("fake takes no reasoning effort for unheard-of; it was left out.")
    ]


# -- Gemini, of whose streams litellm does not tell that they broke off ------------------------


def gemini(package: LiteLLM, url: str) -> LiteLLMChat:
    return LiteLLMChat(name="gemini", package=package, prefix="gemini", base_url=url, api_key=KEY)


async def test_gemini_answers_and_gets_its_signatures_back(
    package: LiteLLM, server: ModelServer
) -> None:
    server.script(
        Reply.tool_calls(
            [("look", {"what": "ü"}), ("look", {})],
            text="Let me see.",
            reasoning="Hm.",
            usage=Tokens(100, 20, 40),
        )
    )
    provider = gemini(package, server.root)

    first = await ask(provider, model="gemini-2.5-flash", reasoning_effort="low")
    results = [ToolMessage(call.id, "look", "a cat") for call in first.tool_calls]
    second = await ask(
        provider,
        (*HELLO, AssistantMessage(first.content, first.tool_calls), *results),
        model="gemini-2.5-flash",
        reasoning_effort="off",
    )

    assert (first.content, first.reasoning_content) == ("Let me see.", "Hm.")
    assert [(call.name, json.loads(call.arguments)) for call in first.tool_calls] == [
        ("look", {"what": "ü"}),
        ("look", {}),
    ]
    assert first.usage is not None and first.usage.cost_usd is not None
    assert (first.usage.input_tokens, first.usage.output_tokens) == (100, 20)
    assert (first.usage.cached_tokens, first.model) == (40, "gemini-2.5-flash")
    assert second.content == "OK"
    once, again = (request.body for request in server.requests)
    assert once["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 1024
    assert again["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 0
    _, call, _ = again["contents"][1]["parts"]
    assert call["thoughtSignature"] == GEMINI_SIGNATURE


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply.truncated("a b c d"), RetryLater),
        (Reply.truncated("a b c d", ending=Ending.CUT), RetryLater),
        (Reply.truncated('"finishReason": "STOP" ends it. Well.', after_chunks=6), RetryLater),
        (Reply.stream_error("broken", code=503, content="a b"), RetryLater),
        (Reply.error(400, "API key not valid. Please pass a valid API key."), AuthFailed),
        (Reply.error(403, "no"), AuthFailed),
        (Reply.error(400, "The input token count (9) exceeds the maximum."), ContextOverflow),
        (Reply.error(429, "no"), RetryLater),
        (Reply.error(404, "no"), BadRequest),
        (Reply.error(500, "no"), RetryLater),
        (Reply.filtered("Half a"), Refused),
    ],
)  # fmt: skip
async def test_each_failure_of_gemini_has_its_class(
    package: LiteLLM, server: ModelServer, reply: Reply, kind: type[ProviderError]
) -> None:
    server.script(reply)
    provider = gemini(package, server.root)

    with pytest.raises(ProviderError) as caught:
        await ask(provider, model="gemini-2.5-flash")

    assert type(caught.value) is kind
    assert KEY not in str(caught.value)
    assert (await ask(provider, model="gemini-2.5-flash")).content == "OK"


@pytest.mark.parametrize("kept", [0.3, 0.6])
async def test_a_line_of_gemini_that_is_cut_off_makes_the_answer_half_whatever_follows(
    package: LiteLLM, server: ModelServer, kept: float
) -> None:
    lines = gemini_replies.stream(Reply.text("a b c d"), "gemini-2.5-flash")
    lines[3] = lines[3][: int(len(lines[3]) * kept)] + b"\n\n"
    server.script(Reply.raw(b"".join(lines)))

    with pytest.raises(RetryLater, match="in the middle"):
        await ask(gemini(package, server.root), model="gemini-2.5-flash")


async def test_a_line_separator_in_the_words_of_gemini_is_no_cut(
    package: LiteLLM, server: ModelServer
) -> None:
    server.script(Reply.text("one\u2028two three"))

    answer = await ask(gemini(package, server.root), model="gemini-2.5-flash")

    assert answer.content == "onetwo three"  # its reader drops the separator itself


@pytest.mark.parametrize(
    ("reply", "after"),
    [
        (Reply.error(429, "no", retry_after="7"), 7.0),
        (gemini_replies.retry_info("38s"), 38.0),
        (gemini_replies.retry_info("0.25s"), 0.25),
        (gemini_replies.retry_info("3s").but(headers=(("Retry-After", "5"),)), 5.0),
    ],
)
async def test_gemini_says_how_long_to_wait_in_a_header_or_in_its_error(
    package: LiteLLM, server: ModelServer, reply: Reply, after: float
) -> None:
    server.script(reply)

    with pytest.raises(RetryLater) as caught:
        await ask(gemini(package, server.root), model="gemini-2.5-flash")

    assert caught.value.after == after


async def test_cancelling_gemini_closes_the_connection(
    package: LiteLLM, server: ModelServer
) -> None:
    gate = server.gate()
    server.script(Reply.text("one two three", stream_gate=gate, stream_gate_after=2))
    task = asyncio.create_task(ask(gemini(package, server.root), model="gemini-2.5-flash"))
    await gate.reached()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await server.requests[0].disconnected.wait()


# -- the cache --------------------------------------------------------------------------------


async def test_the_cache_is_told_where_the_stable_part_ends(
    package: LiteLLM, server: ModelServer
) -> None:
    messages = (
        *HELLO,
        AssistantMessage("", (ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}"))),
        ToolMessage("c1", "look", "a cat"),
        ToolMessage("c2", "look", "a dog"),
    )

    await ask(anthropic(package, server.url), messages)

    mark = {"type": "ephemeral"}
    body = server.requests[0].body
    user, _, results = body["messages"]
    assert body["system"] == [{"type": "text", "text": "You help.", "cache_control": mark}]
    assert user["content"] == [{"type": "text", "text": "Hello?", "cache_control": mark}]
    assert [part.get("cache_control") for part in results["content"]] == [None, mark]
    assert [part["content"] for part in results["content"]] == ["a cat", "a dog"]
    assert asked(server.requests[0]).marks == 3


async def test_each_request_begins_with_the_former_one_but_for_the_marks(
    package: LiteLLM, server: ModelServer
) -> None:
    provider = anthropic(package, server.url)
    server.default = Reply.tool_calls([("look", {})], reasoning="Hm", text="Let me see.")
    messages: tuple[ChatMessage, ...] = HELLO

    for _ in range(4):
        response = await ask(provider, messages, reasoning_effort="low")
        (call,) = response.tool_calls
        messages = (
            *messages,
            AssistantMessage(
                response.content,
                response.tool_calls,
                response.reasoning_content,
                response.thinking_blocks,
            ),
            ToolMessage(call.id, "look", "a cat"),
        )

    sent = [unmarked(request.body) for request in server.requests]
    for former, later in itertools.pairwise(sent):
        assert later["messages"][: len(former["messages"])] == former["messages"]
        assert (later["system"], later["tools"]) == (former["system"], former["tools"])


def unmarked(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: unmarked(value) for key, value in node.items() if key != "cache_control"}
    return [unmarked(one) for one in node] if isinstance(node, list) else node


# -- what it costs ----------------------------------------------------------------------------


async def test_the_cost_is_told_where_the_price_is_known(
    package: LiteLLM, server: ModelServer
) -> None:
    server.default = Reply.text("OK", usage=Tokens(prompt=100_000, completion=1000, cached=90_000))
    provider = anthropic(package, server.url)

    known, unknown = await ask(provider), await ask(provider, model="claude-unheard-of")

    # $3 a million, a tenth of it from the cache, $15 a million of output
    assert known.usage is not None and known.usage.cost_usd == pytest.approx(0.03 + 0.027 + 0.015)
    assert unknown.usage == Usage(100_000, 1000, 90_000, None)


# -- names and addresses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending", ["", "/", "/v1", "/v1/", "/v1/messages"], ids=lambda ending: ending or "none"
)
async def test_any_usual_form_of_the_address_will_do(
    package: LiteLLM, server: ModelServer, ending: str
) -> None:
    await ask(anthropic(package, server.root + ending))

    assert [request.path for request in server.requests] == ["/v1/messages"]


async def test_without_a_prefix_the_models_name_says_who_is_asked(
    package: LiteLLM, server: ModelServer
) -> None:
    provider = LiteLLMChat(name="custom", package=package, base_url=server.url, api_key=KEY)

    await ask(provider, model="org/some-model")

    [request] = server.requests
    assert (request.path, request.model) == ("/v1/chat/completions", "org/some-model")


async def test_an_unknown_provider_without_an_address_is_a_bad_request(package: LiteLLM) -> None:
    provider = LiteLLMChat(name="custom", package=package)

    with pytest.raises(BadRequest, match="custom"):
        await ask(provider, model="org/some-model")


async def test_what_the_config_says_of_a_model_is_kept_to(
    package: LiteLLM, server: ModelServer
) -> None:
    overrides = {CLAUDE: ModelOverride(temperature="omit", reasoning=False)}
    quirks = quirks_at("anthropic", through_litellm=True, overrides=overrides)

    await ask(anthropic(package, server.url, quirks=quirks), reasoning_effort="high")

    assert {"temperature", "thinking"}.isdisjoint(server.requests[0].body)


@pytest.mark.parametrize(
    "options", [{"api_key": "sk-fäke"}, {"extra_headers": {"X-A": "b\r\nX-B: c"}}], ids=repr
)
def test_what_no_header_can_carry_is_refused_at_once(
    package: LiteLLM, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"providers\.anthropic\.(apiKey|extraHeaders)"):
        anthropic(package, "http://127.0.0.1", **options)


async def test_extra_headers_are_sent(package: LiteLLM, server: ModelServer) -> None:
    await ask(anthropic(package, server.url, extra_headers={"x-fake-project": "seven"}))

    assert server.requests[0].headers["x-fake-project"] == "seven"


# -- nothing outside the request --------------------------------------------------------------


async def test_two_providers_at_once_keep_their_keys_to_themselves(
    package: LiteLLM, server: ModelServer
) -> None:
    litellm = await package.load()
    before = dict(os.environ)
    keys = [f"sk-fake-number-{number}" for number in range(8)]

    await asyncio.gather(
        *(ask(anthropic(package, server.url, api_key=key), (UserMessage(key),)) for key in keys)
    )

    seen = [asked(request) for request in server.requests]
    assert sorted((one.key, one.talk[0][1]) for one in seen) == [(key, key) for key in keys]
    assert dict(os.environ) == before
    assert [name for name, value in vars(litellm).items() if value in keys] == []


async def test_nothing_is_printed_when_a_call_fails(
    package: LiteLLM, server: ModelServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.script(Reply.error(400, "no"), Reply.error(401, "no"), Reply.truncated("a b c"))
    provider = anthropic(package, server.url)

    for _ in range(3):
        with pytest.raises(ProviderError):
            await ask(provider)

    assert "LiteLLM" not in (printed := "".join(capfd.readouterr())) and "Feedback" not in printed


async def test_it_can_be_used_again_after_it_was_closed(
    package: LiteLLM, server: ModelServer
) -> None:
    provider = anthropic(package, server.url)

    for _ in range(2):
        assert (await ask(provider)).content == "OK"
        await package.aclose()

    await server.closed(2)


async def test_without_the_package_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    provider = anthropic(LiteLLM(), "http://127.0.0.1:9")

    for _ in range(2):
        with pytest.raises(ProviderError, match=r"pip install 'litellm==1\.90\.7'"):
            await ask(provider)


async def test_a_caller_that_gives_up_leaves_the_import_to_the_others() -> None:
    package = LiteLLM()
    impatient = asyncio.create_task(package.load())
    patient = asyncio.create_task(package.load())
    await asyncio.sleep(0)

    impatient.cancel()

    assert json.dumps((await patient).suppress_debug_info) == "true"
    assert impatient.cancelled() and package.is_loaded


async def test_a_provider_that_goes_on_after_the_end_is_not_waited_for(
    package: LiteLLM, server: ModelServer
) -> None:
    server.script(Reply.hang("All of it.", after_chunks=5))

    response = await ask(anthropic(package, server.url))
    await server.requests[0].disconnected.wait()

    assert response.content == "All of it."
