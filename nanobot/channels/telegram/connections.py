"""Connections to a Bot API server: limits, how calls fail, a poller and pools that send."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from nanobot.config.schema import TelegramConfig
from nanobot.core.ports import Clock

if TYPE_CHECKING:
    from nanobot.channels.telegram.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times in seconds, sizes in connections or messages.

    A poll without an answer ``poll_margin_s`` after it was due is given up. ``call_s`` bounds every
    other call and stays well below the delivery worker's own limit.
    """

    poll_s: int = 50
    poll_margin_s: float = 15.0
    call_s: float = 20.0
    connect_s: float = 10.0
    free_connection_s: float = 5.0
    backoff_s: float = 1.0
    backoff_most_s: float = 60.0
    typing_every_s: float = 4.0
    typing_most_s: float = 300.0
    close_s: float = 2.0
    pools: int = 48
    pool_connections: int = 8
    chat_burst: int = 10
    chat_every_s: float = 1.0

    @classmethod
    def of(cls, config: TelegramConfig) -> Limits:
        """The defaults with what the owner has configured."""
        usual = cls()
        call_s = float(config.timeout_s)
        return replace(
            usual,
            poll_s=config.poll_timeout_s,
            poll_margin_s=min(usual.poll_margin_s, call_s),
            call_s=call_s,
        )


@dataclass(frozen=True, slots=True)
class Time:
    """Clocks, waiting and chance; ``jitter`` gives a random number in [0, 1)."""

    clock: Clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random


class CallFailed(Exception):
    """A call failed; ``str(error)`` is one line for the operator, without the token."""


class NotSent(CallFailed):
    """The Bot API server did not get the request: no connection, or something else answered."""


class PoolFull(NotSent):
    """No connection of the pool became free in time."""


class NoAnswer(CallFailed):
    """The connection broke, time ran out, or the answer cannot be read: it may have been sent."""


class Refusal(CallFailed):
    """The server answered with the HTTP status ``code`` and a description.

    ``after``: seconds it asked to wait, or None.
    """

    def __init__(self, code: int, description: str, *, after: float | None = None) -> None:
        super().__init__(description)
        self.code = code
        self.after = after

    @property
    def is_of_token(self) -> bool:
        """Whether the token itself is refused: 401 if it is unknown, 404 if it is no token."""
        return self.code in (401, 404)

    @property
    def is_of_server(self) -> bool:
        """Whether the server is at fault, so that it may have done what it was asked."""
        return self.code >= 500


PUBLIC_SERVER = "https://api.telegram.org"

TLSContext: TypeAlias = Callable[[], Awaitable[ssl.SSLContext]]
"""Gives the TLS context that all clients of the process share."""


class Connections:
    """Makes clients when they are needed, and replaces those whose connections went dead.

    Polling has a connection of its own, so that it never delays an answer. Answers are spread over
    several pools, since the cost of one pool grows faster than the number of its requests.
    """

    def __init__(self, config: TelegramConfig, limits: Limits, tls: TLSContext) -> None:
        self._config = config
        self._limits = limits
        self._tls = tls
        self._opening = asyncio.Lock()
        self._make: Callable[[int], Client] | None = None
        self._poller: Client | None = None
        self._pools: list[_Pool] = []
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
        pool = min(self._pools, key=lambda pool: pool.running, default=None)
        if pool is None or (pool.running and len(self._pools) < self._limits.pools):
            pool = _Pool(make(self._limits.pool_connections))
            self._pools.append(pool)
        pool.running += 1
        try:
            return await pool.client.call(method, params, limit_s=limit_s)
        except PoolFull:
            # With so many connections that is a leak: calls under way may end on the old pool.
            if pool in self._pools:
                self._pools.remove(pool)
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
        pools = [*self._pools, *self._retired]
        self._pools.clear()
        self._retired.clear()
        await self.renew_poller()
        for pool in pools:
            await pool.client.aclose()

    async def _opened(self) -> Callable[[int], Client]:
        """What makes a client with a number of connections."""
        async with self._opening:
            if self._make is None:
                client = await asyncio.to_thread(_client_class)
                if (self._config.api_base or PUBLIC_SERVER).lower().startswith("https:"):
                    verify = await self._tls()
                else:
                    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                self._make = partial(client, self._config, self._limits, verify)
        if self._closed:
            raise NotSent("the channel is closed")
        return self._make


@dataclass(eq=False, slots=True)
class _Pool:
    """A client with the number of its calls under way."""

    client: Client
    running: int = 0


def _client_class() -> type[Client]:
    from nanobot.channels.telegram.client import Client

    return Client
