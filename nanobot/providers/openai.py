"""The adapter for OpenAI's chat completions: connections, the parser of bodies, the calls."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from nanobot import __version__
from nanobot.core.errors import ConfigError
from nanobot.core.ports import Clock
from nanobot.providers.adapter import WAIT_FOR_END_S, WAIT_FOR_USAGE_S, Adapter, shorten
from nanobot.providers.answer import Answer
from nanobot.providers.failures import (
    ConnectionBroke,
    EndpointRefused,
    Failure,
    Garbled,
    described,
    failure_in_body,
    retry_after,
    system_reason,
    utc_now,
)
from nanobot.providers.quirks import Options, QuirksOf, Refusals, quirks_of
from nanobot.providers.wire import Wire, encode_body, rough_size

if TYPE_CHECKING:
    import httpx

_CONNECT_TIMEOUT_S = 15.0
_KEEP_ALIVE_S = 60.0
_BIG_REQUEST = 256 * 1024
_LARGEST_ERROR = 64 * 1024
_PATH = "/chat/completions"


class TLS:
    """The TLS context of all clients, made in a thread on first use: it takes 60 to 105 ms."""

    def __init__(self, create: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._create = create or _verifying
        self._making = asyncio.Lock()
        self._context: ssl.SSLContext | None = None

    async def context(self) -> ssl.SSLContext:
        """The context; it verifies certificates as httpx does by default."""
        async with self._making:
            if self._context is None:
                self._context = await asyncio.to_thread(self._create)
            return self._context


def _verifying() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


class Connections:
    """HTTP clients made on demand: one client slows down more than linearly with its requests."""

    def __init__(self, *, tls: TLS | None, clients: int, idle_timeout_s: float) -> None:
        """``tls``: None for an endpoint without TLS. ``clients``: the largest number of them."""
        self._tls = tls
        self._idle_timeout_s = idle_timeout_s
        self._clients: list[httpx.AsyncClient | None] = [None] * clients
        self._running = [0] * clients

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield the response with its body unread; leaving early closes it.

        Raises ConnectionBroke for network failures, also while the body is read.
        """
        place = min(range(len(self._running)), key=self._running.__getitem__)
        self._running[place] += 1
        try:
            client = self._clients[place] or await self._opened(place)
            import httpx

            try:
                async with client.stream(method, url, headers=headers, content=content) as response:
                    yield response
            except (httpx.RequestError, httpx.InvalidURL) as error:
                raise self._broke(error) from error
        finally:
            self._running[place] -= 1

    async def aclose(self) -> None:
        """Close all connections."""
        clients, self._clients = self._clients, [None] * len(self._clients)
        for client in clients:
            if client is not None:
                await client.aclose()

    async def _opened(self, place: int) -> httpx.AsyncClient:
        # Importing httpx takes 0.1 s: not on the event loop's thread, and not at start.
        await asyncio.to_thread(import_module, "httpx")
        import httpx

        verify = await self._tls.context() if self._tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if (client := self._clients[place]) is None:  # another call may have made it meanwhile
            client = self._clients[place] = httpx.AsyncClient(
                verify=verify,
                timeout=httpx.Timeout(self._idle_timeout_s, connect=_CONNECT_TIMEOUT_S, pool=None),
                limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S),
            )
        return client

    def _broke(self, error: Exception) -> ConnectionBroke:
        import httpx

        reason = system_reason(error) or str(error) or type(error).__name__
        match error:
            case httpx.ConnectTimeout():
                text = f"no connection within {_CONNECT_TIMEOUT_S:g} s"
                return ConnectionBroke(text, was_made=False)
            case httpx.TimeoutException():
                text = f"nothing came for {self._idle_timeout_s:g} s"
                return ConnectionBroke(text, was_made=True)
            case httpx.ConnectError() | httpx.ProxyError():
                return ConnectionBroke(f"no connection: {reason}", was_made=False)
            case _:
                return ConnectionBroke(f"the connection broke: {reason}", was_made=True)


_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event exceeds the limit; the stream cannot be used."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event; several ``data`` lines are joined by line feeds."""

    data: str
    name: str = "message"


class EventStream:
    """The parser of one event stream; it ignores comments and the fields ``id`` and ``retry``."""

    def __init__(self, *, limit: int = 16 * 1024 * 1024) -> None:
        """``limit``: the largest event, in bytes."""
        self._limit = limit
        self._partial: list[bytes] = []
        self._size = 0
        self._skip_line_feed = False
        self._at_start = True
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """The events that ``data`` completes; raises EventTooLarge."""
        if self._skip_line_feed and data:
            self._skip_line_feed = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        # A line feed after this carriage return belongs to the same line end.
        self._skip_line_feed = data.endswith(b"\r")
        *lines, rest = _LINE_END.split(data)
        events = []
        for line in lines:
            self._hold(line)
            events += self._take_line()
        self._hold(rest)
        return events

    def end(self) -> list[ServerSentEvent]:
        """The last event of a server that does not send the blank line after it."""
        return [*self._take_line(), *self._dispatch()]

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
        self._partial.append(part)

    def _take_line(self) -> list[ServerSentEvent]:
        """The event that the line held so far completes, if it is the blank one after it."""
        line = b"".join(self._partial)
        self._partial.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return []

    def _dispatch(self) -> list[ServerSentEvent]:
        data, name = self._data, self._name or "message"
        self._data, self._name, self._size = [], "", 0
        return [ServerSentEvent(b"\n".join(data).decode("utf-8", "replace"), name)] if data else []


