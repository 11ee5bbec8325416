"""Jobs as ``jobs.json`` defines them, and every change of that file."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from nanobot.config.jsonc import parse
from nanobot.core.errors import JobError
from nanobot.core.messages import AnswerKind, AnswerRule, Trust
from nanobot.cron.schedule import LATE, At, Every, Schedule, local_zone, upcoming, zone_named
from nanobot.cron.schedule import cron as cron_schedule
from nanobot.store.files import write_atomic

VERSION = 1
NOT_RUNNING = "No gateway is running: it fires only while `nanobot gateway` runs."
LONGEST_INTERVAL = timedelta(days=366 * 10)


class _Record(BaseModel):
    """Part of the file; keys that are not known here are kept."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True
    )


class ScheduleRecord(_Record):
    """When, in milliseconds since 1970; an interval is counted from ``anchor_ms``."""

    kind: Literal["at", "every", "cron"]
    at_ms: int | None = None
    every_ms: int | None = Field(default=None, ge=1)
    expr: str | None = None
    tz: str | None = None
    anchor_ms: int | None = None


class Payload(_Record):
    """A task or a reminder; without ``channel`` and ``to`` it goes to the last used chat.

    ``principal`` and ``trust`` are those of the turn that added it, none where no turn did.
    """

    kind: Literal["agent_turn", "reminder"] = "agent_turn"
    message: str = ""
    deliver: bool = False
    channel: str | None = None
    to: str | None = None
    thread_id: str | None = None
    principal: str | None = None
    trust: Trust = Trust.TRUSTED


class PastState(_Record):
    """What another program noted of past runs; read when a job is taken over, never written."""

    last_run_at_ms: int | None = None


class Job(_Record):
    """One job as it is defined; the state database holds its runs."""

    id: str = Field(min_length=1)
    name: str = ""
    enabled: bool = True
    schedule: ScheduleRecord
    payload: Payload
    state: PastState = PastState()
    created_at_ms: int = 0
    updated_at_ms: int = 0
    delete_after_run: bool = False

    @property
    def is_reminder(self) -> bool:
        return self.payload.kind == "reminder"

    @property
    def title(self) -> str:
        return self.name or self.payload.message[:40]

    def when(self) -> Schedule:
        """The schedule as a value; raises JobError for one that makes no sense."""
        record = self.schedule
        match record.kind:
            case "at" if record.at_ms is not None:
                return At(moment(record.at_ms))
            case "every" if record.every_ms is not None:
                if not 1000 <= record.every_ms <= LONGEST_INTERVAL // timedelta(milliseconds=1):
                    raise JobError("its interval must be between a second and ten years")
                anchor = self.created_at_ms if record.anchor_ms is None else record.anchor_ms
                return Every(timedelta(milliseconds=record.every_ms), moment(anchor))
            case "cron" if record.expr:
                return cron_schedule(record.expr, record.tz or local_zone())
        raise JobError("its schedule lacks its time")


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """When a job is to run, as somebody wrote it: exactly one of the first three."""

    every_seconds: int | None = None
    cron_expr: str | None = None
    at: str | None = None
    tz: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.every_seconds is None and not self.cron_expr and not self.at

    def record(self, now: datetime) -> ScheduleRecord:
        """The schedule it means; raises JobError with what to mend. Times without an offset are
        in ``tz``, else in the machine's zone.
        """
        given = [self.every_seconds is not None, bool(self.cron_expr), bool(self.at)]
        if sum(given) != 1:
            raise JobError("Give exactly one of every_seconds, cron_expr and at.")
        zone = zone_named(self.tz) if self.tz else local_zone()
        if self.every_seconds is not None:
            return _interval(self.every_seconds, now)
        if self.cron_expr:
            made = cron_schedule(self.cron_expr, zone)
            return ScheduleRecord(kind="cron", expr=made.expr, tz=made.zone)
        return _moment(str(self.at), zone, now)


def _interval(seconds: int, now: datetime) -> ScheduleRecord:
    if not 1 <= seconds <= LONGEST_INTERVAL.total_seconds():
        raise JobError("every_seconds must be at least 1 and at most ten years.")
    return ScheduleRecord(kind="every", every_ms=seconds * 1000, anchor_ms=milliseconds(now))


