"""The cron tool and the ``/cron`` command."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import Field

from nanobot.core.commands import Command, Invocation
from nanobot.core.errors import JobError, ToolError
from nanobot.core.messages import Role
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.cron.jobs import (
    NOT_RUNNING,
    Job,
    Payload,
    Places,
    ScheduleRequest,
    described,
    find,
)
from nanobot.cron.service import CronService

TERMINAL = "cli"
_REMINDS = re.compile(
    r"(?:please\s+)?(?:remind(?:er)?|remember\s+to|don['’]t\s+forget|(?:it['’]s\s+)?time\s+(?:to|for))\b",
    re.IGNORECASE,
)


class CronArguments(ToolArguments):
    action: Literal["add", "list", "remove", "update"]
    message: str | None = Field(default=None, description="the reminder's text, or the task")
    every_seconds: int | None = None
    cron_expr: str | None = Field(default=None, description="such as 0 9 * * 1-5")
    at: str | None = Field(default=None, description="once, such as 2030-01-31T09:00")
    tz: str | None = Field(default=None, description="default: the owner's")
    job_id: str | None = Field(default=None, description="for remove and update")
    mode: Literal["reminder", "task"] | None = None


class Cron(Tool[CronArguments]):
    """Edits the job file; the service notices the change."""

    name = "cron"
    description = (
        "Schedule things. mode reminder: the message is sent to this chat word for word, when the "
        "person wants to be reminded or told something. mode task: you carry the message out at "
        "that time and your result is sent. Without mode a message that begins with Remind, "
        "Remember to, Don't forget, Time to or Time for is a reminder, any other a task. "
        "Exactly one of every_seconds, cron_expr and at."
    )
    effect = Effect.WRITE
    arguments = CronArguments

    def __init__(self, service: CronService) -> None:
        self._service = service

    async def run(self, args: CronArguments, context: ToolContext) -> ToolOutput:
        if context.profile != "chat":
            raise ToolError(
                "A scheduled or background turn cannot change jobs; say in your answer what should "
                "be scheduled, so that the person can ask for it."
            )
        try:
            text = await asyncio.to_thread(self._act, args, context, await self._service.places())
        except JobError as error:
            raise ToolError(str(error)) from error
        return ToolOutput(text)

    async def recovered_call(self, inbound_id: str, call_id: str) -> str | None:
        job_id = _job_id(inbound_id, call_id)
        jobs = await asyncio.to_thread(self._service.file.load)
        if any(job.id == job_id for job in jobs):
            return f"Job {job_id} was added, just before a restart."
        return None

    def _act(self, args: CronArguments, context: ToolContext, places: Places) -> str:
        now = self._service.clock()
        when = ScheduleRequest(args.every_seconds, args.cron_expr, args.at, args.tz)
        match args.action:
            case "add":
                job = self._service.file.add(
                    _job_id(context.inbound_id, context.call_id),
                    "",
                    when,
                    _payload(args, context),
                    now,
                )
                guessed = "" if args.mode else _GUESSED[job.is_reminder]
                return f"Added {described(job, now)}.{guessed}{self._warning(job)}"
            case "list":
                content = self._service.file.read()
                jobs = [job for job in content.jobs if _may_see(job, context)]
                lines = [described(job, now) + places.note(job) for job in jobs]
                problems = content.problems if context.principal.is_owner else ()
                return "\n".join([*(lines or ["There are no jobs."]), *problems])
        job_id = args.job_id or ""
        if not _may_see(find(self._service.file.load(), job_id), context):
            raise JobError(f"There is no job {job_id!r} of this chat.")
        if args.action == "remove":
            return f"Removed {job_id} “{self._service.file.remove(job_id).title}”."
        if args.mode == "task" and not context.principal.is_owner:
            raise JobError("A guest's jobs are reminders: leave mode out.")
        kind = {None: None, "reminder": "reminder", "task": "agent_turn"}[args.mode]
        job = self._service.file.update(job_id, now, when=when, message=args.message, kind=kind)
        return f"Updated {described(job, now)}.{self._warning(job)}"

    def _warning(self, job: Job) -> str:
        notes = []
        if job.payload.channel is None:
            notes.append("It goes to the chat in which the owner wrote last.")
        if not self._service.is_running:
            notes.append(NOT_RUNNING)
        return "".join(f" {note}" for note in notes)


_GUESSED = {
    True: " It is a reminder by its wording: sent as it is. To carry it out instead: mode task.",
    False: " It is a task by its wording: you carry it out. To send it as it is: mode reminder.",
}


def _payload(args: CronArguments, context: ToolContext) -> Payload:
    guessed = "reminder" if _REMINDS.match((args.message or "").strip()) else "task"
    reminder = (args.mode or guessed) == "reminder"
    if not reminder and not context.principal.is_owner:
        raise JobError("A guest's jobs are reminders to their own chat: use mode reminder.")
    here = context.channel != TERMINAL
    return Payload(
        kind="reminder" if reminder else "agent_turn",
        message=args.message or "",
        deliver=True,
        channel=context.channel if here else None,
        to=context.chat_id if here else None,
        thread_id=context.thread_id if here else None,
        principal=str(context.principal),
        trust=context.trust,
    )


def _may_see(job: Job, context: ToolContext) -> bool:
    place = (job.payload.channel, job.payload.to)
    return context.principal.is_owner or (
        job.is_reminder and place == (context.channel, context.chat_id)
    )


def _job_id(inbound_id: str, call_id: str) -> str:
    """An id made of the call's, so that repeating the call adds nothing."""
    return hashlib.sha256(f"{inbound_id}/{call_id}".encode()).hexdigest()[:8]


USAGE = "Use /cron, /cron run ID, /cron enable ID, /cron disable ID or /cron remove ID."


def cron_command(service: CronService, settled: Callable[[str], Awaitable[str]]) -> Command:
    """``/cron``; ``settled`` waits until an inbound is settled and returns its outcome."""

    async def handle(invocation: Invocation) -> str:
        if invocation.inbound.role is not Role.OWNER:
            return "Jobs are the owner's; ask me for your own reminders in words."
        action, _, job_id = invocation.argument.partition(" ")
        try:
            return await act(action, job_id.strip(), invocation.inbound.channel == "cli")
        except JobError as error:
            return str(error)

    async def act(action: str, job_id: str, waits: bool) -> str:
        now = service.clock()
        match action:
            case "" | "list":
                content = await asyncio.to_thread(service.file.read)
                places = await service.places()
                lines = [f"- {described(job, now)}{places.note(job)}" for job in content.jobs]
                notes = [*content.problems, *([] if service.is_running else [NOT_RUNNING])]
                shown = [*(lines or ["There are no jobs."]), *([""] if notes else []), *notes]
                return "\n".join(shown)
            case "run":
                job = find(await asyncio.to_thread(service.file.load), job_id)
                posted = await service.run_now(job)
                if posted is None:
                    return "Sent." if service.is_running else f"Queued. {NOT_RUNNING}"
                return await settled(posted) if waits else f"{job_id} runs now."
            case "enable" | "disable":
                enabled = action == "enable"
                changed = await asyncio.to_thread(service.file.update, job_id, now, enabled=enabled)
                return described(changed, now)
            case "remove":
                removed = await asyncio.to_thread(service.file.remove, job_id)
                return f"Removed {job_id} “{removed.title}”."
        return USAGE

    return Command("cron", "the jobs; run, enable, disable or remove one", handle)
