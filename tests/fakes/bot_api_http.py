"""HTTP/1.1 with keep-alive, as much of it as the fake Bot API needs."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import parse_qsl

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that came with a request, under the name of its form field."""

    field: str
    name: str
    content: bytes


REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    413: "Request Entity Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; the names of ``headers`` are in lower case."""

    verb: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP response."""

    status: int
    body: bytes
    content_type: str = "application/json"


class Service(Protocol):
    """Who answers requests."""

    connections: set[Connection]

    def handle(self, request: Request, connection: Connection) -> None:
        """Answer ``request`` by ``connection.reply``, now or later."""

    def changed(self) -> None:
        """A connection has ended."""


class Connection(asyncio.Protocol):
    """One keep-alive connection: requests are answered one after the other."""

    def __init__(self, api: Service) -> None:
        self._api = api
        self._received = bytearray()
        self._is_busy = False
        self._closes = False
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._api.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._api.connections.discard(self)
        self._transport = None
        if self.task is not None:
            self.task.cancel()
        self._api.changed()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._serve_next()

    def abort(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            # Without lingering the peer sees a reset, as from a process that died.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._transport.abort()

    def reply(self, response: Response) -> None:
        """Answer the request in hand and turn to the next."""
        self._is_busy = False
        if self._transport is None:
            return
        reason = REASONS.get(response.status, "Unknown")
        self._transport.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n"
            % (
                response.status,
                reason.encode(),
                response.content_type.encode(),
                len(response.body),
                b"close" if self._closes else b"keep-alive",
            )
            + response.body
        )
        if self._closes:
            self._transport.close()
        elif self._received:
            self._serve_next()

    def _serve_next(self) -> None:
        if self._is_busy:
            return
        try:
            request = self._take_request()
        except ValueError:
            self._closes = True
            self.reply(Response(400, b"malformed HTTP request", "text/plain"))
            return
        if request is not None:
            self._is_busy = True
            self._closes = request.headers.get("connection", "").lower() == "close"
            self._api.handle(request, self)

    def _take_request(self) -> Request | None:
        """The next complete request, or None; ValueError when it is not HTTP."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        verb, target, _version = first.split(" ")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body: bytes | None
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body, length = _dechunked(self._received, end + 4)
        else:
            length = end + 4 + int(headers.get("content-length", "0"))
            body = (
                bytes(self._received[end + 4 : length]) if len(self._received) >= length else None
            )
        if body is None:
            return None
        del self._received[:length]
        path, _, query = target.partition("?")
        return Request(verb, path, query, headers, body)


def _dechunked(data: bytearray, start: int) -> tuple[bytes | None, int]:
    """The body of a chunked request and where it ends; None while it is incomplete."""
    chunks: list[bytes] = []
    while (line := data.find(b"\r\n", start)) >= 0:
        size = int(bytes(data[start:line]).split(b";")[0], 16)
        begin, end = line + 2, line + 2 + size
        if len(data) < end + 2:
            break
        if size == 0:
            return b"".join(chunks), end + 2
        chunks.append(bytes(data[begin:end]))
        start = end + 2
    return None, 0


_DISPOSITION = re.compile(r'(name|filename)="([^"]*)"')


def read_parameters(request: Request) -> tuple[Json, tuple[Upload, ...]]:
    """The parameters and files of a request, from its query and its body of any kind."""
    params: Json = dict(parse_qsl(request.query, keep_blank_values=True))
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    uploads: list[Upload] = []
    if kind == "application/json":
        if request.body:
            params |= json.loads(request.body)
    elif kind == "multipart/form-data":
        boundary = rest.partition("boundary=")[2].strip().strip('"').encode()
        for part in request.body.split(b"--" + boundary)[1:-1]:
            head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
            names = dict(_DISPOSITION.findall(head.decode()))
            content = content.removesuffix(b"\r\n")
            if "filename" in names:
                uploads.append(Upload(names["name"], names["filename"], content))
            else:
                params[names["name"]] = content.decode()
    elif request.body:
        params |= parse_qsl(request.body.decode(), keep_blank_values=True)
    return params, tuple(uploads)


def success(result: Any) -> Response:
    """What the API answers when a method succeeds."""
    return Response(200, json.dumps({"ok": True, "result": result}).encode())


def error_response(status: int, description: str, parameters: Json | None = None) -> Response:
    """What the API answers when a method fails."""
    body: Json = {"ok": False, "error_code": status, "description": description}
    if parameters:
        body["parameters"] = parameters
    return Response(status, json.dumps(body).encode())
