"""The slash commands that every channel has, and ``/compact``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from nanobot.agent.context import ContextMeter, age, in_lines
from nanobot.agent.window import CHARACTERS, View, Window
from nanobot.core.commands import Command, CommandTable, Further, Invocation, no_further
from nanobot.core.errors import ProviderError
from nanobot.core.events import ignore
from nanobot.core.messages import Role
from nanobot.core.ports import Clock, ModelSource
from nanobot.session.entries import EntryKind, draft_of
from nanobot.session.log import SessionLog
from nanobot.session.usage import UsageLog, in_words
from nanobot.subagents.manager import named

NOTHING = "There is nothing to sum up yet."
UNSUMMED = (
    "The model could not sum the conversation up, so its older part is left out as it is; it "
    "stays in the log."
)


def compact_command(
    sessions: SessionLog, models: ModelSource, window: Window, meter: ContextMeter
) -> Command:
    """``/compact``; it is queued like a message, so that no turn changes the session meanwhile."""

    async def compact(invocation: Invocation) -> str:
        inbound = invocation.inbound
        key = inbound.session_key
        before = await meter.report(key, inbound.role, inbound.model)
        settings = await sessions.settings(key)
        chosen = models.choose(inbound.model or settings.model)
        live = await sessions.live(key, most=CHARACTERS * chosen.context_window)
        view = View(
            inbound=inbound,
            chosen=chosen,
            entries=await window.begun(live),
            used=before.used,
            fixed=before.fixed_tokens,
            factor=await sessions.calibration.factor(chosen.model),
            emit=ignore,
        )
        entries = await window.compact(view, invocation.argument)
        if entries is None:
            return NOTHING
        after = await meter.report(key, inbound.role, inbound.model)
        assert entries[0].kind is EntryKind.COMPACTED, "a compaction begins with its mark"
        done = "Summed up:" if entries[0].model else UNSUMMED
        return f"{done} {before.used:,} tokens before, {after.used:,} after."

    return Command("compact", "sum up what was said so far: /compact [what matters]", compact)


GREETING = (
    "Hello, I am nanobot, your assistant. Write to me as you would to a colleague. For example:\n"
    "- “What is in my workspace?”\n"
    "- “Write a shell script that counts the lines of my notes, and run it.”\n"
    "- “Remember that I prefer short answers.”\n\n"
    "/help lists the commands."
)


HELP_LINES = 60
"""Commands that /help shows; more than these are skills."""
EFFORTS = ("low", "medium", "high", "off")
"""The levels of /think."""
_OWNERS_CHOICE = "Only the owner can change that."


class DescribedModels(ModelSource, Protocol):
    """What the commands need of the models."""

    def describe(self, model: str | None) -> str:
        """The model named, or the configured one, in words: through which provider and why, and
        what stands in for it. Raises ProviderError when there is none."""
        ...


class TurnControl(Protocol):
    """What the commands need of the dispatcher."""

    async def stop(self, session_key: str) -> bool: ...

    async def stop_subagents(self, session_key: str) -> tuple[str, ...]: ...

    def try_again(self, session_key: str) -> None: ...

    def running_since(self, session_key: str) -> datetime | None: ...

    def waiting(self, session_key: str) -> int: ...


@dataclass(frozen=True, kw_only=True)
class StandardCommands:
    """Handlers of the commands that every channel has.

    ``turns`` returns the dispatcher, which is built after the commands. ``default_effort`` is what
    models reason if ``/think`` has set nothing. ``renewed`` is called with a session in which a new
    conversation begins. ``subagents`` returns one line for each subagent of a session.
    """

    sessions: SessionLog
    models: DescribedModels
    usage: UsageLog
    turns: Callable[[], TurnControl]
    meter: ContextMeter
    clock: Clock
    renewed: Callable[[str], None]
    default_effort: str = "as the model likes"
    subagents: Callable[[str], Awaitable[Sequence[str]]]

    def table(self, more: Iterable[Command], further: Further = no_further) -> CommandTable:
        """All commands: these, ``more`` of other parts, and ``further`` that are turns (skills)."""

        async def help_(invocation: Invocation) -> str:
            lines = [f"/{name}: {text}" for name, text in table.menu()]
            if len(lines) > HELP_LINES:
                lines[HELP_LINES:] = [f"and {len(lines) - HELP_LINES} more: /skills"]
            return "\n".join(lines)

        change_model = "the model of this session; /model NAME changes it"
        change_effort = "how much to reason: /think low, medium, high or off"
        table = CommandTable(
            (
                Command("start", "what I am and what to try", self._start),
                Command("help", "the list of commands", help_, control=True),
                Command("new", "begin a new conversation", self._new, in_outage=True),
                Command("stop", "stop what is running here", self._stop, control=True),
                Command("status", "model, session and what is running", self._status, control=True),
                Command("model", change_model, self._model, in_outage=True),
                Command("think", change_effort, self._think),
                Command("usage", "tokens and costs", self._usage, control=True),
                *more,
            ),
            further,
        )
        return table

    async def _start(self, invocation: Invocation) -> str:
        return GREETING

    async def _new(self, invocation: Invocation) -> str:
        inbound = invocation.inbound
        await self.sessions.reset(inbound.session_key, draft_of(inbound, EntryKind.RESET, None))
        self.renewed(inbound.session_key)
        return "A new conversation begins. The former one is kept and goes into the memory."

    async def _stop(self, invocation: Invocation) -> str:
        key = invocation.inbound.session_key
        stopped = await self.turns().stop(key)
        labels = await self.turns().stop_subagents(key)
        if labels:
            return f"Stopped{', with' if stopped else ''} {named(labels)}."
        return "Stopped." if stopped else "Nothing is running here."

    async def _status(self, invocation: Invocation) -> str:
        inbound = invocation.inbound
        live = await self.sessions.live(inbound.session_key)
        try:
            report = await self.meter.report(inbound.session_key, inbound.role, inbound.model)
            model, context = report.model, in_lines(report)
        except ProviderError as error:
            model, context = f"none ({error})", ()
        since = self.turns().running_since(inbound.session_key)
        waiting = self.turns().waiting(inbound.session_key)
        running = "no turn" if since is None else f"a turn, since {self._age_of(since)}"
        helpers = await self.subagents(inbound.session_key)
        return "\n".join(
            (
                f"Model: {model}",
                f"Session: {inbound.session_key}, {len(live.entries)} entries in view",
                f"Running: {running}; waiting: {waiting}",
                *((f"Subagents: {len(helpers)}", *helpers, "") if helpers else ()),
                *context,
            )
        )

    async def _model(self, invocation: Invocation) -> str:
        inbound, name = invocation.inbound, invocation.argument
        live = await self.sessions.live(inbound.session_key)
        current = inbound.model or live.settings.model
        is_owner = inbound.role is Role.OWNER
        if not name:
            if not is_owner:
                return f"Model: {self.models.choose(current).model}"
            way_back = "\nChosen with /model; `/model default` goes back." if current else ""
            return f"Model: {self.models.describe(current)}{way_back}"
        if not is_owner:
            return _OWNERS_CHOICE
        if len(name.split()) > 1:
            return "Say /model and one name, such as /model anthropic/claude-sonnet-4-5."
        chosen = None if name == "default" else name
        described = self.models.describe(chosen)
        self.models.choose(chosen)
        settings = replace(live.settings, model=chosen)
        await self.sessions.change_settings(inbound.session_key, settings)
        self.turns().try_again(inbound.session_key)
        return f"From the next message on: {described}"

    async def _think(self, invocation: Invocation) -> str:
        inbound, level = invocation.inbound, invocation.argument.lower()
        live = await self.sessions.live(inbound.session_key)
        if not level:
            return f"Reasoning: {live.settings.reasoning_effort or self.default_effort}"
        if inbound.role is not Role.OWNER:
            return _OWNERS_CHOICE
        if level not in (*EFFORTS, "default"):
            return f"Say /think and one of {', '.join(EFFORTS)}, or default."
        effort = None if level == "default" else level
        await self.sessions.change_settings(
            inbound.session_key, replace(live.settings, reasoning_effort=effort)
        )
        return f"Reasoning from the next message on: {effort or self.default_effort}"

    async def _usage(self, invocation: Invocation) -> str:
        inbound = invocation.inbound
        lines = [f"This session: {in_words(await self.usage.of_session(inbound.session_key))}"]
        if inbound.role is Role.OWNER:
            week = await self.usage.of_days(7)
            lines.insert(0, f"Today: {in_words(await self.usage.of_days(1))}")
            lines.append(f"Last 7 days: {in_words(week)}")
            if len(week) > 1:
                lines += [
                    f"- {line.model} ({line.provider or 'unknown'}): {in_words([line])}"
                    for line in week
                ]
        return "\n".join(lines)

    def _age_of(self, moment: datetime) -> str:
        seconds = (self.clock() - moment).total_seconds()
        return f"{seconds:.0f} s" if seconds < 60 else age(self.clock() - moment)
