"""Which provider serves a model: explicit, by prefix, by keyword, else the first configured."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from nanobot.config.schema import ProviderConfig, ProvidersConfig
from nanobot.core.errors import AuthFailed
from nanobot.providers.catalogue import BY_NAME, SPECS, choose


def providers(**keys: str) -> ProvidersConfig:
    return ProvidersConfig(
        **{name: ProviderConfig(api_key=SecretStr(key)) for name, key in keys.items()}
    )


@pytest.mark.parametrize(
    ("model", "configured", "provider", "sent"),
    [
        ("openrouter/anthropic/claude-x", ("openrouter",), "openrouter", "anthropic/claude-x"),
        ("anthropic/claude-x", ("openrouter",), "openrouter", "anthropic/claude-x"),
        ("anthropic/claude-x", ("openrouter", "anthropic"), "anthropic", "claude-x"),
        ("deepseek/deepseek-chat", ("deepseek",), "deepseek", "deepseek-chat"),
        ("deepseek-chat", ("openai", "deepseek"), "deepseek", "deepseek-chat"),
        ("gpt-5", ("openrouter", "openai"), "openai", "gpt-5"),
        ("some-model", ("groq", "openai"), "openai", "some-model"),
        ("some-model", ("groq", "openrouter"), "openrouter", "some-model"),
        ("qwen/qwen3", ("aihubmix",), "aihubmix", "qwen3"),
        ("ollama/qwen3", ("openrouter", "dashscope"), "ollama", "qwen3"),
        ("vllm/qwen3", ("openrouter",), "openrouter", "vllm/qwen3"),
    ],
)
def test_the_provider_of_a_model(
    model: str, configured: tuple[str, ...], provider: str, sent: str
) -> None:
    choice = choose(model, providers(**dict.fromkeys(configured, "sk-fake")), {})

    assert (choice.spec.name, choice.model) == (provider, sent)


def test_an_explicit_provider_wins() -> None:
    choice = choose("gpt-5", providers(openai="sk-fake", groq="sk-fake"), {}, explicit="groq")

    assert (choice.spec.name, choice.why) == ("groq", "agents.defaults.provider")


def test_custom_gets_the_name_as_it_is() -> None:
    own = ProvidersConfig(custom=ProviderConfig(api_base="http://127.0.0.1:1/v1"))

    choice = choose("org/some-model", own, {})

    assert (choice.spec.name, choice.model, choice.base) == (
        "custom",
        "org/some-model",
        "http://127.0.0.1:1/v1",
    )


def test_a_key_may_come_from_the_usual_variable() -> None:
    choice = choose("mistral-large", ProvidersConfig(), {"MISTRAL_API_KEY": "sk-fake-env"})

    assert (choice.spec.name, choice.key) == ("mistral", "sk-fake-env")


def test_ollama_needs_only_the_models_name() -> None:
    choice = choose("ollama/qwen3", ProvidersConfig(), {})

    assert (choice.spec.name, choice.model, choice.key) == ("ollama", "qwen3", "")


@pytest.mark.parametrize(("model", "likely"), [("gpt-5", "openai"), ("whatever", "openrouter")])
def test_without_any_key_the_error_says_what_to_type(model: str, likely: str) -> None:
    with pytest.raises(AuthFailed, match=f"config set providers.{likely}.apiKey"):
        choose(model, ProvidersConfig(), {})


def test_every_configurable_provider_has_a_spec() -> None:
    assert set(ProvidersConfig.model_fields) == set(BY_NAME)
    assert len(SPECS) == len(BY_NAME)
