"""The adapter for endpoints that speak OpenAI's chat completions, and its HTTP connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING
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
    failure_in_body,
    retry_after,
    system_reason,
)
from nanobot.providers.quirks import Options, QuirksOf, Refusals, quirks_of
from nanobot.providers.stream import BodyReader
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


def _now() -> datetime:
    return datetime.now(UTC)


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
        now: Clock = _now,
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
