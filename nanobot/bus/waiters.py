"""Clients that wait for their message to be settled: one-shots, the REPL, `cron run`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nanobot.core.chat import Usage
from nanobot.core.events import Emit


@dataclass(frozen=True, slots=True)
class AskResult:
    """How the handling of an inbound ended, for a client that waits for it.

    Exactly one of ``answer`` (with what it took) and ``error`` tells something.
    """

    answer: str = ""
    tools_used: tuple[str, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    error: BaseException | None = None


class TurnStopped(Exception):
    """The user stopped the turn that a client waits for."""


@dataclass(slots=True)
class Waiter:
    """A client that waits for an inbound, and for what its subagents will report.

    ``open`` are the ids of what is not settled yet; ``outcome`` is what came of the others.
    """

    emit: Emit
    future: asyncio.Future[AskResult]
    open: set[str]
    outcome: AskResult = AskResult()

    def closed(self, inbound_id: str, outcome: AskResult) -> None:
        """Take in what came of one of them; with the last one, or a failure, the wait is over."""
        self.open.discard(inbound_id)
        former = self.outcome
        self.outcome = replace(
            outcome,
            answer="\n\n".join(filter(None, (former.answer, outcome.answer))),
            tools_used=former.tools_used + outcome.tools_used,
            usage=former.usage + outcome.usage,
            model=outcome.model or former.model,
        )
        if not self.future.done() and (outcome.error is not None or not self.open):
            self.future.set_result(self.outcome)


class Waiters:
    """The clients that wait now, by the id of the message each has posted."""

    def __init__(self) -> None:
        self._waiters: dict[str, Waiter] = {}

    @contextmanager
    def waiting(self, inbound_id: str, emit: Emit) -> Iterator[Waiter]:
        """Register a client that waits for an inbound, for as long as the block lasts."""
        future: asyncio.Future[AskResult] = asyncio.get_running_loop().create_future()
        self._waiters[inbound_id] = Waiter(emit, future, {inbound_id})
        try:
            yield self._waiters[inbound_id]
        finally:
            del self._waiters[inbound_id]

    def find(self, inbound_id: str) -> Waiter | None:
        """The client that waits for an inbound, or for a subagent's task or report."""
        found = self._waiters.get(inbound_id)
        if found is not None:
            return found
        return next((w for w in self._waiters.values() if inbound_id in w.open), None)

    def tell(self, inbound_id: str, outcome: AskResult) -> None:
        """Hand the outcome to the client that waits for this inbound, if there is one."""
        waiter = self.find(inbound_id)
        if waiter is not None:
            waiter.closed(inbound_id, outcome)
