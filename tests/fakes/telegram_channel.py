"""A real Telegram channel against the fake Bot API, with an inbox in memory and time in hand."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from loguru import logger
from pydantic import SecretStr

from nanobot.bus.inbox import Poison
from nanobot.channels.telegram.channel import TelegramChannel
from nanobot.channels.telegram.connections import Limits, Time
from nanobot.config.schema import TelegramConfig
from nanobot.core.messages import InboundMessage
from nanobot.core.ports import Channel
from nanobot.safety.gate import Gate
from tests.fakes.bot_api import BotApi

OWNER = 1001
MENU = (("new", "Start over"), ("help", "What you can say"))
WAIT_S = 10.0

ChannelT = TypeVar("ChannelT", bound=Channel)


class FakeInbox:
    """Takes messages in as the bus does: each id once, all of a batch or nothing."""

    def __init__(self) -> None:
        self.batches: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        """The ids of the messages and of the poison of each call, also of calls that failed."""
        self.messages: dict[str, InboundMessage] = {}
        self.poison: dict[str, Poison] = {}
        self.failures: list[Exception] = []
        """Raised by the next calls, one each."""
        self.entered = asyncio.Event()
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self._changed = asyncio.Condition()

    @property
    def contents(self) -> list[str]:
        return [message.content for message in self.messages.values()]

    async def post_all(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]:
        before = set(self.messages)
        await self.post_now(messages, poison)
        return tuple(one for one in messages if one.id not in before)

    async def post_now(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]:
        self.batches.append((tuple(one.id for one in messages), tuple(one.id for one in poison)))
        self.entered.set()
        await self.may_commit.wait()
        if self.failures:
            raise self.failures.pop(0)
        new = tuple(one for one in messages if one.id not in self.messages)
        self.messages |= {one.id: one for one in new}
        self.poison |= {one.id: one for one in poison}
        async with self._changed:
            self._changed.notify_all()
        return ()

    async def holds(self, count: int) -> list[InboundMessage]:
        """The messages, once there are ``count``; raises TimeoutError."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= count)
        return list(self.messages.values())


class Hurry:
    """Time that passes by sleeping alone, at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def clock(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Stepped(Hurry):
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._changed = asyncio.Condition()

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = (self.now + seconds, future)
        self._sleepers.append(sleeper)
        self.slept.append(seconds)
        try:
            async with self._changed:
                self._changed.notify_all()
            await future
        finally:
            self._sleepers.remove(sleeper)

    async def sleeps(self, count: int) -> None:
        """Return when ``count`` sleeps have begun; raises TimeoutError."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.slept) >= count)

    def pass_by(self, seconds: float) -> None:
        """Let time pass, waking whoever's time has come."""
        self.now += seconds
        for due, future in self._sleepers:
            if due <= self.now and not future.done():
                future.set_result(None)


def build(
    api: BotApi,
    inbox: FakeInbox,
    *,
    time: Hurry | None = None,
    limits: Limits | None = None,
    allow: Sequence[str] = (str(OWNER),),
    token: str | None = None,
    menu: Sequence[tuple[str, str]] = MENU,
) -> TelegramChannel:
    """A channel that is not running; without ``time`` it goes by the real one."""
    config = TelegramConfig(
        enabled=True, token=SecretStr(api.token if token is None else token), api_base=api.root
    )
    kept = time or Hurry()
    return TelegramChannel(
        config,
        gate=Gate(allow),
        intake=inbox,
        menu=lambda: menu,
        tls=no_tls,
        time=Time(
            kept.clock,
            sleep=asyncio.sleep if time is None else kept.sleep,
            monotonic=asyncio.get_running_loop().time if time is None else kept.monotonic,
            jitter=lambda: 1.0,
        ),
        limits=limits,
    )


async def eventually(predicate: Callable[[], object]) -> None:
    """Return once ``predicate`` is true; raises TimeoutError."""
    async with asyncio.timeout(WAIT_S):
        while not predicate():  # noqa: ASYNC110 - a channel's state tells nobody that it changed
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(channel: ChannelT) -> AsyncIterator[ChannelT]:
    """``channel`` while it runs; closed at the end, its run without a fault."""
    run = asyncio.create_task(channel.run())
    try:
        yield channel
    finally:
        await channel.aclose()
        async with asyncio.timeout(WAIT_S):
            await run


@contextmanager
def log_lines(level: str = "DEBUG") -> Iterator[list[str]]:
    """The lines that are logged meanwhile, as ``LEVEL message``."""
    lines: list[str] = []
    sink = logger.add(
        lambda line: lines.append(str(line).rstrip()), format="{level} {message}", level=level
    )
    try:
        yield lines
    finally:
        logger.remove(sink)


async def no_tls() -> ssl.SSLContext:
    raise AssertionError("the fake is spoken to in the clear")
