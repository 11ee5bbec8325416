"""HeartbeatService: posts a turn in each interval in which HEARTBEAT.md has tasks."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from loguru import logger

from nanobot.bus.bus import MessageBus
from nanobot.config.schema import HeartbeatConfig
from nanobot.core.errors import StoreError
from nanobot.core.messages import AnswerKind, InboundMessage, Origin, Role
from nanobot.core.ports import Clock
from nanobot.prompts import render
from nanobot.prompts.excerpt import FILE_CAP, excerpt

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOTHING = re.compile(
    r"""\s*(?:
        \#{1,6}(?:\s.*)?                              # a heading
      | (?:[-*+]|\d+[.)])?\s*(?:\[[ xX]?\])?          # a bullet, an empty check box, nothing
      | (?:-{3,}|\*{3,}|_{3,}|={3,})                  # a rule
    )\s*""",
    re.VERBOSE,
)


def has_tasks(text: str) -> bool:
    """Whether anything is left but headings, comments, rules and empty check boxes."""
    plain = _COMMENT.sub("", text.removeprefix("\ufeff"))
    return not all(_NOTHING.fullmatch(line) for line in plain.splitlines())


SESSION = "heartbeat"
KEPT_BEATS = 3
"""Earlier heartbeats that a heartbeat's turn still sees."""


class HeartbeatService:
    """Reads the file in each interval; ``may_begin`` decides within the posting transaction.

    No turn begins before the owner has a chat on one of the ``served`` channels.
    """

    def __init__(
        self,
        settings: HeartbeatConfig,
        file: Path,
        bus: MessageBus,
        clock: Clock,
        may_begin: Callable[[sqlite3.Connection], bool],
        served: frozenset[str],
    ) -> None:
        self._settings = settings
        self._file = file
        self._bus = bus
        self._clock = clock
        self._may_begin = may_begin
        self._served = served

    async def run(self) -> None:
        """Beat at the end of each interval, until cancelled."""
        while self._settings.enabled:
            interval = self._settings.interval_s
            await asyncio.sleep(interval - self._clock().timestamp() % interval)
            try:
                await self.beat()
            except (StoreError, OSError) as error:
                logger.error("this heartbeat is skipped: {}", error)
        await asyncio.Event().wait()

    async def beat(self) -> bool:
        """Post this interval's turn; False when there is nothing to do or it is posted already."""
        now = self._clock()
        if not self._is_active(now):
            return False
        try:
            raw = await asyncio.to_thread(self._file.read_bytes)
        except FileNotFoundError:
            return False
        text = raw.decode("utf-8", errors="replace")
        if not has_tasks(text):
            return False
        if (place := await self._bus.last_chat(self._served)) is None:
            return False
        slot = int(now.timestamp() // self._settings.interval_s)
        turn = InboundMessage(
            place.channel,
            "heartbeat",
            place.chat_id,
            render.heartbeat_task(excerpt(text, FILE_CAP, self._file), self._file),
            id=f"heartbeat:{slot}",
            thread_id=place.thread_id,
            origin=Origin.HEARTBEAT,
            role=Role.OWNER,
            profile="heartbeat",
            answer=replace(place, kind=AnswerKind.REPLY_UNLESS_SILENT),
            session=SESSION,
        )
        return await self._bus.put((turn,), (), when=self._may_begin)

    def _is_active(self, now: datetime) -> bool:
        hours = self._settings.active_hours
        if hours is None:
            return True
        zone = None if self._settings.tz is None else ZoneInfo(self._settings.tz)
        local = now.astimezone(zone)
        minute = local.hour * 60 + local.minute
        if hours.start < hours.end:
            return hours.start <= minute < hours.end
        return minute >= hours.start or minute < hours.end
