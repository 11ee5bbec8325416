"""The Telegram channel: what a bot receives in private chats, its answers, its menu."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from loguru import logger

from nanobot.channels.registry import Intake
from nanobot.channels.telegram.connections import (
    CallFailed,
    Connections,
    Limits,
    Refusal,
    TLSContext,
)
from nanobot.channels.telegram.polling import Health, Polling, Strangers
from nanobot.channels.telegram.sending import Pacer, Sender, Sleep, TypingIndicator, payloads
from nanobot.channels.telegram.updates import CHANNEL, Reader
from nanobot.config.schema import TelegramConfig
from nanobot.core.errors import ConfigError
from nanobot.core.events import Emit, ignore
from nanobot.core.messages import InboundMessage, OutboundMessage
from nanobot.core.ports import ChannelState, Clock
from nanobot.core.text import one_line
from nanobot.safety.gate import Gate

Menu: TypeAlias = Sequence[tuple[str, str]]
"""Names (``[a-z0-9_]{1,32}``) and help lines, in order."""

MOST_COMMANDS = 100
LONGEST_HELP = 256
RETRY_S = 60.0
RETRY_MOST_S = 3600.0


async def publish(
    menu: Menu,
    connections: Connections,
    limits: Limits,
    *,
    failed: Callable[[str], None],
    sleep: Sleep,
) -> None:
    """Set the menu (Bot API ``setMyCommands``), trying again until the server has taken it.

    ``failed`` hears of each failure. A server that refuses the menu as it stands is not asked
    again: only another menu could help.
    """
    commands = [
        {"command": name, "description": one_line(help_line, LONGEST_HELP) or name}
        for name, help_line in menu[:MOST_COMMANDS]
    ]
    wait_s = RETRY_S
    while True:
        try:
            await connections.call("setMyCommands", {"commands": commands}, limit_s=limits.call_s)
        except CallFailed as error:
            failed(f"the commands menu is not set: {error}")
            if isinstance(error, Refusal) and error.code == 400:
                return
            after = error.after if isinstance(error, Refusal) else None
            await sleep(max(after or 0.0, wait_s))
            wait_s = min(wait_s * 2, RETRY_MOST_S)
        else:
            return


class TelegramChannel:
    """The port ``Channel`` for one bot.

    The Telegram library is imported, in a thread, when the channel first talks to the server.
    """

    name = CHANNEL

    def __init__(
        self,
        config: TelegramConfig,
        *,
        gate: Gate,
        intake: Intake,
        menu: Callable[[], Menu],
        clock: Clock,
        tls: TLSContext,
        limits: Limits | None = None,
        sleep: Sleep = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Raises ConfigError when there is no token.

        ``menu`` gives the commands as they are now; it is asked after each poll.
        """
        if not config.token.get_secret_value():
            raise ConfigError(
                "channels.telegram is enabled but channels.telegram.token is empty; "
                "put the token that @BotFather shows there"
            )
        self._limits = limits = limits or Limits.of(config)
        self._menu = menu
        self._polled = asyncio.Event()
        self._sleep = sleep
        self._health = Health(clock)
        self._connections = Connections(config, limits, tls)
        strangers = Strangers(clock)
        self._polling = Polling(
            self._connections,
            intake,
            lambda me: Reader(me, gate, strangers.turned_away),
            self._health,
            limits,
            polled=self._polled.set,
            sleep=sleep,
            jitter=jitter,
        )
        pacer = Pacer(
            burst=limits.chat_burst,
            every_s=limits.chat_every_s,
            monotonic=monotonic,
            sleep=sleep,
        )
        self._sender = Sender(self._connections, limits, pacer)
        self._typing = TypingIndicator(self._connections, limits, monotonic=monotonic, sleep=sleep)
        self._serving: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take messages in until cancelled or closed; keep the menu up to date beside it."""
        self._serving = asyncio.create_task(self._serve(), name="telegram intake")
        try:
            await asyncio.wait({self._serving})
        finally:
            self._serving.cancel()
            await asyncio.wait({self._serving})
            self._health.reported.set()
        if not self._serving.cancelled():
            self._serving.result()

    async def wait_ready(self) -> None:
        """Return when the bot has been reached, or the first failure to do so is reported."""
        await self._health.reported.wait()

    def pieces(self, outbound: OutboundMessage) -> Sequence[str]:
        """The outbound as messages within Telegram's limits; CPU work, safe in any thread."""
        return payloads(outbound)

    async def send(self, outbound: OutboundMessage, piece: str, *, again: bool) -> str:
        """Send one message; returns its id within the chat."""
        self._typing.hold(outbound.chat_id)
        return await self._sender.send(outbound, piece, again=again)

    def began(self, inbound: InboundMessage) -> Emit:
        """Show that a turn works on ``inbound``; its events are not shown."""
        self._typing.begin(inbound.id, inbound.chat_id, inbound.thread_id)
        return ignore

    def ended(self, inbound: InboundMessage) -> None:
        """The turn is over."""
        self._typing.end(inbound.id)

    def state(self) -> ChannelState:
        return self._health.state()

    async def aclose(self) -> None:
        """Stop receiving and showing, close all connections; within ``Limits.close_s``."""
        try:
            async with asyncio.timeout(self._limits.close_s):
                if self._serving is not None:
                    self._serving.cancel()
                    await asyncio.wait({self._serving})
                await self._typing.aclose()
                await self._connections.aclose()
        except TimeoutError:
            logger.warning("telegram: its connections did not close in time")

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._polling.run(), name="telegram polling")
            tasks.create_task(self._publish_menu(), name="telegram menu")

    async def _publish_menu(self) -> None:
        """Set the menu, and again when it has changed; looked at after each poll."""
        await self._health.was_up.wait()
        published: Menu | None = None
        while True:
            self._polled.clear()
            menu = self._menu()
            if menu != published:
                await publish(
                    menu,
                    self._connections,
                    self._limits,
                    failed=lambda text: self._health.noted("menu", text),
                    sleep=self._sleep,
                )
                published = menu
            await self._polled.wait()
