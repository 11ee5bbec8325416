"""The Telegram channel: what a bot receives in private chats, and its answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from loguru import logger

from nanobot.channels.registry import Intake
from nanobot.channels.telegram.connections import Connections, TLSContext
from nanobot.channels.telegram.health import Health
from nanobot.channels.telegram.indicator import TypingIndicator
from nanobot.channels.telegram.limits import Limits
from nanobot.channels.telegram.menu import Menu, publish
from nanobot.channels.telegram.pacing import Pacer, Sleep
from nanobot.channels.telegram.payload import payloads
from nanobot.channels.telegram.polling import Polling
from nanobot.channels.telegram.sending import Sender
from nanobot.channels.telegram.strangers import Strangers
from nanobot.channels.telegram.updates import CHANNEL, Reader
from nanobot.config.schema import TelegramConfig
from nanobot.core.errors import ConfigError
from nanobot.core.events import Emit, ignore
from nanobot.core.messages import InboundMessage, OutboundMessage
from nanobot.core.ports import ChannelState, Clock
from nanobot.safety.gate import Gate


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
