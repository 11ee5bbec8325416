"""The adapter for providers behind litellm, and the import of the litellm package."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from loguru import logger

from nanobot.core.errors import ProviderError
from nanobot.core.ports import Clock
from nanobot.providers.adapter import WAIT_FOR_USAGE_S, Adapter, shorten
from nanobot.providers.answer import Answer
from nanobot.providers.failures import (
    ConnectionBroke,
    EndpointRefused,
    Failure,
    Garbled,
    failure_in_body,
    failure_in_document,
    retry_after,
    system_reason,
)
from nanobot.providers.quirks import Options, QuirksOf, Refusals, quirks_at
from nanobot.providers.wire import Wire

PIN = "litellm==1.90.7"

# Without these it fetches its prices and a list of header names over the network.
_SWITCHES = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
}
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


class LiteLLM:
    """The litellm module for the adapters of one app, which closes it; imported once a process."""

    def __init__(self) -> None:
        self._module: Any = None
        self._loading: asyncio.Future[Any] | None = None

    @property
    def is_loaded(self) -> bool:
        return self._module is not None

    async def load(self) -> Any:
        """The module; the first call imports it in a thread, which takes seconds.

        Raises ProviderError if it cannot be imported.
        """
        if self._module is None:
            if self._loading is None:
                self._loading = _in_daemon_thread()
            try:
                # Cancelling one caller must not cancel the import for the others.
                self._module = await asyncio.shield(self._loading)
            except Exception as error:  # a large package fails to import in many ways
                self._loading = None
                raise ProviderError(
                    f"this provider needs litellm, which cannot be imported ({error}): "
                    f"pip install '{PIN}'"
                ) from error
        return self._module

    async def aclose(self) -> None:
        """Close litellm's connections; it opens new ones when called again."""
        if self._module is None:
            return
        await self._module.close_litellm_async_clients()
        self._module.in_memory_llm_clients_cache.flush_cache()
        # litellm makes it again on the next use.
        vars(self._module).pop("module_level_aclient", None)


def _in_daemon_thread() -> asyncio.Future[Any]:
    """The import in a daemon thread, which does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(module: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(module)
        else:
            future.set_exception(error)
            future.exception()  # marks it as retrieved, if nobody waits any more

    def work() -> None:
        module, failure = None, None
        try:
            module = _imported()
        except BaseException as error:  # raised in the waiting callers
            failure = error
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(settle, module, failure)
            except RuntimeError:  # the loop was closed in between
                return

    threading.Thread(target=work, name="import litellm", daemon=True).start()
    return future


def _imported() -> Any:
    """Import litellm and make it quiet and local."""
    with _switches(), _no_collection():
        module: Any = import_module("litellm")
        # The first call would load these on the event loop, or fetch them.
        import_module("litellm.anthropic_beta_headers_manager").reload_beta_headers_config()
        import_module("openai.resources.chat")
        module.module_level_aclient  # noqa: B018 (the access creates it, with its TLS context)
    module.suppress_debug_info = True
    module.disable_hf_tokenizer_download = True
    for name in _LOGGERS:
        # Its own handler would write to stderr whatever the logging settings.
        log = logging.getLogger(name)
        log.handlers.clear()
        log.setLevel(logging.ERROR)
    return module


@contextmanager
def _switches() -> Iterator[None]:
    """Set the environment variables that litellm reads while it is imported.

    The path that litellm sets for tiktoken stays: without it tiktoken would download its tables.
    """
    before = {name: os.environ.get(name) for name in _SWITCHES}
    os.environ.update(_SWITCHES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector off the half million objects of the import."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


# Gemini's last chunk. Inside the model's text such a name follows a backslash.
_GEMINI_ENDS = re.compile(r"""(?<!\\)["'](?:finishReason|blockReason)["']\s*:""")


class Ending:
    """Finds out whether a ``CustomStreamWrapper`` ended or broke off; made before its first chunk.

    litellm makes a broken stream look complete. Usually ``received_finish_reason`` is None then,
    but for Gemini it always is, and each chunk claims to be the last: there this class inspects
    the lines that litellm reads. A line of JSON cut off stays in litellm's buffer, from which its
    iterator would return None for ever without yielding to the event loop: it is cleared.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._seen = False
        inner = stream.completion_stream
        if type(inner).__module__.startswith("litellm.llms.vertex_ai.gemini"):
            inner.streaming_response = self._watched(inner, inner.streaming_response)

    def was_real(self) -> bool:
        """Whether the provider sent a finish reason."""
        return self._seen or self._stream.received_finish_reason is not None

    async def _watched(self, inner: Any, lines: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for line in lines:
            text = line.decode("utf-8", "replace") if isinstance(line, bytes) else str(line)
            self._seen = self._seen or bool(_GEMINI_ENDS.search(text))
            yield line
        if inner.accumulated_json:
            inner.accumulated_json = ""
            self._seen = False


# "litellm.RateLimitError: AnthropicException - …", "GeminiException BadRequestError - …"
_WRAPPING = re.compile(r"^(?:litellm\.)?\w+(?:Error|Exception)(?: \w+Error)?(?::| -)\s*")
_ADVICE = re.compile(r"\.? Handle with `litellm\.\w+`\.?.*$", re.DOTALL)
_BYTES = re.compile(r"^b(['\"]).*\1$", re.DOTALL)
_KINDS = {
    "ContextWindowExceededError": "context_length_exceeded",
    "ContentPolicyViolationError": "content_filter",
    "AuthenticationError": "authentication_error",
}


def is_litellms(error: Exception) -> bool:
    """Whether litellm, or the SDK it builds on, raised this on purpose."""
    return type(error).__module__.split(".")[0] in {"litellm", "openai", "httpx"}


def failure_of(error: Any, now: datetime) -> Failure | str:
    """The endpoint's failure, or the reason for a missing connection as text.

    litellm's own status is 500 for a missing connection and for anything unknown; the exception of
    its provider module, further down the chain, has the real one. The exception's text has the
    provider's answer behind several prefixes.
    """
    error = getattr(error, "original_exception", None) or error
    status = _status(_first_hand(error)) or _status(error)
    text = _unwrapped(str(getattr(error, "message", "") or error))
    if status in {0, 408, 500, 503} and not text.startswith("{"):
        reason = system_reason(error)
        if reason is not None:
            return reason
    failure = _read(status, text)
    named = {_KINDS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _KINDS}
    said = (
        headers
        for one in _chain(error)
        for headers in (
            getattr(one, "litellm_response_headers", None),
            getattr(one, "headers", None),
            getattr(getattr(one, "response", None), "headers", None),
        )
    )
    waits = (retry_after(headers, now) for headers in said if headers)
    wait_s = next((wait for wait in waits if wait is not None), failure.wait_s)
    return replace(failure, codes=failure.codes | named, wait_s=wait_s)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _first_hand(error: BaseException) -> BaseException | None:
    """The exception of litellm's provider module with a status, if there is one."""
    theirs = (one for one in _chain(error) if type(one).__module__.startswith("litellm.llms."))
    return next((one for one in theirs if _status(one)), None)


def _status(error: BaseException | None) -> int:
    status = getattr(error, "status_code", 0)
    return status if isinstance(status, int) else 0


def _read(status: int, text: str) -> Failure:
    """The provider's own error; ``text`` may contain it as JSON."""
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        try:
            document = json.loads(text[start : end + 1])
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict) and document:
            return failure_in_document(status, document)
    return failure_in_body(status, text.encode("utf-8", "replace"))


