"""The dispatcher: an actor a session, a control lane, and a bounded number of turns at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain, repeat, takewhile
from typing import Any, Protocol

from loguru import logger

from nanobot.agent.turn import Drain, TurnResult
from nanobot.bus.answers import consequences, reply, report
from nanobot.bus.backlog import Backlog
from nanobot.bus.bus import MessageBus
from nanobot.bus.inbox import Pending
from nanobot.core.chat import Usage, UserMessage
from nanobot.core.commands import Command, CommandTable, Invocation
from nanobot.core.errors import ProviderError, RetryLater, StoreError
from nanobot.core.events import Emit, Notice, TextDelta, ignore
from nanobot.core.messages import (
    AnswerKind,
    InboundMessage,
    Origin,
    OutboundMessage,
    Trust,
    Unanswered,
)
from nanobot.core.ports import Clock
from nanobot.core.text import one_line
from nanobot.prompts import render
from nanobot.session.entries import Draft, EntryKind
from nanobot.subagents.manager import PROFILE as SUBAGENT

MAX_ATTEMPTS = 3
"""Turns begun for one inbound before it is parked with an apology."""
RESTART_S = 5.0
"""Seconds before an actor goes on that a defect has stopped."""
IDLE_S = 60.0
"""Seconds after which an actor without mail is retired."""
RETRY_S = (30.0, 60.0, 120.0, 300.0, 600.0)
"""Waits before an inbound is tried again when no model could be reached."""
STORE_RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Waits before what the disk did not take is tried again; the last one goes on for ever."""
STOP_S = 0.7
"""Seconds that a stop waits for what it has stopped to be closed in the log."""
LONGEST_WAIT = timedelta(hours=1)
"""No stored time is waited for longer: the clock may have been set back since."""

PARKED = (
    "Sorry: this message made me fail {attempts} times, so I have put it aside and go on with "
    "the next. It is kept; `nanobot bus list` shows it."
)
COMMAND_FAILED = "Sorry: this command failed, and the log says why."
KEPT = "No model can be reached at the moment ({reason}). Your message is kept; I try again {when}."
WAITING = "waiting for {} more of the subagents (Ctrl-C stops them)"
MODEL_SAYS_NO = "I could not answer: {reason}"


class TurnRunner(Protocol):
    """What the dispatcher needs of the agent."""

    async def run_turn(
        self, inbound: InboundMessage, *, drain: Drain, emit: Emit
    ) -> TurnResult: ...

    async def stopped(self, inbound: InboundMessage, consumed: Sequence[str]) -> TurnResult: ...

    async def closing(self, inbound: InboundMessage, ending: Unanswered) -> tuple[Draft, ...]: ...


class Progress(Protocol):
    """Shows a running turn on its platform (typing, previews); what it does may be lost."""

    def began(self, inbound: InboundMessage) -> Emit: ...

    def ended(self, inbound: InboundMessage) -> None: ...


class SessionCare(Protocol):
    """Looks after sessions between their turns; no turn waits for what it does in ``idle``."""

    async def turn_begins(self) -> None: ...

    def idle(self, session_key: str) -> None: ...


class NoCare:
    """For a dispatcher without a memory."""

    async def turn_begins(self) -> None:
        """Nothing to do."""

    def idle(self, session_key: str) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Outcome:
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
class _Watch:
    """A client that waits for an inbound, and for what its subagents will report.

    ``open`` are the ids of what is not settled yet; ``outcome`` is what came of the others.
    """

    emit: Emit
    future: asyncio.Future[Outcome]
    open: set[str]
    outcome: Outcome = Outcome()

    def closed(self, inbound_id: str, outcome: Outcome) -> None:
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


@dataclass(slots=True)
class _Running:
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


