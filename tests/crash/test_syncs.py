"""SIGKILL does not show a missing sync, so strace does: what stands on the disk before what."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.jobs import Kind
from tests.crash.points import wait_until
from tests.crash.world import CHATS, World, open_world

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
_SYNC = re.compile(r"(\d+) +f(?:data)?sync\(\d+<(?P<file>[^>]*)>(?P<rest>.*)")
_RESUMED = re.compile(r"(\d+) +<\.\.\. f(?:data)?sync resumed>.* = 0")


class Trace:
    """The system calls of a gateway, in the order in which they ended or were begun."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.syncs = list(_journal_syncs(lines))

    def of(self, text: str, *, after: int = 0) -> int:
        """Where ``text`` is first written, or run, after a place.

        A request is told by its ``HTTP/``: compiled modules with its path are written, too.
        """
        return next(
            number
            for number, line in enumerate(self._lines)
            if number > after and text in line and "resumed>" not in line
        )

    def polls_round(self, update: int) -> tuple[int, int]:
        """Where the poll that brought an update was sent, and the one that acknowledges it."""
        offset = self.of(f"offset={update + 1}")
        polls = [
            number
            for number, line in enumerate(self._lines[: offset + 1])
            if "/getUpdates HTTP/" in line and "resumed>" not in line
        ]
        return polls[-2], polls[-1]

    def synced(self, after: int, before: int) -> int:
        """How many syncs end between two places."""
        return sum(after < number < before for number in self.syncs)


def _journal_syncs(lines: list[str]) -> Iterator[int]:
    """Where a sync of the database's journal ends; those of other files prove nothing."""
    begun: set[str] = set()
    for number, line in enumerate(lines):
        if (sync := _SYNC.match(line)) and sync["file"].endswith("/state.db-wal"):
            if sync["rest"].endswith(" = 0"):
                yield number
            elif "unfinished" in sync["rest"]:
                begun.add(sync[1])
        elif (resumed := _RESUMED.match(line)) and resumed[1] in begun:
            begun.discard(resumed[1])
            yield number


def test_only_finished_syncs_of_the_journal_count() -> None:
    lines = [
        "7 fdatasync(9</h/state.db-wal>) = 0",
        "7 fsync(4</h/cron/jobs.json>) = 0",
        "7 fdatasync(9</h/state.db-wal>) = -1 EIO (Input/output error)",
        "7 fdatasync(9</h/state.db-wal> <unfinished ...>",
        "8 fsync(4</h/cron/jobs.json> <unfinished ...>",
        "8 <... fsync resumed>) = 0",
        "7 <... fdatasync resumed>) = 0",
    ]

    assert list(_journal_syncs(lines)) == [0, 6]


@pytest.fixture
def world() -> Iterator[World]:
    with open_world() as opened:
        yield opened


@pytest.fixture
def traced(world: World, tmp_path: Path) -> Callable[[Kind], tuple[Trace, int]]:
    """Has one job done by a traced gateway: the trace, and the id of the job's update."""

    def trace(kind: Kind) -> tuple[Trace, int]:
        file = tmp_path / "trace"
        world.start(
            *("strace", "-f", "-qq", "-y", "-s", "2000", "-o", str(file), "-e"),
            "trace=fdatasync,fsync,sendto,write,writev,execve",
        )
        world.send(kind, CHATS[0])
        (update,) = world.api.pending or [world.api.polls[-1].offset or 0]
        world.settle()
        wait_until(lambda: not world.api.pending, "the acknowledgement")
        world.stop()
        world.check()
        assert world.faults == []
        return Trace(file.read_text(errors="replace").splitlines()), update

    return trace


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("kind", "most"), [(Kind.TALK, 3), (Kind.READ, 3), (Kind.COUNT, 4), (Kind.TWICE, 5)]
)
def test_a_turn_costs_three_syncs_and_one_more_for_each_step_that_writes(
    traced: Callable[[Kind], tuple[Trace, int]], kind: Kind, most: int
) -> None:
    trace, update = traced(kind)

    polled, _ = trace.polls_round(update)
    sent = trace.of("/sendMessage HTTP/")

    assert trace.synced(polled, sent) <= most


@pytest.mark.timeout(200)
def test_a_sync_stands_before_the_acknowledgement_the_command_and_the_send(
    traced: Callable[[Kind], tuple[Trace, int]],
) -> None:
    trace, update = traced(Kind.COUNT)

    polled, acknowledged = trace.polls_round(update)
    asked = trace.of("/chat/completions HTTP/")
    ran = trace.of("execve(", after=asked)
    asked_again = trace.of("/chat/completions HTTP/", after=ran)
    sent = trace.of("/sendMessage HTTP/")

    assert trace.synced(polled, acknowledged) >= 1
    assert trace.synced(asked, ran) >= 1
    # The reply with its result, then that it is about to be sent.
    assert trace.synced(asked_again, sent) == 2
