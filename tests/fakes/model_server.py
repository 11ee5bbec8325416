"""A model provider on 127.0.0.1 that does as it is told, for tests and benchmarks.

    async with ModelServer() as server:
        server.script(Reply.tool_calls([("list_dir", {"path": "."})]), Reply.text("Two files."))
        ... talk to server.url ...

Tests that start processes use ``with ModelServer.in_thread() as server``; benchmarks run
``python -m tests.fakes.model_server --port 8801 --latency 0.5``. Scripting and looking at the
record are safe from any thread. Imports nothing of nanobot.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import TracebackType
from typing import Any, Self

from tests.fakes import anthropic_replies, gemini_replies, openai_replies
from tests.fakes.model_replies import (
    WAIT_S,
    Call,
    Count,
    Ending,
    Flag,
    Framing,
    Gate,
    Ids,
    Index,
    Reply,
    Tokens,
)
from tests.fakes.ollama_replies import Ollama

__all__ = [
    "Call",
    "Ending",
    "Flag",
    "Framing",
    "Gate",
    "Ids",
    "Index",
    "ModelServer",
    "Reply",
    "Request",
    "Tokens",
]

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


@dataclass
class Request:
    """One request as it arrived. ``arrived_at`` is on the clock of ``time.monotonic``."""

    number: int
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    arrived_at: float
    disconnected: Flag = field(default_factory=Flag)
    """Set when the client goes away before its reply is complete."""
    answered: Flag = field(default_factory=Flag)
    """Set when the whole reply has been written."""

    @cached_property
    def body(self) -> dict[str, Any]:
        """The JSON document; empty where there is none."""
        document: dict[str, Any] = json.loads(self.raw) if self.raw else {}
        return document

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.body.get("messages", [])
        return messages

    @property
    def last_user(self) -> str:
        """The text of the last user message, for replies that depend on the chat."""
        users = [message for message in self.messages if message["role"] == "user"]
        return _text_of(users[-1]) if users else ""

    @property
    def tool_results(self) -> list[str]:
        """The texts of all tool messages, in order."""
        return [_text_of(one) for one in self.messages if one["role"] == "tool"] + [
            _text_of(part)
            for one in self.messages
            if isinstance(one.get("content"), list)
            for part in one["content"]
            if part.get("type") == "tool_result"
        ]

    @property
    def tools(self) -> list[str]:
        """The names of the tools the model may see."""
        return [tool.get("function", tool)["name"] for tool in self.body.get("tools", [])]


Answer = Callable[[Request], Reply | None]
Route = Callable[["ModelServer", Request, "_Connection"], Coroutine[Any, Any, None]]


class ModelServer:
    """The server. A request is answered by ``answer_with``, else the script, else ``default``."""

    def __init__(
        self,
        *,
        require_key: str | None = None,
        default: Reply | None = None,
        models: tuple[str, ...] = ("fake-model",),
        host: str = "127.0.0.1",
        port: int = 0,
        record: bool = True,
    ) -> None:
        self.requests: list[Request] = []
        """Every request so far; empty without ``record``, for servers that run for long."""
        self.default = default or Reply.text("OK")
        self.models = models
        self.defects: list[Exception] = []
        """What a callable given to ``answer_with`` raised; raised again when the server ends."""
        self.ollama: Ollama | None = None
        """Set: the server is an Ollama with this model."""
        self._require_key = require_key
        self._record = record
        self._host = host
        self._port = port
        self._script: deque[Reply] = deque()
        self._answer: Answer | None = None
        self._arrivals = Count()
        self._opened = Count()
        self._closed = Count()
        self._connections: set[_Connection] = set()
        self._listener: asyncio.Server | None = None

    # -- told by the test -----------------------------------------------------------------------

    def script(self, *replies: Reply) -> None:
        """Queue replies, one a request."""
        self._script.extend(replies)

    def answer_with(self, answer: Answer) -> None:
        """Let a callable choose the reply; where it returns None, the script goes on."""
        self._answer = answer

    def gate(self) -> Gate:
        """A gate for ``Reply.gate`` or ``Reply.stream_gate``."""
        return Gate()

    # -- seen by the test -----------------------------------------------------------------------

    @property
    def root(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def url(self) -> str:
        """The base URL that OpenAI's clients want."""
        return f"{self.root}/v1"

    @property
    def connections_made(self) -> int:
        return self._opened.value

    @property
    def connections_open(self) -> int:
        return len(self._connections)

    async def arrived(self, number: int, timeout_s: float = WAIT_S) -> Request:
        """Wait for request ``number`` (from 1); returns its record."""
        await self._arrivals.reaching(number).wait(timeout_s)
        return self.requests[number - 1]

    def wait_arrived(self, number: int, timeout_s: float = WAIT_S) -> Request:
        """The same for a thread without an event loop."""
        self._arrivals.reaching(number).wait_sync(timeout_s)
        return self.requests[number - 1]

    async def closed(self, number: int, timeout_s: float = WAIT_S) -> None:
        """Wait until ``number`` connections have been closed, by whichever side."""
        await self._closed.reaching(number).wait(timeout_s)

    # -- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: _Connection(self), self._host, self._port, backlog=1024
        )
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        tasks = [task for one in set(self._connections) for task in one.abandon()]
        if tasks:
            await asyncio.wait(tasks)
        await self._listener.wait_closed()
        if self.defects and error is None:
            raise self.defects[0]

    @classmethod
    @contextlib.contextmanager
    def in_thread(cls, **options: Any) -> Iterator[Self]:
        """The server in a thread with a loop of its own; takes the arguments of the class."""
        server = cls(**options)
        started = Flag()
        ended = Flag()
        failures: list[Exception] = []

        async def run() -> None:
            async with server:
                started.set()
                await ended.wait(timeout_s=None)

        def main() -> None:
            try:
                asyncio.run(run())
            except Exception as error:  # handed to the thread that uses the server
                failures.append(error)
            finally:
                started.set()

        thread = threading.Thread(target=main, name="model-server", daemon=True)
        thread.start()
        started.wait_sync()
        try:
            if failures:
                raise failures[0]
            yield server
        finally:
            ended.set()
            thread.join(WAIT_S)
        if thread.is_alive():
            raise TimeoutError("the model server does not end")
        if failures:
            raise failures[0]

    # -- used by connections --------------------------------------------------------------------

    def _opened_by(self, connection: _Connection) -> int:
        self._connections.add(connection)
        return self._opened.add()

    def _closed_by(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._closed.add()

    def _arrive(
        self, connection: int, method: str, path: str, headers: dict[str, str], raw: bytes
    ) -> Request:
        number = self._arrivals.value + 1
        request = Request(number, connection, method, path, headers, raw, time.monotonic())
        if self._record:
            self.requests.append(request)
        self._arrivals.add()
        return request

    async def _serve(self, request: Request, connection: _Connection) -> None:
        path = request.path.partition("?")[0]
        route = _ROUTES.get((request.method, path))
        if path.endswith(":streamGenerateContent"):
            route = ModelServer._stream_generate_content
        if path.startswith("/api/") and self.ollama is not None:
            route = ModelServer._ollama
        if route is None:
            await connection.send(Reply.error(404, f"no route {request.path}"))
        elif not self._admits(request):
            refusal = Reply.error(401, "Incorrect API key provided", code="invalid_api_key")
            if route is ModelServer._messages:
                refusal = anthropic_replies.refusal(refusal)
            elif route is ModelServer._stream_generate_content:
                refusal = gemini_replies.refusal(refusal)
            await connection.send(refusal)
        else:
            await route(self, request, connection)

    def _admits(self, request: Request) -> bool:
        presented = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = (
            presented
            or request.headers.get("x-api-key", "")
            or request.headers.get("x-goog-api-key", "")
        )
        return self._require_key is None or key == self._require_key

    def _reply_to(self, request: Request) -> Reply:
        try:
            chosen = self._answer(request) if self._answer else None
        except Exception as error:  # the test's own defect: told to the client and to the test
            self.defects.append(error)
            return Reply.error(500, f"answer_with raised {error!r}")
        if chosen is not None:
            return chosen
        return self._script.popleft() if self._script else self.default

    async def _chat_completions(self, request: Request, connection: _Connection) -> None:
        reply = self._reply_to(request)
        if reply.body is not None:
            await connection.send(reply)
        elif request.stream and not reply.as_json:
            options = request.body.get("stream_options") or {}
            wants_usage = bool(options.get("include_usage"))
            # What has no ids is the same for every request: benchmarks render it once.
            number = request.number if reply.calls else 0
            writes = _rendered(reply, request.model, number, wants_usage)
            failure = (
                openai_replies.event(reply.error_in_stream, reply.framing)
                if reply.error_in_stream
                else b""
            )
            await connection.send(reply, writes, failure)
        else:
            body = openai_replies.completion(reply, request.model, request.number)
            await connection.send(reply.but(body=body, content_type="application/json"))

    async def _messages(self, request: Request, connection: _Connection) -> None:
        """Anthropic's API; the stream is the only form served."""
        reply = self._reply_to(request)
        if reply.body is not None:
            await connection.send(anthropic_replies.refusal(reply))
        else:
            writes = tuple(anthropic_replies.stream(reply, request.model, request.number))
            failure = anthropic_replies.failure_event(reply) if reply.error_in_stream else b""
            await connection.send(reply, writes, failure)

    async def _stream_generate_content(self, request: Request, connection: _Connection) -> None:
        """Gemini's API; the model is in the path."""
        reply = self._reply_to(request)
        if reply.body is not None:
            await connection.send(gemini_replies.refusal(reply))
        else:
            model = request.path.rpartition("/")[2].partition(":")[0]
            failure = (
                openai_replies.event(reply.error_in_stream, reply.framing)
                if reply.error_in_stream
                else b""
            )
            await connection.send(reply, tuple(gemini_replies.stream(reply, model)), failure)

    async def _ollama(self, request: Request, connection: _Connection) -> None:
        assert self.ollama is not None
        document = self.ollama.answer(request.path, request.body)
        if document is None:
            await connection.send(Reply.error(404, f"nothing for {request.path}"))
        else:
            await connection.send(Reply.raw(json.dumps(document).encode(), "application/json"))

    async def _list_models(self, request: Request, connection: _Connection) -> None:
        body = openai_replies.models(self.models)
        await connection.send(Reply.raw(body, "application/json"))


_ROUTES: dict[tuple[str, str], Route] = {
    ("POST", "/v1/chat/completions"): ModelServer._chat_completions,
    ("POST", "/v1/messages"): ModelServer._messages,
    ("GET", "/v1/models"): ModelServer._list_models,
}


@lru_cache(maxsize=64)
def _rendered(reply: Reply, model: str, number: int, wants_usage: bool) -> tuple[bytes, ...]:
    return tuple(openai_replies.stream(reply, model, number, wants_usage=wants_usage))


class _Connection(asyncio.Protocol):
    """One client connection: HTTP/1.1 with keep-alive, one request at a time."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._received = bytearray()
        self._expected = 0
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._server._opened_by(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received[:1].isalpha():  # TLS, for example
            self._transport.abort()
        self._start_next()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._server._closed_by(self)
        if self._request is not None:
            self._request.disconnected.set()
        if self._task is not None:
            self._task.cancel()

    def abandon(self) -> list[asyncio.Task[None]]:
        """Drop the connection at once; returns what has to be awaited."""
        self._transport.abort()
        if self._task is None:
            return []
        self._task.cancel()
        return [self._task]

    def _start_next(self) -> None:
        if self._task is not None or self._lost or len(self._received) < self._expected:
            return
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(headers.get("content-length", "0"))
        self._expected = len(head) + len(found) + length
        if len(self._received) < self._expected:
            return
        self._received = rest[length:]
        self._expected = 0
        self._request = self._server._arrive(
            self._number, method, path, headers, bytes(rest[:length])
        )
        self._task = asyncio.get_running_loop().create_task(
            self._server._serve(self._request, self)
        )
        self._task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        request, self._request, self._task = self._request, None, None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            if isinstance(error, Exception):
                self._server.defects.append(error)
            self._transport.abort()
            return
        if request is not None:
            request.answered.set()
        self._start_next()

    async def send(
        self, reply: Reply, writes: tuple[bytes, ...] | None = None, failure: bytes = b""
    ) -> None:
        """Send ``reply``: as ``writes`` in chunks, or its ``body`` whole.

        ``failure``: the event of a reply with an error in its stream.
        """
        if reply.latency_s:
            await asyncio.sleep(reply.latency_s)
        if reply.gate is not None:
            await reply.gate.pass_through()
        if reply.ending is not Ending.COMPLETE and reply.after_chunks is None:
            await self._end(reply.ending)
        elif writes is None:
            body = reply.body or b""
            self._write(self._head(reply, f"Content-Length: {len(body)}") + body)
        else:
            self._write(self._head(reply, "Transfer-Encoding: chunked"))
            await self._send_chunks(reply, writes, failure)

    async def _send_chunks(self, reply: Reply, writes: tuple[bytes, ...], failure: bytes) -> None:
        early = reply.ending is not Ending.COMPLETE or reply.error_in_stream is not None
        if early:
            writes = writes[: reply.after_chunks]
        if reply.chunk_latency_s or reply.stream_gate:
            for at, write in enumerate(writes):
                if reply.stream_gate is not None and at == reply.stream_gate_after:
                    await reply.stream_gate.pass_through()
                if reply.chunk_latency_s and at:
                    await asyncio.sleep(reply.chunk_latency_s)
                self._write(_chunk(write))
        else:
            self._write(b"".join(map(_chunk, writes)))
        if failure:
            self._write(_chunk(failure))
        if reply.ending in {Ending.COMPLETE, Ending.CLOSED}:
            self._write(b"0\r\n\r\n")
        else:
            await self._end(reply.ending)

    async def _end(self, ending: Ending) -> None:
        if ending is Ending.HANG:
            await asyncio.get_running_loop().create_future()
        if ending is Ending.RESET:
            client: socket.socket = self._transport.get_extra_info("socket")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def _head(self, reply: Reply, length: str) -> bytes:
        reason = REASONS.get(reply.status, "Something")
        lines = [
            f"HTTP/1.1 {reply.status} {reason}",
            f"Content-Type: {reply.content_type}",
            length,
            *(f"{name}: {value}" for name, value in reply.headers),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


async def _run(arguments: argparse.Namespace) -> None:
    reply = Reply.text(
        arguments.text,
        latency_s=arguments.latency,
        chunk_latency_s=arguments.chunk_latency,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with ModelServer(
        default=reply, host=arguments.host, port=arguments.port, record=False
    ) as server:
        print(server.url, flush=True)
        await stop.wait()


def main() -> None:
    """Serve until told to stop; prints the base URL."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before the answer")
    parser.add_argument("--chunk-latency", type=float, default=0.0, help="seconds between chunks")
    parser.add_argument("--text", default="OK")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
