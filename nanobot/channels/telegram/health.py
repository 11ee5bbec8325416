"""How the channel does, for ``status`` and, once per change, for the log."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from loguru import logger

from nanobot.core.ports import ChannelState, Clock

REPEAT = timedelta(minutes=10)
"""A fault that comes and goes is logged again after this time at the earliest."""


class Health:
    """Owned by the polling.

    ``reported`` is set with the first success or failure, ``was_up`` with the first success.
    """

    def __init__(self, clock: Clock) -> None:
        self.reported = asyncio.Event()
        self.was_up = asyncio.Event()
        self._clock = clock
        self._state = ChannelState(connected=False, detail="not connected yet")
        self._is_down = False
        self._told: set[str] = set()
        self._logged_at: dict[str, datetime] = {}

    def state(self) -> ChannelState:
        """The state now; the last error is kept after recovery, with its time."""
        return self._state

    def up(self, detail: str) -> None:
        """The server answers as it should."""
        before = self._state
        self._state = ChannelState(True, detail, before.last_error, before.error_at)
        if self._is_down:
            if self._told:
                logger.info("telegram works again: {}", detail)
        elif not self.was_up.is_set():
            logger.info("telegram is connected: {}", detail)
        self._is_down = False
        self._told.clear()
        self.was_up.set()
        self.reported.set()

    def down(self, kind: str, text: str) -> None:
        """Nothing can be received; ``kind`` tells faults apart whatever their texts."""
        self._is_down = True
        self._state = ChannelState(False, text, text, self._clock())
        self._log(kind, text)
        self.reported.set()

    def noted(self, kind: str, text: str) -> None:
        """Something failed without which the channel still serves."""
        self._state = ChannelState(self._state.connected, self._state.detail, text, self._clock())
        self._log(kind, text)

    def _log(self, kind: str, text: str) -> None:
        now = self._clock()
        before = self._logged_at.get(kind)
        if kind not in self._told and (before is None or now - before >= REPEAT):
            self._told.add(kind)
            self._logged_at[kind] = now
            logger.warning("telegram: {}", text)
