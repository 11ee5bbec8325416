"""What is known of models by their names alone: their window, whether they reason, or see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanobot.config.schema import ModelOverride

DEFAULT_WINDOW = 64_000
"""Tokens assumed for a model nothing is known of."""

_WINDOWS: tuple[tuple[str, int], ...] = (
    ("gpt-4.1", 1_000_000),
    ("gpt-4o", 128_000),
    ("gpt-4", 128_000),
    ("gpt-5", 272_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("claude", 200_000),
    ("gemini", 1_000_000),
    ("deepseek", 128_000),
    ("kimi", 256_000),
    ("moonshot", 128_000),
    ("glm", 128_000),
    ("qwen", 128_000),
    ("minimax", 200_000),
    ("mistral", 128_000),
    ("llama", 128_000),
)

_MAKER = re.compile(r"^([a-z-]+\.)?(amazon|anthropic|cohere|deepseek|meta|mistral|openai|qwen)\.")

# Models without a reasoning mode of their own, by the beginning of their names.
_REASONLESS = re.compile(
    r"gpt-[34]|chatgpt-4o"
    r"|claude-(2|instant|3-haiku|3-sonnet|3-opus|3-5|3\.5)"
    r"|gemini-(1|2\.0)|gemma"
    r"|deepseek-(coder|v2|v3$|chat-v3-)"
    r"|kimi-k2(-0|-instruct|$)|moonshot-v1"
    r"|glm-4($|-)|qwen-?[12](\D|$)"
    r"|llama-?[23]|meta-llama-3"
    r"|(open-)?(mistral|mixtral|codestral|devstral|ministral|pixtral)"
    r"|command|phi-?[34]($|[:-])"
)

# Models that take pictures, by the beginning of their names …
_SEEING = re.compile(
    r"gpt-(4o(?!-(mini-)?(audio|realtime|transcribe|tts))|4\.[15]|4-turbo|[5-9])|chatgpt-4o"
    r"|o1($|-(20|pro))|o3($|-(20|pro|deep))|o[4-9]($|-)"
    r"|claude-(?!2|instant)|gemini|gemma-?3n?(?!.*\b(270m|1b))|gemma-?[4-9]"
    r"|llama-?4|mistral-small-?(latest|3\.[1-9]|25|2[6-9])|mistral-medium(?!-23)"
    r"|mistral-large-(latest|2512|2[6-9])|ministral-3|magistral-(small|medium)-(latest|2509|2[6-9])"
    r"|kimi-(latest|k2\.[5-9]|k[3-9])|qwen-?3\.[5-9]|grok-[4-9](?!.*code)|nova-(lite|pro|premier)"
)
# … or by what occurs in them, as with the open models that see.
_VISUAL = re.compile(
    r"(?<![a-z])(vision|visual|multimodal)|(?<![a-z])vl(?![a-z])|omni|glm-?\d(\.\d)?v|llava|pixtral|minicpm-?v"
    r"|moondream|internvl|molmo"
)


def context_window(model: str, override: ModelOverride | None = None) -> int:
    """The window of a model in tokens: configured, known by name, or a cautious default."""
    if override is not None and override.context_window is not None:
        return override.context_window
    lowered = model.lower()
    return next((size for name, size in _WINDOWS if mentions(lowered, name)), DEFAULT_WINDOW)


def reasons(model: str, override: ModelOverride | None = None) -> bool | None:
    """Whether a model has a reasoning mode of its own; None where nobody knows."""
    if override is not None and override.reasoning is not None:
        return override.reasoning
    return False if _REASONLESS.match(bare(model)) else None


def sees(model: str, override: ModelOverride | None = None) -> bool:
    """Whether a model can be shown pictures; of one that nobody knows it is not assumed."""
    if override is not None and override.vision is not None:
        return override.vision
    name = bare(model)
    return bool(_SEEING.match(name) or _VISUAL.search(name))


def bare(model: str) -> str:
    """A model's name without gateway, region and maker (``eu.anthropic.claude-…`` on Bedrock)."""
    return _MAKER.sub("", model.lower().rsplit("/", 1)[-1])


def mentions(model: str, keyword: str) -> bool:
    """Whether a keyword stands at the beginning of a word of the model's name."""
    place = model.find(keyword)
    while place >= 0:
        if place == 0 or not model[place - 1].isalnum():
            return True
        place = model.find(keyword, place + 1)
    return False
