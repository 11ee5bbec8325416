"""Jobs as the family's ``jobs.json`` holds them, and the file that both sides may change."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias

from loguru import logger
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from nanobot.core.errors import JobError
from nanobot.core.identity import Trust
from nanobot.cron.schedule import At, Cron, Every, Schedule, local_zone, zone_named
from nanobot.cron.schedule import cron as cron_schedule
from nanobot.store.files import quarantine, write_atomic

VERSION = 1
LONGEST_INTERVAL = timedelta(days=366 * 10)


class _Record(BaseModel):
    """Part of the file; keys of others are kept as they are."""

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
    """What another member of the family noted of past runs; read once, never written by us."""

    last_run_at_ms: int | None = None


class Job(_Record):
    """One job as it is defined; what became of its runs is in the state database."""

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
        """The schedule as a value; raises JobError for one that cannot be."""
        record = self.schedule
        match record.kind:
            case "at" if record.at_ms is not None:
                return At(moment(record.at_ms))
            case "every" if record.every_ms is not None:
                anchor = self.created_at_ms if record.anchor_ms is None else record.anchor_ms
                return Every(timedelta(milliseconds=record.every_ms), moment(anchor))
            case "cron" if record.expr:
                return cron_schedule(record.expr, record.tz or local_zone())
        raise JobError(f"the schedule of job {self.id} lacks its time")


Jobs: TypeAlias = tuple[Job, ...]
Change: TypeAlias = Callable[[Jobs], Jobs]


@dataclass(frozen=True, slots=True)
class JobFile:
    """``jobs.json``: read without a lock (it is replaced as a whole), changed under one."""

    path: Path

    def signature(self) -> tuple[int, int, int] | None:
        """What differs whenever the file was changed; None when there is none."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def load(self) -> Jobs:
        """The jobs; a damaged file is put aside and logged, a damaged job left out and logged."""
        return self._read()[0]

    def change(self, change: Change) -> Jobs:
        """Replace the jobs by ``change`` of them, atomically and against other writers."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            jobs, unread = self._read()
            changed = change(jobs)
            if changed != jobs:
                records = [
                    job.model_dump(mode="json", by_alias=True, exclude_none=True) for job in changed
                ]
                text = json.dumps(
                    {"version": VERSION, "jobs": [*records, *unread]}, ensure_ascii=False, indent=2
                )
                write_atomic(self.path, text.encode() + b"\n")
        return changed

    def _read(self) -> tuple[Jobs, list[Any]]:
        """The jobs, and the records that are none, which are kept as they are."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return (), []
        try:
            content = json.loads(raw)
            if content.get("version", VERSION) != VERSION:
                raise JobError(f"{self.path} has a version this nanobot does not know")
            records = list(content["jobs"])
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            aside = quarantine(self.path)
            logger.error("{} is damaged ({}) and is kept as {}", self.path, error, aside)
            return (), []
        jobs: list[Job] = []
        unread: list[Any] = []
        for record in records:
            try:
                jobs.append(Job.model_validate(record))
            except ValidationError as error:
                logger.error("a job in {} cannot be read and does not run: {}", self.path, error)
                unread.append(record)
        return tuple(jobs), unread

    def quarantined(self) -> tuple[Path, ...]:
        """The damaged files put aside so far."""
        return tuple(sorted(self.path.parent.glob(f"{self.path.name}.corrupt-*")))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self.path.with_name(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


@dataclass(frozen=True, slots=True)
class Wish:
    """When somebody wants a job to run, as they wrote it: exactly one of the first three."""

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
            made: Cron = cron_schedule(self.cron_expr, zone)
            return ScheduleRecord(kind="cron", expr=made.expr, tz=made.zone)
        return _moment(str(self.at), zone, now)


def _interval(seconds: int, now: datetime) -> ScheduleRecord:
    if not 1 <= seconds <= LONGEST_INTERVAL.total_seconds():
        raise JobError("every_seconds must be at least 1 and at most ten years.")
    return ScheduleRecord(kind="every", every_ms=seconds * 1000, anchor_ms=milliseconds(now))


def _moment(text: str, zone: str, now: datetime) -> ScheduleRecord:
    from zoneinfo import ZoneInfo

    local = now.astimezone(ZoneInfo(zone))
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise JobError(
            f"{text!r} is no time in ISO form; write it like {local:%Y-%m-%dT%H:%M}."
        ) from error
    if at.tzinfo is None:
        at = at.replace(tzinfo=ZoneInfo(zone))
    # Whoever reckons in whole minutes may name the present one.
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
