"""The assistant inside the command's own process, for when no gateway holds the home."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType

from nanobot import runtime
from nanobot.app import App, open_app
from nanobot.channels.console import ConsoleServer, inbound_of, reply_of
from nanobot.channels.socket_protocol import Question, Reply
from nanobot.cli.context import CliContext
from nanobot.cli.setup import say
from nanobot.cli.talk import SocketTalk
from nanobot.config.load import LoadedConfig
from nanobot.core.errors import GatewayError
from nanobot.core.events import Event
from nanobot.store.lock import HomeLock

LOCK_WAIT_S = 120.0
_POLL_S = 0.05


class LocalTalk:
    """Holds the home's lock and runs its app on an event loop in a thread of its own.

    The main thread is left to the terminal, so that Ctrl-C reaches it at once.
    """

    def __init__(
        self, cli: CliContext, loaded: LoadedConfig, lock: HomeLock, *, serves_socket: bool
    ) -> None:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join()
        self._lock.release()

    def ask(self, question: Question, show: Callable[[Event], None]) -> Reply:
        """Ask and wait; see ``Talk.ask``."""
        asking = asyncio.run_coroutine_threadsafe(
            self.app.dispatcher.ask(inbound_of(question), show), self._loop
        )
        try:
            return reply_of(asking.result())
        except KeyboardInterrupt:
            asking.cancel()
            raise

    def _run(self) -> None:
        try:
            runtime.run(self._main())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _main(self) -> None:
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


def take_over(cli: CliContext, loaded: LoadedConfig, purpose: str) -> LocalTalk | SocketTalk:
    """The home for this process; or the one who has taken it meanwhile and serves its socket.

    Waits for another one-shot; raises GatewayError when that takes too long.
    """
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
