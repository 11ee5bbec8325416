"""The known providers and models, and which provider serves a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.core.errors import AuthFailed

if TYPE_CHECKING:
    from nanobot.config.schema import ModelOverride, ProviderConfig, ProvidersConfig


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """A provider as ``catalogue.json`` describes it; the order there is the order of preference.

    ``keywords``: words in its models' names. ``env``: variables that may hold its key.
    ``base``: its Chat Completions address ("": only ``apiBase`` gives one). ``litellm``: litellm's
    prefix for its models. ``native``: litellm speaks the provider's own protocol, at
    ``native_base`` ("": litellm knows the address). ``gateway``: it serves other makers' models
    and takes their names with the maker's prefix, or with ``bare_names`` without it. ``hosts``: it
    also runs models of other makers. ``keyless``: it works without a key. ``aliases``: prefixes of
    its models' names beside its own name.
    """

    name: str
    keywords: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    base: str = ""
    litellm: str = ""
    gateway: bool = False
    keyless: bool = False
    native: bool = False
    native_base: str = ""
    bare_names: bool = False
    aliases: tuple[str, ...] = ()
    hosts: bool = False

    @property
    def serves_any(self) -> bool:
        """Whether it may have any maker's models: a gateway, or the owner's own server."""
        return self.gateway or not self.base

    @property
    def needs_nothing(self) -> bool:
        """Whether it can be asked without any configuration, as Ollama on this machine can."""
        return self.keyless and bool(self.base)


_DATA = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))


def _spec(entry: dict[str, Any]) -> ProviderSpec:
    lists = {key: tuple(entry.get(key, ())) for key in ("keywords", "env", "aliases")}
    return ProviderSpec(**{**entry, **lists})


SPECS: tuple[ProviderSpec, ...] = tuple(map(_spec, _DATA["providers"]))
BY_NAME: Mapping[str, ProviderSpec] = {spec.name: spec for spec in SPECS}

_THROUGH_LITELLM = frozenset({"azure", "azure_ai", "bedrock", "cohere", "sagemaker", "vertex_ai"})
"""Prefixes of models that ``custom`` asks for through litellm."""
_BY_PREFIX: Mapping[str, ProviderSpec] = {
    **dict.fromkeys(_THROUGH_LITELLM, BY_NAME["custom"]),
    **{alias: spec for spec in SPECS for alias in spec.aliases},
    **BY_NAME,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The provider of a model, the model's name as the provider is sent it, and the reason.

    ``base``: "" where litellm knows the address. ``override``: the model's own configuration.
    """

    spec: ProviderSpec
    model: str
    base: str
    key: str
    settings: ProviderConfig
    why: str
    override: ModelOverride | None = None

    @property
    def uses_litellm(self) -> bool:
        """Whether this goes through litellm rather than Chat Completions."""
        return uses_litellm(self.spec, self.settings)


def choose(
    model: str, providers: ProvidersConfig, environ: Mapping[str, str], explicit: str = "auto"
) -> Choice:
    """Choose the provider of ``model``.

    The order: the ``explicit`` provider; the one named by the model's prefix, if it is set up; the
    one with a keyword in the model's name; the first one set up (gateways come first). Providers
    with a key only in the environment come after the configured ones, and are ignored where a
    configured provider may have the model. Raises AuthFailed with the command to type when no
    provider is set up.
    """
    if explicit != "auto":
        return _choice(BY_NAME[explicit], model, providers, environ, "agents.defaults.provider")
    prefix = _prefix(model)
    named = _BY_PREFIX.get(prefix)
    if named is not None and (
        named.needs_nothing or named_by_prefix(model, providers, environ) is named
    ):
        return _choice(named, model, providers, environ, f"the model's prefix {prefix}/")
    ready = [BY_NAME[name] for name in configured(providers, {})]
    if not any(spec.serves_any or spec.hosts for spec in ready):
        ready += [BY_NAME[name] for name in configured(providers, environ)]
    if prefix in _THROUGH_LITELLM and not any(spec.serves_any for spec in ready):
        raise AuthFailed(
            f"{model} is asked for through litellm, with the credentials it finds itself: "
            "`nanobot config set providers.custom.adapter litellm`"
        )
    lowered = model.lower()
    for spec in ready:
        for keyword in spec.keywords:
            if mentions(lowered, keyword):
                return _choice(spec, model, providers, environ, f"“{keyword}” in the model's name")
    if ready:
        return _choice(ready[0], model, providers, environ, "the first provider configured")
    likely = named or next(
        (s for s in SPECS for keyword in s.keywords if mentions(lowered, keyword)),
        BY_NAME["openrouter"],
    )
    what = "a key" if likely.base else "an address"
    setting = "apiKey KEY" if likely.base else "apiBase http://…/v1"
    raise AuthFailed(
        f"no provider is set up for the model {model}: give it {what} with "
        f"`nanobot config set providers.{likely.name}.{setting}`"
    )


def named_by_prefix(
    model: str, providers: ProvidersConfig, environ: Mapping[str, str]
) -> ProviderSpec | None:
    """The provider named by the prefix of a model's name, if it is set up.

    A key in the environment is ignored where a configured provider serves any maker's models.
    """
    named = _BY_PREFIX.get(_prefix(model))
    if named is None or _is_configured(named, providers, {}):
        return named
    if any(BY_NAME[name].serves_any for name in configured(providers, {})):
        return None
    return named if _is_configured(named, providers, environ) else None


