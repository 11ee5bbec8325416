"""The dispatcher: routes each inbound to its session's actor or to the control lane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Protocol

from loguru import logger

from nanobot.agent.turn import TurnResult
from nanobot.bus.bus import MessageBus
from nanobot.bus.inbox import Pending
from nanobot.bus.session_actor import QueueMode, RunningTurn, SessionActor, Slots, TurnRunner
from nanobot.bus.settling import Settler
from nanobot.bus.waiters import AskResult, TurnStopped, Waiters
from nanobot.core.chat import UserMessage
from nanobot.core.commands import Command, CommandTable, Invocation
from nanobot.core.errors import ProviderError, StoreError
from nanobot.core.events import Emit, TextDelta, ignore
from nanobot.core.messages import AnswerKind, InboundMessage, Origin, Trust, Unanswered
from nanobot.core.ports import Clock
from nanobot.prompts import render
from nanobot.session.entries import Draft, EntryKind
from nanobot.subagents.manager import PROFILE as SUBAGENT

STOP_S = 0.7
"""Upper bound in seconds of the wait until stopped turns are closed in the log."""

COMMAND_FAILED = "Sorry: this command failed, and the log says why."


class Progress(Protocol):
    """Shows a running turn on its platform (typing, previews); what it does may be lost."""

    def began(self, inbound: InboundMessage) -> Emit: ...

    def ended(self, inbound: InboundMessage) -> None: ...


class SessionHooks(Protocol):
    """Called before each turn and when a session has no more mail; ``idle`` returns at once."""

    async def turn_begins(self) -> None: ...

    def idle(self, session_key: str) -> None: ...


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
        hooks: SessionHooks,
    ) -> None:
        """``progress`` names who shows the turns of a channel, ``subagents`` who follows theirs."""
        self.bus = bus
        self.turns = turns
        self.commands = commands
        self.clock = clock
        self.queue = queue
        self.progress = progress
        self.hooks = hooks
        self.slots = Slots(slots, max_subagents)
        self._subagents = subagents
        self.is_stopping = False
        self._actors: dict[str, SessionActor] = {}
        self._control: set[asyncio.Task[None]] = set()
        self._in_control: set[str] = set()
        self.waiters = Waiters()
        self.settler = Settler(bus, self.waiters, clock)
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
        if self.waiters.find(inbound.id) is not None or inbound.id in self._in_control:
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
        if (waiter := self.waiters.find(pending.message.asked_by)) is not None:
            waiter.open.add(pending.message.id)
        is_from_terminal = pending.message.answer.kind is AnswerKind.TERMINAL
        if is_from_terminal and self.waiters.find(pending.message.id) is None:
            # Its client has gone while it was posted.
            self._aside(self.recovered(pending))
            return
        is_admitted = self._actor(pending.message.session_key).backlog.admits(pending)
        is_waited_for = self.waiters.find(pending.message.id) is not None
        if is_admitted or is_waited_for or self._is_control(pending.message):
            self.submit(pending)

    def _is_control(self, inbound: InboundMessage) -> bool:
        """Whether it is a command that acts at once, whatever waits and runs."""
        found = self.command_in(inbound)
        return found is not None and found[0].control

    def submit(self, pending: Pending) -> None:
        """Hand an inbound that is in the inbox to its session's actor or the control lane."""
        if self.is_stopping:
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

    async def ask(self, inbound: InboundMessage, emit: Emit = ignore) -> AskResult:
        """Post ``inbound`` and wait until it is settled; the way of one-shots and the REPL.

        If it sends subagents, their reports are waited for as well, and the answers joined.
        Cancelling the wait stops the turn and them.
        """
        with self.waiters.waiting(inbound.id, emit) as waiter:
            try:
                await self.bus.post(inbound)
                outcome = await waiter.future
                if waiter.open:
                    await asyncio.shield(self._aside(self._withdraw(inbound)))
                return outcome
            except asyncio.CancelledError:
                await asyncio.shield(self._aside(self._withdraw(inbound)))
                raise

    async def settled(self, inbound_id: str) -> str:
        """Wait until an inbound that was just posted is settled; its answer, or what went wrong."""
        with self.waiters.waiting(inbound_id, ignore) as waiter:
            outcome = await waiter.future
        return outcome.answer if outcome.error is None else f"It failed: {outcome.error}"

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
        open_ = await self.bus.inbox.open_tasks(session_key)
        open_ = [one for one in open_ if of in (None, one.parent.inbound_id)]
        if not open_:
            return ()
        labels = tuple(one.parent.label for one in open_)
        told = Draft(
            kind=EntryKind.SYSTEM_NOTE,
            message=UserMessage(render.subagents_stopped(labels)),
            inbound_id=open_[0].parent.inbound_id,
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
            self.waiters.tell(task_id, AskResult(error=TurnStopped("stopped")))
        return labels

    async def _stop_running(self, turns: Sequence[RunningTurn]) -> None:
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
        self.is_stopping = True
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

    def _actor(self, key: str) -> SessionActor:
        actor = self._actors.get(key)
        if actor is None:
            actor = self._actors[key] = SessionActor(self, key)
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
            await self.settler.fail(inbound, COMMAND_FAILED, error)
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
        await self.settler.settle(inbound, result)

    def emit_for(self, inbound: InboundMessage) -> Emit:
        """Where the progress of a turn goes: its waiting client, else its channel."""
        waiter = self.waiters.find(inbound.id)
        if waiter is not None and inbound.profile != SUBAGENT:
            if waiter.outcome.answer:
                waiter.emit(TextDelta("\n\n"))
            return waiter.emit
        progress = self.shown_by(inbound)
        return ignore if progress is None else progress.began(inbound)

    def shown_by(self, inbound: InboundMessage) -> Progress | None:
        """Who shows, or follows, the turn of an inbound that no client waits for."""
        if inbound.profile == SUBAGENT:
            return self._subagents
        return None if self.waiters.find(inbound.id) is not None else self.progress(inbound.channel)
