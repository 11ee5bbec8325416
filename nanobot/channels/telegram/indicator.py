"""The typing indicator: shown while a turn runs, renewed, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from loguru import logger

from nanobot.channels.telegram.connections import Connections
from nanobot.channels.telegram.failures import CallFailed, Refusal
from nanobot.channels.telegram.limits import Limits
from nanobot.channels.telegram.pacing import Sleep


@dataclass(frozen=True, slots=True)
class _Shown:
    """An indicator that is on: where, until when, and the task that renews it."""

    chat_id: str
    thread_id: str | None
    until: float
    task: asyncio.Task[None]


class TypingIndicator:
    """One task for each turn; what it fails to show is not worth a word."""

    def __init__(
        self,
        connections: Connections,
        limits: Limits,
        *,
        monotonic: Callable[[], float],
        sleep: Sleep,
    ) -> None:
        self._connections = connections
        self._limits = limits
        self._monotonic = monotonic
        self._sleep = sleep
        self._shown: dict[str, _Shown] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, turn: str, chat_id: str, thread_id: str | None) -> None:
        """Show it for a turn, until ``end`` or for the longest time allowed."""
        self.end(turn)
        until = self._monotonic() + self._limits.typing_most_s
        self._start(turn, chat_id, thread_id, until, delay_s=0.0)

    def end(self, turn: str) -> None:
        """Stop renewing it for a turn; doing so twice is doing it once."""
        shown = self._shown.pop(turn, None)
        if shown is not None:
            shown.task.cancel()

    def hold(self, chat_id: str) -> None:
        """Make way for a message, which ends the indicator on the platform.

        An action under way could arrive after the message and outlive the turn. If the turn goes
        on, the indicator comes back with the next renewal.
        """
        for turn, shown in list(self._shown.items()):
            if shown.chat_id == chat_id:
                self.end(turn)
                delay_s = self._limits.typing_every_s
                self._start(turn, chat_id, shown.thread_id, shown.until, delay_s=delay_s)

    async def aclose(self) -> None:
        """Stop all of them."""
        for turn in list(self._shown):
            self.end(turn)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(
        self, turn: str, chat_id: str, thread_id: str | None, until: float, *, delay_s: float
    ) -> None:
        task = asyncio.create_task(
            self._renew(chat_id, thread_id, until, delay_s), name=f"typing for {turn}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._over)
        self._shown[turn] = _Shown(chat_id, thread_id, until, task)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("telegram: the typing indicator failed")

    async def _renew(
        self, chat_id: str, thread_id: str | None, until: float, delay_s: float
    ) -> None:
        params = {"chat_id": chat_id, "message_thread_id": thread_id, "action": "typing"}
        every_s = self._limits.typing_every_s
        if delay_s:
            await self._sleep(delay_s)
        while self._monotonic() < until:
            wait_s = every_s
            try:
                await self._connections.call("sendChatAction", params, limit_s=every_s)
            except CallFailed as error:
                logger.debug("telegram: no typing indicator: {}", error)
                if isinstance(error, Refusal) and error.after is not None:
                    wait_s = max(error.after, every_s)
            await self._sleep(wait_s)
