"""Which models can be shown pictures, by their names and by what the owner has set."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanobot.config.schema import AgentDefaults, ProvidersConfig
from nanobot.core.chat import Image, ModelRequest, UserMessage
from nanobot.providers.catalogue import sees
from nanobot.providers.models import Models
from nanobot.providers.openai import TLS
from tests.fakes.model_server import ModelServer


@pytest.mark.parametrize(
    "model",
    [
        *("gpt-4o", "gpt-4o-mini-2024-07-18", "openai/gpt-4.1-nano", "gpt-5.2", "o3", "o4-mini"),
        *("anthropic/claude-sonnet-4.5", "anthropic.claude-3-haiku-20240307", "claude-opus-4-1"),
        *("google/gemini-3-flash", "gemma3:4b", "gemma-3-27b-it", "gemma3", "llama4:scout"),
        *("qwen2.5-vl-72b-instruct", "qwen3-vl:8b", "qwen-vl-max", "Qwen/Qwen3.5-Plus"),
        *("z-ai/glm-4.5v", "glm-4v-plus", "pixtral-large-latest", "mistral-small-2506"),
        *("llama3.2-vision:11b", "meta-llama/llama-3.2-90b-vision-instruct", "llava:13b"),
        *("moonshotai/kimi-k2.5", "moonshot-v1-8k-vision-preview", "grok-4", "minicpm-v"),
    ],
)
def test_a_model_known_to_see(model: str) -> None:
    assert sees(model)


@pytest.mark.parametrize(
    "model",
    [
        *("gpt-3.5-turbo", "gpt-4", "gpt-4-0613", "o1-mini", "o3-mini", "gpt-oss:20b"),
        *("claude-2.1", "claude-instant-1", "deepseek-chat", "deepseek/deepseek-v3.2"),
        *("moonshotai/kimi-k2", "kimi-k2-thinking", "z-ai/glm-4.6", "qwen3-coder", "qwq-32b"),
        *("minimax-m2", "llama3.3:70b", "codestral-latest", "devstral-small-2507", "gemma3:1b"),
        *("mistral-large-2411", "mistral-small-2409", "grok-code-fast-1", "phi4"),
        *("fake-model", "our-own-v12", "revision-7"),
    ],
)
def test_a_model_not_known_to_see(model: str) -> None:
    assert not sees(model)


async def test_what_the_owner_has_set_counts_for_the_choice_and_the_requests(
    tmp_path: Path,
) -> None:
    picture = Image(str(tmp_path / "cat.png"), "image/png")
    Path(picture.path).write_bytes(b"fake picture")
    shown: dict[str, tuple[bool, bool]] = {}

    async with ModelServer() as server:
        providers = ProvidersConfig.model_validate(
            {
                "custom": {
                    "apiBase": server.url,
                    "models": {"our-own": {"vision": True}, "gpt-4o": {"vision": False}},
                }
            }
        )
        defaults = AgentDefaults.model_validate({"provider": "custom", "model": "our-own"})
        models = Models(defaults, providers, {}, tls=TLS(), offline_allowed=False)
        for name in ("our-own", "gpt-4o", "gpt-4.1", "another"):
            chosen = models.choose(name)
            request = ModelRequest([UserMessage("Look", (picture,))], [], name, 9, 0.0)
            await chosen.provider.chat(request)
            shown[name] = (chosen.vision, b"image_url" in server.requests[-1].raw)
        await models.aclose()

    assert shown == {
        "our-own": (True, True),
        "gpt-4o": (False, False),
        "gpt-4.1": (True, True),
        "another": (False, False),
    }
