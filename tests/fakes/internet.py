"""Name service, sockets and TLS for tests of fetching; they lead to loopback servers only."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence

import httpcore


class FakeNames:
    """Answers from a table; a name with several answers gives the next one each time."""

    def __init__(self, names: Mapping[str, Sequence[str] | str] | None = None) -> None:
        self._answers: dict[str, list[Sequence[str]]] = {}
        self.asked: list[str] = []
        for name, addresses in (names or {}).items():
            self.add(name, addresses)

    def add(self, name: str, *answers: Sequence[str] | str) -> FakeNames:
        self._answers[name] = [(one,) if isinstance(one, str) else one for one in answers]
        return self

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(self._answers)

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        await asyncio.sleep(0)
        if host not in self._answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = self._answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class FakeInternet(httpcore.AsyncNetworkBackend):
    """Sockets that note where they should go, and go to 127.0.0.1 if that is in ``hosts``.

    ``hosts`` are the addresses that exist, ``ports`` which port of this machine stands for one of
    theirs. Nothing else can be connected to.
    """

    def __init__(self, hosts: Iterable[str] = (), ports: Mapping[int, int] | None = None) -> None:
        self.hosts = frozenset(hosts)
        self.ports = dict(ports or {})
        self.connections: list[tuple[str, int]] = []
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.connections.append((host, port))
        if host not in self.hosts:
            raise httpcore.ConnectError("No route to host")
        return await self._sockets.connect_tcp(
            "127.0.0.1", self.ports.get(port, port), timeout, local_address, socket_options
        )


class OneTLS:
    """Hands out the context it was made with."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context or ssl.create_default_context()

    async def context(self) -> ssl.SSLContext:
        return self._context
