"""Subagents: the spawn tool, and SubagentManager, which posts their tasks."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from pydantic import Field

from nanobot.core.errors import ToolError
from nanobot.core.events import Emit, Event, ToolFinished, ToolStarted
from nanobot.core.messages import (
    AnswerKind,
    AnswerRule,
    InboundMessage,
    OpenTask,
    Origin,
    ParentTurn,
    Trust,
)
from nanobot.core.ports import Clock
from nanobot.core.text import one_line
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.session.log import SessionLog

PROFILE = "subagent"
"""The profile of a subagent's turn."""
MAX_OPEN = 20
"""Subagents of one session that may wait or run at a time."""
MAX_GENERATION = 3
"""How many generations of subagents may spawn each other before a person has to ask."""
_LABEL_LENGTH = 40


class Inbox(Protocol):
    """What the manager reads of the inbox."""

    async def find(self, inbound_id: str) -> InboundMessage | None: ...

    async def open_tasks(self, session: str | None = None) -> list[OpenTask]: ...


class Bus(Protocol):
    """What the manager needs of the message bus; ``post`` returns once the message is on disk."""

    @property
    def inbox(self) -> Inbox: ...

    async def post(self, message: InboundMessage) -> bool: ...


@dataclass(slots=True)
class _Progress:
    """How far a running subagent is; the turn's events are its only writer."""

    calls: int = 0
    doing: str = ""

    def take(self, event: Event) -> None:
        match event:
            case ToolStarted(_, name, summary):
                self.calls += 1
                self.doing = f"{name}: {summary}" if summary else name
            case ToolFinished():
                self.doing = ""


class SubagentManager:
    """Posts subagents' tasks and keeps track of their progress.

    A subagent is the inbound ``subagent:<id>`` in a session of the same name. It runs as any other
    inbound does; the transaction that settles it posts its report.
    """

    def __init__(
        self, bus: Bus, sessions: SessionLog, clock: Clock, *, model: str | None = None
    ) -> None:
        """``model`` is that of all subagents; None: that of the session they work for."""
        self._bus = bus
        self._sessions = sessions
        self._clock = clock
        self._model = model
        self._running: dict[str, _Progress] = {}

    async def send(
        self, task: str, label: str, *, inbound_id: str, call_id: str, trust: Trust
    ) -> OpenTask:
        """Post a task for the turn of ``inbound_id``; raises ToolError when it may not have more.

        The task inherits the turn's principal and place. Repeating a call posts nothing.
        """
        sender = await self._bus.inbox.find(inbound_id)
        if sender is None:
            raise ToolError("The message of this turn is gone; a subagent could report to nobody.")
        open_ = await self._bus.inbox.open_tasks(sender.session_key)
        if len(open_) >= MAX_OPEN:
            raise ToolError(
                f"{len(open_)} subagents work for this conversation, as many as may. Wait for "
                "their reports, or do it yourself."
            )
        generation = sender.parent.generation + 1 if sender.parent else 1
        if generation > MAX_GENERATION:
            raise ToolError(
                "This turn itself began with a subagent's report, and so did the one before: do "
                "the rest yourself, or ask the person whether it should go on."
            )
        settings = (await self._sessions.live(sender.session_key)).settings
        name = subagent_id(inbound_id, call_id)
        parent = ParentTurn(
            label=label or one_line(task, _LABEL_LENGTH),
            inbound_id=sender.asked_by,
            session=sender.session_key,
            profile=sender.profile,
            answer=sender.answer,
            model=sender.model,
            generation=generation,
        )
        posted = replace(
            sender,
            content=task,
            media=(),
            id=name,
            sender_name="",
            username="",
            sent_at=None,
            origin=Origin.SUBAGENT,
            trust=trust,
            profile=PROFILE,
            answer=AnswerRule(AnswerKind.REPORT),
            session=name,
            model=self._model or sender.model or settings.model,
            attended=False,
            parent=parent,
        )
        posting = asyncio.ensure_future(self._bus.post(posted))
        try:
            await asyncio.shield(posting)
        except asyncio.CancelledError:
            # A stop of the turn stops its subagents next, and has to find this one.
            await asyncio.wait({posting})
            raise
        return OpenTask(posted, parent, self._clock())

    async def was_sent(self, inbound_id: str, call_id: str) -> bool:
        """Whether the task of this call was ever posted."""
        return await self._bus.inbox.find(subagent_id(inbound_id, call_id)) is not None

    async def status_lines(self, session: str) -> list[str]:
        """A line for ``/status`` on each open subagent of a session."""
        return [self._line(one) for one in await self._bus.inbox.open_tasks(session)]

    async def counts(self) -> tuple[int, int]:
        """How many subagents run and how many wait, in all sessions."""
        open_ = len(await self._bus.inbox.open_tasks())
        running = min(len(self._running), open_)
        return running, open_ - running

    def began(self, inbound: InboundMessage) -> Emit:
        """Track the turn of a subagent; the dispatcher calls this and passes the turn's events."""
        progress = self._running[inbound.id] = _Progress()
        return progress.take

    def ended(self, inbound: InboundMessage) -> None:
        """Stop tracking a subagent whose turn is over."""
        self._running.pop(inbound.id, None)

    def _line(self, open_: OpenTask) -> str:
        age = in_short(self._clock() - open_.since)
        progress = self._running.get(open_.task.id)
        if progress is None:
            how = "waits"
        elif progress.doing:
            how = f"tool call {progress.calls}, {progress.doing}"
        else:
            how = f"thinks, after {progress.calls} tool calls"
        return f"- “{open_.parent.label}”, since {age}: {how}"


