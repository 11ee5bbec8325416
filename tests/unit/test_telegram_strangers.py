"""What the log says about strangers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from loguru import logger

from nanobot.channels.telegram import polling
from nanobot.channels.telegram.polling import Strangers


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The log's lines with their levels."""
    found: list[str] = []
    sink = logger.add(lambda line: found.append(str(line).rstrip()), format="{level} {message}")
    yield found
    logger.remove(sink)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def test_a_stranger_is_named_once_an_hour_with_the_messages_in_between(lines: list[str]) -> None:
    clock = Clock()
    turned = Strangers(clock)
    for _ in range(4):
        turned.turned_away("555", "eve")
        clock.now += timedelta(minutes=19)
    turned.turned_away("555", "eve")

    hint = "to let them in, add the id to channels.telegram.allowFrom"
    assert lines == [
        f"INFO telegram: ignored a stranger, id 555 @eve (1 message); {hint}",
        f"INFO telegram: ignored a stranger, id 555 @eve (4 messages); {hint}",
    ]


def test_each_stranger_has_a_line(lines: list[str]) -> None:
    turned = Strangers(Clock())
    turned.turned_away("1", "")
    turned.turned_away("2", "x\ny")

    assert [line.split(";")[0] for line in lines] == [
        "INFO telegram: ignored a stranger, id 1 (1 message)",
        "INFO telegram: ignored a stranger, id 2 @x y (1 message)",
    ]


def test_a_crowd_of_strangers_is_not_remembered_for_ever(lines: list[str]) -> None:
    turned = Strangers(Clock())
    for number in range(polling.REMEMBERED + 1):
        turned.turned_away(str(number), "")
    lines.clear()
    turned.turned_away(str(polling.REMEMBERED), "")
    turned.turned_away("0", "")

    assert len(lines) == 1 and "id 0 " in lines[0]
