"""How far each session is consolidated, and its batches, in the tables digest and digest_batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from nanobot.core.chat import UserMessage
from nanobot.core.messages import Trust
from nanobot.core.ports import Clock
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import append_in, session_settings
from nanobot.session.usage import ModelCall, record_in
from nanobot.store.database import Database


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """Entries up to ``upto`` are consolidated; the model sees those from ``live_from`` on.

    ``failures`` counts unusable answers in a row. After a failure, ``not_before`` is the time of
    the next try and ``error`` the reason.
    """

    upto: int = 0
    live_from: int = 0
    failures: int = 0
    not_before: datetime | None = None
    error: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """An upper bound of what a session has to consolidate, counted by the database.

    ``is_half_written``: a batch is unfinished. ``is_behind``: entries have left the model's view
    unconsolidated, ``behind`` messages among them. ``messages`` and ``characters`` are those in
    view. ``model`` is the session's own choice, None for the default.
    """

    is_half_written: bool
    is_behind: bool
    behind: int
    messages: int
    characters: int
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step of consolidation writes; once stored, it is written exactly as it is.

    ``last`` is the seq of its last entry, ``text`` the paragraphs for HISTORY.md, ``edits`` those
    of MEMORY.md as JSON, ``place`` the size of HISTORY.md before, in bytes. The model's view then
    begins at ``keeps_from``, if given. Fields are columns of the table.
    """

    id: str
    session: str
    last: int
    text: str
    edits: str
    trust: Trust
    place: int = 0
    keeps_from: int | None = None


_COLUMNS = ", ".join(field.name for field in fields(Batch))


def is_service(key: str) -> bool:
    """Whether a session belongs to a service, so that no person ends it."""
    return key == "heartbeat" or key.startswith(("cron:", "subagent:"))