class Dispatcher:
    """Takes inbounds in order of arrival and has each settled exactly once."""

    def __init__(
        self,
        bus: MessageBus,
        turns: TurnRunner,
        commands: CommandTable,
        clock: Clock,
        *,
        slots: int = 64,
        queue: QueueMode = QueueMode.STEER,
        progress: Callable[[str], Progress | None] = lambda channel: None,
        max_subagents: int = 4,
        subagents: Progress | None = None,
        care: SessionCare = NoCare(),
    ) -> None:
        """``progress`` names who shows the turns of a channel, ``subagents`` who follows theirs."""
        self.bus = bus
        self.turns = turns
        self.commands = commands
        self.clock = clock
        self.queue = queue
        self.progress = progress
        self.care = care
        self.slots = Slots(slots, max_subagents)
        self._subagents = subagents
        self._stopping = False
        self._actors: dict[str, _Actor] = {}
        self._control: set[asyncio.Task[None]] = set()
        self._in_control: set[str] = set()
        self._watches: dict[str, _Watch] = {}
        bus.is_urgent = self._is_control
        bus.on_inbound(self._arrived)

    async def recover(self, *, terminals_only: bool = False) -> None:
        """Take up what a former process left in the inbox.

        A message from a terminal is closed as interrupted: its client is gone. The others are
        left for the gateway with ``terminals_only``.
        """
        if not terminals_only:
            actors = map(self._actor, await self.bus.inbox.sessions_waiting())
            await asyncio.gather(*(actor.backlog.recover() for actor in actors))
            return
        after = 0
        while page := await self.bus.inbox.pending(after=after):
            after = page[-1].seq
            for pending in page:
                if pending.message.is_terminals:
                    await self.recovered(pending)

    async def recovered(self, pending: Pending) -> None:
        """Take up an inbound as it was found in the inbox."""
        inbound = pending.message
        if self.is_watched(inbound.id) or inbound.id in self._in_control:
            return
        if not inbound.is_terminals:
            self.submit(pending)
            return
        try:
            await self.interrupted(inbound)
        except StoreError as error:
            logger.error("{} cannot be closed, which the next start does: {}", inbound.id, error)

    def _arrived(self, pending: Pending) -> None:
        """Take up an inbound just posted; what does not fit into the bound stays in the inbox."""
        if (watch := self._watch_of(pending.message.asked_by)) is not None:
            watch.open.add(pending.message.id)
        is_from_terminal = pending.message.answer.kind is AnswerKind.TERMINAL
        if is_from_terminal and not self.is_watched(pending.message.id):
            # Its client has gone while it was posted.
            self._aside(self.recovered(pending))
            return
        is_admitted = self._actor(pending.message.session_key).backlog.admits(pending)
        if is_admitted or self._is_control(pending.message) or self.is_watched(pending.message.id):
            self.submit(pending)

    def _is_control(self, inbound: InboundMessage) -> bool:
        """Whether it is a command that acts at once, whatever waits and runs."""
        found = self.command_in(inbound)
        return found is not None and found[0].control

    def submit(self, pending: Pending) -> None:
        """Hand an inbound that is in the inbox to its session's actor or the control lane."""
        if self._stopping:
            return  # it stays in the inbox for the next start
        if self._is_control(pending.message):
            self._in_control.add(pending.message.id)
            self._aside(self._control_lane(pending.message))
            return
        self._actor(pending.message.session_key).put(pending)

    def _aside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the actors; ``close`` waits for it."""
        task = asyncio.create_task(work)
        self._control.add(task)
        task.add_done_callback(self._beside)
        return task

    def _beside(self, task: asyncio.Task[None]) -> None:
        self._control.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("what was done beside the sessions failed")

    async def ask(self, inbound: InboundMessage, emit: Emit = ignore) -> Outcome:
        """Post ``inbound`` and wait until it is settled; the way of one-shots and the REPL.

        If it sends subagents, their reports are waited for as well, and the answers joined.
        Cancelling the wait stops the turn and them.
        """
        watch = self._watched(inbound.id, emit)
        try:
            await self.bus.post(inbound)
            outcome = await watch.future
            if watch.open:
                await asyncio.shield(self._aside(self._withdraw(inbound)))
            return outcome
        except asyncio.CancelledError:
            await asyncio.shield(self._aside(self._withdraw(inbound)))
            raise
        finally:
            del self._watches[inbound.id]

    async def settled(self, inbound_id: str) -> str:
        """Wait until an inbound that was just posted is settled; its answer, or what went wrong."""
        watch = self._watched(inbound_id, ignore)
        try:
            outcome = await watch.future
        finally:
            del self._watches[inbound_id]
        return outcome.answer if outcome.error is None else f"It failed: {outcome.error}"

    def _watched(self, inbound_id: str, emit: Emit) -> _Watch:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        watch = self._watches[inbound_id] = _Watch(emit, future, {inbound_id})
        return watch

    async def _withdraw(self, inbound: InboundMessage) -> None:
        """Close an inbound whose client is gone: stop its turn, or take it out of the queue.

        The same with its subagents and their reports.
        """
        actor = self._actors.get(inbound.session_key)
        if actor is not None:
            if actor.running is not None and actor.running.inbound.asked_by == inbound.id:
                await self.stop(inbound.session_key)
            for pending in [p for p in actor.mailbox if p.message.asked_by == inbound.id]:
                actor.mailbox.remove(pending)
                await self.interrupted(pending.message)
        await self.stop_subagents(inbound.session_key, of=inbound.id)

    async def interrupted(self, inbound: InboundMessage) -> None:
        """Close an inbound from a terminal that is gone, or was told of its failure."""
        entries = await self.turns.closing(inbound, Unanswered.INTERRUPTED)
        await self.bus.settle(
            TurnResult(
                session=inbound.session_key, consumed=(inbound.id,), answer="", entries=entries
            ),
            state="interrupted",
            error="its terminal was gone",
        )

    async def stop(self, session_key: str) -> bool:
        """Stop the turn of a session that runs, waits for its slot, or waits to be tried again.

        False when there is none. Queued messages stay.
        """
        actor = self._actors.get(session_key)
        if actor is None:
            return False
        if actor.running is None:
            return await actor.drop_deferred()
        await self._stop_running([actor.running])
        return True

    def try_again(self, session_key: str) -> None:
        """Try what a session has put off now: what it waits for may be there."""
        actor = self._actors.get(session_key)
        if actor is not None:
            actor.hurry()

    async def stop_subagents(self, session_key: str, *, of: str | None = None) -> tuple[str, ...]:
        """Stop the subagents of a session, running or waiting; their labels.

        With ``of`` only those that were sent for this inbound. They do not report; the session is
        told that they were stopped, in the transaction that closes their tasks.
        """
        open_ = await self.bus.inbox.errands(session_key)
        open_ = [one for one in open_ if of in (None, one.errand.inbound_id)]
        if not open_:
            return ()
        labels = tuple(one.errand.label for one in open_)
        told = Draft(
            kind=EntryKind.NUDGE,
            message=UserMessage(render.subagents_stopped(labels)),
            inbound_id=open_[0].errand.inbound_id,
            principal=str(open_[0].task.principal),
            trust=Trust.TRUSTED,
        )
        closed = tuple(one.task.id for one in open_)
        result = TurnResult(session=session_key, consumed=closed, answer="", entries=(told,))
        try:
            await self.bus.settle(result, state="interrupted", error="the user stopped it")
        finally:
            actors = [self._actors[one] for one in closed if one in self._actors]
            await self._stop_running([a.running for a in actors if a.running is not None])
        for task_id in closed:
            self.tell(task_id, Outcome(error=TurnStopped("stopped")))
        return labels

    async def _stop_running(self, turns: Sequence[_Running]) -> None:
        """Stop turns, and wait until they are over and closed in their logs, if the disk can."""
        for running in turns:
            running.stopped = True
            running.task.cancel()
        if turns:
            await asyncio.wait({running.task for running in turns})
            closing = {asyncio.ensure_future(running.over.wait()) for running in turns}
            _, late = await asyncio.wait(closing, timeout=STOP_S)
            for waiter in late:
                waiter.cancel()

    def running_since(self, session_key: str) -> datetime | None:
        """When the running turn of a session began, or None."""
        actor = self._actors.get(session_key)
        return None if actor is None or actor.running is None else actor.running.started_at

    def waiting(self, session_key: str) -> int:
        """How many messages of a session wait for their turn."""
        actor = self._actors.get(session_key)
        return 0 if actor is None else len(actor.mailbox)

    def running_turns(self) -> int:
        """How many turns run now."""
        running = (actor.running for actor in self._actors.values())
        return sum(one is not None and one.started_at is not None for one in running)

    async def close(self, grace_s: float = 0.0) -> None:
        """Take nothing new, give running turns ``grace_s`` seconds, cancel the rest.

        What was cancelled stays in the inbox and is taken up at the next start.
        """
        self._stopping = True
        await asyncio.gather(*(actor.backlog.close() for actor in self._actors.values()))
        busy = set(self._control)  # a client that goes has its question closed
        if grace_s > 0:
            busy |= {actor.task for actor in self._actors.values() if actor.busy}
        if busy:
            await asyncio.wait(busy, timeout=max(grace_s, STOP_S))
        tasks = {actor.task for actor in self._actors.values()} | self._control
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def is_stopping(self) -> bool:
        """Whether nothing new may begin."""
        return self._stopping

    def _actor(self, key: str) -> _Actor:
        actor = self._actors.get(key)
        if actor is None:
            actor = self._actors[key] = _Actor(self, key)
        return actor

    def retire(self, key: str) -> None:
        """Forget an actor that has no mail; called by it, with no await in between."""
        del self._actors[key]

    def command_in(self, inbound: InboundMessage) -> tuple[Command, str] | None:
        """The command that a person typed, with its argument; None for all else."""
        return self.commands.find(inbound.content) if inbound.origin is Origin.USER else None

    async def _control_lane(self, inbound: InboundMessage) -> None:
        try:
            await self.run_command(inbound)
        except Exception as error:
            logger.bind(inbound=inbound.id).exception("a command failed")
            await self.fail(inbound, COMMAND_FAILED, error)
        finally:
            self._in_control.discard(inbound.id)

    async def run_command(self, inbound: InboundMessage) -> None:
        """Run the command an inbound holds and settle it with the answer."""
        found = self.command_in(inbound)
        assert found is not None, "the dispatcher found a command in this text before"
        command, argument = found
        try:
            answer = await command.handler(Invocation(inbound, argument))
        except (ProviderError, StoreError) as error:
            answer = str(error)
        result = TurnResult(session=inbound.session_key, consumed=(inbound.id,), answer=answer)
        await self.settle(inbound, result)

    async def settle(self, inbound: InboundMessage, result: TurnResult) -> None:
        """Commit a turn's result with its consequences, then tell whoever waits."""
        following = consequences(inbound, result)
        await self.insist(
            inbound, lambda: self.bus.settle(result, following.outbounds, following.posts)
        )
        outcome = Outcome(result.answer, result.tools_used, result.usage, result.model)
        for inbound_id in result.consumed:
            # A report that steered has its part in the answer of the turn, as has its subagent.
            if inbound_id != inbound.id:
                self.tell(inbound_id, Outcome())
            elif inbound.profile == SUBAGENT:
                self.tell(inbound_id, Outcome(usage=result.usage))
            else:
                self.tell(inbound_id, outcome)
        watch = self._watch_of(inbound.asked_by)
        if watch is not None and watch.open and inbound.profile != SUBAGENT:
            watch.emit(Notice(WAITING.format(len(watch.open))))

    async def park(self, inbound: InboundMessage, attempts: int, error: BaseException) -> None:
        """Put an inbound aside that failed too often, out of the model's view as well."""
        mark = Draft(
            kind=EntryKind.PARKED,
            message=None,
            inbound_id=inbound.id,
            principal=str(inbound.principal),
            trust=inbound.trust,
        )
        await self.fail(inbound, PARKED.format(attempts=attempts), error, mark)

    async def fail(
        self, inbound: InboundMessage, text: str, error: BaseException, *entries: Draft
    ) -> None:
        """Settle an inbound that no turn can answer with a line for its sender."""
        result = TurnResult(
            session=inbound.session_key, consumed=(inbound.id,), answer="", entries=entries
        )
        outbounds: tuple[OutboundMessage, ...] = ()
        if inbound.answer.kind is AnswerKind.REPORT:
            await self._report_failure(inbound, result, error)
            return
        if inbound.answer.kind in (AnswerKind.REPLY, AnswerKind.REPLY_UNLESS_SILENT):
            # Not the id of an answer: the owner may have it tried again, and then there is one.
            kind = f"failed-{self.clock().timestamp():.0f}"
            outbounds = (reply(inbound, text, kind=kind),)
        # What failed at a terminal was said there: there is nothing to retry.
        state = "interrupted" if inbound.answer.kind is AnswerKind.TERMINAL else "dead"
        await self.insist(
            inbound,
            lambda: self.bus.settle(result, outbounds, state=state, error=str(error)),
        )
        self.tell(inbound.id, Outcome(error=error))

    async def _report_failure(
        self, task: InboundMessage, result: TurnResult, error: BaseException
    ) -> None:
        """Close a subagent's task that has failed; the session that sent it is told."""
        posts = (report(task, result, failure=f"failed: {one_line(str(error))}"),)
        await self.insist(
            task,
            lambda: self.bus.settle(result, posts=posts, state="interrupted", error=str(error)),
        )
        self.tell(task.id, Outcome())

    async def insist(self, inbound: InboundMessage, write: Callable[[], Awaitable[object]]) -> None:
        """Repeat a write until the disk takes it: what it notes has happened already.

        A client that waits at a terminal is told at once.
        """
        for delay in chain(STORE_RETRY_S, repeat(STORE_RETRY_S[-1])):
            try:
                await write()
            except StoreError as error:
                self.tell(inbound.id, Outcome(error=error))
            else:
                return
            await asyncio.sleep(delay)

    def tell(self, inbound_id: str, outcome: Outcome) -> None:
        """Hand the outcome to the client that waits for this inbound, if there is one."""
        watch = self._watch_of(inbound_id)
        if watch is not None:
            watch.closed(inbound_id, outcome)

    def emit_for(self, inbound: InboundMessage) -> Emit:
        """Where the progress of a turn goes: its waiting client, else its channel."""
        watch = self._watch_of(inbound.id)
        if watch is not None and inbound.profile != SUBAGENT:
            if watch.outcome.answer:
                watch.emit(TextDelta("\n\n"))
            return watch.emit
        progress = self.shown_by(inbound)
        return ignore if progress is None else progress.began(inbound)

    def shown_by(self, inbound: InboundMessage) -> Progress | None:
        """Who shows, or follows, the turn of an inbound that no client waits for."""
        if inbound.profile == SUBAGENT:
            return self._subagents
        return None if self.is_watched(inbound.id) else self.progress(inbound.channel)

    def is_watched(self, inbound_id: str) -> bool:
        """Whether a client waits for this inbound."""
        return self._watch_of(inbound_id) is not None

    def _watch_of(self, inbound_id: str) -> _Watch | None:
        """The wait that an inbound, or a subagent's task or report, is part of."""
        found = self._watches.get(inbound_id)
        if found is not None:
            return found
        return next((w for w in self._watches.values() if inbound_id in w.open), None)


