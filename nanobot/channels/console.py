"""The console channel: serves one-shots and REPLs beside it over the home's Unix socket."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from loguru import logger

from nanobot import __version__
from nanobot.agent.loop import NO_ANSWER
from nanobot.bus.waiters import AskResult, TurnStopped
from nanobot.channels import socket_protocol as protocol
from nanobot.core.errors import ConfigError, ProviderError
from nanobot.core.events import Emit, Event
from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage, Media, Role, new_id
from nanobot.store.home import Home, short_name

Ask: TypeAlias = Callable[[InboundMessage, Emit], Awaitable[AskResult]]
RequestHandler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers one kind of request; both sides are JSON objects."""

_END = b""

HELLO_S = 10.0
"""Seconds within which a client has to send its hello."""

ALIVE_S = 5.0
"""Seconds between the ``alive`` lines to a client that waits for an answer."""


class ConsoleServer:
    """Listens on the home's socket for clients of the same user and version."""

    def __init__(
        self,
        home: Home,
        *,
        holder: str,
        ask: Ask,
        status: Callable[[], Awaitable[Mapping[str, Any]]],
        answers: Mapping[str, RequestHandler],
    ) -> None:
        """``answers`` are the requests beside asking and status, by their name."""
        self._home = home
        self._holder = holder
        self._ask = ask
        self._status = status
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to listen; the caller holds the home's lock, so a socket left over is stale."""
        self._home.private(self._home.run)
        self._home.socket.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            with short_name(self._home.socket) as name:
                self._server = await asyncio.start_unix_server(
                    self._accept, path=name, limit=protocol.LINE_LIMIT
                )
        finally:
            os.umask(mask)

    async def close(self) -> None:
        """Stop listening and disconnect all clients; their questions stay in the inbox."""
        if self._server is None:
            return
        self._server.close()
        self._home.socket.unlink(missing_ok=True)
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            logger.debug("a client hung up")
        except TimeoutError:
            logger.debug("a client sent no hello and was disconnected")
        except ValueError as error:
            logger.warning("a client sent a line that cannot be read: {}", error)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HELLO_S):
            hello = await reader.readline()
        if refusal := self._refusal(writer, hello):
            logger.warning("a client was refused: {}", refusal)
            writer.write(protocol.line("refused", refusal))
            await writer.drain()
            return
        writer.write(
            protocol.line(
                "hello", {"version": __version__, "holder": self._holder, "pid": os.getpid()}
            )
        )
        while raw := await reader.readline():
            name, content = protocol.parse(raw)
            match name:
                case "ask":
                    await self._answer(protocol.question_of(content), reader, writer)
                case "status":
                    writer.write(protocol.line("status", await self._status()))
                case _ if name in self._answers:
                    async with _saying_alive(writer):
                        answer = await self._answers[name](content)
                    writer.write(protocol.line(name, answer))
                case _:
                    pass  # a stop that came after its turn had ended
            await writer.drain()

    def _refusal(self, writer: asyncio.StreamWriter, hello: bytes) -> str:
        """Why this client is not served, or ""."""
        connection: socket.socket = writer.get_extra_info("socket")
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", peer)
        if uid != os.geteuid():
            return f"this nanobot serves user {os.geteuid()} alone, you are user {uid}"
        name, content = protocol.parse(hello or b"{}")
        if name != "hello" or not isinstance(content, dict):
            return "the first line must be a hello"
        version = content.get("version")
        if (content.get("protocol"), version) != (protocol.PROTOCOL, __version__):
            return (
                f"the running {self._holder} is nanobot {__version__}, this command is {version}: "
                "restart the gateway after an upgrade"
            )
        return ""

    async def _answer(
        self,
        question: protocol.Question,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Run one question; a ``stop`` line or a client that is gone stops its turn."""
        inbound = inbound_of(question)

        def emit(event: Event) -> None:
            # Progress may be lost: a client that does not read must not fill our memory.
            if writer.transport.get_write_buffer_size() < protocol.LINE_LIMIT:
                writer.write(protocol.event_line(event))

        asking = asyncio.ensure_future(self._ask(inbound, emit))
        try:
            async with _saying_alive(writer):
                while not asking.done():
                    listening = asyncio.ensure_future(reader.readline())
                    await asyncio.wait({asking, listening}, return_when=asyncio.FIRST_COMPLETED)
                    if not listening.done():
                        listening.cancel()
                        await asyncio.wait({listening})
                        break
                    asking.cancel()
                    await asyncio.wait({asking})
                    if listening.result() == _END:
                        return
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait({asking})
            raise
        outcome = AskResult(error=TurnStopped("stopped")) if asking.cancelled() else asking.result()
        writer.write(protocol.reply_line(reply_of(outcome)))


@asynccontextmanager
async def _saying_alive(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Send ``alive`` lines meanwhile: they tell a waiting client that the process is not frozen."""

    async def say() -> None:
        while True:
            await asyncio.sleep(ALIVE_S)
            if writer.transport.get_write_buffer_size() < protocol.LINE_LIMIT:
                writer.write(protocol.line("alive", True))

    saying = asyncio.ensure_future(say())
    try:
        yield
    finally:
        saying.cancel()
        await asyncio.wait({saying})


def inbound_of(question: protocol.Question) -> InboundMessage:
    """A question from a terminal as an inbound of the owner's that is answered there."""
    key = question.session_key
    return InboundMessage(
        "cli",
        "owner",
        key.partition(":")[2] or "direct",
        question.text,
        tuple(Media("image", path, Path(path).name) for path in question.pictures),
        id=new_id("cli"),
        role=Role.OWNER,
        answer=AnswerRule(AnswerKind.TERMINAL),
        session=key,
        model=question.model,
        attended=question.attended,
    )


def reply_of(outcome: AskResult) -> protocol.Reply:
    """An outcome as the client is told it."""
    match outcome.error:
        case None if outcome.answer == NO_ANSWER:
            return protocol.Reply(NO_ANSWER, failure="provider")
        case None:
            return protocol.Reply(outcome.answer, outcome.tools_used, outcome.model, outcome.usage)
        case TurnStopped():
            return protocol.Reply("stopped", failure="stopped")
        case ProviderError() as error:
            return protocol.Reply(str(error), failure="provider")
        case ConfigError() as error:
            return protocol.Reply(str(error), failure="config")
        case error:
            return protocol.Reply(f"the turn failed: {error!r}", failure="failed")
