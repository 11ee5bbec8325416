"""The lock on a home: whoever holds it is the one writer of its sessions."""

from __future__ import annotations

import fcntl
import os
from types import TracebackType

from nanobot.core.errors import GatewayError
from nanobot.store.home import Home


class HomeLock:
    """An advisory lock (flock) that the kernel releases when the process dies.

    The file names the holder: its pid and what it is (``gateway``, ``repl``, ``one-shot``).
    """

    def __init__(self, home: Home, purpose: str) -> None:
        self._home = home
        self._purpose = purpose
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free; False when another process holds it. Never waits."""
        self._home.private(self._home.root)
        self._home.private(self._home.run)
        descriptor = os.open(self._home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {self._purpose}\n".encode(), 0)
        self._descriptor = descriptor
        return True

    def take(self) -> None:
        """Take the lock; raises GatewayError, which names the holder, when it is not free."""
        if not self.acquire():
            raise GatewayError(
                f"{self._home.root} is in use by {self.holder()}; try again after it"
            )

    def release(self) -> None:
        """Let go; twice is once."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> str:
        """Who holds the lock, as ``gateway (pid 123)``; a guess when that cannot be read."""
        try:
            pid, _, purpose = self._home.lock.read_text().strip().partition(" ")
        except OSError:
            return "another process"
        return f"{purpose or 'a process'} (pid {pid})"

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
