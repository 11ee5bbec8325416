"""The channel's connections: one client that polls, several pools that send."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from nanobot.channels.telegram.failures import NotSent, PoolFull
from nanobot.channels.telegram.limits import Limits
from nanobot.config.schema import TelegramConfig

if TYPE_CHECKING:
    from nanobot.channels.telegram.client import Client

PUBLIC_SERVER = "https://api.telegram.org"

TLSContext: TypeAlias = Callable[[], Awaitable[ssl.SSLContext]]
"""Gives the TLS context that all clients of the process share."""


class Connections:
    """Makes clients when they are needed, and anew when they have gone deaf.

    A slow long poll never takes a connection from an answer, and answers are spread over pools,
    since one pool gets slower than linear with requests at once.
    """

    def __init__(self, config: TelegramConfig, limits: Limits, tls: TLSContext) -> None:
        self._config = config
        self._limits = limits
        self._tls = tls
        self._opening = asyncio.Lock()
        self._make: Callable[[int], Client] | None = None
        self._poller: Client | None = None
        self._pools: list[_Pool | None] = [None] * limits.pools
        self._retired: set[_Pool] = set()
        self._closed = False

    async def poll(self, method: str, params: Mapping[str, Any], *, limit_s: float) -> Any:
        """Call a method over the polling connection; raises CallFailed."""
        make = await self._opened()
        if self._poller is None:
            self._poller = make(1)
        return await self._poller.call(method, params, limit_s=limit_s)

    async def renew_poller(self) -> None:
        """Drop the polling connection, so that the next call makes a new one."""
        poller, self._poller = self._poller, None
        if poller is not None:
            await poller.aclose()

    async def call(self, method: str, params: Mapping[str, Any], *, limit_s: float) -> Any:
        """Call a method over the least busy of the sending pools; raises CallFailed."""
        make = await self._opened()
        place = min(range(len(self._pools)), key=self._load)
        pool = self._pools[place]
        if pool is None:
            pool = self._pools[place] = _Pool(make(self._limits.pool_connections))
        pool.running += 1
        try:
            return await pool.client.call(method, params, limit_s=limit_s)
        except PoolFull:
            # With so many connections that is a leak: calls under way may end on the old pool.
            if self._pools[place] is pool:
                self._pools[place] = None
                self._retired.add(pool)
            raise
        finally:
            pool.running -= 1
            if not pool.running and pool in self._retired:
                self._retired.discard(pool)
                await pool.client.aclose()

    async def aclose(self) -> None:
        """Close everything; later calls fail with NotSent."""
        self._closed = True
        pools = [*filter(None, self._pools), *self._retired]
        self._pools = [None] * len(self._pools)
        self._retired.clear()
        await self.renew_poller()
        for pool in pools:
            await pool.client.aclose()

    async def _opened(self) -> Callable[[int], Client]:
        if self._make is None:
            async with self._opening:
                if self._make is None:
                    self._make = await self._prepared()
        if self._closed:
            raise NotSent("the channel is closed")
        return self._make

    async def _prepared(self) -> Callable[[int], Client]:
        client = await asyncio.to_thread(_load)
        config, limits = self._config, self._limits
        server = config.api_base or PUBLIC_SERVER
        if server.lower().startswith("https:"):
            verify = await self._tls()
        else:
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return lambda connections: client(
            config.token.get_secret_value(),
            server=server,
            proxy=config.proxy,
            verify=verify,
            connections=connections,
            limits=limits,
        )

    def _load(self, place: int) -> int:
        pool = self._pools[place]
        return 0 if pool is None else pool.running


class _Pool:
    """A client with the number of its calls under way."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.running = 0


def _load() -> type[Client]:
    from nanobot.channels.telegram.client import Client

    return Client