_LARGEST_DOCUMENT = 64 * 1024 * 1024
_HEAD = 2048
_BLANK = b"\xef\xbb\xbf \t\r\n"


class BodyReader:
    """The parser of one response's body, given in any pieces.

    The first byte that is not blank decides between an event stream and a document: some endpoints
    send a document although a stream was requested, and content types are unreliable.
    """

    def __init__(self) -> None:
        self._head = b""
        self._unknown = b""
        self._document: bytearray | None = None
        self._events: EventStream | None = None
        self._has_events = False
        self.is_done = False
        """Whether a stream has ended with ``[DONE]``."""

    @property
    def is_document(self) -> bool:
        """Whether the response is one document rather than a stream."""
        return self._document is not None

    def feed(self, data: bytes) -> Iterator[Any]:
        """The JSON documents completed by ``data``; raises Garbled after the valid ones."""
        if len(self._head) < _HEAD:
            self._head += data[: _HEAD - len(self._head)]
        if self._events is None and self._document is None:
            self._unknown += data
            if not (first := self._unknown.lstrip(_BLANK)[:1]):
                return
            data, self._unknown = self._unknown, b""
            if first in b"{[<":
                self._document = bytearray()
            else:
                self._events = EventStream()
        if self._document is not None:
            self._document += data
            if len(self._document) > _LARGEST_DOCUMENT:
                raise Garbled(f"more than {_LARGEST_DOCUMENT} bytes")
        elif self._events is not None:
            try:
                events = self._events.feed(data)
            except EventTooLarge as error:
                raise Garbled(str(error)) from error
            self._has_events = self._has_events or bool(events)
            yield from self._parsed(events)

    def end(self) -> list[Any]:
        """The documents completed by the end of the body; raises Garbled if there were none."""
        if self._document is not None:
            return [_loaded(self._document.decode("utf-8-sig", "replace"))]
        rest = self._events.end() if self._events is not None else []
        if not self._has_events and not rest:
            raise Garbled(described(self._head.decode("utf-8", "replace")))
        try:
            return list(self._parsed(rest))
        except Garbled:  # cut off: the missing finish reason makes the better error
            return []

    def _parsed(self, events: list[ServerSentEvent]) -> Iterator[Any]:
        for event in events:
            if self.is_done:
                break
            if event.data.strip() == "[DONE]":
                self.is_done = True
            elif event.data.strip():
                document = _loaded(event.data)
                if event.name == "error" and not (
                    isinstance(document, dict) and "error" in document
                ):
                    document = {"error": document}
                yield document


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Garbled(described(text)) from error


class OpenAIChat(Adapter):
    """The adapter of one endpoint."""

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        api_key: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        tls: TLS | None = None,
        quirks: QuirksOf = quirks_of,
        refusals: Refusals | None = None,
        idle_timeout_s: float = 120.0,
        total_timeout_s: float = 600.0,
        pools: int = 48,
        now: Clock = utc_now,
    ) -> None:
        """``name``: the provider's key in the config, for error texts. ``tls``: shared by all
        adapters. A call ends after ``idle_timeout_s`` without a byte, at the latest after
        ``total_timeout_s``.

        Raises ConfigError for a URL or header that cannot be sent.
        """
        url = _completions_url(name, base_url)
        super().__init__(
            name=name,
            url=url,
            api_key=api_key,
            extra_headers=extra_headers,
            quirks=quirks,
            refusals=refusals,
            total_timeout_s=total_timeout_s,
        )
        self._all_headers = _merged(self._key, self._headers)
        self._connections = Connections(
            tls=(tls or TLS()) if url.startswith("https:") else None,
            clients=pools,
            idle_timeout_s=idle_timeout_s,
        )
        self._now = now

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()

    async def _attempt(
        self,
        head: Wire,
        messages: Sequence[Wire],
        options: Options,
        answer: Answer,
        limit: asyncio.Timeout,
    ) -> None:
        request = head, messages, options.fields()
        if rough_size(messages) > _BIG_REQUEST:
            body = await asyncio.to_thread(encode_body, *request)
        else:
            body = encode_body(*request)
        reader = BodyReader()
        sending = self._connections.send("POST", self._endpoint.url, self._all_headers, body)
        async with sending as response:
            if not response.is_success:
                raise EndpointRefused(await self._failure(response))
            async for data in response.aiter_bytes():
                for document in reader.feed(data):
                    answer.add(document)
                if reader.is_done:
                    answer.finish()
                    shorten(limit, WAIT_FOR_END_S)
                elif answer.is_finished:
                    shorten(limit, WAIT_FOR_USAGE_S)
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


def _merged(key: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request; ``extra`` wins, whatever the case of its names."""
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",  # compression would delay the stream
        "user-agent": f"nanobot/{__version__}",
    }
    if key:
        headers["authorization"] = f"Bearer {key}"
    return headers | {header.lower(): value for header, value in extra.items()}
