"""The adapter for every endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from nanobot import __version__
from nanobot.core.chat import (
    ChatMessage,
    LLMResponse,
    ToolChoice,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from nanobot.core.errors import ConfigError, Refused, RetryLater
from nanobot.core.events import Emit, Notice, ignore
from nanobot.core.ports import Clock
from nanobot.providers.answer import Answer
from nanobot.providers.body import BodyReader
from nanobot.providers.easing import EFFORT, USAGE, Options, eased
from nanobot.providers.failures import (
    ConnectionBroke,
    Endpoint,
    EndpointRefused,
    Failure,
    Garbled,
    classify,
    failure_in_body,
    retry_after,
)
from nanobot.providers.quirks import Quirks, QuirksOf, quirks_of
from nanobot.providers.tls import TLS
from nanobot.providers.wire import (
    Wire,
    call_ids,
    encode_body,
    read_pictures,
    rough_size,
    wire_messages,
    wire_tools,
)

if TYPE_CHECKING:
    import httpx

    from nanobot.providers.connections import Connections

_CONNECT_TIMEOUT_S = 15.0
_BIG_REQUEST = 256 * 1024
_LARGEST_ERROR = 64 * 1024
_MOST_EASINGS = 8
_PATH = "/chat/completions"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# When the model has finished, its usage can still come, and after [DONE] only the end of the
# body, which is waited for so that the connection can be used again.
_WAIT_FOR_USAGE_S = 2.0
_WAIT_FOR_END_S = 0.2


def _now() -> datetime:
    return datetime.now(UTC)


class OpenAIChat:
    """An ``LLMProvider``. Makes one attempt a call: retries are the business of ``Retrying``.

    What an endpoint turns out not to take (``stream_options``, a temperature, …) is left out
    and remembered.
    """

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        api_key: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        tls: TLS | None = None,
        quirks: QuirksOf = quirks_of,
        idle_timeout_s: float = 120.0,
        total_timeout_s: float = 600.0,
        pools: int = 48,
        now: Clock = _now,
    ) -> None:
        """``name``: the provider's key in the config, for error texts. ``tls``: shared by all
        adapters. ``idle_timeout_s`` without a byte end a call, ``total_timeout_s`` in any case.

        Raises ConfigError for a URL or header that cannot be sent.
        """
        key = (api_key or "").strip()
        extra = extra_headers or {}
        url = _completions_url(name, base_url)
        secrets = {key, *extra.values(), urlsplit(url).password or ""} - {""}
        self._endpoint = Endpoint(name, url, tuple(sorted(secrets, key=len, reverse=True)))
        self._headers = _merged(name, key, extra)
        self._tls = (tls or TLS()) if url.startswith("https:") else None
        self._quirks = quirks
        self._idle_timeout_s = idle_timeout_s
        self._total_timeout_s = total_timeout_s
        self._pools = pools
        self._now = now
        self._refused: dict[str, frozenset[str]] = {}
        self._refused_by_all: frozenset[str] = frozenset()
        self._connections: Connections | None = None

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        model: str,
        max_tokens: int,
        temperature: float,
        reasoning_effort: str | None = None,
        tool_choice: ToolChoice = ToolChoice.AUTO,
        on_delta: Emit | None = None,
    ) -> LLMResponse:
        """See ``LLMProvider``. A reasoning effort of ``off`` asks for none where that can be."""
        emit = on_delta or ignore
        quirks = self._quirks(model)
        known = self._refused.get(model, frozenset()) | self._refused_by_all
        options = Options(max_tokens, temperature, reasoning_effort, quirks, known)
        answer = Answer(model=model, taken_ids=call_ids(messages), emit=emit)
        limit = asyncio.timeout(self._total_timeout_s)
        try:
            async with limit:
                wire = await _wired(messages, quirks)
                head = _head(model, tools, tool_choice)
                options = await self._ask(head, wire, options, answer, limit)
        except EndpointRefused as error:
            raise classify(error.failure, self._endpoint, model) from error
        except Garbled as error:
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
        self._learn(model, options.refused - known, emit)
        self._judge(answer)
        return answer.response()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._connections is not None:
            await self._connections.aclose()

    async def _ask(
        self,
        head: Wire,
        messages: Sequence[Wire],
        options: Options,
        answer: Answer,
        limit: asyncio.Timeout,
    ) -> Options:
        """Fill ``answer``, leaving out what the endpoint refuses; returns the options it took."""
        for _ in range(_MOST_EASINGS):
            body = await _encoded(head, messages, options.fields())
            try:
                await self._attempt(body, answer, limit)
            except EndpointRefused as refusal:
                easier = None if answer.has_begun else eased(options, refusal.failure)
                if easier is None:
                    raise
                options = easier
            else:
                return options
        raise Garbled("a new refusal each time something is left out")

    async def _attempt(self, body: bytes, answer: Answer, limit: asyncio.Timeout) -> None:
        connections = await self._connected()
        reader = BodyReader()
        async with connections.post(self._endpoint.url, self._headers, body) as response:
            if not response.is_success:
                raise EndpointRefused(await self._failure(response))
            async for data in response.aiter_bytes():
                for document in reader.feed(data):
                    answer.add(document)
                if reader.is_done:
                    answer.finish()
                    _shorten(limit, _WAIT_FOR_END_S)
                elif answer.is_finished:
                    _shorten(limit, _WAIT_FOR_USAGE_S)
        for document in reader.end():
            answer.add(document, whole=reader.is_document)
        if reader.is_done:
            answer.finish()

    async def _failure(self, response: httpx.Response) -> Failure:
        wait_s = retry_after(response.headers, self._now())
        if response.is_redirect:
            return Failure(response.status_code, f"to {response.headers['location']}")
        body = b""
        async for data in response.aiter_bytes():
            body += data
            if len(body) > _LARGEST_ERROR:
                break
        return failure_in_body(response.status_code, body, wait_s)

    async def _connected(self) -> Connections:
        if self._connections is None:
            # Importing httpx takes 0.1 s: not on the event loop's thread, and not at start.
            await asyncio.to_thread(import_module, "httpx")
            from nanobot.providers.connections import Connections

            self._connections = self._connections or Connections(
                tls=self._tls,
                pools=self._pools,
                idle_timeout_s=self._idle_timeout_s,
                connect_timeout_s=_CONNECT_TIMEOUT_S,
            )
        return self._connections

    def _learn(self, model: str, refused: frozenset[str], emit: Emit) -> None:
        """Remember for the next call what this one was refused."""
        if not refused:
            return
        self._refused_by_all |= refused & {USAGE}
        self._refused[model] = self._refused.get(model, frozenset()) | refused
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


def _shorten(limit: asyncio.Timeout, seconds: float) -> None:
    """Let ``limit`` expire in ``seconds`` unless it does so earlier."""
    soon = asyncio.get_running_loop().time() + seconds
    when = limit.when()
    limit.reschedule(soon if when is None else min(when, soon))


def _head(model: str, tools: Sequence[ToolSpec], tool_choice: ToolChoice) -> Wire:
    head: Wire = {"model": model}
    if tools:
        head["tools"] = wire_tools(tools)
        if tool_choice is not ToolChoice.AUTO:
            head["tool_choice"] = str(tool_choice)
    return head


async def _wired(messages: Sequence[ChatMessage], quirks: Quirks) -> list[Wire]:
    shows_pictures = any(
        message.images for message in messages if isinstance(message, UserMessage | ToolMessage)
    )
    pictures = await asyncio.to_thread(read_pictures, messages) if shows_pictures else {}
    return wire_messages(messages, pictures=pictures, quirks=quirks)


async def _encoded(head: Wire, messages: Sequence[Wire], tail: Wire) -> bytes:
    if rough_size(messages) > _BIG_REQUEST:
        return await asyncio.to_thread(encode_body, head, messages, tail)
    return encode_body(head, messages, tail)


def _completions_url(name: str, base_url: str) -> str:
    where = f"providers.{name}.apiBase"
    try:
        parts = urlsplit(base_url.strip())
        is_url = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(f"{where}: expected a URL such as http://localhost:11434/v1")
    path = parts.path.rstrip("/").removesuffix(_PATH) + _PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _merged(name: str, key: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request; ``extra`` wins, whatever the case of its names."""
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",  # a stream is read as it comes
        "user-agent": f"nanobot/{__version__}",
    }
    if key:
        headers["authorization"] = f"Bearer {key}"
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"providers.{name}.apiKey: a key has only printable ASCII characters")
    for header, value in extra.items():
        if not (_TOKEN.fullmatch(header) and value.isascii() and value.isprintable()):
            raise ConfigError(f"providers.{name}.extraHeaders.{header!r}: not a valid HTTP header")
        headers[header.lower()] = value.strip()
    return headers
