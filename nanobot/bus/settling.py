"""Settling: stores how an inbound ended, queues its answer and tells the waiting client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain, repeat

from nanobot.agent.turn import TurnResult
from nanobot.bus.answers import answer_messages, reply, report
from nanobot.bus.bus import MessageBus
from nanobot.bus.waiters import AskResult, Waiters
from nanobot.core.errors import StoreError
from nanobot.core.events import Notice
from nanobot.core.messages import AnswerKind, InboundMessage, OutboundMessage
from nanobot.core.ports import Clock
from nanobot.core.text import one_line
from nanobot.session.entries import Draft, EntryKind
from nanobot.subagents.manager import PROFILE as SUBAGENT

STORE_RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Waits before a failed write is tried again; the last one repeats."""

DEAD_LETTERED = (
    "Sorry: this message made me fail {attempts} times, so I have put it aside and go on with "
    "the next. It is kept; `nanobot bus list` shows it."
)
WAITING = "waiting for {} more of the subagents (Ctrl-C stops them)"


class Settler:
    """Settles inbounds in the store, then tells the waiting clients."""

    def __init__(self, bus: MessageBus, waiters: Waiters, clock: Clock) -> None:
        self._bus = bus
        self._waiters = waiters
        self._clock = clock

    async def settle(self, inbound: InboundMessage, result: TurnResult) -> None:
        """Commit a turn's result with the messages that follow from it, then tell its client."""
        outbounds, posts = answer_messages(inbound, result)
        await self.write_with_retry(inbound, lambda: self._bus.settle(result, outbounds, posts))
        outcome = AskResult(result.answer, result.tools_used, result.usage, result.model)
        for inbound_id in result.consumed:
            # The answer of the turn covers absorbed reports, and those of its subagents.
            if inbound_id != inbound.id:
                self._waiters.tell(inbound_id, AskResult())
            elif inbound.profile == SUBAGENT:
                self._waiters.tell(inbound_id, AskResult(usage=result.usage))
            else:
                self._waiters.tell(inbound_id, outcome)
        waiter = self._waiters.find(inbound.asked_by)
        if waiter is not None and waiter.open and inbound.profile != SUBAGENT:
            waiter.emit(Notice(WAITING.format(len(waiter.open))))

    async def dead_letter(
        self, inbound: InboundMessage, attempts: int, error: BaseException
    ) -> None:
        """Make an inbound that failed too often a dead letter, hidden from the model as well."""
        mark = Draft(
            kind=EntryKind.DEAD_LETTER,
            message=None,
            inbound_id=inbound.id,
            principal=str(inbound.principal),
            trust=inbound.trust,
        )
        await self.fail(inbound, DEAD_LETTERED.format(attempts=attempts), error, mark)

    async def fail(
        self, inbound: InboundMessage, text: str, error: BaseException, *entries: Draft
    ) -> None:
        """Settle an inbound that no turn can answer, with a line for its sender."""
        result = TurnResult(
            session=inbound.session_key, consumed=(inbound.id,), answer="", entries=entries
        )
        outbounds: tuple[OutboundMessage, ...] = ()
        if inbound.answer.kind is AnswerKind.REPORT:
            await self._report_failure(inbound, result, error)
            return
        if inbound.answer.kind in (AnswerKind.REPLY, AnswerKind.REPLY_UNLESS_SILENT):
            # The id of an answer stays free: the owner may retry the dead letter.
            kind = f"failed-{self._clock().timestamp():.0f}"
            outbounds = (reply(inbound, text, kind=kind),)
        # A terminal was told of the failure: there is nothing to retry.
        state = "interrupted" if inbound.answer.kind is AnswerKind.TERMINAL else "dead"
        await self.write_with_retry(
            inbound,
            lambda: self._bus.settle(result, outbounds, state=state, error=str(error)),
        )
        self._waiters.tell(inbound.id, AskResult(error=error))

    async def _report_failure(
        self, task: InboundMessage, result: TurnResult, error: BaseException
    ) -> None:
        """Close the failed task of a subagent and report to its parent session."""
        posts = (report(task, result, failure=f"failed: {one_line(str(error))}"),)
        await self.write_with_retry(
            task,
            lambda: self._bus.settle(result, posts=posts, state="interrupted", error=str(error)),
        )
        self._waiters.tell(task.id, AskResult())

    async def write_with_retry(
        self, inbound: InboundMessage, write: Callable[[], Awaitable[object]]
    ) -> None:
        """Retry the write until the store accepts it; the event cannot be undone.

        A client that waits for ``inbound`` is told of the failure at once.
        """
        for delay in chain(STORE_RETRY_S, repeat(STORE_RETRY_S[-1])):
            try:
                await write()
            except StoreError as error:
                self._waiters.tell(inbound.id, AskResult(error=error))
            else:
                return
            await asyncio.sleep(delay)
