"""Ways to the assistant: the process that holds the home, over its socket, or this process."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nanobot import __version__
from nanobot.channels import socket_protocol as protocol
from nanobot.channels.socket_protocol import Question, Reply
from nanobot.cli.context import CliContext, load, say, set_up_logs
from nanobot.core.errors import GatewayError, NanobotError
from nanobot.core.events import Event
from nanobot.store.home import Home, short_name
from nanobot.store.lock import HomeLock

if TYPE_CHECKING:
    from nanobot.app import App
    from nanobot.channels.console import RequestHandler
    from nanobot.config.load import LoadedConfig

CONNECT_S = 5.0

SILENCE_S = 30.0
"""Seconds without a line after which the holder counts as dead; it sends one more often."""

LOCK_WAIT_S = 120.0
_POLL_S = 0.05

Request: TypeAlias = Callable[..., dict[str, Any]]
"""Takes a request's fields; raises the error that the answer tells."""


class Talk(Protocol):
    """A way to ask the assistant, in this process or in the one that holds the home."""

    def ask(self, question: Question, show: Callable[[Event], None]) -> Reply:
        """Ask and wait. Ctrl-C once stops the turn; raises KeyboardInterrupt afterwards."""
        ...


class SocketTalk:
    """A connection to the gateway or REPL that holds the home."""

    is_offline = False
    """The holder itself tells its owner when the offline model answers."""

    def __init__(self, connection: socket.socket, holder: str) -> None:
        self.holder = holder
        self._connection = connection
        self._lines = connection.makefile("rb")

    @classmethod
    def connect(cls, home: Home) -> SocketTalk | None:
        """A connection, or None when nobody listens; raises GatewayError when refused."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_S)
        try:
            with short_name(home.socket) as name:
                connection.connect(name)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            connection.close()
            return None
        except PermissionError as error:
            connection.close()
            raise GatewayError(
                f"{home.root} belongs to another user; this nanobot serves that user alone"
            ) from error
        except OSError as error:
            connection.close()
            raise GatewayError(f"the socket {home.socket} cannot be used: {error}") from error
        talk = cls(connection, "")
        try:
            talk._send("hello", {"protocol": protocol.PROTOCOL, "version": __version__})
            name, content = talk._receive()
            if name != "hello":
                raise GatewayError(str(content))
        except BaseException:
            talk.close()
            raise
        talk.holder = f"{content['holder']} (pid {content['pid']})"
        connection.settimeout(SILENCE_S)
        return talk

    def ask(self, question: Question, show: Callable[[Event], None]) -> Reply:
        """Ask and wait; see ``Talk.ask``."""
        self._send("ask", asdict(question))
        try:
            return self._reply(show)
        except KeyboardInterrupt:
            self._send("stop", True)
            self._reply(lambda event: None)
            raise

    def status(self) -> dict[str, Any]:
        """The holder's status, as ``App.status`` gives it."""
        return self.request("status", True)

    def request(self, name: str, content: object) -> dict[str, Any]:
        """The holder's answer to a request of this name."""
        self._send(name, content)
        received = "alive"
        while received == "alive":
            received, answer = self._receive()
        if received != name or not isinstance(answer, dict):
            raise GatewayError(f"the {self.holder} answered {received} instead of {name}")
        return answer

    def close(self) -> None:
        """Hang up; may be called twice."""
        self._lines.close()
        self._connection.close()

    def __enter__(self) -> SocketTalk:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _reply(self, show: Callable[[Event], None]) -> Reply:
        while True:
            name, content = self._receive()
            if name == "outcome":
                return protocol.reply_of(content)
            if name == "event":
                show(protocol.event_of(content))

    def _send(self, name: str, content: object) -> None:
        try:
            self._connection.sendall(protocol.line(name, content))
        except OSError as error:
            raise GatewayError(f"the connection to {self.holder} is lost: {error}") from error

    def _receive(self) -> tuple[str, Any]:
        try:
            raw = self._lines.readline(protocol.LINE_LIMIT)
        except OSError as error:
            raise GatewayError(
                f"the process that holds the home does not answer: {error}"
            ) from error
        if not raw:
            raise GatewayError(
                "the process that holds the home has ended; an unfinished turn is closed as "
                "interrupted"
            )
        try:
            return protocol.parse(raw)
        except ValueError as error:
            raise GatewayError(f"the process that holds the home sent nonsense: {error}") from error


