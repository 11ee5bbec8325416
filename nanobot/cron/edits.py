"""Changes of the job file that the tool, the commands and the CLI share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from nanobot.core.errors import JobError
from nanobot.cron.jobs import Job, JobFile, Jobs, Payload, Wish, milliseconds
from nanobot.cron.schedule import LATE, At, local_zone, upcoming

NOT_RUNNING = "No gateway is running: it fires only while `nanobot gateway` runs."


@dataclass(frozen=True, slots=True)
class JobEdits:
    """Adds, changes and removes jobs; every method raises JobError with what to mend."""

    file: JobFile

    def add(self, job_id: str, name: str, wish: Wish, payload: Payload, now: datetime) -> Job:
        """Add a job, checked; one with the same id is left as it is, and returned."""
        if not payload.message.strip():
            raise JobError("message is empty: say what to remind of or what to do.")
        stamp = milliseconds(now)
        record = wish.record(now)
        made = Job(
            id=job_id,
            name=name,
            schedule=record,
            payload=payload,
            created_at_ms=stamp,
            updated_at_ms=stamp,
            delete_after_run=record.kind == "at",
        )

        def append(jobs: Jobs) -> Jobs:
            return jobs if any(job.id == job_id for job in jobs) else (*jobs, made)

        return find(self.file.change(append), job_id)

    def update(
        self,
        job_id: str,
        now: datetime,
        *,
        wish: Wish = Wish(),
        message: str | None = None,
        kind: str | None = None,
        enabled: bool | None = None,
    ) -> Job:
        """Change what is given of a job."""
        changes: dict[str, object] = {"updated_at_ms": milliseconds(now)}
        if not wish.is_empty:
            record = wish.record(now)
            changes |= {"schedule": record, "delete_after_run": record.kind == "at"}
        if enabled is not None:
            changes["enabled"] = enabled
        words = {
            name: value
            for name, value in (("message", message), ("kind", kind))
            if value is not None
        }

        def replace(jobs: Jobs) -> Jobs:
            find(jobs, job_id)
            return tuple(
                job.model_copy(update={**changes, "payload": job.payload.model_copy(update=words)})
                if job.id == job_id
                else job
                for job in jobs
            )

        return find(self.file.change(replace), job_id)

    def remove(self, job_id: str) -> Job:
        """Remove a job; returns what it was."""
        removed: list[Job] = []

        def drop(jobs: Jobs) -> Jobs:
            removed.append(find(jobs, job_id))
            return tuple(job for job in jobs if job.id != job_id)

        self.file.change(drop)
        return removed[0]


def find(jobs: Jobs, job_id: str) -> Job:
    """The job of this id; raises JobError naming those there are."""
    for job in jobs:
        if job.id == job_id:
            return job
    there = ", ".join(job.id for job in jobs[:20]) or "none"
    raise JobError(f"There is no job {job_id!r}; there are: {there}.")


def described(job: Job, now: datetime) -> str:
    """A job in one line, with its next runs in the machine's zone."""
    kind = "reminder" if job.is_reminder else "task"
    return f"{job.id} ({kind}) “{job.title}”: {next_runs(job, now)}"


def next_runs(job: Job, now: datetime) -> str:
    """The next three runs in the machine's zone, or why there are none."""
    if not job.enabled:
        return "disabled"
    zone = ZoneInfo(local_zone())

    def shown(time: datetime) -> str:
        return f"{time.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"

    try:
        schedule = job.when()
    except JobError as error:
        return f"does not run: {error}"
    times = upcoming(schedule, now)
    if times:
        return f"{'next runs' if len(times) > 1 else 'runs'} {', '.join(map(shown, times))}"
    if not isinstance(schedule, At):
        return "does not run: its schedule never comes true"
    return "due now" if now - schedule.at < LATE else f"was due {shown(schedule.at)}"
