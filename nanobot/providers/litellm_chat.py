"""The adapter for every provider that litellm speaks to in the provider's own protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from loguru import logger

from nanobot.core.ports import Clock
from nanobot.providers.adapter import WAIT_FOR_USAGE_S, Adapter, shorten
from nanobot.providers.answer import Answer
from nanobot.providers.credentials import checked
from nanobot.providers.easing import Options
from nanobot.providers.failures import (
    ConnectionBroke,
    Endpoint,
    EndpointRefused,
    Garbled,
    system_reason,
)
from nanobot.providers.litellm_ending import Ending
from nanobot.providers.litellm_failures import failure_of, is_litellms
from nanobot.providers.litellm_package import LiteLLM
from nanobot.providers.quirks import QuirksOf, quirks_at
from nanobot.providers.refusals import Refusals
from nanobot.providers.wire import Wire

_ENDINGS = ("/v1/messages", "/v1/chat/completions", "/chat/completions", "/v1")
_ROOTED = {"anthropic", "ollama_chat"}
"""The prefixes whose providers want an address without a version."""


def _now() -> datetime:
    return datetime.now(UTC)


class LiteLLMChat(Adapter):
    """The adapter of one provider."""

    def __init__(
        self,
        *,
        name: str,
        package: LiteLLM,
        prefix: str = "",
        base_url: str = "",
        api_key: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        quirks: QuirksOf | None = None,
        refusals: Refusals | None = None,
        idle_timeout_s: float = 120.0,
        total_timeout_s: float = 600.0,
        now: Clock = _now,
    ) -> None:
        """``name``: the provider's key in the config, for error texts. ``package`` is closed by
        whoever made it.

        ``prefix`` is what litellm knows the provider's models by; "": the model's name says it
        (``bedrock/…``), and where it does not, the server at ``base_url`` speaks like vLLM.
        ``base_url`` "": litellm knows the address. ``idle_timeout_s`` without a chunk end a call,
        ``total_timeout_s`` in any case. Raises ConfigError for a key or header that cannot be sent.
        """
        self._package = package
        self._prefix = prefix
        self._base = _trimmed(base_url) if prefix in _ROOTED else base_url.rstrip("/")
        self._key, self._headers = checked(name, api_key, extra_headers or {})
        self._idle_timeout_s = idle_timeout_s
        self._now = now
        self._introduced: set[str] = set()
        secrets = {self._key, *self._headers.values(), urlsplit(base_url).password or ""} - {""}
        super().__init__(
            endpoint=Endpoint(
                name,
                self._base or "the address that litellm knows",
                tuple(sorted(secrets, key=len, reverse=True)),
            ),
            quirks=quirks or quirks_at(name, through_litellm=True),
            refusals=refusals,
            total_timeout_s=total_timeout_s,
        )

    async def aclose(self) -> None:
        """Nothing to close: the connections belong to the package."""

    async def _attempt(
        self,
        head: Wire,
        messages: Sequence[Wire],
        options: Options,
        answer: Answer,
        limit: asyncio.Timeout,
    ) -> None:
        litellm = await self._package.load()
        try:
            async with self._stream(litellm, head, messages, options) as stream:
                await self._read(litellm, stream, answer, limit)
        except Exception as error:
            if not is_litellms(error):
                raise
            if not answer.is_finished:
                raise self._told(error) from error

    @asynccontextmanager
    async def _stream(
        self, litellm: Any, head: Wire, messages: Sequence[Wire], options: Options
    ) -> AsyncIterator[Any]:
        """Litellm's stream of one request; leaving it closes the connection."""
        self._introduce(litellm, head["model"], options.quirks.litellm_facts)
        request: dict[str, Any] = {
            **head,
            "messages": list(messages),
            **options.fields(),
            "model": self._litellm_name(litellm, head["model"]),
            "timeout": self._total_timeout_s,
            "num_retries": 0,
            "max_retries": 0,
        }
        if self._key:
            request["api_key"] = self._key
        if self._base:
            request["api_base"] = self._base
        if self._headers:
            request["extra_headers"] = self._headers
        async with self._patience():
            stream = await litellm.acompletion(**request)
        try:
            yield stream
        finally:
            await stream.aclose()

    async def _read(
        self, litellm: Any, stream: Any, answer: Answer, limit: asyncio.Timeout
    ) -> None:
        """Fill ``answer`` from ``stream``.

        Litellm ends every stream with a finish reason, an invented one where the connection broke.
        After that its wrapper is not asked again: it would put the whole answer together a second
        time and count its tokens.
        """
        if stream.completion_stream is None:
            async with self._patience():
                with _garbled():
                    await stream.fetch_stream()
        ending = Ending(stream)
        finish = None
        while finish is None:
            async with self._patience():
                with _garbled():
                    chunk = await anext(stream, None)
                    if chunk is None:
                        return
                    document = chunk.model_dump(exclude_none=True, warnings=False)
            for choice in document["choices"]:
                finish = choice.pop("finish_reason", None) or finish
            answer.add(document)
        if not ending.was_real():
            return
        answer.add({"choices": [{"finish_reason": stream.received_finish_reason or finish}]})
        shorten(limit, WAIT_FOR_USAGE_S)
        usages = [usage for chunk in stream.chunks if (usage := getattr(chunk, "usage", None))]
        rest = stream.completion_stream
        if hasattr(rest, "__aiter__"):
            with _garbled():
                async for raw in rest:
                    if usage := getattr(raw, "usage", None):
                        usages.append(usage)
        usage = _joined(usages)
        if usage["total_tokens"]:
            cost = _cost(litellm, stream, usage)
            answer.add({"choices": [], "usage": {**usage, "cost": cost}})

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """A limit on silence; raises ConnectionBroke."""
        limit = asyncio.timeout(self._idle_timeout_s)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ConnectionBroke(
                f"nothing came for {self._idle_timeout_s:g} s", was_made=True
            ) from error

    def _introduce(self, litellm: Any, model: str, facts: frozenset[str]) -> None:
        """Let litellm know of a model what its table, frozen at its release, may lack."""
        if facts and self._prefix and model not in self._introduced:
            self._introduced.add(model)
            entry = {"litellm_provider": self._prefix, "mode": "chat", **dict.fromkeys(facts, True)}
            # It looks up some facts by the one name, some by the other.
            litellm.register_model({model: entry, f"{self._prefix}/{model}": entry})

    def _litellm_name(self, litellm: Any, model: str) -> str:
        if self._prefix:
            return f"{self._prefix}/{model}"
        known = {str(getattr(one, "value", one)) for one in litellm.provider_list}
        if self._base and model.partition("/")[0] not in known:
            return f"hosted_vllm/{model}"
        return model

    def _told(self, error: Exception) -> Exception:
        """What a litellm exception says, in the form the base class acts on."""
        failure = failure_of(error, self._now())
        if isinstance(failure, str):
            return ConnectionBroke(f"no connection: {failure}", was_made=False)
        return EndpointRefused(failure)


