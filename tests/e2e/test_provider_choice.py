"""Whom a question is sent to, under which name and key: what the config names wins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Nanobot
from tests.fakes.asked import asked
from tests.fakes.model_server import ModelServer

KEY = "sk-fake-owner-key-0000"


def config(model: str, **providers: dict[str, Any]) -> dict[str, Any]:
    return {"agents": {"defaults": {"model": model}}, "providers": providers}


@pytest.mark.parametrize(
    ("provider", "name", "variable"),
    [
        ("openrouter", "google/gemini-2.5-pro", "GEMINI_API_KEY"),
        ("openrouter", "anthropic/claude-sonnet-4.5", "ANTHROPIC_API_KEY"),
        ("openrouter", "deepseek/deepseek-chat", "DEEPSEEK_API_KEY"),
        ("custom", "anthropic/claude-sonnet-4.5", "ANTHROPIC_API_KEY"),
        ("vllm", "openai/gpt-oss-120b", "OPENAI_API_KEY"),
        ("groq", "gpt-oss-120b", "OPENAI_API_KEY"),
        ("ollama", "gpt-oss:20b", "OPENAI_API_KEY"),
        ("openai", "some-model", "ANTHROPIC_API_KEY"),
    ],
)
def test_a_key_in_the_environment_leads_no_question_away_from_the_configured_provider(
    nanobot: Nanobot, model: ModelServer, provider: str, name: str, variable: str
) -> None:
    nanobot.configure(config(name, **{provider: {"apiKey": KEY, "apiBase": model.url}}))
    nanobot.environ[variable] = "sk-fake-other-key-1111"

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (0, "OK\n")
    (request,) = (one for one in model.requests if one.path == "/v1/chat/completions")
    assert (request.model, asked(request).key) == (name, KEY)


@pytest.mark.parametrize(
    ("provider", "name", "sent", "variable"),
    [
        ("zhipu", "zai/glm-4.6", "glm-4.6", "ZAI_API_KEY"),
        ("vllm", "vllm/qwen3", "qwen3", "VLLM_API_KEY"),
        ("vllm", "hosted_vllm/org/qwen3", "org/qwen3", "HOSTED_VLLM_API_KEY"),
        ("moonshot", "moonshotai/kimi-k2.5", "kimi-k2.5", "MOONSHOT_API_KEY"),
        ("mistral", "mistralai/mistral-large", "mistral-large", "MISTRAL_API_KEY"),
    ],
)
def test_a_model_is_sent_under_the_name_its_provider_knows_with_the_key_of_the_environment(
    nanobot: Nanobot, model: ModelServer, provider: str, name: str, sent: str, variable: str
) -> None:
    nanobot.configure(config(name, **{provider: {"apiBase": model.url}}))
    nanobot.environ[variable] = KEY

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (0, "OK\n")
    (request,) = model.requests
    assert (request.model, asked(request).key) == (sent, KEY)


def test_a_model_that_only_litellm_serves_asks_for_that_and_for_no_other_providers_key(
    nanobot: Nanobot,
) -> None:
    nanobot.configure(config("bedrock/anthropic.claude-sonnet-4-5-v1:0"))
    nanobot.environ["ANTHROPIC_API_KEY"] = "sk-fake-other-key-1111"

    done = nanobot.run("agent", "-m", "hello")

    assert done.returncode == 4
    assert "nanobot config set providers.custom.adapter litellm" in done.stderr
    assert nanobot.run("config", "set", "providers.custom.adapter", "litellm").returncode == 0
    assert "custom, by the model's prefix bedrock/" in nanobot.run("status").stdout