class _Actor:
    """One session: its mailbox, and at most one turn at a time."""

    def __init__(self, dispatcher: Dispatcher, key: str) -> None:
        self.key = key
        self.mailbox: deque[Pending] = deque()
        self.running: _Running | None = None
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
        await self._dispatcher.insist(inbound, lambda: self._settle_stopped(inbound, ()))
        return True

    async def _run(self) -> None:
        """Work on the mail, until there was none for long; a defect is logged and survived."""
        while not self._dispatcher.is_stopping():
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
            self._dispatcher.tell(pending.message.id, Outcome(error=error))
        finally:
            self.busy = False
        self.backlog.released()
        if not self.mailbox:
            self._dispatcher.care.idle(self.key)
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
        running = self.running = _Running(inbound, task)
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
            await dispatcher.care.turn_begins()
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

    async def _close(self, pending: Pending, running: _Running) -> None:
        """Settle an inbound by how its turn ended, or put it back for later."""
        dispatcher = self._dispatcher
        inbound, task = running.inbound, running.task
        if task.cancelled() and running.stopped:
            steered = [taken.message.id for taken in running.steered]
            await dispatcher.insist(inbound, lambda: self._settle_stopped(inbound, steered))
            return
        error = RuntimeError("it was cancelled") if task.cancelled() else task.exception()
        if error is None:
            if (result := task.result()) is not None:
                await dispatcher.settle(inbound, result)
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
            dispatcher.tell(inbound_id, Outcome(error=TurnStopped("stopped")))

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
        if not waits or dispatcher.is_watched(inbound.id):
            closing = await dispatcher.turns.closing(inbound, Unanswered.FAILED)
            await dispatcher.fail(inbound, MODEL_SAYS_NO.format(reason=error), error, *closing)
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
        """A defect of ours: try again soon, and after the last attempt park the message."""
        dispatcher = self._dispatcher
        inbound = pending.message
        attempts = min(pending.attempts + 1, MAX_ATTEMPTS)
        if attempts >= MAX_ATTEMPTS or dispatcher.is_watched(inbound.id):
            await dispatcher.park(inbound, attempts, error)
            return
        until = dispatcher.clock() + timedelta(seconds=2.0**attempts)
        self.mailbox.appendleft(
            replace(pending, attempts=attempts, not_before=until, mail_from=None)
        )

    async def _store_failed(self, pending: Pending, error: StoreError) -> None:
        """The disk is at fault, not the message: it waits, and no attempt is counted."""
        dispatcher = self._dispatcher
        inbound = pending.message
        if dispatcher.is_watched(inbound.id):
            dispatcher.tell(inbound.id, Outcome(error=error))
            await dispatcher.insist(inbound, lambda: dispatcher.interrupted(inbound))
            return
        delay = STORE_RETRY_S[min(self._store_faults, len(STORE_RETRY_S) - 1)]
        self._store_faults += 1
        until = dispatcher.clock() + timedelta(seconds=delay)
        self.mailbox.appendleft(replace(pending, not_before=until, mail_from=None))


def _may_steer(message: InboundMessage, running: InboundMessage) -> bool:
    if message.origin in (Origin.CRON, Origin.HEARTBEAT):
        return False  # each run is answered by itself
    is_report = message.errand is not None
    return (
        message.principal == running.principal
        and message.profile == running.profile
        and message.answer == replace(running.answer, note=message.answer.note)
        and (not message.is_terminals or (is_report and message.asked_by == running.asked_by))
        and (message.channel, message.chat_id, message.thread_id)
        == (running.channel, running.chat_id, running.thread_id)
    )
