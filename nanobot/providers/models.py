"""The models a turn can run on, each behind its provider's adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loguru import logger

from nanobot.config.schema import AgentDefaults, ProvidersConfig
from nanobot.core.errors import AuthFailed, ConfigError, ProviderError
from nanobot.core.ports import ChosenModel, LLMProvider
from nanobot.providers import catalogue
from nanobot.providers.catalogue import DEFAULT_WINDOW, context_window, reasons, sees
from nanobot.providers.litellm import LiteLLM, LiteLLMChat
from nanobot.providers.offline import MODEL as OFFLINE
from nanobot.providers.offline import OfflineModel
from nanobot.providers.ollama import OllamaChat, is_ollama
from nanobot.providers.openai import TLS, OpenAIChat
from nanobot.providers.quirks import Refusals, quirks_at
from nanobot.providers.resilient import Candidate, Fallback, Outages, Retrying

_LITTLE = 16_384
"""A context below this leaves little room beside the assistant's own instructions."""
_LITTLE_CONTEXT = (
    "Ollama gives {model} a context of {tokens} tokens and reads no more of a request; "
    "for more, start Ollama with OLLAMA_CONTEXT_LENGTH=32768"
)


class Models:
    """Chooses the provider of each model; owns one adapter a provider until ``aclose``."""

    def __init__(
        self,
        defaults: AgentDefaults,
        providers: ProvidersConfig,
        environ: Mapping[str, str],
        *,
        tls: TLS,
        offline_allowed: bool,
        outages: Outages | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self._defaults = defaults
        self._providers = providers
        self._environ = environ
        self._offline_allowed = offline_allowed
        self._adapters: dict[str, LLMProvider] = {}
        self._tls = tls
        self._litellm = LiteLLM()
        self._outages = outages or Outages()
        self._ollamas: dict[str, OllamaChat] = {}
        self._contexts: dict[tuple[str, str], int] = {}
        self._refusals = refusals or Refusals()

    @property
    def is_offline(self) -> bool:
        """Whether no model is configured at all, so that the offline one answers."""
        return self._defaults.model is None and not any(catalogue.configured(self._providers, {}))

    def choose(self, model: str | None) -> ChosenModel:
        """The model of that name; None: the configured one, or else the offline model.

        The models of ``agents.defaults.fallbackModels`` are its fallbacks. Raises AuthFailed with
        the command to type when no provider is set up.
        """
        name = model or self._defaults.model
        if name is None or name == OFFLINE:
            return self._offline(name)
        names = self._order(name)
        if len(names) == 1:
            return self._chosen(self.explain(name))
        candidates: list[Candidate] = []
        usable: list[ChosenModel] = []
        for each in names:
            try:
                chosen = self._chosen(self.explain(each))
            except AuthFailed as error:
                candidates.append(Candidate(each, error=error))
            else:
                usable.append(chosen)
                candidates.append(Candidate(each, chosen.model, chosen.provider, chosen.max_tokens))
        if not usable:
            raise candidates[0].error or AuthFailed(f"{name} cannot be asked")
        return replace(
            usable[0],
            provider=Fallback(candidates, self._outages),
            max_tokens=max(one.max_tokens for one in usable),
        )

    async def prepare(self, model: str | None, *, load: bool = True) -> str:
        """Ask an Ollama server for the model's context, which ``choose`` then respects.

        ``load``: let the server load the model for that. Returns a warning for the user when the
        context is small, once per size.
        """
        name = model or self._defaults.model
        if name is None or name == OFFLINE:
            return ""
        try:
            choice = self.explain(name)
            self._adapter(choice)
        except ProviderError:
            return ""  # ``choose`` raises it
        place = (choice.spec.name, choice.model)
        if (server := self._ollamas.get(choice.spec.name)) is None:
            return ""
        usual = self._environ.get("OLLAMA_CONTEXT_LENGTH", "")
        tokens = await server.context(choice.model, usual=usual, load=load)
        if tokens is None or self._contexts.get(place) == tokens:
            return ""
        self._contexts[place] = tokens
        if tokens >= _LITTLE:
            return ""
        warning = _LITTLE_CONTEXT.format(model=choice.model, tokens=tokens)
        logger.warning("{}", warning)
        return warning

    def explain(self, model: str) -> catalogue.Choice:
        """The provider of a model and the reason for it; raises AuthFailed as ``choose`` does.

        ``agents.defaults.provider`` applies to the configured model. It also applies to other
        models, except where it is no gateway and their prefix names another provider set up.
        """
        explicit = self._defaults.provider
        if (
            explicit != "auto"
            and model != self._defaults.model
            and not catalogue.BY_NAME[explicit].gateway
            and catalogue.named_by_prefix(model, self._providers, self._environ) is not None
        ):
            explicit = "auto"
        return catalogue.choose(model, self._providers, self._environ, explicit=explicit)

    def describe(self, model: str | None) -> str:
        """A line for a person: the model, its provider with the reason, and the fallbacks."""
        name = model or self._defaults.model
        if name is None or name == OFFLINE:
            return self._offline(name).model
        choice = self.explain(name)
        others = self._order(name)[1:]
        through = " by litellm" if choice.uses_litellm else ""
        text = f"{name}, through {choice.spec.name}{through} ({choice.why})"
        return f"{text}; if it cannot answer: {', '.join(others)}" if others else text

    async def warm_up(self) -> None:
        """Import litellm if the configured model needs it, so that the first answer is faster.

        Errors are ignored here; the first call raises them again.
        """
        name = self._defaults.model
        if name is None or name == OFFLINE:
            return
        try:
            if self.explain(name).uses_litellm:
                await self._litellm.load()
        except ProviderError:
            return

    async def aclose(self) -> None:
        """Close every connection."""
        for adapter in self._adapters.values():
            await adapter.aclose()
        self._adapters.clear()
        await self._litellm.aclose()

    def _order(self, name: str) -> tuple[str, ...]:
        """The model and its fallbacks."""
        return tuple(dict.fromkeys((name, *self._defaults.fallback_models)))

    def _chosen(self, choice: catalogue.Choice) -> ChosenModel:
        window = self._window(choice)
        reflect = self._defaults.reflect
        reasonless = reasons(choice.model, choice.override) is False
        return ChosenModel(
            provider=self._adapter(choice),
            model=choice.model,
            max_tokens=min(self._defaults.max_tokens, window // 2),
            temperature=self._defaults.temperature,
            context_window=window,
            reflect=reflect == "on" or (reflect == "auto" and reasonless),
            vision=sees(choice.model, choice.override),
            reasoning_effort=self._defaults.reasoning_effort,
        )

    def _window(self, choice: catalogue.Choice) -> int:
        """The window configured for the model, or for all models, or known by its name.

        The context that an Ollama server reported is an upper limit.
        """
        own = choice.override.context_window if choice.override is not None else None
        configured = own or self._defaults.context_window
        told = self._contexts.get((choice.spec.name, choice.model))
        if told is None:
            return configured or context_window(choice.model)
        return min(configured or told, told)

    def _offline(self, name: str | None) -> ChosenModel:
        if name is None and not self.is_offline:
            raise AuthFailed(
                "a provider is set up but no model is chosen: "
                "`nanobot config set agents.defaults.model MODEL`"
            )
        if not self._offline_allowed:
            raise AuthFailed(
                "no model is configured: `nanobot config set agents.defaults.model MODEL` and "
                "`nanobot config set providers.NAME.apiKey KEY`"
            )
        return ChosenModel(OfflineModel(), OFFLINE, 8192, 0.0, DEFAULT_WINDOW)

    def _adapter(self, choice: catalogue.Choice) -> LLMProvider:
        adapter = self._adapters.get(choice.spec.name)
        if adapter is None:
            try:
                made = self._made(choice)
            except ConfigError as error:  # another model may have better credentials
                raise AuthFailed(str(error)) from error
            adapter = self._adapters[choice.spec.name] = Retrying(made)
        return adapter

    def _made(self, choice: catalogue.Choice) -> LLMProvider:
        spec, settings, defaults = choice.spec, choice.settings, self._defaults
        headers = {name: value.get_secret_value() for name, value in settings.extra_headers.items()}
        overrides = catalogue.overrides(spec, settings)
        quirks = quirks_at(spec.name, through_litellm=choice.uses_litellm, overrides=overrides)
        common: dict[str, Any] = {
            "name": spec.name,
            "base_url": choice.base,
            "api_key": choice.key,
            "extra_headers": headers,
            "quirks": quirks,
            "refusals": self._refusals,
            "idle_timeout_s": defaults.model_idle_timeout_s,
            "total_timeout_s": defaults.model_timeout_s,
        }
        if choice.uses_litellm:
            return LiteLLMChat(package=self._litellm, prefix=spec.litellm, **common)
        if not is_ollama(spec.name, choice.base):
            return OpenAIChat(tls=self._tls, **common)
        self._ollamas[spec.name] = ollama = OllamaChat(tls=self._tls, **common)
        return ollama
