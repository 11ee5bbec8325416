"""Run state of jobs in the state database, as plain functions of a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

KEPT_RUNS = 50
"""Run records kept for each job."""


@dataclass(frozen=True, slots=True)
class JobState:
    """When a job is due next (seconds since 1970, None: never), for which schedule."""

    schedule: str
    due: float | None
    last_due: float | None


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run: ``status`` is waiting, done, failed, stopped or delivered; seconds since 1970.

    ``delivered`` is None where nothing was to be delivered.
    """

    id: str
    job: str
    due: float
    started_at: float
    status: str
    error: str
    seconds: float | None
    delivered: bool | None


def states(connection: sqlite3.Connection) -> dict[str, JobState]:
    """The run state of each job."""
    rows = connection.execute("SELECT job, schedule, due, last_due FROM job_state")
    return {job: JobState(schedule, due, last) for job, schedule, due, last in rows}


def sync(
    connection: sqlite3.Connection, changed: Mapping[str, JobState], gone: frozenset[str]
) -> None:
    """Note the jobs that are new or have another schedule, and forget those that are gone."""
    connection.executemany(
        "INSERT OR REPLACE INTO job_state (job, schedule, due, last_due) VALUES (?, ?, ?, ?)",
        [(job, state.schedule, state.due, state.last_due) for job, state in changed.items()],
    )
    connection.executemany("DELETE FROM job_state WHERE job = ?", [(job,) for job in gone])


def begin(
    connection: sqlite3.Connection,
    run: str,
    job: str,
    due: float,
    following: float | None,
    now: float,
) -> bool:
    """Record a run and move the job's due time on; False when that was done before.

    While the former run is open only the due time moves on: that run is left out, unless it is
    the last one.
    """
    cursor = connection.execute(
        "UPDATE job_state SET due = ?, last_due = ? WHERE job = ? AND due = ?",
        (following, due, job, due),
    )
    if not cursor.rowcount or (following is not None and is_open(connection, f"cron:{job}")):
        return False
    return record(connection, run, job, due, now)


def is_open(connection: sqlite3.Connection, session: str) -> bool:
    """Whether a service's session has a run that is not done, or not delivered yet."""
    return (
        connection.execute(
            "SELECT 1 FROM inbox WHERE session = ?1 AND state = 'pending' "
            "UNION ALL SELECT 1 FROM outbox WHERE session = ?1 AND state = 'pending'",
            (session,),
        ).fetchone()
        is not None
    )


def record(connection: sqlite3.Connection, run: str, job: str, due: float, now: float) -> bool:
    """Record a run; False when it was recorded before."""
    cursor = connection.execute(
        "INSERT OR IGNORE INTO job_run (id, job, due, started_at) VALUES (?, ?, ?, ?)",
        (run, job, due, now),
    )
    connection.execute(
        "DELETE FROM job_run WHERE job = ?1 AND id NOT IN "
        "(SELECT id FROM job_run WHERE job = ?1 ORDER BY started_at DESC LIMIT ?2)",
        (job, KEPT_RUNS),
    )
    return bool(cursor.rowcount)


def runs(connection: sqlite3.Connection, job: str | None = None, limit: int = 100) -> list[JobRun]:
    """The newest runs, of one job or of all; how each ended is read from inbox and outbox."""
    rows = connection.execute(
        "SELECT r.id, r.job, r.due, r.started_at, i.state, i.error, i.settled_at, "
        "o.state, o.error FROM job_run r LEFT JOIN inbox i ON i.id = r.id "
        "LEFT JOIN outbox o ON o.id IN (r.id, r.id || '/answer') "
        "WHERE ?1 IS NULL OR r.job = ?1 ORDER BY r.started_at DESC LIMIT ?2",
        (job, limit),
    )
    return [_run(*row) for row in rows]


def _run(
    run: str,
    job: str,
    due: float,
    started_at: float,
    turn: str | None,
    turn_error: str | None,
    settled_at: float | None,
    delivery: str | None,
    delivery_error: str | None,
) -> JobRun:
    words = {"pending": "waiting", "dead": "failed", "interrupted": "stopped", "sent": "done"}
    state = turn or delivery or "done"
    return JobRun(
        run,
        job,
        due,
        started_at,
        words.get(state, state),
        turn_error or delivery_error or "",
        None if settled_at is None else settled_at - started_at,
        None if delivery is None else delivery == "sent",
    )
