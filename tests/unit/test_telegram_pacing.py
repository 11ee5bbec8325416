"""The spacing of one chat's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from nanobot.channels.telegram import sending
from nanobot.channels.telegram.connections import Connections, Limits, Time
from nanobot.channels.telegram.sending import Sender, payloads
from nanobot.config.schema import TelegramConfig
from nanobot.core.messages import OutboundMessage
from tests.fakes.telegram_channel import Hurry, no_tls

LIMITS = Limits(chat_burst=3, chat_every_s=1.0)


class Accepting(Connections):
    """Accepts every call at once, without a server."""

    async def call(self, method: str, params: Mapping[str, Any], *, limit_s: float) -> Any:
        return {"message_id": 1}


class Chats:
    """A sender with time that passes only by sleeping."""

    def __init__(self, time: Hurry) -> None:
        config = TelegramConfig(token=SecretStr("1:fake"))
        self._sender = Sender(
            Accepting(config, LIMITS, no_tls),
            LIMITS,
            Time(time.clock, time.sleep, time.monotonic),
        )

    async def send(self, chat_id: str) -> None:
        outbound = OutboundMessage("telegram", chat_id, "hi")
        (piece,) = payloads(outbound)
        await self._sender.send(outbound, piece, again=False)


async def test_after_a_burst_a_chat_gets_one_message_a_second() -> None:
    chats = Chats(time := Hurry())

    for _ in range(5):
        await chats.send("7")

    assert time.slept == [1.0, 1.0]


async def test_chats_do_not_delay_each_other() -> None:
    chats = Chats(time := Hurry())

    for number in range(100):
        await chats.send(str(number))

    assert time.slept == []


async def test_a_rest_allows_the_next_burst() -> None:
    chats = Chats(time := Hurry())
    for _ in range(3):
        await chats.send("7")
    time.now += 3.0

    for _ in range(3):
        await chats.send("7")

    assert time.slept == []


async def test_chats_at_rest_are_forgotten_and_busy_ones_are_not() -> None:
    chats = Chats(time := Hurry())
    for number in range(sending.REMEMBERED):
        await chats.send(f"old {number}")
    time.now += 10.0
    for _ in range(4):
        await chats.send("busy")
    before = list(time.slept)

    await chats.send("busy")

    assert (before, time.slept) == ([1.0], [1.0, 1.0])
