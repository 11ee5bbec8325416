"""Tests of what a supervisor is told, and of one that does not listen."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobot.cli.gateway_run import Notifier


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify.sock"))
        listening.setblocking(False)
        yield listening


def heard(supervisor: socket.socket) -> list[str]:
    states = []
    with contextlib.suppress(BlockingIOError):
        while True:
            states.append(supervisor.recv(4096).decode())
    return states


def test_a_state_is_sent(supervisor: socket.socket) -> None:
    Notifier({"NOTIFY_SOCKET": supervisor.getsockname()}).tell("READY=1")

    assert heard(supervisor) == ["READY=1"]


def test_a_supervisor_that_does_not_read_is_not_waited_for(supervisor: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": supervisor.getsockname()})

    for _ in range(2000):  # more than a queue takes (net.unix.max_dgram_qlen)
        notifier.tell("WATCHDOG=1")

    assert 0 < len(heard(supervisor)) < 2000


def test_a_supervisor_that_has_gone_ends_nothing(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody.sock")}).tell("READY=1")
    Notifier({}).tell("READY=1")


async def test_the_watchdog_is_fed_twice_in_its_interval(supervisor: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "20000"})
    feeding = asyncio.create_task(notifier.feed_watchdog())

    async with asyncio.timeout(10):
        signs: list[str] = []
        while len(signs) < 3:
            await asyncio.sleep(0.01)
            signs += heard(supervisor)
    feeding.cancel()

    assert signs[:3] == ["WATCHDOG=1"] * 3