def subagent_id(inbound_id: str, call_id: str) -> str:
    """The id of the task that a call posts, also the name of its session."""
    digest = hashlib.sha256(f"{inbound_id}/spawn/{call_id}".encode()).hexdigest()
    return f"subagent:{digest[:12]}"


def named(labels: Sequence[str]) -> str:
    """Their number and labels: ``2 subagents: “mail”, “flights”``."""
    what = "subagent" if len(labels) == 1 else "subagents"
    return f"{len(labels)} {what}: " + ", ".join(f"“{label}”" for label in labels)


def in_short(span: timedelta) -> str:
    """A time span in one unit: ``12 s``, ``3 min``, ``2 h``."""
    seconds = max(int(span.total_seconds()), 0)
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


class SpawnArguments(ToolArguments):
    task: str = Field(min_length=1, description="all that it must know; it sees nothing else")
    label: str | None = Field(default=None, max_length=80, description="a few words")


class Spawn(Tool[SpawnArguments]):
    """Posts a task under an id made from the call's, so that it is posted exactly once."""

    name = "spawn"
    description = (
        "Give a long or separate task to a subagent that works in the background with your tools. "
        "Its report comes to you as a message; do not wait for it."
    )
    effect = Effect.WRITE
    arguments = SpawnArguments

    def __init__(self, subagents: SubagentManager) -> None:
        self._subagents = subagents

    async def run(self, args: SpawnArguments, context: ToolContext) -> ToolOutput:
        if not context.principal.is_owner:
            raise ToolError("A guest's turn cannot send subagents.")
        if not args.task.strip():
            raise ToolError("There is nothing to do: task is empty.")
        sent = await self._subagents.send(
            args.task,
            (args.label or "").strip(),
            inbound_id=context.inbound_id,
            call_id=context.call_id,
            trust=context.trust,
        )
        return ToolOutput(
            f"The subagent “{sent.parent.label}” has the task. Its report will come as a message; "
            "go on with other work, or end your turn and say what you have begun."
        )

    async def recovered_call(self, inbound_id: str, call_id: str) -> str | None:
        if await self._subagents.was_sent(inbound_id, call_id):
            return "The subagent was sent, just before a restart; its report will come."
        return "No subagent was sent: a restart came first. Call again if it is still wanted."
