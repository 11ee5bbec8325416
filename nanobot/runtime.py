"""The event loop: name look-ups in threads of their own, and a watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from loguru import logger

from nanobot import gc_tuning

_T = TypeVar("_T")

EXIT_STALLED = 70
"""Exit code of a process whose event loop was blocked, for a supervisor."""
_LOOK_S = 5.0
_MOST_MISSED = 6


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's selector loop with its own name look-ups and a watchdog.

    A look-up cannot be cancelled. In asyncio's shared pool a few hanging look-ups would delay all
    other work in threads and the end of the process. Here each look-up has a daemon thread.

    Code that blocks the loop's thread stops every time limit and signal handler. A watchdog thread
    then ends the process; accepted messages are kept for the next start.
    """

    def run_forever(self) -> None:
        """As ``loop.run_forever``, watched by a thread."""
        over = threading.Event()
        watched = (over, threading.get_ident())
        threading.Thread(target=self._watch, args=watched, name="watchdog", daemon=True).start()
        try:
            super().run_forever()
        finally:
            over.set()

    def _watch(self, over: threading.Event, ident: int) -> None:
        """End the process when the loop has not run for several checks in a row.

        Checks are counted, not seconds, since a suspended process or machine makes none.
        """
        turned = threading.Event()
        turned.set()
        missed = 0
        while not over.wait(_LOOK_S):
            if turned.is_set():
                turned.clear()
                missed = 0
                with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                    self.call_soon_threadsafe(turned.set)
            elif (missed := missed + 1) >= _MOST_MISSED:
                # The loop's thread may hold a lock that this waits for.
                report = threading.Thread(target=_report, args=(ident,), daemon=True)
                report.start()
                report.join(_LOOK_S)
                os._exit(EXIT_STALLED)

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
    """``asyncio.Runner`` of this loop; objects imported so far are exempt from GC."""
    gc_tuning.started()
    return asyncio.Runner(loop_factory=EventLoop)


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """``asyncio.run`` on this loop."""
    with runner() as running:
        return running.run(main)


def _report(ident: int) -> None:
    """Print why the process ends, and log where the loop's thread is."""
    text = f"the event loop has stood still for {_LOOK_S * _MOST_MISSED:g} s: the process ends"
    print(f"nanobot: {text}", file=sys.stderr, flush=True)
    stack = traceback.format_stack(sys._current_frames()[ident])
    logger.critical("{}; it is at\n{}", text, "".join(stack))
