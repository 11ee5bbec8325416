"""The base of the adapters: one model call, repeated only without what the endpoint refuses."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from nanobot.core.chat import (
    ChatMessage,
    LLMResponse,
    ModelRequest,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from nanobot.core.errors import ConfigError, Refused, RetryLater
from nanobot.core.events import Emit, Notice, ignore
from nanobot.providers.answer import Answer
from nanobot.providers.failures import (
    ConnectionBroke,
    Endpoint,
    EndpointRefused,
    Garbled,
    classify,
)
from nanobot.providers.quirks import (
    EFFORT,
    EVERY_MODEL,
    LONG_CALL_IDS,
    USAGE,
    USER_AFTER_TOOL,
    Options,
    QuirksOf,
    Refusals,
    ordered,
    without_refused,
)
from nanobot.providers.wire import (
    Wire,
    call_ids,
    marked,
    may_think,
    read_pictures,
    wire_messages,
    wire_tools,
)

_MOST_CHANGES = 8

# After the finish reason the usage may still come. After that only the end of the body comes;
# reading it keeps the connection reusable.
WAIT_FOR_USAGE_S = 2.0
WAIT_FOR_END_S = 0.2


class Adapter(ABC):
    """An ``LLMProvider`` that makes one attempt a call; ``Retrying`` adds the retries.

    A parameter or an order of messages that the endpoint refuses is dropped or changed, and
    remembered in ``refusals``.
    """

    def __init__(
        self,
        *,
        name: str,
        url: str,
        api_key: str | None,
        extra_headers: Mapping[str, str] | None,
        quirks: QuirksOf,
        refusals: Refusals | None,
        total_timeout_s: float,
    ) -> None:
        """``url``: the address requested, or words where only litellm knows it. A call ends after
        ``total_timeout_s``. Raises ConfigError for a key or header that cannot be sent.
        """
        self._key, self._headers = _checked(name, api_key, extra_headers or {})
        secrets = {self._key, *self._headers.values(), urlsplit(url).password or ""} - {""}
        self._endpoint = Endpoint(name, url, tuple(sorted(secrets, key=len, reverse=True)))
        self._quirks = quirks
        self._refusals = refusals or Refusals()
        self._total_timeout_s = total_timeout_s

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        """See ``LLMProvider``."""
        model, messages = request.model, request.messages
        quirks = self._quirks(model)
        known = self._refusals.of(self._endpoint.key, model)
        if quirks.short_call_ids:
            known |= {USER_AFTER_TOOL}
        effort = request.reasoning_effort if may_think(messages, quirks) else None
        options = Options(request.max_tokens, request.temperature, effort, quirks, known)
        answer = Answer(model=model, taken_ids=call_ids(messages), emit=on_delta)
        limit = asyncio.timeout(self._total_timeout_s)
        try:
            async with limit:
                options = await self._ask(_head(request), messages, options, answer, limit)
        except EndpointRefused as error:
            raise classify(error.failure, self._endpoint, model) from error
        except Garbled as error:
            if not answer.is_finished:
                hint = self._endpoint.base_hint
                raise self._later("what came is no answer", str(error), hint) from error
        except ConnectionBroke as error:
            if not answer.is_finished:
                hint = "" if error.was_made else self._endpoint.base_hint
                raise self._later(str(error), hint=hint) from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            if not answer.is_finished:
                text = f"no whole answer within {self._total_timeout_s:g} s"
                raise self._later(text) from error
        self._learn(model, options.refused - known, on_delta)
        self._judge(answer)
        return replace(answer.response(), provider=self._endpoint.name)

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections; twice is once."""

    @abstractmethod
    async def _attempt(
        self,
        head: Wire,
        messages: Sequence[Wire],
        options: Options,
        answer: Answer,
        limit: asyncio.Timeout,
    ) -> None:
        """Send one request and fill ``answer``.

        Shortens ``limit`` once the model has finished and only details are missing. Raises
        EndpointRefused, Garbled or ConnectionBroke.
        """

    async def _ask(
        self,
        head: Wire,
        messages: Sequence[ChatMessage],
        options: Options,
        answer: Answer,
        limit: asyncio.Timeout,
    ) -> Options:
        """Fill ``answer``, dropping what the endpoint refuses; returns the accepted options."""
        for _ in range(_MOST_CHANGES):
            wire = await _wired(messages, options)
            try:
                await self._attempt(head, wire, options, answer, limit)
            except EndpointRefused as refusal:
                changed = None if answer.has_begun else without_refused(options, refusal.failure)
                if changed is None:
                    raise
                options = changed
            else:
                return options
        raise Garbled("a new refusal each time something is left out")

    def _learn(self, model: str, refused: frozenset[str], emit: Emit) -> None:
        """Remember what the endpoint refused, for the next call."""
        if not refused:
            return
        if USAGE in refused:
            self._refusals.add(self._endpoint.key, EVERY_MODEL, {USAGE})
        self._refusals.add(self._endpoint.key, model, refused)
        if EFFORT in refused:
            name = self._endpoint.name
            emit(Notice(f"{name} takes no reasoning effort for {model}; it was left out."))

    def _judge(self, answer: Answer) -> None:
        if answer.was_filtered:
            name = self._endpoint.name
            raise Refused(self._endpoint.line(f"{name}: the content filter stopped the answer"))
        if answer.was_broken_off:
            raise self._later("the provider broke the answer off")
        if not answer.is_finished:
            raise self._later("the answer ended in the middle")

    def _later(self, what: str, detail: str = "", hint: str = "") -> RetryLater:
        where = f"{self._endpoint.name} at {self._endpoint.shown}: {what}"
        return RetryLater(self._endpoint.line(where, detail, hint))


def shorten(limit: asyncio.Timeout, seconds: float) -> None:
    """Let ``limit`` expire in ``seconds``, or earlier if it was to."""
    soon = asyncio.get_running_loop().time() + seconds
    when = limit.when()
    limit.reschedule(soon if when is None else min(when, soon))


def _head(request: ModelRequest) -> Wire:
    head: Wire = {"model": request.model}
    if request.tools:
        head["tools"] = wire_tools(request.tools)
        if request.tool_choice is not ToolChoice.AUTO:
            head["tool_choice"] = str(request.tool_choice)
    return head


async def _wired(messages: Sequence[ChatMessage], options: Options) -> list[Wire]:
    quirks = options.quirks
    if LONG_CALL_IDS in options.refused:
        quirks = replace(quirks, short_call_ids=True)
    shows_pictures = quirks.sees and any(
        message.images for message in messages if isinstance(message, UserMessage | ToolMessage)
    )
    pictures = await asyncio.to_thread(read_pictures, messages) if shows_pictures else {}
    wire = wire_messages(messages, pictures=pictures, quirks=quirks)
    wire = ordered(wire, options.refused)
    return marked(wire, quirks.cache_roles) if quirks.cache_roles else wire


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _checked(name: str, key: str | None, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The key and the headers of a provider without surrounding white space.

    Raises ConfigError for what HTTP cannot carry (RFC 9110, 5.1 and 5.5): a failed call would be
    retried in vain.
    """
    key = (key or "").strip()
    if not _fits(key):
        raise ConfigError(f"providers.{name}.apiKey: a key has only printable ASCII characters")
    for header, value in headers.items():
        if not (_TOKEN.fullmatch(header) and _fits(value)):
            raise ConfigError(f"providers.{name}.extraHeaders.{header!r}: not a valid HTTP header")
    return key, {header: value.strip() for header, value in headers.items()}


def _fits(value: str) -> bool:
    return value.isascii() and value.isprintable()
