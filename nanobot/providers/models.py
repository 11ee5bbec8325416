"""The models a turn can run on, each behind its provider's adapter."""

from __future__ import annotations

from collections.abc import Mapping

from nanobot.config.schema import AgentDefaults, ProvidersConfig
from nanobot.core.errors import AuthFailed
from nanobot.core.ports import ChosenModel, LLMProvider
from nanobot.providers import registry
from nanobot.providers.offline import MODEL as OFFLINE
from nanobot.providers.offline import OfflineModel
from nanobot.providers.openai_chat import OpenAIChat
from nanobot.providers.retry import Retrying
from nanobot.providers.tls import TLS


class Models:
    """Chooses the provider of a model and keeps one adapter a provider; the app closes it."""

    def __init__(
        self,
        defaults: AgentDefaults,
        providers: ProvidersConfig,
        environ: Mapping[str, str],
        *,
        tls: TLS,
        offline_allowed: bool,
    ) -> None:
        self._defaults = defaults
        self._providers = providers
        self._environ = environ
        self._offline_allowed = offline_allowed
        self._adapters: dict[str, LLMProvider] = {}
        self._tls = tls

    @property
    def is_offline(self) -> bool:
        """Whether no model is configured at all, so that the offline one answers."""
        return self._defaults.model is None and not any(registry.configured(self._providers, {}))

    def choose(self, model: str | None) -> ChosenModel:
        """The model named, or the configured one, or with nothing configured the offline one.

        Raises AuthFailed, saying what to type, when there is none that could be asked.
        """
        name = model or self._defaults.model
        if name is None or name == OFFLINE:
            return self._offline(name)
        choice = self.explain(name)
        settings = choice.settings
        window = self._defaults.context_window or registry.context_window(choice.model, settings)
        override = settings.models.get(choice.model)
        reasons = override.reasoning if override is not None else None
        reflect = self._defaults.reflect
        return ChosenModel(
            provider=self._adapter(choice),
            model=choice.model,
            max_tokens=min(self._defaults.max_tokens, window // 2),
            temperature=self._defaults.temperature,
            context_window=window,
            reflect=reflect == "on" or (reflect == "auto" and reasons is False),
        )

    def explain(self, model: str) -> registry.Choice:
        """Which provider serves a model and why; raises AuthFailed as ``choose`` does."""
        return registry.choose(
            model, self._providers, self._environ, explicit=self._defaults.provider
        )

    async def aclose(self) -> None:
        """Close every connection."""
        for adapter in self._adapters.values():
            await adapter.aclose()
        self._adapters.clear()

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
        return ChosenModel(OfflineModel(), OFFLINE, 8192, 0.0, registry.DEFAULT_WINDOW)

    def _adapter(self, choice: registry.Choice) -> LLMProvider:
        adapter = self._adapters.get(choice.spec.name)
        if adapter is None:
            adapter = self._adapters[choice.spec.name] = Retrying(
                OpenAIChat(
                    name=choice.spec.name,
                    base_url=choice.base,
                    api_key=choice.key,
                    extra_headers={
                        name: value.get_secret_value()
                        for name, value in choice.settings.extra_headers.items()
                    },
                    tls=self._tls,
                    idle_timeout_s=self._defaults.model_idle_timeout_s,
                    total_timeout_s=self._defaults.model_timeout_s,
                )
            )
        return adapter