def _moment(text: str, zone: str, now: datetime) -> ScheduleRecord:
    local = now.astimezone(ZoneInfo(zone))
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise JobError(
            f"{text!r} is no time in ISO form; write it like {local:%Y-%m-%dT%H:%M}."
        ) from error
    if at.tzinfo is None:
        at = at.replace(tzinfo=ZoneInfo(zone))
    # A time in whole minutes may be the present minute.
    if at < now - timedelta(minutes=1):
        raise JobError(f"{text} has passed: it is {local:%Y-%m-%dT%H:%M} in {zone} now.")
    return ScheduleRecord(kind="at", at_ms=milliseconds(at), tz=zone)


def milliseconds(at: datetime) -> int:
    """An aware moment in milliseconds since 1970."""
    return round(at.timestamp() * 1000)


def moment(ms: int) -> datetime:
    """The aware moment of milliseconds since 1970; raises JobError beyond what dates can be."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise JobError(f"{ms} is no time in milliseconds since 1970") from error


@dataclass(frozen=True, slots=True)
class Places:
    """Where jobs can deliver to: the channels that are served, and the last used chat of one."""

    served: frozenset[str]
    last: AnswerRule | None

    def of(self, job: Job) -> AnswerRule | None:
        """Where its text goes: its own chat where that channel is served, else the last used one.

        ``nothing`` for what is only recorded, None while there is no such chat.
        """
        payload = job.payload
        if not payload.deliver and not job.is_reminder:
            return AnswerRule(AnswerKind.NOTHING)
        if payload.to and payload.channel in self.served:
            return AnswerRule(
                channel=payload.channel, chat_id=payload.to, thread_id=payload.thread_id
            )
        return self.last

    def note(self, job: Job) -> str:
        """What a list adds about a job that does not deliver where it was meant to, or ""."""
        place, meant = self.of(job), job.payload.channel
        if place is None:
            missing = f"the channel {meant} is not served here and " if meant else ""
            return f"; waits: {missing}there is no chat to fall back to, until you write in one"
        if place.channel and meant and meant not in self.served:
            return f"; the channel {meant} is not served here: goes to the last used chat"
        return ""


Jobs: TypeAlias = tuple[Job, ...]
Change: TypeAlias = Callable[[Jobs], Jobs]
Signature: TypeAlias = tuple[int, int, int]
"""When a file was written (nanoseconds since 1970), its size and its inode."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a job file holds: jobs, records that are no jobs (kept), and a line on each of those.

    ``is_damaged``: the file itself cannot be read, and this is what it held before.
    """

    jobs: Jobs = ()
    unread: tuple[Any, ...] = ()
    problems: tuple[str, ...] = ()
    is_damaged: bool = False


def _content(raw: bytes) -> Content:
    """Read a file; comments and trailing commas are accepted. Raises JobError."""
    try:
        text = json.dumps(parse(raw.decode("utf-8-sig")).data, ensure_ascii=False)
        # Half a surrogate pair, which JSON may hold, could neither be stored nor sent.
        content = json.loads(text.encode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise JobError(str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get("jobs"), list):
        raise JobError("it holds no list of jobs")
    if content.get("version", VERSION) != VERSION:
        raise JobError(f"its version is {content['version']!r}, and known is {VERSION}")
    jobs: list[Job] = []
    unread: list[Any] = []
    problems: list[str] = []
    for record in content["jobs"]:
        try:
            jobs.append(Job.model_validate(record))
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = record.get("id") if isinstance(record, dict) else record
            where = ".".join(map(str, wrong["loc"])) or "it"
            problems.append(f"the job {name!r} does not run: {where}: {wrong['msg']}")
            unread.append(record)
    return Content(tuple(jobs), tuple(unread), tuple(problems))


@dataclass(frozen=True, slots=True)
class JobFile:
    """``jobs.json``: read without a lock (it is replaced as a whole), changed under one.

    Every method that changes it raises JobError with what to mend.
    """

    path: Path

    def signature(self) -> Signature | None:
        """A value that differs after each change of the file; None when there is none."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def load(self) -> Jobs:
        """The jobs that can be read; see ``read`` for what cannot."""
        return self.read().jobs

    def read(self, *, keep: bool = False) -> Content:
        """What the file holds; while it is damaged, what its last sound copy holds.

        With ``keep`` a sound file becomes that copy.
        """
        try:
            raw = self.path.read_bytes()
            content = _content(raw)
        except FileNotFoundError:
            raw, content = b"", Content()
        except (OSError, JobError) as error:
            return self._kept_content(f"{self.path} cannot be read ({error})")
        if keep and raw != self._kept_bytes():
            write_atomic(self._kept, raw)
        return content

    def change(self, change: Change) -> Jobs:
        """Replace the jobs by what ``change`` makes of them, atomically and under the lock.

        A damaged file is kept under another name.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            content = self.read()
            changed = change(content.jobs)
            if changed != content.jobs:
                records = [
                    job.model_dump(mode="json", by_alias=True, exclude_none=True) for job in changed
                ]
                file = {"version": VERSION, "jobs": [*records, *content.unread]}
                data = json.dumps(file, ensure_ascii=False, indent=2).encode() + b"\n"
                if content.is_damaged:
                    aside = f"{self.path.name}.corrupt-{time.time_ns()}"
                    self.path.with_name(aside).hardlink_to(self.path)
                write_atomic(self.path, data)
                write_atomic(self._kept, data)
        return changed

    def add(
        self, job_id: str, name: str, when: ScheduleRequest, payload: Payload, now: datetime
    ) -> Job:
        """Add a job, checked; a job that has the id already is left as it is, and returned."""
        if not payload.message.strip():
            raise JobError("message is empty: say what to remind of or what to do.")
        stamp = milliseconds(now)
        record = when.record(now)
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

        return find(self.change(append), job_id)

    def update(
        self,
        job_id: str,
        now: datetime,
        *,
        when: ScheduleRequest = ScheduleRequest(),
        message: str | None = None,
        kind: str | None = None,
        enabled: bool | None = None,
    ) -> Job:
        """Change what is given of a job."""
        changes: dict[str, object] = {"updated_at_ms": milliseconds(now)}
        if not when.is_empty:
            record = when.record(now)
            changes |= {"schedule": record, "delete_after_run": record.kind == "at"}
        if enabled is not None:
            changes["enabled"] = enabled
        payload = {"message": message, "kind": kind}
        payload_changes = {key: value for key, value in payload.items() if value is not None}

        def changed(jobs: Jobs) -> Jobs:
            job = find(jobs, job_id)
            changes["payload"] = job.payload.model_copy(update=payload_changes)
            return tuple(
                job.model_copy(update=changes) if job.id == job_id else job for job in jobs
            )

        return find(self.change(changed), job_id)

    def remove(self, job_id: str) -> Job:
        """Remove a job; returns it."""
        removed: list[Job] = []

        def drop(jobs: Jobs) -> Jobs:
            removed.append(find(jobs, job_id))
            return tuple(job for job in jobs if job.id != job_id)

        self.change(drop)
        return removed[0]

    def quarantined(self) -> tuple[Path, ...]:
        """The damaged files put aside so far."""
        return tuple(sorted(self.path.parent.glob(f"{self.path.name}.corrupt-*")))

    @property
    def _kept(self) -> Path:
        return self.path.with_name("jobs.last-good.json")

    def _kept_bytes(self) -> bytes:
        try:
            return self._kept.read_bytes()
        except FileNotFoundError:
            return b""

    def _kept_content(self, damage: str) -> Content:
        try:
            content = _content(self._kept_bytes())
        except JobError:
            content = Content()
        if content.jobs:
            damage += "; the jobs go on as they last were"
        return replace(content, problems=(damage, *content.problems), is_damaged=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self.path.with_name(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def find(jobs: Jobs, job_id: str) -> Job:
    """The job with this id; raises JobError that names the existing ones."""
    for job in jobs:
        if job.id == job_id:
            return job
    there = ", ".join(job.id for job in jobs[:20]) or "none"
    raise JobError(f"There is no job {job_id!r}; there are: {there}.")


def described(job: Job, now: datetime) -> str:
    """A job in one line, with its next runs in the machine's zone."""
    kind = "reminder" if job.is_reminder else "task"
    return f"{job.id} ({kind}) “{job.title}”: {_next_runs(job, now)}"


def _next_runs(job: Job, now: datetime) -> str:
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
