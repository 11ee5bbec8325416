"""The event loop of everything that runs turns: a name server that hangs holds up nobody."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from nanobot import garbage

_T = TypeVar("_T")


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's own, but for looking names up.

    A look-up cannot be cancelled. In asyncio's shared pool a few that hang keep every other
    thread work waiting, whichever chat it is for, and the process from ending. Here each has a
    thread of its own, which neither the pool nor the end of the process waits for.
    """

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio's name
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """As ``loop.getaddrinfo``."""
        found: asyncio.Future[list[Any]] = self.create_future()

        def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
            if not found.done():
                set_outcome(outcome)

        def look_up() -> None:
            try:
                outcome: Any = socket.getaddrinfo(host, port, family, type, proto, flags)
                set_outcome: Callable[[Any], None] = found.set_result
            except Exception as error:  # whatever it is, it belongs to whoever asked
                outcome, set_outcome = error, found.set_exception
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self.call_soon_threadsafe(settle, set_outcome, outcome)

        threading.Thread(target=look_up, name="look-up", daemon=True).start()
        return await found


def runner() -> asyncio.Runner:
    """``asyncio.Runner`` of this loop; what was imported by now is not looked at for garbage."""
    garbage.started()
    return asyncio.Runner(loop_factory=EventLoop)


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """``asyncio.run`` on this loop."""
    with runner() as running:
        return running.run(main)
