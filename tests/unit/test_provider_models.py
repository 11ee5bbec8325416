"""The models of an app: two providers at once, what stands in, what the config says of a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from nanobot.config.schema import AgentDefaults, ModelOverride, ProviderConfig, ProvidersConfig
from nanobot.core.chat import LLMResponse, ModelRequest, UserMessage
from nanobot.core.errors import AuthFailed
from nanobot.core.ports import ChosenModel
from nanobot.providers.models import Models
from nanobot.providers.openai import TLS
from tests.fakes.asked import asked
from tests.fakes.model_server import ModelServer, Reply


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy stands between the tests and their server."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


def models(defaults: dict[str, Any], **providers: ProviderConfig) -> Models:
    return Models(
        AgentDefaults(**defaults),
        ProvidersConfig(**providers),
        {},
        tls=TLS(),
        offline_allowed=False,
    )


def at(server: ModelServer, key: str, **more: Any) -> ProviderConfig:
    return ProviderConfig(api_key=SecretStr(key), api_base=server.url, **more)


async def ask(chosen: ChosenModel) -> LLMResponse:
    hello = (UserMessage("Hello?"),)
    request = ModelRequest(hello, (), chosen.model, chosen.max_tokens, chosen.temperature)
    return await chosen.provider.chat(request)


async def test_two_providers_are_used_at_once_each_with_its_key(server: ModelServer) -> None:
    both = models(
        {"model": "groq/llama-3"},
        groq=at(server, "sk-fake-groq"),
        deepseek=at(server, "sk-fake-deepseek"),
    )

    answers = [await ask(both.choose(name)) for name in (None, "deepseek/deepseek-chat")]
    await both.aclose()

    assert [(one.provider, one.model) for one in answers] == [
        ("groq", "llama-3"),
        ("deepseek", "deepseek-chat"),
    ]
    assert [asked(request).key for request in server.requests] == [
        "sk-fake-groq",
        "sk-fake-deepseek",
    ]


async def test_a_model_of_another_provider_stands_in(server: ModelServer) -> None:
    server.script(Reply.error(401, "who are you?"), Reply.text("Hello."))
    both = models(
        {"model": "groq/llama-3", "fallback_models": ("deepseek/deepseek-chat",)},
        groq=at(server, "sk-fake-groq"),
        deepseek=at(server, "sk-fake-deepseek"),
    )

    answer = await ask(both.choose(None))
    await both.aclose()

    assert (answer.content, answer.provider) == ("Hello.", "deepseek")
    assert answer.footnote == (
        "(answered by deepseek/deepseek-chat, because groq/llama-3 does not accept the key)"
    )


@pytest.mark.parametrize("usual", ["deepseek/deepseek-chat", "anthropic/claude-x"])
async def test_a_key_that_cannot_be_sent_is_a_refused_key(server: ModelServer, usual: str) -> None:
    spoilt = {usual.partition("/")[0]: at(server, "sk-fäke")}
    alone = models({"model": usual}, **spoilt)
    stood_in_for = models(
        {"model": usual, "fallback_models": ("groq/l",)},
        groq=at(server, "sk-fake-groq"),
        **spoilt,
    )

    with pytest.raises(AuthFailed, match="apiKey: a key has only printable ASCII characters"):
        alone.choose(None)
    answer = await ask(stood_in_for.choose(None))
    await stood_in_for.aclose()

    assert answer.footnote == f"(answered by groq/l, because {usual} does not accept the key)"


async def test_a_model_without_a_provider_is_stood_in_for(server: ModelServer) -> None:
    one = models(
        {"model": "anthropic/claude-x", "provider": "anthropic", "fallback_models": ("groq/l",)},
        groq=at(server, "sk-fake-groq"),
    )

    answer = await ask(one.choose(None))
    await one.aclose()

    assert answer.footnote == (
        "(answered by groq/l, because anthropic/claude-x does not accept the key)"
    )


def test_where_none_can_be_asked_the_usual_models_error_counts() -> None:
    none = models({"model": "gpt-5", "fallback_models": ("claude-x",)})

    with pytest.raises(AuthFailed, match=r"gpt-5.*providers\.openai\.apiKey"):
        none.choose(None)


@pytest.mark.parametrize(
    ("explicit", "model", "provider"),
    [
        ("custom", "openai/gpt-oss", "custom"),
        ("custom", "groq/llama-3", "groq"),
        ("custom", "somebody/llama-3", "custom"),
        ("custom", "ollama/llama-3", "custom"),
        ("openrouter", "groq/llama-3", "openrouter"),
    ],
)
def test_an_explicit_provider_holds_unless_a_prefix_says_another(
    explicit: str, model: str, provider: str
) -> None:
    key = ProviderConfig(api_key=SecretStr("sk-fake-0123"), api_base="http://127.0.0.1:9/v1")
    several = models(
        {"model": "openai/gpt-oss", "provider": explicit},
        custom=key,
        groq=key,
        openai=key,
        openrouter=key,
    )

    assert several.explain(model).spec.name == provider


def test_a_models_own_window_comes_before_the_one_for_all() -> None:
    several = models(
        {"model": "groq/a", "context_window": 50_000, "max_tokens": 30_000},
        groq=ProviderConfig(
            api_key=SecretStr("sk-fake-0123"), models={"a": ModelOverride(context_window=20_000)}
        ),
    )

    sizes = [
        (chosen.context_window, chosen.max_tokens)
        for chosen in (several.choose("groq/a"), several.choose("groq/b"))
    ]

    assert sizes == [(20_000, 10_000), (50_000, 25_000)]


@pytest.mark.parametrize(
    ("setting", "model", "reflects"),
    [
        ("auto", "gpt-4o", True),
        ("auto", "gpt-5", False),
        ("auto", "unheard-of", False),
        ("auto", "said-not-to", True),
        ("on", "gpt-5", True),
        ("off", "gpt-4o", False),
    ],
)
def test_only_models_known_not_to_reason_are_asked_to_assess(
    setting: str, model: str, reflects: bool
) -> None:
    several = models(
        {"model": model, "reflect": setting, "provider": "openai"},
        openai=ProviderConfig(
            api_key=SecretStr("sk-fake-0123"),
            models={"said-not-to": ModelOverride(reasoning=False)},
        ),
    )

    assert several.choose(None).reflect is reflects


async def test_what_the_config_says_of_a_model_reaches_the_request(server: ModelServer) -> None:
    override = ModelOverride(max_tokens_field="max_completion_tokens", temperature=1)
    several = models(
        {"model": "groq/odd"},
        groq=at(server, "sk-fake-groq", models={"groq/odd": override}),
    )

    for name in ("groq/odd", "groq/even"):
        await ask(several.choose(name))
    await several.aclose()

    odd, even = (request.body for request in server.requests)
    assert (odd["temperature"], "max_tokens" in odd, "max_completion_tokens" in odd) == (
        1,
        False,
        True,
    )
    assert (even["temperature"], "max_tokens" in even) == (0.7, True)


def test_a_model_is_described_with_its_provider_the_reason_and_what_stands_in() -> None:
    key = ProviderConfig(api_key=SecretStr("sk-fake-0123"))
    several = models(
        {"model": "anthropic/claude-x", "fallback_models": ("groq/l",)}, anthropic=key, groq=key
    )

    assert [several.describe(name) for name in (None, "groq/l")] == [
        "anthropic/claude-x, through anthropic by litellm (the model's prefix anthropic/); "
        "if it cannot answer: groq/l",
        "groq/l, through groq (the model's prefix groq/)",
    ]


@pytest.mark.parametrize(
    ("adapter", "through_litellm"), [("auto", True), ("openai", False), ("litellm", True)]
)
def test_the_adapter_is_the_providers_own_or_the_configured_one(
    adapter: Any, through_litellm: bool
) -> None:
    key = ProviderConfig(api_key=SecretStr("sk-fake-0123"), adapter=adapter)

    choice = models({}, anthropic=key).explain("anthropic/claude-x")

    assert choice.uses_litellm is through_litellm
    assert choice.base == "https://api.anthropic.com" + ("" if through_litellm else "/v1")


def test_any_provider_litellm_knows_is_reached_through_custom() -> None:
    custom = ProviderConfig(adapter="litellm")

    choice = models({"provider": "custom"}, custom=custom).explain("bedrock/anthropic.claude-x")

    assert (choice.uses_litellm, choice.model, choice.base) == (
        True,
        "bedrock/anthropic.claude-x",
        "",
    )
