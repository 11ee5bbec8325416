"""The session actor: works on one session's mailbox, one turn at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from loguru import logger

from nanobot.agent.turn import Drain, TurnResult
from nanobot.bus.answers import reply
from nanobot.bus.backlog import Backlog
from nanobot.bus.inbox import Pending
from nanobot.bus.settling import STORE_RETRY_S
from nanobot.bus.waiters import AskResult, TurnStopped
from nanobot.core.errors import ProviderError, RetryLater, StoreError
from nanobot.core.events import Emit
from nanobot.core.messages import AnswerKind, InboundMessage, Origin, Unanswered
from nanobot.session.entries import Draft
from nanobot.subagents.manager import PROFILE as SUBAGENT

if TYPE_CHECKING:
    from nanobot.bus.dispatcher import Dispatcher

MAX_ATTEMPTS = 3
"""Turns begun for one inbound before it becomes a dead letter, with an apology."""
RESTART_S = 5.0
"""Seconds before an actor that was stopped by a defect goes on."""
IDLE_S = 60.0
"""Seconds without mail after which an actor is retired."""
RETRY_S = (30.0, 60.0, 120.0, 300.0, 600.0)
"""Waits before an inbound is tried again when no model could be reached."""
LONGEST_WAIT = timedelta(hours=1)
"""Upper bound of a wait for a stored time, in case the clock was set back."""

KEPT = "No model can be reached at the moment ({reason}). Your message is kept; I try again {when}."
MODEL_SAYS_NO = "I could not answer: {reason}"


class TurnRunner(Protocol):
    """What session actors need of the agent."""

    async def run_turn(
        self, inbound: InboundMessage, *, drain: Drain, emit: Emit
    ) -> TurnResult: ...

    async def stopped(self, inbound: InboundMessage, consumed: Sequence[str]) -> TurnResult: ...

    async def closing(self, inbound: InboundMessage, ending: Unanswered) -> tuple[Draft, ...]: ...


class QueueMode(StrEnum):
    """What a message that arrives during a turn of its session does (``agents.defaults.queue``).

    ``steer``: it reaches the model before its next call. ``followup``: it waits for a turn of its
    own. ``collect``: it waits, and all that wait are answered by one turn. ``interrupt``: the
    running turn is stopped and the message is next.
    """

    STEER = "steer"
    FOLLOWUP = "followup"
    COLLECT = "collect"
    INTERRUPT = "interrupt"


class Slots:
    """How many turns run at once; first come, first served.

    Services (cron, heartbeat, subagents) have at most half of them, so that they never keep a
    person waiting, and subagents at most ``subagents``. A session holds one slot at a time, so a
    flood in one chat starves no other.
    """

    def __init__(self, total: int, subagents: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._services = asyncio.Semaphore(max(1, total // 2))
        self._subagents = asyncio.Semaphore(subagents)

    @asynccontextmanager
    async def hold(self, inbound: InboundMessage) -> AsyncIterator[None]:
        """Wait for a slot and keep it for as long as the block lasts."""
        async with AsyncExitStack() as held:
            if inbound.profile == SUBAGENT:
                await held.enter_async_context(self._subagents)
            if inbound.origin is not Origin.USER:
                await held.enter_async_context(self._services)
            await held.enter_async_context(self._all)
            yield


@dataclass(slots=True)
class RunningTurn:
    """The turn of an actor; the actor owns it, ``stop`` only marks and cancels its task.

    It began at ``started_at``; before that it waits for a slot. ``waited`` is what was in the
    mailbox by then.
    """

    inbound: InboundMessage
    task: asyncio.Task[TurnResult | None]
    started_at: datetime | None = None
    waited: tuple[Pending, ...] = ()
    is_claimed: bool = False
    steered: list[Pending] = field(default_factory=list)
    drained: bool = False
    stopped: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


class SessionActor:
    """One session: its mailbox, and at most one turn at a time."""

    def __init__(self, dispatcher: Dispatcher, key: str) -> None:
        self.key = key
        self.mailbox: deque[Pending] = deque()
        self.running: RunningTurn | None = None
        self.busy = False
        self.backlog: Backlog[Pending] = Backlog(
            lambda after, limit: dispatcher.bus.inbox.pending(key, after=after, limit=limit),
            dispatcher.recovered,
            lambda: len(self.mailbox) + self.busy,
            limit=dispatcher.bus.max_queued,
        )
        self._store_faults = 0
        self._dispatcher = dispatcher
        self._mail = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"session {key}")

    def put(self, pending: Pending) -> None:
        self.mailbox.append(pending)
        self._mail.set()
        head, running = self.mailbox[0], self.running
        if head.mail_from is not None and not self._passes(pending):
            self.mailbox[0] = replace(head, not_before=head.mail_from)
        if (
            running is not None
            and running.started_at is not None
            and self._dispatcher.queue is QueueMode.INTERRUPT
            and pending.message.origin is Origin.USER
            and _may_steer(pending.message, running.inbound)
        ):
            running.stopped = True
            running.task.cancel()

    def hurry(self) -> None:
        """Try the head now, if it was put off."""
        if self.mailbox:
            self.mailbox[0] = replace(self.mailbox[0], not_before=None)
            self._mail.set()

    async def drop_deferred(self) -> bool:
        """Close the head, which was put off, as stopped by the user; False when it was not."""
        if not self.mailbox or self.mailbox[0].not_before is None:
            return False
        inbound = self.mailbox.popleft().message
        self._mail.set()
        await self._dispatcher.settler.write_with_retry(
            inbound, lambda: self._settle_stopped(inbound, ())
        )
        return True

    async def _run(self) -> None:
        """Work on the mail, until there was none for long; a defect is logged and survived."""
        while not self._dispatcher.is_stopping:
            try:
                if await self._is_over():
                    return
            except Exception:
                logger.bind(session=self.key).exception("a session's actor failed")
                await asyncio.sleep(RESTART_S)

    async def _is_over(self) -> bool:
        """Work on the next message, or wait for one; True when the actor was retired."""
        pending = self._next()
        if pending is None:
            if not await self._has_mail():
                # Mail may have come in the tick of the timeout; no await from here on.
                if not self.mailbox and not self.backlog.is_behind:
                    self._dispatcher.retire(self.key)
                    return True
                self.hurry()
            return False
        self.busy = True
        try:
            await self._work(pending)
            self._store_faults = 0
        except StoreError as error:
            await self._store_failed(pending, error)
        except Exception as error:
            logger.bind(session=self.key, inbound=pending.message.id).exception(
                "a message is left for the next start"
            )
            self._dispatcher.waiters.tell(pending.message.id, AskResult(error=error))
        finally:
            self.busy = False
        self.backlog.released()
        if not self.mailbox:
            self._dispatcher.hooks.idle(self.key)
        return False

    def _next(self) -> Pending | None:
        """Take the head if it is due, or a command that passes a head that waits for a model."""
        if not self.mailbox:
            return None
        head = self.mailbox[0]
        if head.not_before is None or head.not_before <= self._dispatcher.clock():
            return self.mailbox.popleft()
        passing = next(filter(self._passes, self.mailbox), None) if head.told else None
        if passing is not None:
            self.mailbox.remove(passing)
        return passing

    def _passes(self, pending: Pending) -> bool:
        """Whether it is a command that does not wait for a model to come back."""
        found = self._dispatcher.command_in(pending.message)
        return found is not None and found[0].in_outage

    async def _has_mail(self) -> bool:
        """Wait for new mail; False when the head's time, or that of an idle actor, came first."""
        wait = IDLE_S
        if self.mailbox and (until := self.mailbox[0].not_before) is not None:
            wait = min(until - self._dispatcher.clock(), LONGEST_WAIT).total_seconds()
        self._mail.clear()
        try:
            await asyncio.wait_for(self._mail.wait(), wait)
        except TimeoutError:
            return False
        return True

    async def _work(self, pending: Pending) -> None:
        """Handle an inbound to its end, or put it back for later; raises StoreError alone."""
        try:
            await self._handle(pending)
        except StoreError:
            raise
        except Exception as error:
            logger.bind(session=self.key, inbound=pending.message.id).exception(
                "handling a message failed"
            )
            await self._failed(pending, error)

    async def _handle(self, pending: Pending) -> None:
        dispatcher = self._dispatcher
        inbound = pending.message
        if dispatcher.command_in(inbound) is not None:
            await dispatcher.run_command(inbound)
            return
        task = asyncio.create_task(self._turn(inbound), name=f"turn {inbound.id}")
        running = self.running = RunningTurn(inbound, task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # Shutdown: leave the message in the inbox and the log as it is.
            task.cancel()
            await asyncio.wait({task})
            if running.is_claimed:
                await self._give_back(inbound)
            raise
        finally:
            self.running = None
            if (progress := dispatcher.shown_by(inbound)) is not None:
                progress.ended(inbound)
        try:
            await self._close(pending, running)
        finally:
            running.over.set()

    async def _turn(self, inbound: InboundMessage) -> TurnResult | None:
        """Run a turn once there is a slot for it; None when its inbound is settled already."""
        dispatcher, running = self._dispatcher, self.running
        assert running is not None, "the actor's message is this one"
        async with dispatcher.slots.hold(inbound):
            running.is_claimed = True
            attempts = await dispatcher.bus.inbox.claim(inbound.id, again=self._store_faults > 0)
            if attempts is None:
                return None  # a turn that was cut off had taken it in, and has settled it since
            if attempts > MAX_ATTEMPTS:
                raise RuntimeError("it failed too often")
            emit = dispatcher.emit_for(inbound)
            await dispatcher.hooks.turn_begins()
            running.started_at = dispatcher.clock()
            running.waited = tuple(self.mailbox)
            return await dispatcher.turns.run_turn(inbound, drain=self._drain, emit=emit)

    async def _give_back(self, inbound: InboundMessage) -> None:
        """Give the attempt back that a shutdown has broken off."""
        try:
            await self._dispatcher.bus.inbox.give_back(inbound.id)
        except StoreError as error:
            logger.error(
                "an attempt at {} counts although it was broken off: {}", inbound.id, error
            )

    async def _close(self, pending: Pending, running: RunningTurn) -> None:
        """Settle an inbound by how its turn ended, or put it back for later."""
        dispatcher = self._dispatcher
        inbound, task = running.inbound, running.task
        if task.cancelled() and running.stopped:
            steered = [taken.message.id for taken in running.steered]
            await dispatcher.settler.write_with_retry(
                inbound, lambda: self._settle_stopped(inbound, steered)
            )
            return
        error = RuntimeError("it was cancelled") if task.cancelled() else task.exception()
        if error is None:
            if (result := task.result()) is not None:
                await dispatcher.settler.settle(inbound, result)
            return
        # What it has taken in, and not answered, keeps its place.
        self.mailbox.extendleft(reversed(running.steered))
        if isinstance(error, StoreError):
            raise error
        if isinstance(error, ProviderError):
            await self._model_failed(pending, error)
        else:
            logger.bind(session=self.key, inbound=inbound.id).opt(exception=error).error(
                "a turn failed"
            )
            await self._failed(pending, error)

    async def _settle_stopped(self, inbound: InboundMessage, steered: Sequence[str]) -> None:
        """Close an inbound that the user has stopped, and what its turn had taken in."""
        dispatcher = self._dispatcher
        result = await dispatcher.turns.stopped(inbound, steered)
        await dispatcher.bus.settle(result)
        for inbound_id in result.consumed:
            dispatcher.waiters.tell(inbound_id, AskResult(error=TurnStopped("stopped")))

    def _drain(self) -> tuple[InboundMessage, ...]:
        """What the running turn takes in now: see ``QueueMode``."""
        running = self.running
        if running is None:
            return ()
        first, running.drained = not running.drained, True
        steers = self._dispatcher.commands.steers
        match self._dispatcher.queue:
            case QueueMode.STEER if all(steers(one.message.content) for one in running.waited):
                # What waited before gets turns of its own; nothing passes a command.
                offered = [one for one in self.mailbox if one not in running.waited]
            case QueueMode.COLLECT if first:
                offered = [one for one in running.waited if one in self.mailbox]
            case _:
                return ()
        taken = list(
            takewhile(
                lambda one: (
                    _may_steer(one.message, running.inbound) and steers(one.message.content)
                ),
                offered,
            )
        )
        for one in taken:
            self.mailbox.remove(one)
        running.steered.extend(taken)
        return tuple(one.message for one in taken)

    async def _model_failed(self, pending: Pending, error: ProviderError) -> None:
        dispatcher = self._dispatcher
        inbound, kind = pending.message, pending.message.answer.kind
        waits = isinstance(error, RetryLater) and kind is not AnswerKind.TERMINAL
        if kind is AnswerKind.REPORT and pending.outages >= MAX_ATTEMPTS:
            waits = False  # whoever sent the subagent may have another model, and decides
        if not waits or dispatcher.waiters.find(inbound.id) is not None:
            closing = await dispatcher.turns.closing(inbound, Unanswered.FAILED)
            await dispatcher.settler.fail(
                inbound, MODEL_SAYS_NO.format(reason=error), error, *closing
            )
            return
        assert isinstance(error, RetryLater)
        now, asked_to_wait = dispatcher.clock(), error.after or 0.0
        delay = max(asked_to_wait, RETRY_S[min(pending.outages, len(RETRY_S) - 1)])
        until = now + timedelta(seconds=delay)
        if not pending.told and kind is AnswerKind.REPLY:
            when = "in a minute" if delay < 90 else f"at {until.astimezone():%H:%M}"
            text = KEPT.format(reason=error, when=when)
            await dispatcher.bus.queue(reply(inbound, text, kind="kept"))
        await dispatcher.bus.inbox.defer(inbound.id, until)
        self.mailbox.appendleft(
            replace(
                pending,
                not_before=until,
                told=True,
                outages=pending.outages + 1,
                mail_from=now + timedelta(seconds=asked_to_wait),
            )
        )

    async def _failed(self, pending: Pending, error: BaseException) -> None:
        """A defect of ours: try again soon, and make it a dead letter after the last attempt."""
        dispatcher = self._dispatcher
        inbound = pending.message
        attempts = min(pending.attempts + 1, MAX_ATTEMPTS)
        if attempts >= MAX_ATTEMPTS or dispatcher.waiters.find(inbound.id) is not None:
            await dispatcher.settler.dead_letter(inbound, attempts, error)
            return
        until = dispatcher.clock() + timedelta(seconds=2.0**attempts)
        self.mailbox.appendleft(
            replace(pending, attempts=attempts, not_before=until, mail_from=None)
        )

    async def _store_failed(self, pending: Pending, error: StoreError) -> None:
        """The disk is at fault, not the message: it waits, and no attempt is counted."""
        dispatcher = self._dispatcher
        inbound = pending.message
        if dispatcher.waiters.find(inbound.id) is not None:
            dispatcher.waiters.tell(inbound.id, AskResult(error=error))
            await dispatcher.settler.write_with_retry(
                inbound, lambda: dispatcher.interrupted(inbound)
            )
            return
        delay = STORE_RETRY_S[min(self._store_faults, len(STORE_RETRY_S) - 1)]
        self._store_faults += 1
        until = dispatcher.clock() + timedelta(seconds=delay)
        self.mailbox.appendleft(replace(pending, not_before=until, mail_from=None))


def _may_steer(message: InboundMessage, running: InboundMessage) -> bool:
    if message.origin in (Origin.CRON, Origin.HEARTBEAT):
        return False  # each run is answered by itself
    is_report = message.parent is not None
    return (
        message.principal == running.principal
        and message.profile == running.profile
        and message.answer == replace(running.answer, note=message.answer.note)
        and (not message.is_terminals or (is_report and message.asked_by == running.asked_by))
        and (message.channel, message.chat_id, message.thread_id)
        == (running.channel, running.chat_id, running.thread_id)
    )
