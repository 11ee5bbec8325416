"""The slash command ``/cron``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nanobot.core.commands import Command, Invocation
from nanobot.core.errors import JobError
from nanobot.core.identity import Role
from nanobot.cron.edits import NOT_RUNNING, JobEdits, described, find
from nanobot.cron.service import CronService

USAGE = "Use /cron, /cron run ID, /cron enable ID, /cron disable ID or /cron remove ID."


def cron_command(service: CronService, settled: Callable[[str], Awaitable[str]]) -> Command:
    """``/cron``; ``settled`` waits until an inbound is settled and says how that went."""
    edits = JobEdits(service.file)

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
                changed = await asyncio.to_thread(edits.update, job_id, now, enabled=enabled)
                return described(changed, now)
            case "remove":
                removed = await asyncio.to_thread(edits.remove, job_id)
                return f"Removed {job_id} “{removed.title}”."
        return USAGE

    return Command("cron", "the jobs; run, enable, disable or remove one", handle)
