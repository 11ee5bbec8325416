"""How far each session has been digested into HISTORY.md, in the state database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from nanobot.core.chat import UserMessage
from nanobot.core.messages import Trust
from nanobot.core.ports import Clock
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import append_in, session_settings
from nanobot.session.usage import ModelCall, record_in
from nanobot.store.database import Database


@dataclass(frozen=True, slots=True)
class DigestState:
    """Where a session stands: entries up to ``upto`` are digested, the model sees ``live_from`` on.

    ``failures`` are the answers of no use in a row; before ``not_before`` it is not tried again,
    for ``error``.
    """

    upto: int = 0
    live_from: int = 0
    failures: int = 0
    not_before: datetime | None = None
    error: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A rough measure of a session.

    Whether a batch of it is half written, whether entries have left the view undigested, how many
    messages are among them, and what is in view. ``model`` is the one chosen for the session,
    None for the usual one.
    """

    is_half_written: bool
    is_behind: bool
    behind: int
    messages: int
    characters: int
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The digest of one part of a session, decided on and to be written as it stands.

    ``last`` is the seq of the part's last entry, ``text`` the paragraphs for HISTORY.md, ``edits``
    those of MEMORY.md as JSON, ``place`` the bytes HISTORY.md had before. With ``keeps_from`` the
    model's view begins there once all is written.
    """

    id: str
    session: str
    last: int
    text: str
    edits: str
    trust: Trust
    place: int = 0
    keeps_from: int | None = None


def is_service(key: str) -> bool:
    """Whether a session is a service's own, which no person ends."""
    return key == "heartbeat" or key.startswith(("cron:", "subagent:"))


class Digests:
    """The cursors and batches of all sessions."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def state(self, key: str) -> DigestState:
        """Where a session stands; an unknown one at its beginning."""
        return await self._database.read(lambda connection: _state(connection, key))

    async def standings(self, keys: Iterable[str]) -> dict[str, Standing]:
        """How much of each session there may be to digest; at least as much as there is."""

        def standing(connection: sqlite3.Connection, key: str) -> Standing:
            half = connection.execute(
                "SELECT 1 FROM digest_batch WHERE session = ? AND is_written = 0", (key,)
            ).fetchone()
            state = _state(connection, key)
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
            return Standing(half is not None, bool(gone), behind, messages, characters, model)

        return await self._database.read(
            lambda connection: {key: standing(connection, key) for key in keys}
        )

    async def behind(self) -> tuple[str, ...]:
        """The sessions with a batch half written, or entries out of view and not digested.

        Those of services are not among the latter: what leaves their view is left to gather.
        """

        def read(connection: sqlite3.Connection) -> tuple[str, ...]:
            rows = connection.execute(
                "SELECT session FROM digest_batch WHERE is_written = 0 UNION "
                "SELECT key FROM session LEFT JOIN digest ON digest.session = key "
                "WHERE live_from > coalesce(upto, 0) AND EXISTS (SELECT 1 FROM log "
                "WHERE log.session = key AND seq > coalesce(upto, 0) AND seq < live_from)"
            )
            halves = "SELECT session FROM digest_batch WHERE is_written = 0"
            half = {key for (key,) in connection.execute(halves)}
            return tuple(key for (key,) in rows if key in half or not is_service(key))

        return await self._database.read(read)

    async def put_off(self) -> tuple[str, ...]:
        """The sessions whose last try failed."""

        def read(connection: sqlite3.Connection) -> tuple[str, ...]:
            rows = connection.execute("SELECT session FROM digest WHERE not_before IS NOT NULL")
            return tuple(key for (key,) in rows)

        return await self._database.read(read)

    async def last_written(self) -> datetime | None:
        """When anything was last written into HISTORY.md."""

        def read(connection: sqlite3.Connection) -> datetime | None:
            (stamp,) = connection.execute("SELECT max(at) FROM digest").fetchone()
            return _time(stamp)

        return await self._database.read(read)

    async def half_written(self, key: str) -> Batch | None:
        """The batch that a former process left unfinished."""

        def read(connection: sqlite3.Connection) -> Batch | None:
            row = connection.execute(
                "SELECT id, session, last, text, edits, trust, place, keeps_from "
                "FROM digest_batch WHERE session = ? AND is_written = 0 ORDER BY last LIMIT 1",
                (key,),
            ).fetchone()
            if row is None:
                return None
            id_, session, last, text, edits, trust, place, keeps_from = row
            return Batch(
                id=id_,
                session=session,
                last=last,
                text=text,
                edits=edits,
                trust=Trust(trust),
                place=place,
                keeps_from=keeps_from,
            )

        return await self._database.read(read)

    async def texts(self, key: str) -> tuple[str, ...]:
        """The blocks of HISTORY.md that came from a session, oldest first."""

        def read(connection: sqlite3.Connection) -> tuple[str, ...]:
            rows = connection.execute(
                "SELECT text FROM digest_batch WHERE session = ? ORDER BY last", (key,)
            )
            return tuple(text for (text,) in rows)

        return await self._database.read(read)

    async def prepare(self, batch: Batch, calls: Sequence[ModelCall]) -> None:
        """Commit to a batch, durably, before any file is touched; counts what it cost."""
        now = self._clock()

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO digest_batch "
                "(id, session, last, at, place, text, edits, keeps_from, trust) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    batch.id,
                    batch.session,
                    batch.last,
                    now.timestamp(),
                    batch.place,
                    batch.text,
                    batch.edits,
                    batch.keeps_from,
                    batch.trust.value,
                ),
            )
            record_in(connection, batch.session, calls, now)

        await self._database.write(write, durable=True)

    async def finish(self, batch: Batch, mark: str) -> None:
        """All of a batch is on disk: move the cursor and, where it says so, the model's view.

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
        """Let the model's view begin later: all before is digested already."""
        now = self._clock()
        await self._database.write(
            lambda connection: _view(connection, key, keeps_from, mark, Trust.TRUSTED, now)
        )

    async def skip(self, key: str, last: int) -> None:
        """Move the cursor over a part in which nothing was said."""
        now = self._clock()
        await self._database.write(lambda connection: _move(connection, key, last, now))

    async def failed(self, key: str, error: str, not_before: datetime, *, counts: bool) -> None:
        """Note a failure, as one of ``failures`` if it counts; the next try is not before then."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO digest (session, failures, not_before, error) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (session) DO UPDATE SET failures = failures + excluded.failures, "
                "not_before = excluded.not_before, error = excluded.error",
                (key, int(counts), not_before.timestamp(), error),
            )

        await self._database.write(write, durable=True)


def _view(
    connection: sqlite3.Connection,
    key: str,
    keeps_from: int,
    mark: str,
    trust: Trust,
    now: datetime,
) -> None:
    if keeps_from <= _state(connection, key).live_from:
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


def _state(connection: sqlite3.Connection, key: str) -> DigestState:
    row = connection.execute(
        "SELECT coalesce(upto, 0), live_from, coalesce(failures, 0), not_before, "
        "coalesce(error, ''), at FROM session LEFT JOIN digest ON digest.session = key "
        "WHERE key = ?",
        (key,),
    ).fetchone()
    if row is None:
        return DigestState()
    upto, live_from, failures, not_before, error, at = row
    return DigestState(upto, live_from, failures, _time(not_before), error, _time(at))


def _time(stamp: float | None) -> datetime | None:
    return None if stamp is None else datetime.fromtimestamp(stamp, UTC)