def _unwrapped(text: str) -> str:
    text = _ADVICE.sub("", text.strip())
    while (rest := _WRAPPING.sub("", text)) != text:
        text = rest
    text = text.strip()
    if _BYTES.match(text):
        try:
            text = ast.literal_eval(text).decode("utf-8", "replace")
        except (ValueError, SyntaxError):
            return text
    return text


_ENDINGS = ("/v1/messages", "/v1/chat/completions", "/chat/completions", "/v1")
_ROOTED = {"anthropic", "ollama_chat"}
"""Prefixes of providers whose address has no version in it."""


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

        ``prefix``: litellm's prefix for the provider's models; "": the model's name has one
        (``bedrock/…``), or else the server at ``base_url`` is treated as vLLM. ``base_url`` "":
        litellm knows the address. A call ends after ``idle_timeout_s`` without a chunk, at the
        latest after ``total_timeout_s``. Raises ConfigError for a key or header that cannot be
        sent.
        """
        self._package = package
        self._prefix = prefix
        self._base = _trimmed(base_url) if prefix in _ROOTED else base_url.rstrip("/")
        self._idle_timeout_s = idle_timeout_s
        self._now = now
        self._introduced: set[str] = set()
        super().__init__(
            name=name,
            url=self._base or "the address that litellm knows",
            api_key=api_key,
            extra_headers=extra_headers,
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
                failure = failure_of(error, self._now())
                if isinstance(failure, Failure):
                    raise EndpointRefused(failure) from error
                raise ConnectionBroke(f"no connection: {failure}", was_made=False) from error

    @asynccontextmanager
    async def _stream(
        self, litellm: Any, head: Wire, messages: Sequence[Wire], options: Options
    ) -> AsyncIterator[Any]:
        """litellm's stream of one request; leaving the context closes the connection."""
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

        litellm ends every stream with a finish reason, an invented one if the connection broke.
        Reading on from its wrapper after that would assemble the whole answer a second time and
        count its tokens, so the rest is read from the stream inside it.
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
        """Limit the time without a chunk; raises ConnectionBroke."""
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
        """Tell litellm ``facts`` of a model that its table, frozen at its release, may lack."""
        if facts and self._prefix and model not in self._introduced:
            self._introduced.add(model)
            entry = {"litellm_provider": self._prefix, "mode": "chat", **dict.fromkeys(facts, True)}
            # litellm looks up some facts by the one name, some by the other.
            litellm.register_model({model: entry, f"{self._prefix}/{model}": entry})

    def _litellm_name(self, litellm: Any, model: str) -> str:
        if self._prefix:
            return f"{self._prefix}/{model}"
        known = {str(getattr(one, "value", one)) for one in litellm.provider_list}
        if self._base and model.partition("/")[0] not in known:
            return f"hosted_vllm/{model}"
        return model


@contextmanager
def _garbled() -> Iterator[None]:
    """Turn litellm's accidental exceptions into Garbled or ConnectionBroke.

    Its parsers trust the form of each chunk; a malformed one makes them raise any exception.
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
    """One usage in OpenAI's form from those of a stream's chunks.

    Each number counts the call so far or is missing, so the largest is right.
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
    """US dollars by litellm's table of prices; None for an unknown model."""
    written = usage["prompt_tokens_details"]["cache_creation_tokens"]
    try:
        parts = litellm.cost_per_token(
            model=stream.model,
            custom_llm_provider=stream.custom_llm_provider,
            usage_object=litellm.Usage(**usage, cache_creation_input_tokens=written),
        )
    except Exception as error:  # litellm raises Exception itself; an answer may lack its price
        logger.debug("no price for {}: {}", stream.model, error)
        return None
    return sum(parts) or None