def configured(providers: ProvidersConfig, environ: Mapping[str, str]) -> Iterable[str]:
    """The names of the providers that have credentials or an address, in order of preference."""
    return (spec.name for spec in SPECS if _is_configured(spec, providers, environ))


def keys_in(environ: Mapping[str, str]) -> Iterable[str]:
    """The providers' keys in an environment, which every output has to mask."""
    return (environ[name] for spec in SPECS for name in spec.env if environ.get(name))


def _choice(
    spec: ProviderSpec,
    model: str,
    providers: ProvidersConfig,
    environ: Mapping[str, str],
    why: str,
) -> Choice:
    settings = settings_of(spec, providers)
    through_litellm = uses_litellm(spec, settings)
    own = spec.native_base if spec.native and through_litellm else spec.base
    base = settings.api_base or own
    key = _key(spec, settings, environ)
    if not key and not (spec.keyless or settings.api_base):
        names = f" or set {spec.env[0]}" if spec.env else ""
        raise AuthFailed(
            f"{spec.name} has no key: `nanobot config set providers.{spec.name}.apiKey KEY`{names}"
        )
    if not base and not through_litellm:
        raise AuthFailed(
            f"{spec.name} has no address: "
            f"`nanobot config set providers.{spec.name}.apiBase http://…/v1`"
        )
    sent = _sent_name(spec, model)
    return Choice(spec, sent, base, key, settings, why, overrides(spec, settings).get(sent))


def overrides(spec: ProviderSpec, settings: ProviderConfig) -> dict[str, ModelOverride]:
    """The configuration of single models, by the name the provider is sent."""
    return {_sent_name(spec, name): override for name, override in settings.models.items()}


def uses_litellm(spec: ProviderSpec, settings: ProviderConfig) -> bool:
    """Whether requests to a provider go through litellm."""
    return spec.native if settings.adapter == "auto" else settings.adapter == "litellm"


def settings_of(spec: ProviderSpec, providers: ProvidersConfig) -> ProviderConfig:
    """A provider's part of the configuration."""
    settings: ProviderConfig = getattr(providers, spec.name)
    return settings


def _is_configured(
    spec: ProviderSpec, providers: ProvidersConfig, environ: Mapping[str, str]
) -> bool:
    """Whether it has an address and, unless it works without one, a key."""
    settings = settings_of(spec, providers)
    if settings.api_base:
        return True
    is_reachable = bool(spec.base) or settings.adapter == "litellm"
    return is_reachable and (not spec.env or bool(_key(spec, settings, environ)))


def _prefix(model: str) -> str:
    return model.partition("/")[0].lower() if "/" in model else ""


def _key(spec: ProviderSpec, settings: ProviderConfig, environ: Mapping[str, str]) -> str:
    configured_key = settings.api_key.get_secret_value()
    return configured_key or next((environ[name] for name in spec.env if environ.get(name)), "")


def _sent_name(spec: ProviderSpec, model: str) -> str:
    if spec.name == "custom":
        return model
    name = model.partition("/")[2] if _prefix(model) in {spec.name, *spec.aliases} else model
    return name.rsplit("/", 1)[-1] if spec.bare_names else name


DEFAULT_WINDOW = 64_000
"""Tokens assumed for an unknown model."""

_WINDOWS: Mapping[str, int] = _DATA["windows"]
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

# Models that take pictures, by the beginning of their names,
_SEEING = re.compile(
    r"gpt-(4o(?!-(mini-)?(audio|realtime|transcribe|tts))|4\.[15]|4-turbo|[5-9])|chatgpt-4o"
    r"|o1($|-(20|pro))|o3($|-(20|pro|deep))|o[4-9]($|-)"
    r"|claude-(?!2|instant)|gemini|gemma-?3n?(?!.*\b(270m|1b))|gemma-?[4-9]"
    r"|llama-?4|mistral-small-?(latest|3\.[1-9]|25|2[6-9])|mistral-medium(?!-23)"
    r"|mistral-large-(latest|2512|2[6-9])|ministral-3|magistral-(small|medium)-(latest|2509|2[6-9])"
    r"|kimi-(latest|k2\.[5-9]|k[3-9])|qwen-?3\.[5-9]|grok-[4-9](?!.*code)|nova-(lite|pro|premier)"
)
# or by a word in them.
_VISUAL = re.compile(
    r"(?<![a-z])(vision|visual|multimodal)|(?<![a-z])vl(?![a-z])|omni|glm-?\d(\.\d)?v|llava|pixtral|minicpm-?v"
    r"|moondream|internvl|molmo"
)


def context_window(model: str, override: ModelOverride | None = None) -> int:
    """The window of a model in tokens: configured, known by name, or a cautious default."""
    if override is not None and override.context_window is not None:
        return override.context_window
    lowered = model.lower()
    return next(
        (size for name, size in _WINDOWS.items() if mentions(lowered, name)), DEFAULT_WINDOW
    )


def reasons(model: str, override: ModelOverride | None = None) -> bool | None:
    """Whether a model has a reasoning mode of its own; None for an unknown model."""
    if override is not None and override.reasoning is not None:
        return override.reasoning
    return False if _REASONLESS.match(bare(model)) else None


def sees(model: str, override: ModelOverride | None = None) -> bool:
    """Whether a model takes pictures; an unknown one is taken not to."""
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
