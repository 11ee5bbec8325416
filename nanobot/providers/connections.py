"""HTTP connections to model endpoints: pools, and the TLS context that all clients share."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx

from nanobot.providers.failures import ConnectionBroke, system_reason

if TYPE_CHECKING:
    import ssl


class TLS:
    """Makes the context on first use, in a thread: it costs 60 to 105 ms and is needed once."""

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


_KEEP_ALIVE_S = 60.0


class Connections:
    """The pools, made when needed: one pool gets slower than linear with requests at once."""

    def __init__(
        self,
        *,
        tls: TLS | None,
        pools: int,
        idle_timeout_s: float,
        connect_timeout_s: float,
    ) -> None:
        """``tls``: None for an endpoint spoken to in the clear."""
        self._tls = tls
        self._timeout = httpx.Timeout(idle_timeout_s, connect=connect_timeout_s, pool=None)
        self._clients: list[httpx.AsyncClient | None] = [None] * pools
        self._running = [0] * pools

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes
    ) -> AsyncIterator[httpx.Response]:
        """Send a request; the response's body is not read yet. Leaving early closes it.

        Raises ConnectionBroke where the network fails, also while the body is read.
        """
        verify = await self._tls.context() if self._tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        chosen = min(range(len(self._running)), key=self._running.__getitem__)
        client = self._clients[chosen]
        if client is None:
            limits = httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S)
            client = httpx.AsyncClient(verify=verify, timeout=self._timeout, limits=limits)
            self._clients[chosen] = client
        self._running[chosen] += 1
        try:
            async with client.stream(method, url, headers=headers, content=content) as response:
                yield response
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._broke(error) from error
        finally:
            self._running[chosen] -= 1

    async def aclose(self) -> None:
        """Close all connections."""
        clients, self._clients = self._clients, [None] * len(self._clients)
        for client in clients:
            if client is not None:
                await client.aclose()

    def _broke(self, error: Exception) -> ConnectionBroke:
        match error:
            case httpx.ConnectTimeout():
                return ConnectionBroke(
                    f"no connection within {self._timeout.connect:g} s", was_made=False
                )
            case httpx.TimeoutException():
                return ConnectionBroke(f"nothing came for {self._timeout.read:g} s", was_made=True)
            case httpx.ConnectError() | httpx.ProxyError():
                return ConnectionBroke(f"no connection: {_reason(error)}", was_made=False)
            case _:
                return ConnectionBroke(f"the connection broke: {_reason(error)}", was_made=True)


def _reason(error: BaseException) -> str:
    return system_reason(error) or str(error) or type(error).__name__
