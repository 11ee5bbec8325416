"""Senders whom the gate does not let in: they cost nothing but a line in the log."""

from __future__ import annotations

from datetime import datetime, timedelta

from loguru import logger

from nanobot.core.ports import Clock
from nanobot.core.text import one_line

QUIET = timedelta(hours=1)
REMEMBERED = 1000
"""Strangers whose last line in the log is remembered."""


class Strangers:
    """Counts messages of strangers and logs each of them at most once an hour."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[datetime, int]] = {}

    def turned_away(self, sender_id: str, username: str) -> None:
        """Note a message that was ignored."""
        now = self._clock()
        since, count = self._seen.pop(sender_id, (None, 0))
        count += 1
        if since is None or now - since >= QUIET:
            logger.info(
                "telegram: ignored a stranger, id {}{} ({} message{}); "
                "to let them in, add the id to channels.telegram.allowFrom",
                sender_id,
                f" @{one_line(username, 32)}" if username else "",
                count,
                "" if count == 1 else "s",
            )
            since, count = now, 0
        self._seen[sender_id] = (since, count)
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
