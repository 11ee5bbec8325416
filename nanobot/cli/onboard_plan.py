"""What `nanobot onboard` finds on this machine, and which keys it would add to the config file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.config.keys import KeyPath, as_spelled, dotted
from nanobot.config.load import LoadedConfig, parse_document, read_text
from nanobot.config.schema import address_of
from nanobot.core.errors import ProviderError
from nanobot.providers import ollama
from nanobot.providers.catalogue import BY_NAME, SPECS, ProviderSpec, choose

SUGGESTED: Mapping[str, str] = {
    "openrouter": "anthropic/claude-sonnet-4.5",
    "aihubmix": "claude-sonnet-4-5",
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5",
    "deepseek": "deepseek-chat",
    "gemini": "gemini-2.5-pro",
    "zhipu": "glm-4.6",
    "dashscope": "qwen3-max",
    "moonshot": "kimi-k2-0905-preview",
    "minimax": "MiniMax-M2",
    "groq": "openai/gpt-oss-120b",
    "mistral": "mistral-large-latest",
}
"""A model to begin with, by provider, in that provider's own spelling. Suggestions only."""

_KEY_SHAPES = (
    ("sk-or-", "openrouter"),
    ("sk-ant-", "anthropic"),
    ("sk-proj-", "openai"),
    ("gsk_", "groq"),
    ("AIza", "gemini"),
)
_EMBEDS = re.compile(r"embed|minilm|bge-|rerank", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    """What can be used without typing anything.

    ``keys``: the environment variable that holds a provider's key, by provider. ``ollama``: the
    models of the Ollama that runs at ``ollama_at``, those that can chat first.
    """

    keys: Mapping[str, str]
    ollama: tuple[str, ...]
    ollama_at: str

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers that could be used at once; what runs on this machine stands first."""
        return (*(("ollama",) if self.ollama else ()), *self.keys)


def look_around(environ: Mapping[str, str]) -> Found:
    """Look for keys in the environment and for a running Ollama (takes a moment at most)."""
    keys = {
        spec.name: next(name for name in spec.env if environ.get(name))
        for spec in SPECS
        if any(environ.get(name) for name in spec.env)
    }
    models = ollama.running_models(environ)
    chatting_first = tuple(sorted(models, key=lambda model: bool(_EMBEDS.search(model))))
    return Found(keys, chatting_first, ollama.address(environ))


@dataclass(frozen=True, slots=True)
class Answers:
    """What the person wants, by flags or in the dialogue; "" and () where they want nothing."""

    provider: str = ""
    model: str = ""
    api_key: str = field(default="", repr=False)
    api_base: str = ""
    telegram_token: str = field(default="", repr=False)
    allow_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Present:
    """What is configured already; of the file alone in ``data``, of everything in ``loaded``."""

    loaded: LoadedConfig
    data: Any
    environ: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, loaded: LoadedConfig, environ: Mapping[str, str]) -> Present:
        """Read the file behind a configuration that is valid."""
        text = read_text(loaded.path)
        return cls(loaded, {} if text is None else parse_document(text, loaded.path).data, environ)

    @property
    def model(self) -> str:
        """The model chosen, "" for none."""
        return self.loaded.config.agents.defaults.model or ""

    def explain_model(self) -> str:
        """Which provider serves the model and why; raises ProviderError where none can."""
        defaults = self.loaded.config.agents.defaults
        choice = choose(
            self.model, self.loaded.config.providers, self.environ, explicit=defaults.provider
        )
        return f"{choice.spec.name}, by {choice.why}"

    def keyless_provider(self) -> str:
        """The provider that the configured model needs and that has no key yet, or ""."""
        defaults = self.loaded.config.agents.defaults
        named = defaults.provider if defaults.provider != "auto" else self.model.partition("/")[0]
        try:
            self.explain_model()
        except ProviderError:
            return named if named in BY_NAME else ""
        return ""

    def key_of(self, provider: str) -> str:
        """The provider's key, from the config or the environment, or ""."""
        configured: str = getattr(self.loaded.config.providers, provider).api_key.get_secret_value()
        names = BY_NAME[provider].env
        return configured or next(
            (self.environ[name] for name in names if name in self.environ), ""
        )

    def base_of(self, provider: str) -> str:
        """The provider's address, from the config or its own, or ""."""
        configured: str | None = getattr(self.loaded.config.providers, provider).api_base
        return configured or BY_NAME[provider].base


@dataclass(frozen=True, slots=True)
class Additions:
    """What to add to the file: dotted keys with JSON values; and what stays although it differs."""

    changes: tuple[tuple[str, str], ...]
    kept: tuple[str, ...]


def additions(answers: Answers, present: Present) -> Additions:
    """The keys the file lacks; a key that has a value keeps it."""
    wanted: list[tuple[KeyPath, Any]] = []
    if answers.provider:
        wanted.extend(_provider_keys(answers))
    if answers.telegram_token:
        wanted.append((("channels", "telegram", "token"), answers.telegram_token))
    if answers.allow_from:
        wanted.append((("channels", "telegram", "allowFrom"), list(answers.allow_from)))
    changes: dict[KeyPath, Any] = {}
    kept = []
    for path, value in wanted:
        there, former = _value_at(present.data, path)
        if not there or former in (None, "", []):
            changes[path] = value
        elif former != value:
            kept.append(dotted(path))
    enabled = ("channels", "telegram", "enabled")
    if ("channels", "telegram", "token") in changes:
        changes[enabled] = True
    for path, default in _SKELETON:
        if path not in changes and not _value_at(present.data, path)[0]:
            changes[path] = default
    return Additions(
        tuple((dotted(path), json.dumps(value)) for path, value in changes.items()), tuple(kept)
    )


_SKELETON: tuple[tuple[KeyPath, Any], ...] = (
    (("agents", "defaults", "model"), None),
    (("channels", "telegram", "enabled"), False),
    (("channels", "telegram", "token"), ""),
    (("channels", "telegram", "allowFrom"), []),
)
"""What a config file shows even where nothing was chosen: the keys one looks for first."""


def _provider_keys(answers: Answers) -> list[tuple[KeyPath, Any]]:
    spec = BY_NAME[answers.provider]
    keys: list[tuple[KeyPath, Any]] = []
    if answers.api_key:
        keys.append((("providers", spec.name, "apiKey"), answers.api_key))
    if answers.api_base:
        keys.append((("providers", spec.name, "apiBase"), answers.api_base))
    if answers.model:
        keys.append((("agents", "defaults", "model"), full_name(spec, answers.model)))
        if not spec.base:  # its models' names say nothing of the provider
            keys.append((("agents", "defaults", "provider"), spec.name))
    return keys


def provider_by_model(model: str) -> str:
    """The provider that a model's name speaks of, by its prefix or a word in it, or ""."""
    prefix = model.partition("/")[0].lower()
    if "/" in model and prefix in BY_NAME:
        return prefix
    words = re.split(r"[^a-z0-9]+", model.lower())
    return next((spec.name for spec in SPECS if not set(spec.keywords).isdisjoint(words)), "")


def provider_by_key(key: str) -> str:
    """The provider that a key looks like one of, or ""."""
    return next((name for start, name in _KEY_SHAPES if key.startswith(start)), "")


def full_name(spec: ProviderSpec, model: str) -> str:
    """A model's name such that it leads to this provider, whatever other keys there are."""
    if not spec.base or model.startswith(f"{spec.name}/"):
        return model
    return f"{spec.name}/{model}"


def _value_at(data: Any, path: KeyPath) -> tuple[bool, Any]:
    """Whether the file has a key, in either spelling, and its value."""
    for name in as_spelled(data, path):
        if not isinstance(data, dict) or name not in data:
            return False, None
        data = data[name]
    return True, data


# --------------------------------------------------------- what is wrong with an answer, or ""


def wrong_key(key: str, provider: str) -> str:
    """What is wrong with an API key."""
    if not key.isascii() or not key.isprintable() or " " in key:
        return "a key has no spaces and no special characters; was something else pasted?"
    shape = provider_by_key(key)
    if shape not in ("", provider) and provider in {name for _, name in _KEY_SHAPES}:
        return f"this looks like a key of {shape}, not of {provider}"
    return ""


def wrong_base(address: str) -> str:
    """What is wrong with an endpoint's address."""
    try:
        address_of("https?")(address)
    except ValueError:
        return "an address begins with http:// or https://, such as http://127.0.0.1:8000/v1"
    return ""


def wrong_token(token: str) -> str:
    """What is wrong with a Telegram bot token."""
    if re.fullmatch(r"\d+:[\w-]+", token, re.ASCII):
        return ""
    return "a bot token looks like 123456789:AAE…, with a colon; copy it from @BotFather"


def wrong_ids(ids: Sequence[str]) -> str:
    """What is wrong with the people let in."""
    for each in ids:
        if not re.fullmatch(r"\d+|@\w+|\*", each, re.ASCII):
            return (
                f"“{each}” is no Telegram id: numbers such as 123456789, @name, or * for everybody"
            )
    return ""


def split_ids(text: str) -> tuple[str, ...]:
    """Ids separated by commas or spaces."""
    return tuple(filter(None, re.split(r"[,\s]+", text)))


def program(argument: str, on_path: Path | None) -> str:
    """How the person calls this program: by name where that finds the same one."""
    called = Path(argument)
    if called.name != "nanobot":
        return "nanobot"
    if on_path is not None and called.exists() and on_path.samefile(called):
        return "nanobot"
    return str(called)
