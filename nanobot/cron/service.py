"""CronService: posts the runs of jobs when they are due; the bus has them worked on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeAlias
from zoneinfo import ZoneInfo

from loguru import logger

from nanobot.bus.bus import MessageBus
from nanobot.core.errors import JobError, StoreError
from nanobot.core.messages import (
    AnswerRule,
    Cause,
    InboundMessage,
    Origin,
    OutboundMessage,
    Principal,
    Role,
)
from nanobot.core.ports import Clock
from nanobot.cron.jobs import Job, JobFile, Places, Signature, milliseconds, moment
from nanobot.cron.schedule import LATE, At, local_zone, next_after
from nanobot.store import job_runs
from nanobot.store.database import Database
from nanobot.store.job_runs import JobState

LOOK_S = 0.4
"""Seconds between two checks whether the job file has changed (one stat each)."""
HELD_S = 5.0
"""Seconds between two attempts to run a job that has no chat to deliver to."""
STORE_RETRY_S = 30.0
"""Seconds until the next attempt after the store has failed."""

Tell: TypeAlias = Callable[[str, str], Awaitable[None]]
"""``tell(id, text)`` sends the owner a text, once for each id."""


class CronService:
    """Keeps each job's next due time and posts a run when it is due.

    A run's record, the next due time and the message are one transaction, so that no run is lost
    and none comes twice. After a time without a gateway each job runs once, late. A run that falls
    due while the job's last one is open is skipped. A job that cannot run does not stop the
    others; the owner is told.
    """

    def __init__(
        self,
        file: JobFile,
        database: Database,
        bus: MessageBus,
        clock: Clock,
        *,
        served: frozenset[str],
    ) -> None:
        """``served``: the channels that deliver; jobs for others go to the last used chat."""
        self.file = file
        self.clock = clock
        self.is_running = False
        self.problems: tuple[str, ...] = ()
        self._served = served
        self._database = database
        self._bus = bus
        self._started = False
        self._waiting: set[str] = set()
        self._seen: Signature | None = None
        self._jobs: dict[str, Job] = {}
        self._due: dict[str, float] = {}
        self._next: float | None = None

    async def run(self, tell: Tell) -> None:
        """Post runs as they fall due, until cancelled; ``tell`` of jobs that cannot run."""
        self.is_running = True
        told: tuple[str, ...] = ()
        try:
            while True:
                try:
                    await self.tick()
                    if self.problems != told:
                        await self._tell(tell)
                        told = self.problems
                except (StoreError, OSError) as error:
                    logger.error("the due jobs could not be posted, trying again later: {}", error)
                    await asyncio.sleep(STORE_RETRY_S)
                await asyncio.sleep(self.wait_s())
        finally:
            self.is_running = False

    def wait_s(self) -> float:
        """Seconds until the next check of the file or the next due time, whichever is first."""
        if self._next is None:
            return LOOK_S
        return min(LOOK_S, max(self._next - self.clock().timestamp(), 0.0))

    async def tick(self) -> None:
        """Apply changes of the file, then post every run that is due."""
        signature = self.file.signature()
        if signature != self._seen:
            await self._load(signature)
            self._seen = signature
        self._started = True
        now = self.clock().timestamp()
        if self._next is None or self._next > now:
            return
        for due, job_id in sorted((due, job) for job, due in self._due.items() if due <= now):
            try:
                await self._fire(self._jobs[job_id], due)
            except (StoreError, OSError):
                raise
            except Exception as error:  # a defect in one job must not stop the others
                logger.exception("job {} failed to run, and is left out until it changes", job_id)
                self._due.pop(job_id, None)
                self.problems += (f"the job {job_id!r} does not run: {error}",)
        self._plan_next()

    async def _tell(self, tell: Tell) -> None:
        if not self.problems:
            return
        text = "\n".join(f"- {problem}" for problem in self.problems)
        for problem in self.problems:
            logger.error("{}", problem)
        name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
        await tell(f"jobs-{name}", f"There is something wrong with your jobs:\n{text}")

    async def places(self) -> Places:
        """Where jobs can deliver to at present."""
        return Places(self._served, await self._bus.last_chat(self._served))

    async def run_now(self, job: Job) -> str | None:
        """Post a run of a job beside its schedule; its inbound's id, None for a reminder.

        Raises JobError when there is no chat to deliver it to.
        """
        now = self.clock()
        run = f"cron:{job.id}:manual-{milliseconds(now)}"
        place = (await self.places()).of(job)
        if place is None:
            raise JobError(
                "There is no chat to deliver it to yet: write to nanobot in a chat first."
            )
        posts, outbounds = _messages(job, run, place, now, "")
        await self._bus.put(
            posts,
            outbounds,
            when=lambda connection: job_runs.record(
                connection, run, job.id, now.timestamp(), now.timestamp()
            ),
        )
        return posts[0].id if posts else None

    async def _load(self, signature: Signature | None) -> None:
        """Read the file and compute the due time of each job that is new or changed."""
        content = await asyncio.to_thread(self.file.read, keep=True)
        jobs = {job.id: job for job in content.jobs}
        known = await self._database.read(job_runs.states)
        now = self.clock()
        written_at = now if signature is None else min(moment(signature[0] // 1_000_000), now)
        problems = list(content.problems)
        changed: dict[str, JobState] = {}
        due: dict[str, float] = {}
        finished: list[str] = []
        for job in jobs.values():
            state = known.get(job.id)
            written = _schedule_text(job)
            if state is None or state.schedule != written or state.due is None:
                # While we run, a change has just happened; at the start, when the file was written.
                edited = now if self._started else None if state is None else written_at
                first = None
                try:
                    first = _first_due(job, state, now, edited)
                except JobError as error:
                    problems.append(f"the job {job.id!r} does not run: {error}")
                if state is None or state.schedule != written:
                    state = changed[job.id] = JobState(written, first, None)
            if state.due is not None:
                due[job.id] = state.due
            elif state.last_due is not None and job.schedule.kind == "at" and job.enabled:
                finished.append(job.id)
        gone = frozenset() if content.is_damaged else frozenset(known) - frozenset(jobs)
        if changed or gone:
            await self._database.write(
                lambda connection: job_runs.sync(connection, changed, gone), durable=True
            )
        self._jobs, self._due, self.problems = jobs, due, tuple(problems)
        for job_id in finished:
            await self._finish(jobs[job_id])
        self._next = min(due.values(), default=None)

    async def _fire(self, job: Job, due: float) -> None:
        now = self.clock()
        place = (await self.places()).of(job)
        if place is None:
            if job.id not in self._waiting:
                logger.warning("job {} waits: there is no chat to deliver it to yet", job.id)
            self._waiting.add(job.id)
            return
        self._waiting.discard(job.id)
        following = next_after(job.when(), now)
        next_due = None if following is None else following.timestamp()
        at = datetime.fromtimestamp(due, UTC)
        run = f"cron:{job.id}:{milliseconds(at)}"
        posts, outbounds = _messages(job, run, place, at, _late_note(at, now))
        done = await self._bus.put(
            posts,
            outbounds,
            when=lambda connection: job_runs.begin(
                connection, run, job.id, due, next_due, now.timestamp()
            ),
        )
        became = "posted" if done else "skipped: another is open"
        logger.bind(job=job.id).info("run {} {}", run, became)
        if next_due is None:
            del self._due[job.id]
            await self._finish(job)
        else:
            self._due[job.id] = next_due

    async def _finish(self, job: Job) -> None:
        """Delete a one-time job that has run, or disable it if it asks to be kept."""

        def settle(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
            if job.delete_after_run:
                return tuple(other for other in jobs if other.id != job.id)
            return tuple(
                other.model_copy(update={"enabled": False}) if other.id == job.id else other
                for other in jobs
            )

        await asyncio.to_thread(self.file.change, settle)

    def _plan_next(self) -> None:
        now = self.clock().timestamp()
        held = [due for due in self._due.values() if due <= now]
        later = [due for due in self._due.values() if due > now]
        self._next = min(later, default=None)
        if held:
            self._next = min(self._next or now + HELD_S, now + HELD_S)


def _first_due(
    job: Job, former: JobState | None, now: datetime, edited: datetime | None
) -> float | None:
    """When a job that is new, changed or enabled again is due; None when it is not to run.

    ``edited``: when its schedule last changed, where that is known; somebody who edits the file by
    hand does not update the job's own time stamps. Raises JobError for a schedule that makes no
    sense.
    """
    if not job.enabled:
        return None
    schedule = job.when()
    ran = job.state.last_run_at_ms or 0
    changed = max(job.updated_at_ms, milliseconds(edited) if edited else 0)
    if isinstance(schedule, At):
        # Its time had passed when it was written, or another program ran it before.
        over = milliseconds(schedule.at + LATE) < changed
        return None if over or (ran and former is None) else schedule.at.timestamp()
    since = max(job.created_at_ms, changed, ran) or milliseconds(now)
    due = next_after(schedule, moment(since))
    if due is None:
        raise JobError("its schedule never comes true")
    return due.timestamp()


def _schedule_text(job: Job) -> str:
    """The part of a job that decides its due times; when it changes they are computed anew."""
    record = job.schedule
    parts = (record.kind, record.at_ms, record.every_ms, record.expr, record.tz, record.anchor_ms)
    return f"{'on' if job.enabled else 'off'} {parts}"


def _messages(
    job: Job, run: str, place: AnswerRule, due: datetime, note: str
) -> tuple[tuple[InboundMessage, ...], tuple[OutboundMessage, ...]]:
    """A task as an inbound in the job's own session, a reminder as an outbound."""
    text = job.payload.message
    if job.is_reminder:
        words = f"{text}\n\n{note}" if note else text
        reminder = OutboundMessage(
            place.channel,
            place.chat_id,
            words,
            id=run,
            thread_id=place.thread_id,
            session=f"cron:{job.id}",
            cause=Cause(
                f"the reminder “{job.title}”",
                job.payload.principal or str(Principal(Role.OWNER, place.channel, "cron")),
                words,
                job.payload.trust,
            ),
        )
        return (), (reminder,)
    answer = AnswerRule(place.kind, place.channel, place.chat_id, place.thread_id, note)
    task = InboundMessage(
        place.channel or "cron",
        "cron",
        place.chat_id or job.id,
        text,
        id=run,
        thread_id=place.thread_id,
        sent_at=due,
        origin=Origin.CRON,
        role=Role.OWNER,
        trust=job.payload.trust,
        profile="job",
        answer=answer,
        session=f"cron:{job.id}",
    )
    return (task,), ()


def _late_note(due: datetime, now: datetime) -> str:
    if now - due <= LATE:
        return ""
    local = due.astimezone(ZoneInfo(local_zone()))
    return f"(Late: this was due on {local:%a %Y-%m-%d %H:%M %Z}.)"