@contextmanager
def _garbled() -> Iterator[None]:
    """Litellm's stumbling over what a provider sent, said as what it is.

    Its readers trust the form of each chunk: what departs from it makes them raise whatever comes.
    """
    try:
        yield
    except Exception as error:
        if is_litellms(error):
            raise
        if isinstance(error, OSError):
            reason = system_reason(error) or str(error) or type(error).__name__
            raise ConnectionBroke(f"the connection broke: {reason}", was_made=True) from error
        raise Garbled(f"{type(error).__name__}: {error}") from error


def _trimmed(url: str) -> str:
    url = url.rstrip("/")
    return next((url.removesuffix(end) for end in _ENDINGS if url.endswith(end)), url)


def _joined(usages: Sequence[Any]) -> dict[str, Any]:
    """One usage, in OpenAI's form, of those that came in the course of a stream.

    Each number is the last word on the whole call, or missing: so the largest is right.
    """
    joined = {"prompt_tokens": 0, "completion_tokens": 0, "cached": 0, "written": 0}
    for usage in usages:
        details = getattr(usage, "prompt_tokens_details", None)
        found = {
            "prompt_tokens": getattr(usage, "prompt_tokens", 0),
            "completion_tokens": getattr(usage, "completion_tokens", 0),
            "cached": getattr(details, "cached_tokens", 0),
            "written": getattr(details, "cache_creation_tokens", 0),
        }
        joined = {key: max(number, found[key] or 0) for key, number in joined.items()}
    return {
        "prompt_tokens": joined["prompt_tokens"],
        "completion_tokens": joined["completion_tokens"],
        "total_tokens": joined["prompt_tokens"] + joined["completion_tokens"],
        "prompt_tokens_details": {
            "cached_tokens": joined["cached"],
            "cache_creation_tokens": joined["written"],
        },
    }


def _cost(litellm: Any, stream: Any, usage: Mapping[str, Any]) -> float | None:
    """US dollars by litellm's table of prices; None where it has none for the model."""
    written = usage["prompt_tokens_details"]["cache_creation_tokens"]
    try:
        parts = litellm.cost_per_token(
            model=stream.model,
            custom_llm_provider=stream.custom_llm_provider,
            usage_object=litellm.Usage(**usage, cache_creation_input_tokens=written),
        )
    except Exception as error:  # it raises Exception itself; a price is not worth an answer
        logger.debug("no price for {}: {}", stream.model, error)
        return None
    return sum(parts) or None
