"""The HTTP client of every fetch for the model, kept out of private networks (SSRF).

Each connection looks the host up once, checks every address, and connects to a checked address
only, which defeats DNS rebinding; TLS verifies the host's name. Each redirect is checked like the
first URL. Cookies and connections are not kept between fetches. Proxies of the environment are
not used, since a proxy looks hosts up itself.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, cast

import httpcore

from nanobot import __version__
from nanobot.internet.addresses import (
    Address,
    AddressRules,
    CheckedResolver,
    Network,
    NetworkError,
    Resolver,
    Url,
    UrlRefused,
    parse_url,
)

USER_AGENT = f"nanobot/{__version__}"

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ADDRESSES_TRIED = 4
_INFLATED_AT_ONCE = 65536
_GZIP = 0x1F  # the first byte of every member (RFC 1952)
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)


class FetchFailed(NetworkError):
    """The server could not be reached, or did not speak HTTP to the end."""


class FetchTimedOut(NetworkError):
    """A fetch took longer than it may."""


class TooLarge(NetworkError):
    """A response is larger than it may be."""


class TLSContexts(Protocol):
    """Supplies the TLS context that all clients of the process share."""

    async def context(self) -> ssl.SSLContext: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds of one fetch: ``max_bytes`` of a body once decompressed, seconds, redirects.

    ``total_s`` covers everything from the look-up to the last byte, ``connect_s`` one connection.
    Headers are bounded by the HTTP parser (100 KB).
    """

    max_bytes: int = 5_000_000
    total_s: float = 30.0
    connect_s: float = 8.0
    redirects: int = 5


class SafeClient:
    """Fetches from public addresses, and from those in ``allow_cidrs``."""

    def __init__(
        self,
        *,
        tls: TLSContexts,
        allow_cidrs: Iterable[Network] = (),
        lookup: Resolver | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        limits: FetchLimits = FetchLimits(),
    ) -> None:
        """``lookup`` and ``network`` stand in for the system's name service and its sockets."""
        self._tls = tls
        self._resolver = CheckedResolver(AddressRules(allow_cidrs), lookup)
        self._network = network or httpcore.AnyIOBackend()
        self._limits = limits

    @asynccontextmanager
    async def get(
        self, url: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Response]:
        """GET ``url``, following redirects; the body is read in the block, under the same clock.

        ``headers`` go to the URL's own origin only, not where a redirect leads. Raises a
        NetworkError: UrlRefused, AddressRefused, FetchFailed, FetchTimedOut; any status is a
        response.
        """
        try:
            async with asyncio.timeout(self._limits.total_s) as clock:
                async with self._answered(parse_url(url), headers or {}) as response:
                    yield response
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise FetchTimedOut(
                f"Fetching took longer than {self._limits.total_s:g} s and was stopped."
            ) from error

    @asynccontextmanager
    async def _answered(self, url: Url, headers: Mapping[str, str]) -> AsyncIterator[Response]:
        """The response at the end of the redirects."""
        origin = url.origin
        for _ in range(self._limits.redirects + 1):
            own = headers if url.origin == origin else {}
            async with self._exchange(url, own) as response:
                target = response.headers.get("location", "")
                if response.status not in _REDIRECTS or not target:
                    yield response
                    return
            try:
                url = url.joined(target)
            except UrlRefused as error:
                # Not in the server's words: they would be read as this program's own.
                raise UrlRefused(f"{url.host} redirects to what is no URL to fetch.") from error
        raise FetchFailed(f"There are more than {self._limits.redirects} redirects.")

    @asynccontextmanager
    async def _exchange(self, url: Url, headers: Mapping[str, str]) -> AsyncIterator[Response]:
        """One request on a connection of its own."""
        addresses = await self._resolver.addresses(url.host)
        connection = httpcore.AsyncHTTPConnection(
            httpcore.Origin(url.scheme.encode(), url.host.encode(), url.port),
            ssl_context=await self._tls.context() if url.scheme == "https" else None,
            network_backend=_Pinned(self._network, addresses),
        )
        sent = {
            "Host": url.authority,
            "User-Agent": USER_AGENT,
            "Accept": "*/*",
            "Accept-Encoding": "gzip, deflate",
            "Connection": "close",
            **headers,
        }
        request = httpcore.Request(
            b"GET",
            httpcore.URL(
                scheme=url.scheme.encode(),
                host=url.host.encode(),
                port=url.port,
                target=url.target.encode(),
            ),
            headers=[(name.encode(), value.encode()) for name, value in sent.items()],
            extensions={"timeout": {"connect": self._limits.connect_s}},
        )
        try:
            try:
                answer = await connection.handle_async_request(request)
            except _BROKEN as error:
                raise _failed(url, error) from error
            try:
                yield Response(url, answer, self._limits.max_bytes)
            finally:
                await answer.aclose()
        finally:
            await connection.aclose()


