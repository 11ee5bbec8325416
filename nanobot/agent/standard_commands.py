"""The slash commands that every channel has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from nanobot.agent.commands import Command, CommandTable, Invocation
from nanobot.agent.context import age
from nanobot.agent.turn import ModelSource
from nanobot.core.errors import ProviderError
from nanobot.core.identity import Trust
from nanobot.core.ports import Clock
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import SessionLog

GREETING = (
    "Hello, I am nanobot, your assistant. Write to me as you would to a colleague. For example:\n"
    "- “What is in my workspace?”\n"
    "- “Write a shell script that counts the lines of my notes, and run it.”\n"
    "- “Remember that I prefer short answers.”\n\n"
    "/help lists the commands."
)


class TurnControl(Protocol):
    """What the commands need of the dispatcher."""

    async def stop(self, session_key: str) -> bool: ...

    def running_since(self, session_key: str) -> datetime | None: ...

    def waiting(self, session_key: str) -> int: ...


def standard_commands(
    *,
    sessions: SessionLog,
    models: ModelSource,
    turns: Callable[[], TurnControl],
    clock: Clock,
    more: Sequence[Command] = (),
) -> CommandTable:
    """The table of commands, with ``more`` of other parts.

    ``turns`` is asked when a command runs: the dispatcher needs the table.
    """

    async def start(invocation: Invocation) -> str:
        return GREETING

    async def help_(invocation: Invocation) -> str:
        return "\n".join(f"/{name}: {text}" for name, text in table.menu())

    async def new(invocation: Invocation) -> str:
        inbound = invocation.inbound
        await sessions.reset(
            inbound.session_key,
            Draft(
                kind=EntryKind.RESET,
                message=None,
                inbound_id=inbound.id,
                principal=str(inbound.principal),
                trust=Trust.TRUSTED,
            ),
        )
        return "A new conversation begins. The former one stays in the log."

    async def stop(invocation: Invocation) -> str:
        stopped = await turns().stop(invocation.inbound.session_key)
        return "Stopped." if stopped else "Nothing is running here."

    async def status(invocation: Invocation) -> str:
        inbound = invocation.inbound
        live = await sessions.live(inbound.session_key)
        try:
            model = models.choose(inbound.model or live.settings.model).model
        except ProviderError as error:
            model = f"none ({error})"
        since = turns().running_since(inbound.session_key)
        waiting = turns().waiting(inbound.session_key)
        running = "no turn" if since is None else f"a turn, since {age_of(since)}"
        return "\n".join(
            (
                f"Model: {model}",
                f"Session: {inbound.session_key}, {len(live.entries)} entries in view",
                f"Running: {running}; waiting: {waiting}",
            )
        )

    def age_of(moment: datetime) -> str:
        seconds = (clock() - moment).total_seconds()
        return f"{seconds:.0f} s" if seconds < 60 else age(clock() - moment)

    table = CommandTable(
        (
            Command("start", "what I am and what to try", start),
            Command("help", "the list of commands", help_, control=True),
            Command("new", "begin a new conversation", new),
            Command("stop", "stop what is running here", stop, control=True),
            Command("status", "model, session and what is running", status, control=True),
            *more,
        )
    )
    return table
