"""Spacing of the messages of one chat, as the Bot API's FAQ asks: a burst, then one a second.

There is no such limit over all chats here. The documented 30 a second is meant for broadcasts and
not exact; holding 50 chats that are answered at once to it would delay each for a fault that the
server can tell with a 429, which the delivery worker honours for each chat.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Sleep: TypeAlias = Callable[[float], Awaitable[None]]

REMEMBERED = 1000
"""Chats beyond which those that need no spacing any more are forgotten."""


class Pacer:
    """A leaky bucket a chat (the generic cell rate algorithm)."""

    def __init__(
        self, *, burst: int, every_s: float, monotonic: Callable[[], float], sleep: Sleep
    ) -> None:
        self._lead = (burst - 1) * every_s
        self._every_s = every_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._due: dict[str, float] = {}

    async def wait(self, chat_id: str) -> None:
        """Return when the next message of a chat may go."""
        now = self._monotonic()
        due = max(self._due.get(chat_id, -math.inf), now - self._lead)
        self._due[chat_id] = due + self._every_s
        if len(self._due) > REMEMBERED:
            self._due = {chat: due for chat, due in self._due.items() if due > now - self._lead}
        if due > now:
            await self._sleep(due - now)
