"""Housekeeping: what is old enough goes and nothing else, and a rebuilt state is told once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nanobot.agent.turn import TurnResult
from nanobot.bus import housekeeping
from nanobot.bus.bus import KEPT_ROWS, MessageBus
from nanobot.bus.housekeeping import Housekeeper
from nanobot.bus.inbox import post_in
from nanobot.core.messages import InboundMessage
from nanobot.store.database import Database

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass(slots=True)
class Bench:
    """A housekeeper over a real database, real files, and an owner who listens."""

    keeper: Housekeeper
    bus: MessageBus
    database: Database
    media: Path
    spill: Path
    now: list[datetime]
    told: list[tuple[str, str]] = field(default_factory=list)
    deaf: list[Exception] = field(default_factory=list)

    async def tell(self, name: str, text: str) -> None:
        if self.deaf:
            raise self.deaf.pop()
        self.told.append((name, text))

    def files(self) -> set[str]:
        return {path.name for folder in (self.media, self.spill) for path in folder.rglob("*")}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    database = Database(tmp_path / "state.db")
    now = [NOW]
    bus = MessageBus(database, lambda: now[0])
    media, spill = tmp_path / "media", tmp_path / "spill"
    made: Bench

    async def tell(name: str, text: str) -> None:
        await made.tell(name, text)

    keeper = Housekeeper(
        bus,
        database,
        lambda: now[0],
        rows=timedelta(days=30),
        folders={media: timedelta(days=30), spill: timedelta(days=14)},
        served=frozenset({"telegram"}),
        tell=tell,
    )
    made = Bench(keeper, bus, database, media, spill, now)
    yield made
    database.close()


def write(path: Path, age: timedelta) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("kept for a while")
    stamp = (NOW - age).timestamp()
    os.utime(path, (stamp, stamp))


async def test_what_is_kept_for_long_enough_goes(bench: Bench, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere / "mine.txt", timedelta(days=999))
    write(bench.media / "chat" / "old.png", timedelta(days=31))
    write(bench.media / "chat" / "young.png", timedelta(days=29))
    write(bench.media / "gone" / "all-old.png", timedelta(days=31))
    write(bench.spill / "old.txt", timedelta(days=15))
    write(bench.spill / "young.txt", timedelta(days=13))
    (bench.media / "link").symlink_to(elsewhere)
    names = [f"n-{number}" for number in range(KEPT_ROWS + 3)]
    messages = [InboundMessage("telegram", "42", "42", "hello", id=name) for name in names]
    await bench.database.write(
        lambda connection: post_in(connection, messages, (NOW - timedelta(days=40)).timestamp())
    )
    bench.now[0] = NOW - timedelta(days=31)
    await bench.bus.settle(TurnResult(session="s", consumed=tuple(names), answer=""))
    bench.now[0] = NOW

    await bench.keeper.clean()

    left = await bench.database.read(
        lambda connection: connection.execute("SELECT count(*) FROM inbox").fetchone()
    )
    assert bench.files() == {"chat", "young.png", "link", "young.txt"}
    assert (elsewhere / "mine.txt").exists()
    assert left == (KEPT_ROWS,)


async def test_a_home_without_such_folders_is_clean(bench: Bench) -> None:
    await bench.keeper.clean()

    assert bench.files() == set()


async def test_the_owner_is_told_once_of_a_state_that_was_put_aside(bench: Bench) -> None:
    await bench.keeper.look()
    bench.database.quarantined = Path("/home/state.db.corrupt-1")

    await bench.keeper.look()
    await bench.keeper.look()

    ((name, text),) = bench.told
    assert name == "state.db.corrupt-1"
    assert "/home/state.db.corrupt-1" in text


async def test_what_fails_is_tried_again_at_the_next_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "LOOK_S", 0.001)
    bench.database.quarantined = Path("/home/state.db.corrupt-1")
    bench.deaf = [OSError("the disk is full"), OSError("the disk is full")]

    running = asyncio.create_task(bench.keeper.run())
    async with asyncio.timeout(20):
        while not bench.told:  # noqa: ASYNC110 - it looks by itself
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait({running})

    assert (running.cancelled(), bench.deaf, len(bench.told)) == (True, [], 1)
