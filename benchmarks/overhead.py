"""What skills, jobs and litellm cost while nothing comes of them, each against a floor.

A turn with 1,000 unchanged skills against a ``stat`` of their files; a second of a cron service
with 1,000 jobs of which none is due against one with none; the longest time in which the event loop
does nothing while litellm is loaded against the time that takes. The best of several rounds counts:
what else the machine does only adds. Usage: ``python -m benchmarks.overhead``.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from nanobot.agent.context import ContextBuilder
from nanobot.bus.bus import MessageBus
from nanobot.cron.jobs import JobFile
from nanobot.cron.service import CronService
from nanobot.providers.litellm import LiteLLM
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from tests.fakes.skills import StillClock, write_skill

MANY = 1000


def skills(folder: Path) -> tuple[float, float]:
    """Seconds of processor of a turn's look at its skills, and of a ``stat`` of each."""
    files = [write_skill(folder / "skills", f"skill-{number:04}") for number in range(MANY)]
    context = ContextBuilder(folder, SkillsLoader(folder, folder / "none", clock=StillClock()))
    context.build_system_prompt(skills=context.skills_of("cli:direct"))
    turns, floors = [], []
    for _ in range(40):
        began = time.thread_time()
        context.build_system_prompt(skills=context.skills_of("cli:direct"))
        turns.append(time.thread_time() - began)
        began = time.thread_time()
        for file in files:
            os.stat(file)  # noqa: PTH116 - the floor
        floors.append(time.thread_time() - began)
    return min(turns), min(floors)


async def jobs(folder: Path, count: int) -> float:
    """Share of a processor that a service with ``count`` jobs takes, of which none is due."""
    records = [
        {
            "id": f"j{number}",
            "schedule": {"kind": "cron", "expr": "0 3 1 1 *", "tz": "Europe/Berlin"},
            "payload": {"message": "x", "deliver": True, "channel": "telegram", "to": "1"},
            "createdAtMs": 1774602000000,
        }
        for number in range(count)
    ]
    file = JobFile(folder / "cron" / "jobs.json")
    file.path.parent.mkdir(parents=True)
    file.path.write_text(json.dumps({"version": 1, "jobs": records}))
    database = Database(folder / "state.db")

    def clock() -> datetime:
        return datetime.now(UTC)

    async def tell(name: str, text: str) -> None:
        raise AssertionError(text)

    bus = MessageBus(database, clock)
    service = CronService(file, database, bus, clock, served=frozenset())
    await service.tick()
    running = asyncio.create_task(service.run(tell))
    shares = []
    for _ in range(4):
        began = time.process_time(), time.monotonic()
        await asyncio.sleep(1)
        shares.append((time.process_time() - began[0]) / (time.monotonic() - began[1]))
    running.cancel()
    await asyncio.wait({running})
    database.close()
    return min(shares)


async def loading() -> tuple[float, float]:
    """Longest standstill of the loop while litellm is loaded, and how long that takes, in seconds.

    Once a process: a second import costs nothing.
    """
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            worst, last = max(worst, time.perf_counter() - last), time.perf_counter()

    ticking = asyncio.create_task(tick())
    began = time.perf_counter()
    await LiteLLM().load()
    took = time.perf_counter() - began
    ticking.cancel()
    return worst, took


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        turn, floor = skills(folder / "skilled")
        print(
            f"a turn with {MANY} unchanged skills: {turn * 1000:.1f} ms, "
            f"{turn / floor:.1f} times a stat of each"
        )
        busy, idle = (asyncio.run(jobs(folder / f"{count}", count)) for count in (MANY, 0))
        print(
            f"a second of {MANY} idle jobs: {busy * 1000:.2f} ms, "
            f"{busy / idle:.1f} times that of none"
        )
    worst, took = asyncio.run(loading())
    print(
        f"the loop while litellm is loaded: still for {worst * 1000:.0f} ms at most, "
        f"{worst / took:.1%} of the import's {took:.1f} s"
    )


if __name__ == "__main__":
    main()