class MemoryProgress:
    """The progress and batches of all sessions."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def of(self, key: str) -> SessionProgress:
        """The progress of a session; an unknown one is at its beginning."""
        return await self._database.read(lambda connection: _progress(connection, key))

    async def backlogs(self, keys: Iterable[str]) -> dict[str, Backlog]:
        """What each session may have to consolidate."""

        def backlog(connection: sqlite3.Connection, key: str) -> Backlog:
            half = connection.execute(
                "SELECT 1 FROM digest_batch WHERE session = ? AND is_written = 0", (key,)
            ).fetchone()
            state = _progress(connection, key)
            gone, behind = connection.execute(
                "SELECT count(*), coalesce(sum(kind IN ('user', 'assistant')), 0) FROM log "
                "WHERE session = ? AND seq > ? AND seq < ?",
                (key, state.upto, state.live_from),
            ).fetchone()
            messages, characters = connection.execute(
                "SELECT coalesce(sum(kind IN ('user', 'assistant')), 0), "
                "coalesce(sum(length(payload)), 0) FROM log WHERE session = ? AND seq >= ?",
                (key, state.live_from),
            ).fetchone()
            model = session_settings(connection, key).model
            return Backlog(half is not None, bool(gone), behind, messages, characters, model)

        return await self._database.read(
            lambda connection: {key: backlog(connection, key) for key in keys}
        )

    async def behind(self) -> tuple[str, ...]:
        """The sessions with an unfinished batch, or with entries out of view to consolidate.

        Sessions of services count for an unfinished batch only.
        """
        rows = await self._rows(
            "SELECT session, 1 FROM digest_batch WHERE is_written = 0 UNION "
            "SELECT key, 0 FROM session LEFT JOIN digest ON digest.session = key "
            "WHERE live_from > coalesce(upto, 0) AND EXISTS (SELECT 1 FROM log "
            "WHERE log.session = key AND seq > coalesce(upto, 0) AND seq < live_from)"
        )
        return tuple(dict.fromkeys(key for key, is_half in rows if is_half or not is_service(key)))

    async def put_off(self) -> tuple[str, ...]:
        """The sessions whose last try failed."""
        rows = await self._rows("SELECT session FROM digest WHERE not_before IS NOT NULL")
        return tuple(key for (key,) in rows)

    async def last_written(self) -> datetime | None:
        """When HISTORY.md was last written."""
        ((stamp,),) = await self._rows("SELECT max(at) FROM digest")
        return _time(stamp)

    async def half_written(self, key: str) -> Batch | None:
        """The batch that a former process left unfinished."""
        rows = await self._rows(
            f"SELECT {_COLUMNS} FROM digest_batch WHERE session = ? AND is_written = 0 "
            "ORDER BY last LIMIT 1",
            key,
        )
        for row in rows:
            values = dict(zip(_COLUMNS.split(", "), row, strict=True))
            return Batch(**{**values, "trust": Trust(values["trust"])})
        return None

    async def texts(self, key: str) -> tuple[str, ...]:
        """The blocks of HISTORY.md that came from a session, oldest first."""
        rows = await self._rows(
            "SELECT text FROM digest_batch WHERE session = ? ORDER BY last", key
        )
        return tuple(text for (text,) in rows)

    async def prepare(self, batch: Batch, calls: Sequence[ModelCall]) -> None:
        """Store a batch and the cost of its calls, durably, before any file is touched."""
        now = self._clock()
        values = (*astuple(batch), now.timestamp())

        def write(connection: sqlite3.Connection) -> None:
            marks = ", ".join("?" * len(values))
            connection.execute(
                f"INSERT INTO digest_batch ({_COLUMNS}, at) VALUES ({marks})", values
            )
            record_in(connection, batch.session, calls, now)

        await self._database.write(write, durable=True)

    async def finish(self, batch: Batch, mark: str) -> None:
        """Mark a batch whose files are written as done; begin the model's view at ``keeps_from``.

        A view that has meanwhile begun later (``/new``, a full window) stays as it is.
        """
        now = self._clock()

        def write(connection: sqlite3.Connection) -> None:
            if batch.keeps_from is not None:
                _view(connection, batch.session, batch.keeps_from, mark, batch.trust, now)
            connection.execute("UPDATE digest_batch SET is_written = 1 WHERE id = ?", (batch.id,))
            _move(connection, batch.session, batch.last, now)

        await self._database.write(write, durable=True)

    async def move_view(self, key: str, keeps_from: int, mark: str) -> None:
        """Begin the model's view later; everything before is consolidated already."""
        now = self._clock()
        await self._database.write(
            lambda connection: _view(connection, key, keeps_from, mark, Trust.TRUSTED, now)
        )

    async def skip(self, key: str, last: int) -> None:
        """Move the cursor over a part without words."""
        now = self._clock()
        await self._database.write(lambda connection: _move(connection, key, last, now))

    async def failed(self, key: str, error: str, not_before: datetime, *, counts: bool) -> None:
        """Store a failure and the time of the next try; ``counts`` adds it to ``failures``."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO digest (session, failures, not_before, error) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (session) DO UPDATE SET failures = failures + excluded.failures, "
                "not_before = excluded.not_before, error = excluded.error",
                (key, int(counts), not_before.timestamp(), error),
            )

        await self._database.write(write, durable=True)

    async def _rows(self, sql: str, *values: str) -> list[Any]:
        return await self._database.read(
            lambda connection: connection.execute(sql, values).fetchall()
        )


def _view(
    connection: sqlite3.Connection,
    key: str,
    keeps_from: int,
    mark: str,
    trust: Trust,
    now: datetime,
) -> None:
    if keeps_from <= _progress(connection, key).live_from:
        return
    draft = Draft(
        kind=EntryKind.COMPACTED,
        message=UserMessage(mark),
        inbound_id=f"digest:{key}:{keeps_from}",
        principal="",
        trust=trust,
        keeps_from=keeps_from,
    )
    append_in(connection, key, (draft,), now)


def _move(connection: sqlite3.Connection, key: str, last: int, now: datetime) -> None:
    connection.execute(
        "INSERT INTO digest (session, upto, at) VALUES (?, ?, ?) "
        "ON CONFLICT (session) DO UPDATE SET upto = max(upto, excluded.upto), failures = 0, "
        "not_before = NULL, error = NULL, at = excluded.at",
        (key, last, now.timestamp()),
    )


def _progress(connection: sqlite3.Connection, key: str) -> SessionProgress:
    row = connection.execute(
        "SELECT coalesce(upto, 0), live_from, coalesce(failures, 0), not_before, "
        "coalesce(error, ''), at FROM session LEFT JOIN digest ON digest.session = key "
        "WHERE key = ?",
        (key,),
    ).fetchone()
    if row is None:
        return SessionProgress()
    upto, live_from, failures, not_before, error, at = row
    return SessionProgress(upto, live_from, failures, _time(not_before), error, _time(at))


def _time(stamp: float | None) -> datetime | None:
    return None if stamp is None else datetime.fromtimestamp(stamp, UTC)
