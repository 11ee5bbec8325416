"""Tells a supervisor how the gateway does, by systemd's notification protocol (sd_notify(3))."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

from loguru import logger


class Notifier:
    """Sends states to ``NOTIFY_SOCKET``; without one everything here does nothing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._interval_us = int(environ.get("WATCHDOG_USEC") or 0)

    def tell(self, state: str) -> None:
        """Send one state, such as ``READY=1``.

        A supervisor that does not read, or has gone, neither holds the event loop up nor ends us.
        """
        if not self._address:
            return
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            try:
                connection.sendto(state.encode(), address)
            except OSError as error:
                logger.warning("the supervisor could not be told {}: {}", state, error)

    async def feed_watchdog(self) -> None:
        """Say that the event loop is alive, twice in each interval the supervisor allows."""
        while self._interval_us:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self._interval_us / 2_000_000)