class LocalTalk:
    """Runs the home's app on an event loop in a thread of its own, under the home's lock.

    The main thread is left to the terminal, so that Ctrl-C reaches it at once.
    """

    def __init__(
        self, cli: CliContext, loaded: LoadedConfig, lock: HomeLock, *, serves_socket: bool
    ) -> None:
        from concurrent.futures import Future

        self._cli = cli
        self._loaded = loaded
        self._lock = lock
        self._serves_socket = serves_socket
        self._started: Future[App] = Future()
        self._thread = threading.Thread(target=self._run, name="app")

    def __enter__(self) -> LocalTalk:
        self._thread.start()
        try:
            self.app = self._started.result()
            say(self.app.notice)
        except BaseException:
            self._thread.join()
            self._lock.release()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join()
        self._lock.release()

    @property
    def is_offline(self) -> bool:
        """Whether the offline model answers here."""
        return self.app.models.is_offline

    def ask(self, question: Question, show: Callable[[Event], None]) -> Reply:
        """Ask and wait; see ``Talk.ask``."""
        import asyncio

        from nanobot.channels.console import inbound_of, reply_of

        asking = asyncio.run_coroutine_threadsafe(
            self.app.dispatcher.ask(inbound_of(question), show), self._loop
        )
        try:
            return reply_of(asking.result())
        except KeyboardInterrupt:
            asking.cancel()
            raise

    def _run(self) -> None:
        from nanobot import runtime

        try:
            runtime.run(self._main())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _main(self) -> None:
        import asyncio

        from nanobot.app import open_app
        from nanobot.channels.console import ConsoleServer

        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        async with open_app(
            self._loaded,
            self._cli.home,
            self._cli.environ,
            offline_allowed=True,
            lasting=self._serves_socket,
        ) as app:
            await app.dispatcher.recover(terminals_only=True)
            server = ConsoleServer(
                self._cli.home,
                holder="REPL",
                ask=app.dispatcher.ask,
                status=app.status,
                answers=app.answers(),
            )
            if self._serves_socket:
                await server.start()
                await app.consolidator.start()
            self._started.set_result(app)
            await self._leave.wait()
            await server.close()


def open_talk(cli: CliContext, purpose: str, *, logs: bool) -> LocalTalk | SocketTalk:
    """A way to the assistant: the process that holds the home, else this one; enter it to use it.

    Waits for a one-shot that holds the home; raises GatewayError when that takes too long.
    """
    if (talk := SocketTalk.connect(cli.home)) is not None:
        return talk
    loaded = load(cli)
    set_up_logs(loaded, logs=logs)
    lock = HomeLock(cli.home, purpose)
    deadline = time.monotonic() + LOCK_WAIT_S
    told = False
    while not lock.acquire():
        if (talk := SocketTalk.connect(cli.home)) is not None:
            return talk
        if time.monotonic() > deadline:
            raise GatewayError(
                f"{cli.home.root} is in use by {lock.holder()}; wait for it or stop it"
            )
        if not told and sys.stderr.isatty():
            print(f"nanobot: waiting for {lock.holder()} …", file=sys.stderr)
        told = True
        time.sleep(_POLL_S)
    return LocalTalk(cli, loaded, lock, serves_socket=purpose == "REPL")


@contextmanager
def open_requests(
    cli: CliContext,
    name: str,
    opened: Callable[[CliContext], AbstractAsyncContextManager[RequestHandler]],
    *,
    purpose: str,
    error: type[NanobotError] = NanobotError,
) -> Iterator[Request]:
    """Send requests of this name to the holder of the home; without one, answer them here.

    ``opened`` gives the handler for the latter case, in which this process holds the lock. An
    answer with the key ``error`` is raised as ``error``.
    """

    def checked(answer: dict[str, Any]) -> dict[str, Any]:
        if (text := answer.get("error")) is not None:
            raise error(str(text))
        return answer

    if (talk := SocketTalk.connect(cli.home)) is not None:
        with talk:
            yield lambda **fields: checked(talk.request(name, fields))
        return

    from nanobot import runtime

    async def answer(fields: dict[str, Any]) -> dict[str, Any]:
        return {**await handler(fields)}

    with HomeLock(cli.home, purpose) as lock:
        lock.take()
        stack = AsyncExitStack()
        with runtime.runner() as runner:
            handler = runner.run(stack.enter_async_context(opened(cli)))
            try:
                yield lambda **fields: checked(runner.run(answer(fields)))
            finally:
                runner.run(stack.aclose())


@asynccontextmanager
async def own_app(cli: CliContext, name: str, *, lasting: bool) -> AsyncIterator[RequestHandler]:
    """The handler of requests of this name in an app of this process."""
    from nanobot.app import open_app

    loaded = load(cli)
    set_up_logs(loaded, logs=False)
    async with open_app(
        loaded, cli.home, cli.environ, offline_allowed=True, lasting=lasting
    ) as app:
        say(app.notice)
        yield app.answers()[name]
