"""The dispatcher: an actor a session, a control lane, and a bounded number of turns at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain, repeat
from typing import Any, Protocol

from loguru import logger

from nanobot.agent.commands import Command, CommandTable, Invocation
from nanobot.agent.subagent import PROFILE as SUBAGENT
from nanobot.agent.turn import Drain, Settlement
from nanobot.bus.answers import consequences, reply, report
from nanobot.bus.backlog import Backlog
from nanobot.bus.bus import MessageBus, Pending
from nanobot.core.chat import Usage, UserMessage
from nanobot.core.errors import ProviderError, RetryLater, StoreError
from nanobot.core.events import Emit, Notice, TextDelta, ignore
from nanobot.core.identity import Origin, Trust
from nanobot.core.messages import AnswerKind, InboundMessage, OutboundMessage
from nanobot.core.ports import Clock
from nanobot.core.text import one_line
from nanobot.prompts import render
from nanobot.session.entries import Draft, EntryKind

MAX_ATTEMPTS = 3
"""Turns begun for one inbound before it is parked with an apology."""
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
    ) -> Settlement: ...

    async def stopped(self, inbound: InboundMessage, consumed: Sequence[str]) -> Settlement: ...


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
    """The turn an actor runs; the actor owns it, ``stop`` only marks and cancels it."""

    inbound: InboundMessage
    task: asyncio.Task[Settlement]
    started_at: datetime
    waiting_before: int
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
        self._stopped: set[str] = set()
        self._backlog: Backlog[Pending] = Backlog(
            lambda after, limit: bus.pending(after=after, limit=limit),
            self._recovered,
            self.held,
            limit=bus.max_queued,
        )
        bus.on_inbound(self._arrived)

    async def recover(self, *, terminals_only: bool = False) -> None:
        """Take up what a former process left in the inbox.

        A message from a terminal is closed as interrupted: its client is gone. The others are
        left for the gateway with ``terminals_only``.
        """
        if not terminals_only:
            await self._backlog.recover()
            return
        after = 0
        while page := await self.bus.pending(after=after):
            after = page[-1].seq
            for pending in page:
                if pending.message.is_terminals:
                    await self._recovered(pending)

    async def _recovered(self, pending: Pending) -> None:
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
            self._aside(self._recovered(pending))
            return
        found = self.command_in(pending.message)
        is_urgent = found is not None and found[0].control
        if self._backlog.admits(pending) or is_urgent or self.is_watched(pending.message.id):
            self.submit(pending)

    def held(self) -> int:
        """How many inbounds are in memory: those that wait, and those being worked on."""
        return sum(len(actor.mailbox) + actor.busy for actor in self._actors.values())

    def handled(self) -> None:
        """An actor is done with an inbound: there may be room for what waits in the inbox."""
        self._backlog.released()

    def submit(self, pending: Pending) -> None:
        """Hand an inbound that is in the inbox to its session's actor or the control lane."""
        if self._stopping:
            return  # it stays in the inbox for the next start
        found = self.command_in(pending.message)
        if found is not None and found[0].control:
            self._in_control.add(pending.message.id)
            self._aside(self._control_lane(pending.message))
            return
        self._actor(pending.message.session_key).put(pending)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the actors; ``close`` waits for it."""
        task = asyncio.create_task(work)
        self._control.add(task)
        task.add_done_callback(self._control.discard)

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
                await asyncio.shield(self._withdraw(inbound))
            return outcome
        except asyncio.CancelledError:
            await asyncio.shield(self._withdraw(inbound))
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
        await self.bus.settle(
            Settlement(session=inbound.session_key, consumed=(inbound.id,), answer=""),
            state="interrupted",
            error="its terminal was gone",
        )

    async def stop(self, session_key: str) -> bool:
        """Stop the running turn of a session; False when none runs. Queued messages stay."""
        actor = self._actors.get(session_key)
        if actor is None or actor.running is None:
            return False
        await self._stop_running([actor.running])
        return True

    async def stop_subagents(self, session_key: str, *, of: str | None = None) -> tuple[str, ...]:
        """Stop the subagents of a session, running or waiting; their labels.

        With ``of`` only those that were sent for this inbound. They do not report; the session is
        told that they were stopped, in the transaction that closes their tasks.
        """
        open_ = await self.bus.errands(session_key)
        open_ = [one for one in open_ if of in (None, one.errand.inbound_id)]
        if not open_:
            return ()
        actors = [self._actors[one.task.id] for one in open_ if one.task.id in self._actors]
        self._stopped.update(actor.key for actor in actors if actor.busy or actor.mailbox)
        running = [actor.running for actor in actors if actor.running is not None]
        labels = tuple(one.errand.label for one in open_)
        told = Draft(
            kind=EntryKind.NUDGE,
            message=UserMessage(render.subagents_stopped(labels)),
            inbound_id=open_[0].errand.inbound_id,
            principal=str(open_[0].task.principal),
            trust=Trust.TRUSTED,
        )
        closed = tuple(one.task.id for one in open_)
        settlement = Settlement(session=session_key, consumed=closed, answer="", entries=(told,))
        try:
            await self.bus.settle(settlement, state="interrupted", error="the user stopped it")
        finally:
            await self._stop_running(running)
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

    def is_stopped(self, inbound: InboundMessage) -> bool:
        """Whether a subagent's task was stopped while its turn was about to begin or to end."""
        return inbound.id in self._stopped

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
        return sum(1 for actor in self._actors.values() if actor.running is not None)

    async def close(self, grace_s: float = 0.0) -> None:
        """Take nothing new, give running turns ``grace_s`` seconds, cancel the rest.

        What was cancelled stays in the inbox and is taken up at the next start.
        """
        self._stopping = True
        await self._backlog.close()
        busy = {actor.task for actor in self._actors.values() if actor.busy} | self._control
        if busy and grace_s > 0:
            await asyncio.wait(busy, timeout=grace_s)
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
        self._stopped.discard(key)

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
        settlement = Settlement(session=inbound.session_key, consumed=(inbound.id,), answer=answer)
        await self.settle(inbound, settlement)

    async def settle(self, inbound: InboundMessage, settlement: Settlement) -> None:
        """Commit a settlement with its consequences, then tell whoever waits."""
        result = consequences(inbound, settlement)
        await self.insist(
            inbound, lambda: self.bus.settle(settlement, result.outbounds, result.posts)
        )
        outcome = Outcome(
            settlement.answer, settlement.tools_used, settlement.usage, settlement.model
        )
        for inbound_id in settlement.consumed:
            # A report that steered has its part in the answer of the turn, as has its subagent.
            if inbound_id != inbound.id:
                self.tell(inbound_id, Outcome())
            elif inbound.profile == SUBAGENT:
                self.tell(inbound_id, Outcome(usage=settlement.usage))
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
        settlement = Settlement(
            session=inbound.session_key, consumed=(inbound.id,), answer="", entries=entries
        )
        outbounds: tuple[OutboundMessage, ...] = ()
        if inbound.answer.kind is AnswerKind.REPORT:
            await self._report_failure(inbound, settlement, error)
            return
        if inbound.answer.kind in (AnswerKind.REPLY, AnswerKind.REPLY_UNLESS_SILENT):
            # Not the id of an answer: the owner may have it tried again, and then there is one.
            kind = f"failed-{self.clock().timestamp():.0f}"
            outbounds = (reply(inbound, text, kind=kind),)
        # What failed at a terminal was said there: there is nothing to retry.
        state = "interrupted" if inbound.answer.kind is AnswerKind.TERMINAL else "dead"
        await self.insist(
            inbound,
            lambda: self.bus.settle(settlement, outbounds, state=state, error=str(error)),
        )
        self.tell(inbound.id, Outcome(error=error))

    async def _report_failure(
        self, task: InboundMessage, settlement: Settlement, error: BaseException
    ) -> None:
        """Close a subagent's task that has failed; the session that sent it is told."""
        posts = (report(task, settlement, failure=f"failed: {one_line(str(error))}"),)
        await self.insist(
            task,
            lambda: self.bus.settle(settlement, posts=posts, state="interrupted", error=str(error)),
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
        self._store_faults = 0
        self._dispatcher = dispatcher
        self._mail = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"session {key}")

    def put(self, pending: Pending) -> None:
        self.mailbox.append(pending)
        self._mail.set()
        running = self.running
        if (
            running is not None
            and self._dispatcher.queue is QueueMode.INTERRUPT
            and pending.message.origin is Origin.USER
            and _may_steer(pending.message, running.inbound)
        ):
            running.stopped = True
            running.task.cancel()

    async def _run(self) -> None:
        while not self._dispatcher.is_stopping():
            if not self.mailbox:
                self._mail.clear()
                try:
                    await asyncio.wait_for(self._mail.wait(), IDLE_S)
                except TimeoutError:
                    # Mail may have come in the tick of the timeout; no await from here on.
                    if not self.mailbox:
                        self._dispatcher.retire(self.key)
                        return
                continue
            await self._wait_until_due(self.mailbox[0])
            if self._dispatcher.is_stopping():
                return
            pending = self.mailbox.popleft()
            self.busy = True
            try:
                await self._work(pending)
                self._store_faults = 0
            except StoreError as error:
                await self._store_failed(pending, error)
            finally:
                self.busy = False
            self._dispatcher.handled()
            if not self.mailbox:
                self._dispatcher.care.idle(self.key)

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

    async def _wait_until_due(self, pending: Pending) -> None:
        """Wait for the time of a deferred message, or for new mail: the fault may be over."""
        if pending.not_before is None:
            return
        left = min(pending.not_before - self._dispatcher.clock(), LONGEST_WAIT)
        wait = left.total_seconds()
        if wait <= 0:
            return
        self._mail.clear()
        try:
            await asyncio.wait_for(self._mail.wait(), wait)
        except TimeoutError:
            return

    async def _handle(self, pending: Pending) -> None:
        dispatcher = self._dispatcher
        inbound = pending.message
        if dispatcher.command_in(inbound) is not None:
            await dispatcher.run_command(inbound)
            return
        async with dispatcher.slots.hold(inbound):
            attempts = await dispatcher.bus.claim(inbound.id, again=self._store_faults > 0)
            if attempts is None or dispatcher.is_stopped(inbound):
                return  # a turn that was cut off had taken it in, and has settled it since
            if attempts > MAX_ATTEMPTS:
                await dispatcher.park(inbound, MAX_ATTEMPTS, RuntimeError("it failed too often"))
                return
            await self._turn(pending)

    async def _turn(self, pending: Pending) -> None:
        dispatcher = self._dispatcher
        inbound = pending.message
        emit = dispatcher.emit_for(inbound)
        await dispatcher.care.turn_begins()
        task = asyncio.create_task(
            dispatcher.turns.run_turn(inbound, drain=self._drain, emit=emit),
            name=f"turn {inbound.id}",
        )
        running = self.running = _Running(inbound, task, dispatcher.clock(), len(self.mailbox))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # Shutdown: leave the message in the inbox and the log as it is.
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self.running = None
            if (progress := dispatcher.shown_by(inbound)) is not None:
                progress.ended(inbound)
        try:
            await self._close(pending, running)
        finally:
            running.over.set()

    async def _close(self, pending: Pending, running: _Running) -> None:
        """Settle an inbound by how its turn ended, or put it back for later."""
        dispatcher = self._dispatcher
        inbound, task = running.inbound, running.task
        if dispatcher.is_stopped(inbound) or (task.cancelled() and running.stopped):
            await dispatcher.insist(inbound, lambda: self._settle_stopped(running))
            return
        error = RuntimeError("it was cancelled") if task.cancelled() else task.exception()
        if error is None:
            await dispatcher.settle(inbound, task.result())
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

    async def _settle_stopped(self, running: _Running) -> None:
        """Close a turn that the user has stopped, and what it had taken in."""
        dispatcher = self._dispatcher
        steered = [pending.message.id for pending in running.steered]
        settlement = await dispatcher.turns.stopped(running.inbound, steered)
        await dispatcher.bus.settle(settlement)
        for inbound_id in settlement.consumed:
            dispatcher.tell(inbound_id, Outcome(error=TurnStopped("stopped")))

    def _drain(self) -> tuple[InboundMessage, ...]:
        """What the running turn takes in now: see ``QueueMode``."""
        running = self.running
        if running is None:
            return ()
        first, running.drained = not running.drained, True
        match self._dispatcher.queue:
            case QueueMode.STEER:
                # What waited before the turn began is answered in turns of its own.
                allowed = len(self.mailbox) if not running.waiting_before else 0
            case QueueMode.COLLECT:
                allowed = running.waiting_before if first else 0
            case _:
                allowed = 0
        taken: list[Pending] = []
        while len(taken) < allowed and _may_steer(self.mailbox[0].message, running.inbound):
            message = self.mailbox[0].message
            if not self._dispatcher.commands.steers(message.content):
                break
            taken.append(self.mailbox.popleft())
        running.steered.extend(taken)
        return tuple(pending.message for pending in taken)

    async def _model_failed(self, pending: Pending, error: ProviderError) -> None:
        dispatcher = self._dispatcher
        inbound = pending.message
        waits = isinstance(error, RetryLater) and inbound.answer.kind is not AnswerKind.TERMINAL
        if inbound.answer.kind is AnswerKind.REPORT and pending.attempts >= MAX_ATTEMPTS:
            waits = False  # whoever sent the subagent may have another model, and decides
        if not waits or dispatcher.is_watched(inbound.id):
            await dispatcher.fail(inbound, MODEL_SAYS_NO.format(reason=error), error)
            return
        assert isinstance(error, RetryLater)
        delay = max(error.after or 0.0, RETRY_S[min(pending.attempts, len(RETRY_S) - 1)])
        until = dispatcher.clock() + timedelta(seconds=delay)
        if not pending.told and inbound.answer.kind is AnswerKind.REPLY:
            when = "in a minute" if delay < 90 else f"at {until.astimezone():%H:%M}"
            text = KEPT.format(reason=error, when=when)
            await dispatcher.bus.queue(reply(inbound, text, kind="kept"))
        await dispatcher.bus.defer(inbound.id, until, attempts_back=True)
        self.mailbox.appendleft(Pending(inbound, pending.attempts + 1, not_before=until, told=True))

    async def _failed(self, pending: Pending, error: BaseException) -> None:
        """A defect of ours: try again soon, and after the last attempt park the message."""
        dispatcher = self._dispatcher
        inbound = pending.message
        attempts = pending.attempts + 1
        if attempts >= MAX_ATTEMPTS or dispatcher.is_watched(inbound.id):
            await dispatcher.park(inbound, attempts, error)
            return
        until = dispatcher.clock() + timedelta(seconds=2.0**attempts)
        self.mailbox.appendleft(Pending(inbound, attempts, not_before=until, told=pending.told))

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
        self.mailbox.appendleft(replace(pending, not_before=until))


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
