"""The backlog: in order, each row once, and never more in memory than the bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from nanobot.bus.backlog import Backlog


@dataclass(frozen=True, slots=True)
class Row:
    seq: int
    retried: bool = False


class Box:
    """Rows on a disk, and the rows taken up and not done with."""

    def __init__(self, limit: int) -> None:
        self.rows: list[Row] = []
        self.taken: list[int] = []
        self.held = 0
        self.most = 0
        self.reads = 0
        self.reading = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.backlog: Backlog[Row] = Backlog(self._read, self._take, lambda: self.held, limit=limit)

    async def _read(self, after: int, limit: int) -> Sequence[Row]:
        self.reads += 1
        page = [row for row in self.rows if row.seq > after][:limit]
        self.reading.set()
        await self.may_read.wait()
        return page

    async def _take(self, row: Row) -> None:
        self.taken.append(row.seq)
        self.held += 1
        self.most = max(self.most, self.held)

    async def store(self, seq: int) -> None:
        """A new row is on the disk, and is announced."""
        self.rows.append(Row(seq))
        await self.announce(Row(seq))

    async def announce(self, row: Row) -> None:
        if self.backlog.admits(row):
            await self._take(row)

    def finish(self) -> None:
        """One taken row is done with."""
        self.held -= 1
        self.backlog.released()

    async def drained(self) -> None:
        """Finish rows until nothing is held and nothing comes any more."""
        idle = 0
        while idle < 20:
            if self.held:
                self.finish()
                idle = 0
            idle += 1
            await asyncio.sleep(0)


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    made = Box(limit=4)
    yield made
    await made.backlog.close()


async def test_what_fits_is_taken_up_as_it_comes(box: Box) -> None:
    for seq in range(1, 4):
        await box.store(seq)

    assert (box.taken, box.reads) == ([1, 2, 3], 0)


async def test_what_does_not_fit_comes_later_in_order_and_once(box: Box) -> None:
    for seq in range(1, 31):
        await box.store(seq)

    await box.drained()

    assert (box.taken, box.most) == (list(range(1, 31)), 4)


async def test_a_recovery_takes_no_more_than_the_bound(box: Box) -> None:
    box.rows = [Row(seq) for seq in range(1, 31)]

    await box.backlog.recover()
    at_first = list(box.taken)
    await box.store(31)
    await box.drained()

    assert (at_first, box.taken) == ([1, 2, 3, 4], list(range(1, 32)))
    assert box.most == 4


async def test_a_row_stored_during_the_last_read_is_not_forgotten(box: Box) -> None:
    box.rows = [Row(1)]
    box.may_read.clear()
    recovering = box.backlog.recover()
    await box.reading.wait()

    await box.store(2)
    box.may_read.set()
    await recovering

    assert box.taken == [1, 2]


async def test_a_row_whose_page_came_before_its_announcement_is_taken_once(box: Box) -> None:
    box.rows = [Row(1), Row(2)]

    await box.backlog.recover()
    await box.announce(Row(2))
    await box.store(3)

    assert box.taken == [1, 2, 3]


async def test_a_retried_row_is_taken_although_its_place_is_past(box: Box) -> None:
    box.rows = [Row(5)]
    await box.backlog.recover()

    await box.announce(Row(3, retried=True))

    assert box.taken == [5, 3]
