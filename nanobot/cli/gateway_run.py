"""Run the gateway process: lock, logs, signals, notifications to systemd."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Mapping

from loguru import logger

from nanobot import __version__, runtime
from nanobot.app import open_app
from nanobot.cli.context import CliContext
from nanobot.cli.setup import load
from nanobot.config.compat import config_warnings
from nanobot.config.load import LoadedConfig
from nanobot.config.show import all_secrets
from nanobot.core.errors import ConfigError, GatewayError
from nanobot.gateway import serve
from nanobot.logs import log_to_file, log_to_stderr
from nanobot.store.lock import HomeLock


class Notifier:
    """Sends states to systemd's ``NOTIFY_SOCKET``; does nothing without one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._interval_us = int(environ.get("WATCHDOG_USEC") or 0)

    def tell(self, state: str) -> None:
        """Send one state, such as ``READY=1``.

        A supervisor that does not read or is gone neither blocks the event loop nor ends us.
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
        """Report that the event loop is alive, twice in each interval the supervisor allows."""
        while self._interval_us:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self._interval_us / 2_000_000)


_POLL_S = 0.1


def run(cli: CliContext, *, verbose: bool) -> None:
    """Serve until SIGTERM or Ctrl-C; raises GatewayError when another gateway has the home."""
    loaded = load(cli, again=True)
    if loaded.gateway_problems:
        raise ConfigError("\n".join(loaded.gateway_problems))
    log_to_stderr(all_secrets(loaded.config), verbose=verbose)
    with HomeLock(cli.home, "gateway") as lock:
        _acquire(lock, cli)
        log_to_file(cli.home, all_secrets(loaded.config), verbose=verbose)
        for hint in config_warnings(loaded.config):
            logger.warning("{}", hint)
        runtime.run(_serve(cli, loaded))


def _acquire(lock: HomeLock, cli: CliContext) -> None:
    """Take the home's lock; wait for a one-shot or REPL, fail if a gateway has it."""
    told = False
    while not lock.acquire():
        holder = lock.holder()
        if holder.startswith("gateway"):
            raise GatewayError(f"{cli.home.root} is served already, by the {holder}")
        if not told:
            print(f"nanobot: waiting for the {holder} to leave {cli.home.root}", file=sys.stderr)
        told = True
        time.sleep(_POLL_S)


async def _serve(cli: CliContext, loaded: LoadedConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    notifier = Notifier(cli.environ)
    watchdog = asyncio.create_task(notifier.feed_watchdog())

    def ready() -> None:
        notifier.tell("READY=1")
        logger.info("gateway ready, nanobot {}", __version__)

    try:
        async with open_app(loaded, cli.home, cli.environ, offline_allowed=False) as app:
            if app.notice:
                logger.info("{}", app.notice)
            if app.database.quarantined is not None:
                logger.error(
                    "the state database was damaged; it is kept as {}", app.database.quarantined
                )
            await serve(app, stop=stop, ready=ready)
    finally:
        notifier.tell("STOPPING=1")
        watchdog.cancel()
        await asyncio.wait({watchdog})
    logger.info("gateway stopped")
