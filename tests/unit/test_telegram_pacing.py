"""The spacing of one chat's messages."""

from __future__ import annotations

from nanobot.channels.telegram import sending
from nanobot.channels.telegram.sending import Pacer


class Time:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def pacer(time: Time) -> Pacer:
    return Pacer(burst=3, every_s=1.0, monotonic=lambda: time.now, sleep=time.sleep)


async def test_after_a_burst_a_chat_gets_one_message_a_second() -> None:
    time = Time()
    paced = pacer(time)

    for _ in range(5):
        await paced.wait("7")

    assert time.slept == [1.0, 1.0]


async def test_chats_do_not_delay_each_other() -> None:
    time = Time()
    paced = pacer(time)

    for number in range(100):
        await paced.wait(str(number))

    assert time.slept == []


async def test_a_rest_allows_the_next_burst() -> None:
    time = Time()
    paced = pacer(time)
    for _ in range(3):
        await paced.wait("7")
    time.now += 3.0

    for _ in range(3):
        await paced.wait("7")

    assert time.slept == []


async def test_chats_at_rest_are_forgotten_and_busy_ones_are_not() -> None:
    time = Time()
    paced = pacer(time)
    for number in range(sending.REMEMBERED):
        await paced.wait(f"old {number}")
    time.now += 10.0
    for _ in range(4):
        await paced.wait("busy")
    before = list(time.slept)

    await paced.wait("busy")

    assert (before, time.slept) == ([1.0], [1.0, 1.0])
