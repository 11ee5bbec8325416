"""What the adapters make of streams whose single values are not what they should be."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nanobot.core.chat import LLMResponse, ModelRequest, UserMessage
from nanobot.core.errors import ProviderError
from nanobot.core.ports import LLMProvider
from nanobot.providers.litellm import LiteLLM, LiteLLMChat
from nanobot.providers.openai import OpenAIChat
from tests.fakes.model_server import ModelServer, Reply

KEY = "sk-fake-0123456789abcdef"


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "fake-model"}
    return {**head, "choices": [choice]}


CHUNKS: list[dict[str, Any]] = [
    chunk({"role": "assistant", "reasoning_content": "Hm."}),
    chunk({"content": "Let me see."}),
    chunk(
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": "{}"},
                }
            ]
        }
    ),
    chunk({"reasoning_details": [{"type": "reasoning.text", "text": "t", "index": 0}]}),
    chunk({}, "tool_calls"),
    {
        **chunk({}),
        "choices": [],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "cost": 0.01,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    },
]
EVENTS: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "model": "fake-model",
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 3},
        },
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "Hm."},
    },
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "input_json_delta", "partial_json": "{}"},
    },
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]
STREAMS = {"openai_chat": CHUNKS, "litellm_openai": CHUNKS, "litellm_anthropic": EVENTS}

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, 0, -1, 1.5, 10**30, float("nan"), float("inf"), "", "x", "\ud800", "9" * 400),
        *([], {}, [None], [[]], [{}], {"x": 1}, {"text": None}),
    ]
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths to every value in a document."""
    if path:
        yield path
    inside = value if isinstance(value, dict) else {}
    if isinstance(value, list):
        inside = dict(enumerate(value))
    for key, one in inside.items():
        yield from places(one, (*path, key))


def spoilt(documents: Any, path: tuple[str | int, ...], odd: Any) -> list[Any]:
    """A copy of the documents with ``odd`` at a place."""
    copy = json.loads(json.dumps(documents))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = odd
    made: list[Any] = copy
    return made


def sent(documents: list[Any], names: list[str]) -> Reply:
    """The documents as a stream, with the events' names as they should be."""
    events = (
        f"event: {name}\ndata: {json.dumps(one)}\n\n"
        for one, name in zip(documents, names, strict=True)
    )
    return Reply.raw(f"{''.join(events)}data: [DONE]\n\n".encode())


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModelServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with ModelServer() as running:
        yield running


@pytest.fixture(params=STREAMS)
async def provider(
    request: pytest.FixtureRequest, server: ModelServer
) -> AsyncIterator[tuple[LLMProvider, list[dict[str, Any]]]]:
    package = LiteLLM()
    made: LLMProvider
    if request.param == "openai_chat":
        made = OpenAIChat(
            name="fake", base_url=server.url, api_key=KEY, idle_timeout_s=5.0, total_timeout_s=10.0
        )
    else:
        made = LiteLLMChat(
            name="fake",
            package=package,
            prefix="anthropic" if request.param == "litellm_anthropic" else "hosted_vllm",
            base_url=server.url,
            api_key=KEY,
            idle_timeout_s=5.0,
            total_timeout_s=10.0,
        )
    yield made, STREAMS[request.param]
    await made.aclose()
    await package.aclose()


def is_fit_to_be_kept(response: LLMResponse) -> bool:
    """Whether the log and the sums of usage can take an answer."""
    texts = [response.content, response.reasoning_content, response.model]
    texts += [text for call in response.tool_calls for text in (call.id, call.name, call.arguments)]
    "".join(texts).encode()
    json.dumps([dict(block) for block in response.thinking_blocks], ensure_ascii=False).encode()
    usage = response.usage
    if usage is None:
        return True
    numbers = (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    cost = usage.cost_usd
    return all(type(one) is int and 0 <= one < 2**62 for one in numbers) and (
        cost is None or (math.isfinite(cost) and cost >= 0)
    )


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(place=3, odd=None)
@example(place=7, odd=[None])
@example(place=45, odd=10**30)
@given(place=st.integers(0, 200), odd=ODD)
async def test_an_odd_value_makes_an_answer_or_an_error_of_the_provider(
    provider: tuple[LLMProvider, list[dict[str, Any]]], server: ModelServer, place: int, odd: Any
) -> None:
    adapter, documents = provider
    paths = list(places(documents))
    names = [one.get("type", "message") for one in documents]
    server.default = sent(spoilt(documents, paths[place % len(paths)], odd), names)

    outcome = await asked(adapter)

    if isinstance(outcome, LLMResponse):
        assert is_fit_to_be_kept(outcome)
    else:
        assert 0 < len(str(outcome)) <= 300 and str(outcome).isprintable()


async def asked(adapter: LLMProvider) -> LLMResponse | ProviderError:
    try:
        return await adapter.chat(ModelRequest((UserMessage("Hello?"),), (), "fake-model", 99, 0.0))
    except ProviderError as error:
        return error
