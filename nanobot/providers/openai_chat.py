"""The adapter for every endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from nanobot import __version__
from nanobot.core.errors import ConfigError
from nanobot.core.ports import Clock
from nanobot.providers.adapter import WAIT_FOR_END_S, WAIT_FOR_USAGE_S, Adapter, shorten
from nanobot.providers.answer import Answer
from nanobot.providers.catalogue import checked
from nanobot.providers.connections import TLS
from nanobot.providers.easing import Options
from nanobot.providers.failures import (
    Endpoint,
    EndpointRefused,
    Failure,
    failure_in_body,
    retry_after,
)
from nanobot.providers.quirks import QuirksOf, quirks_of
from nanobot.providers.refusals import Refusals
from nanobot.providers.stream import BodyReader
from nanobot.providers.wire import Wire, encode_body, rough_size

if TYPE_CHECKING:
    import httpx

    from nanobot.providers.connections import Connections

_CONNECT_TIMEOUT_S = 15.0
_BIG_REQUEST = 256 * 1024
_LARGEST_ERROR = 64 * 1024
_PATH = "/chat/completions"


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
        adapters. ``idle_timeout_s`` without a byte end a call, ``total_timeout_s`` in any case.

        Raises ConfigError for a URL or header that cannot be sent.
        """
        key, extra = checked(name, api_key, extra_headers or {})
        url = _completions_url(name, base_url)
        secrets = {key, *extra.values(), urlsplit(url).password or ""} - {""}
        super().__init__(
            endpoint=Endpoint(name, url, tuple(sorted(secrets, key=len, reverse=True))),
            quirks=quirks,
            refusals=refusals,
            total_timeout_s=total_timeout_s,
        )
        self._headers = _merged(key, extra)
        self._tls = (tls or TLS()) if url.startswith("https:") else None
        self._idle_timeout_s = idle_timeout_s
        self._pools = pools
        self._now = now
        self._connections: Connections | None = None

    async def aclose(self) -> None:
        """Close all connections."""
        if self._connections is not None:
            await self._connections.aclose()

    async def _attempt(
        self,
        head: Wire,
        messages: Sequence[Wire],
        options: Options,
        answer: Answer,
        limit: asyncio.Timeout,
    ) -> None:
        body = await _encoded(head, messages, options.fields())
        connections = await self._connected()
        reader = BodyReader()
        async with connections.send("POST", self._endpoint.url, self._headers, body) as response:
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


def _merged(key: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request; ``extra`` wins, whatever the case of its names."""
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",  # a stream is read as it comes
        "user-agent": f"nanobot/{__version__}",
    }
    if key:
        headers["authorization"] = f"Bearer {key}"
    return headers | {header.lower(): value for header, value in extra.items()}
