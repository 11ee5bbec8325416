"""Housekeeping: removes old rows and files, and reports a damaged state database."""

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
"""Seconds between two checks whether the state database was rebuilt."""
CLEAN_S = 6 * 3600.0
"""Seconds between two rounds of cleaning; the first comes with the first check."""

DAMAGED = (
    "My state database was damaged. I have put it aside ({path}) and go on with what could still "
    "be read of it; some messages or parts of our conversation may be missing."
)


class Housekeeper:
    """Removes rows and files past their retention; tells the owner when the state was rebuilt."""

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
        """``folders`` maps each folder to the age at which its files are removed.

        ``tell(id, text)`` sends the owner a message, once for each id. ``served`` are the channels
        with a delivery worker.
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
        """Check and clean until cancelled; a failure is logged and tried again next time."""
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
        """Tell the owner of a state database that was put aside since the last check."""
        aside = self._database.quarantined
        if aside is not None and aside != self._told:
            await self._tell(aside.name, DAMAGED.format(path=aside))
            self._told = aside

    async def clean(self) -> None:
        """Remove settled messages and files past their retention."""
        if moved := await self._bus.outbox.dead_letter_unserved(self._served):
            logger.error("{} messages are for channels that are not served: dead letters", moved)
        rows = await self._bus.purge(self._rows)
        now = self._clock()
        files = 0
        for folder, kept in self._folders.items():
            before = (now - kept).timestamp()
            files += await asyncio.to_thread(remove_older, folder, before)
        if rows or files:
            logger.info("{} settled messages and {} old files removed", rows, files)
