"""What keeps a home from growing for ever, and its owner from not knowing of a damaged state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

from loguru import logger

from nanobot.bus.bus import MessageBus
from nanobot.core.ports import Clock
from nanobot.store.database import Database
from nanobot.store.files import remove_older

LOOK_S = 5.0
"""Seconds between two looks at whether the state was rebuilt, which read nothing."""
CLEAN_S = 6 * 3600.0
"""Seconds between two rounds of cleaning; the first comes with the first look."""

DAMAGED = (
    "My state database was damaged. I have put it aside ({path}) and go on with what could still "
    "be read of it; some messages or parts of our conversation may be missing."
)


class Housekeeper:
    """Removes what has been kept for long enough, and says when the state had to be rebuilt."""

    def __init__(
        self,
        bus: MessageBus,
        database: Database,
        clock: Clock,
        *,
        rows: timedelta,
        folders: Mapping[Path, timedelta],
        served: frozenset[str],
        tell: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """``folders`` lose files older than that; ``tell(id, text)`` tells the owner once an id.

        ``served`` are the channels that somebody delivers to.
        """
        self._bus = bus
        self._database = database
        self._clock = clock
        self._rows = rows
        self._folders = folders
        self._served = served
        self._tell = tell
        self._told: Path | None = None

    async def run(self) -> None:
        """Look and clean until cancelled; what fails is logged and tried at the next round."""
        looks = 0
        while True:
            try:
                await self.look()
                if looks % round(CLEAN_S / LOOK_S) == 0:
                    await self.clean()
            except Exception:
                logger.exception("housekeeping failed")
            looks += 1
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Tell of a state database that was put aside since the last look."""
        aside = self._database.quarantined
        if aside is not None and aside != self._told:
            await self._tell(aside.name, DAMAGED.format(path=aside))
            self._told = aside

    async def clean(self) -> None:
        """Remove settled messages and files that are older than they are kept."""
        if buried := await self._bus.outbox.dead_letter_unserved(self._served):
            logger.error("{} messages are for channels that are not served: dead letters", buried)
        rows = await self._bus.purge(self._rows)
        now = self._clock()
        files = 0
        for folder, kept in self._folders.items():
            before = (now - kept).timestamp()
            files += await asyncio.to_thread(remove_older, folder, before)
        if rows or files:
            logger.info("{} settled messages and {} old files removed", rows, files)