class Response:
    """The answer to a fetch, its body still on the way; lives as long as the block of ``get``.

    ``url`` is where the redirects ended. ``headers`` have lower-case names, the first of a name
    counts.
    """

    def __init__(self, url: Url, answer: httpcore.Response, limit: int) -> None:
        self.url = url
        self.status = answer.status
        self.headers: dict[str, str] = {}
        for name, value in answer.headers:
            self.headers.setdefault(name.decode("latin-1").lower(), _header_text(value))
        self._answer = answer
        self._limit = limit

    @property
    def media_type(self) -> str:
        """The type that the server names, such as ``text/html``; "" if it names none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """The encoding that the server names; "" if it names none."""
        found = _CHARSET.search(self.headers.get("content-type", ""))
        return found[1].lower() if found else ""

    @property
    def announced_size(self) -> int | None:
        """The number of bytes on the wire that the server announces."""
        length = self.headers.get("content-length", "")
        return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None

    async def read(self) -> bytes:
        """The whole body, decompressed; raises TooLarge, FetchFailed."""
        data, is_whole = await self.read_head(self._limit)
        if not is_whole:
            raise TooLarge(
                f"{self.url.host} sends more than {self._limit:,} bytes, which is the limit."
            )
        return data

    async def read_head(self, limit: int | None = None) -> tuple[bytes, bool]:
        """At most ``limit`` bytes of the body, and whether that is all of it."""
        limit = self._limit if limit is None else min(limit, self._limit)
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise FetchFailed(
                f"{self.url.host} compresses its answer in a way that was not asked for."
            )
        inflation = _Inflation(compressed=encoding not in {"", "identity"})
        data = bytearray()
        received = 0
        # An asynchronous generator, as httpcore does not say: it is ended here, not by chance.
        stream = cast(AsyncGenerator[bytes, None], self._answer.aiter_stream())
        try:
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    received += len(chunk)
                    for piece in inflation.pieces(chunk):
                        data += piece
                        if len(data) > limit:
                            return bytes(data[:limit]), False
                    if received > limit + _INFLATED_AT_ONCE:  # compressed emptiness is work too
                        raise TooLarge(f"{self.url.host} sends more than {limit:,} bytes.")
        except zlib.error as error:
            raise FetchFailed(f"{self.url.host} sends badly compressed data.") from error
        except httpcore.ProtocolError as error:
            raise FetchFailed(
                f"{self.url.host}:{self.url.port} broke off its answer, or garbled it."
            ) from error
        except _BROKEN as error:
            raise _failed(self.url, error) from error
        if received and not inflation.is_complete:
            raise FetchFailed(f"{self.url.host} broke off in the middle of its answer.")
        return bytes(data), True


class _Inflation:
    """Decompresses gzip and deflate in pieces of bounded size; passes on what is not compressed."""

    def __init__(self, *, compressed: bool) -> None:
        self.is_complete = not compressed
        self._compressed = compressed
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._is_first = True

    def pieces(self, data: bytes) -> Iterable[bytes]:
        if not self._compressed:
            yield data
            return
        if self._is_first and data:
            self._is_first = False
            if data[0] & 0x0F != 8 and data[0] != _GZIP:
                # Without the zlib header (RFC 1950), as some servers understand "deflate".
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        while data:
            if self.is_complete:
                if data[0] != _GZIP:
                    return  # padding after the end
                self._stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
            yield self._stream.decompress(data, _INFLATED_AT_ONCE)
            self.is_complete = self._stream.eof
            data = self._stream.unused_data if self.is_complete else self._stream.unconsumed_tail


class _Pinned(httpcore.AsyncNetworkBackend):
    """Sockets of one connection, which go to the addresses that were checked."""

    def __init__(
        self, network: httpcore.AsyncNetworkBackend, addresses: tuple[Address, ...]
    ) -> None:
        self._network = network
        self._addresses = addresses[:_ADDRESSES_TRIED]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that answers; ``host`` is for nothing but TLS."""
        *others, last = self._addresses
        for address in others:
            try:
                return await self._network.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(
            str(last), port, timeout, local_address, socket_options
        )


_BROKEN = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    ssl.SSLError,
    OSError,
)


def _failed(url: Url, error: Exception) -> NetworkError:
    where = f"{url.host}:{url.port}"
    if isinstance(error, httpcore.ConnectTimeout):
        return FetchFailed(f"{where} does not answer.")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, ssl.SSLCertVerificationError):
            return FetchFailed(
                f"The certificate of {where} is not valid: {cause.verify_message.rstrip('.')}."
            )
        if isinstance(cause, ssl.SSLError):
            return FetchFailed(f"{where} does not speak TLS as it should: {cause.reason}.")
        if isinstance(cause, ConnectionError) and cause.errno:
            return FetchFailed(f"No connection to {where}: {os.strerror(cause.errno)}.")
        if isinstance(cause, OSError) and cause.strerror:
            return FetchFailed(f"No connection to {where}: {cause.strerror}.")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore.ProtocolError):
        return FetchFailed(f"{where} does not answer as an HTTP server should.")
    return FetchFailed(f"The connection to {where} broke.")


def _header_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
