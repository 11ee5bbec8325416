"""The Telegram channel: what a bot receives in private chats, its answers, its menu."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from loguru import logger

from nanobot.channels.registry import Intake
from nanobot.channels.telegram.connections import (
    CallFailed,
    Connections,
    Limits,
    Refusal,
    Time,
    TLSContext,
)
from nanobot.channels.telegram.polling import Health, Polling
from nanobot.channels.telegram.sending import Sender, TypingIndicator, payloads
from nanobot.channels.telegram.updates import CHANNEL
from nanobot.config.schema import TelegramConfig
from nanobot.core.errors import ConfigError
from nanobot.core.events import Emit, ignore
from nanobot.core.messages import InboundMessage, OutboundMessage
from nanobot.core.ports import ChannelState
from nanobot.core.text import one_line
from nanobot.safety.gate import Gate

Menu: TypeAlias = Sequence[tuple[str, str]]
"""Names (``[a-z0-9_]{1,32}``) and help lines, in order."""

MOST_COMMANDS = 100
LONGEST_HELP = 256
MENU_RETRY_S = 60.0
MENU_RETRY_MOST_S = 3600.0


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
        tls: TLSContext,
        time: Time,
        limits: Limits | None = None,
    ) -> None:
        """Raises ConfigError when there is no token.

        ``menu`` gives the commands as they are now; the channel asks after each poll.
        """
        if not config.token.get_secret_value():
            raise ConfigError(
                "channels.telegram is enabled but channels.telegram.token is empty; "
                "put the token that @BotFather shows there"
            )
        self._limits = limits = limits or Limits.of(config)
        self._menu = menu
        self._time = time
        self._health = Health(time.clock)
        self._connections = Connections(config, limits, tls)
        self._polling = Polling(self._connections, intake, gate, self._health, limits, time)
        self._sender = Sender(self._connections, limits, time)
        self._typing = TypingIndicator(self._connections, limits, time)
        self._serving: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take messages in and keep the menu up to date, until cancelled or closed."""
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
        """Show that a turn works on ``inbound``; the turn's events are not shown."""
        self._typing.begin(inbound)
        return ignore

    def ended(self, inbound: InboundMessage) -> None:
        """The turn is over."""
        self._typing.end(inbound.id)

    def state(self) -> ChannelState:
        return self._health.state

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
            tasks.create_task(self._keep_menu(), name="telegram menu")

    async def _keep_menu(self) -> None:
        """Set the commands menu, and again when it has changed."""
        published: Menu | None = None
        while True:
            await self._polling.polled.wait()
            self._polling.polled.clear()
            menu = self._menu()
            if menu != published:
                await self._publish(menu)
                published = menu

    async def _publish(self, menu: Menu) -> None:
        """Set the menu (Bot API ``setMyCommands``); retry unless the server refuses the menu."""
        commands = [
            {"command": name, "description": one_line(help_line, LONGEST_HELP) or name}
            for name, help_line in menu[:MOST_COMMANDS]
        ]
        params, limit_s = {"commands": commands}, self._limits.call_s
        wait_s = MENU_RETRY_S
        while True:
            try:
                await self._connections.call("setMyCommands", params, limit_s=limit_s)
            except CallFailed as error:
                self._health.noted("menu", f"the commands menu is not set: {error}")
                if isinstance(error, Refusal) and error.code == 400:
                    return
                after = error.after if isinstance(error, Refusal) else None
                await self._time.sleep(max(after or 0.0, wait_s))
                wait_s = min(wait_s * 2, MENU_RETRY_MOST_S)
            else:
                return
