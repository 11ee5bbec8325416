"""What the log and ``status`` are told of the channel's faults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nanobot.channels.telegram.polling import Health
from nanobot.core.ports import ChannelState
from tests.fakes.telegram_channel import log_lines

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def test_a_fault_is_logged_once_and_again_when_it_comes_back_later() -> None:
    clock = Clock()
    health = Health(clock)
    with log_lines("INFO") as lines:
        health.up("@bot")
        for _ in range(3):
            health.down("network", "no network")
            clock.now += timedelta(hours=1)
        health.up("@bot")
        health.up("@bot")
        health.down("network", "no network at all")

    assert lines == [
        "INFO telegram is connected: @bot",
        "WARNING telegram: no network",
        "INFO telegram works again: @bot",
        "WARNING telegram: no network at all",
    ]


def test_a_fault_that_comes_and_goes_does_not_fill_the_log() -> None:
    clock = Clock()
    health = Health(clock)
    with log_lines("INFO") as lines:
        health.up("@bot")
        for _ in range(9):
            health.down("network", "no network")
            health.up("@bot")
            clock.now += timedelta(minutes=1)

    assert lines == [
        "INFO telegram is connected: @bot",
        "WARNING telegram: no network",
        "INFO telegram works again: @bot",
    ]


def test_another_fault_within_an_outage_is_logged() -> None:
    health = Health(Clock())
    with log_lines("INFO") as lines:
        health.down("network", "no network")
        health.down("token", "the token is refused")
        health.down("network", "no network")

    assert lines == ["WARNING telegram: no network", "WARNING telegram: the token is refused"]


def test_the_last_error_is_kept_with_its_time() -> None:
    clock = Clock()
    health = Health(clock)

    states = [health.state]
    health.down("network", "no network")
    states.append(health.state)
    clock.now += timedelta(hours=1)
    health.up("@bot")
    states.append(health.state)
    health.noted("menu", "no menu")
    states.append(health.state)

    assert states == [
        ChannelState(False, "not connected yet"),
        ChannelState(False, "no network", "no network", START),
        ChannelState(True, "@bot", "no network", START),
        ChannelState(True, "@bot", "no menu", START + timedelta(hours=1)),
    ]
