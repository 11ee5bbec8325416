"""A web server on 127.0.0.1 that serves the pages it is given, for tests of fetching.

    async with WebServer() as web:
        web.pages["/a"] = Page(b"hello", content_type="text/plain")
        ... fetch web.url("/a") ...

Imports nothing of nanobot.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias

_PACE_S = 0.01


@dataclass(frozen=True, slots=True)
class Page:
    """One answer. ``content_type`` "" sends no such header; ``headers`` are sent as they are.

    ``announced`` is the Content-Length to send instead of the true one. ``endless`` is sent again
    and again after the body, every 10 ms, without a Content-Length. ``silent``: nothing is ever
    sent. ``stalls``: nothing more is sent after the body, and the connection stays open.
    """

    body: bytes = b""
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    announced: int | None = None
    endless: bytes = b""
    silent: bool = False
    stalls: bool = False


def redirect(location: str, status: int = 302) -> Page:
    """A page that sends the client elsewhere."""
    return Page(status=status, headers=(("Location", location),))


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived; header names are lower-case."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


Answer: TypeAlias = Page | Callable[[Request], Page]


@dataclass
class WebServer:
    """The server; ``pages`` are by path, 404 for any other.

    With a ``greeting`` it is no web server at all: it says that to whoever connects, and listens.
    """

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    greeting: bytes = b""
    pages: dict[str, Answer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has arrived."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has gone away before its answer was complete."""

    async def __aenter__(self) -> Self:
        self._connections: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, self.host, 0, ssl=self.tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def url(self, path: str = "/", host: str | None = None) -> str:
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{host or self.host}:{self.port}{path}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.greeting:
            writer.write(self.greeting)
            await reader.read()
            return
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        pairs = (line.split(":", 1) for line in lines)
        request = Request(method, target, {name.lower(): value.strip() for name, value in pairs})
        self.requests.append(request)
        self.arrived.set()
        answer = self.pages.get(request.path, Page(b"nothing here", 404, "text/plain"))
        page = answer if isinstance(answer, Page) else answer(request)
        sending = asyncio.ensure_future(self._send(writer, page))
        # A client has nothing more to say: the end of what it sends is its leaving.
        gone = asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                self.left.set()
        finally:
            sending.cancel()
            gone.cancel()
            for result in await asyncio.gather(sending, gone, return_exceptions=True):
                if isinstance(result, ConnectionError):
                    self.left.set()

    async def _send(self, writer: asyncio.StreamWriter, page: Page) -> None:
        if page.silent:
            await asyncio.Event().wait()
        headers = [*page.headers, ("Connection", "close")]
        if page.content_type:
            headers.append(("Content-Type", page.content_type))
        if not page.endless:
            length = len(page.body) if page.announced is None else page.announced
            headers.append(("Content-Length", str(length)))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        writer.write(f"HTTP/1.1 {page.status} Whatever\r\n{head}\r\n".encode("latin-1"))
        writer.write(page.body)
        await writer.drain()
        if page.stalls:
            await asyncio.Event().wait()
        while page.endless:
            writer.write(page.endless)
            await writer.drain()
            await asyncio.sleep(_PACE_S)
