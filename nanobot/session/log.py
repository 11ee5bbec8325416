"""The append-only log of each session in the state database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from loguru import logger

from nanobot.core.chat import ToolMessage
from nanobot.core.messages import Trust
from nanobot.core.ports import Clock
from nanobot.session.entries import (
    Draft,
    Entry,
    EntryKind,
    Replaced,
    decode,
    encode,
    replaced_of,
    usage_of,
)
from nanobot.session.usage import Calibration, ModelCall, record_in
from nanobot.store.database import Database
from nanobot.store.job_runs import is_open

_STORED = [field.name for field in fields(Draft) if field.name != "account"]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The model and the reasoning effort chosen for a session; None for the configured ones."""

    model: str | None = None
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True)
class LiveSession:
    """The part of a session that the model sees, oldest entry first.

    ``is_cut``: there are more entries than was asked for; these are the newest.
    """

    key: str
    entries: tuple[Entry, ...]
    settings: SessionSettings
    is_cut: bool = False


class SessionLog:
    """Appends to and reads the logs of sessions; no entry is ever changed."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.calibration = Calibration(database)

    async def settings(self, key: str) -> SessionSettings:
        """The settings of a session."""

        return await self._database.read(lambda connection: session_settings(connection, key))

    async def live(self, key: str, *, most: int | None = None) -> LiveSession:
        """What the model sees of a session; an unknown key is an empty session.

        Reads at most ``most`` characters (as stored) of the newest entries. Such a cut view begins
        with a person's message, or else with a step of the assistant.

        Its cost depends only on what the model sees: the text of trimmed results is not read.
        Damaged rows are left out and logged.
        """
        return await self._database.read(lambda connection: _live(connection, key, most))

    async def call_ids(self, key: str, inbound_id: str) -> set[str]:
        """The ids of all calls that the turn of an inbound has made, summed up or not."""

        def read(connection: sqlite3.Connection) -> set[str]:
            rows = connection.execute(
                "SELECT json_extract(call.value, '$[0]') "
                "FROM log, json_each(log.payload, '$.tool_calls') AS call "
                "WHERE session = ? AND inbound_id = ? AND kind = 'assistant' "
                "AND json_valid(payload)",
                (key, inbound_id),
            )
            return {str(identity) for (identity,) in rows}

        return await self._database.read(read)

    async def append(
        self, key: str, drafts: Sequence[Draft], *, durable: bool = False
    ) -> tuple[Entry, ...]:
        """Append drafts in one transaction (synced when ``durable``)."""
        if not drafts:
            return ()
        now = self._clock()
        return await self._database.write(
            lambda connection: append_in(connection, key, drafts, now), durable=durable
        )

    async def spend(self, key: str, call: ModelCall) -> None:
        """Count a model call of which nothing enters the log."""
        now = self._clock()
        await self._database.write(lambda connection: record_in(connection, key, [call], now))

    async def reset(self, key: str, draft: Draft) -> None:
        """Begin a new conversation: append the reset entry, where the view begins from now on."""
        now = self._clock()

        def write(connection: sqlite3.Connection) -> None:
            (entry,) = append_in(connection, key, (draft,), now)
            connection.execute("UPDATE session SET live_from = ? WHERE key = ?", (entry.seq, key))

        await self._database.write(write, durable=True)

    async def change_settings(self, key: str, settings: SessionSettings) -> None:
        """Store the settings of a session, durably."""
        now = self._clock().timestamp()
        text = json.dumps({"model": settings.model, "reasoning_effort": settings.reasoning_effort})

        def write(connection: sqlite3.Connection) -> None:
            _touch(connection, key, now)
            connection.execute("UPDATE session SET settings = ? WHERE key = ?", (text, key))

        await self._database.write(write, durable=True)

    async def entries(self, key: str, *, after: int = 0, limit: int = 500) -> tuple[Entry, ...]:
        """A page of a session's whole log: the entries past ``after``, oldest first."""
        return await self._database.read(
            lambda connection: tuple(_read(key, _rows(connection, key, after, limit, {}), {}))
        )


def append_in(
    connection: sqlite3.Connection, key: str, drafts: Sequence[Draft], now: datetime
) -> tuple[Entry, ...]:
    """Append within the caller's transaction, such as the one that settles a turn.

    The usage of each draft is counted with it.
    """
    stamp = now.timestamp()
    _touch(connection, key, stamp)
    entries: list[Entry] = []
    for draft in drafts:
        by = (draft.inbound_id, draft.principal, draft.trust.value)
        seq = insert_row(connection, key, (draft.kind.value, *by, stamp, encode(draft)))
        facts = {name: getattr(draft, name) for name in _STORED}
        entries.append(Entry(**facts, seq=seq, at=now))
        if draft.keeps_from is not None:
            connection.execute(
                "UPDATE session SET live_from = max(live_from, ?) WHERE key = ?",
                (draft.keeps_from, key),
            )
        if draft.usage is not None:
            call = ModelCall(draft.model, draft.provider, draft.usage)
            record_in(connection, draft.account or key, [call], now)
    return tuple(entries)


def insert_row(
    connection: sqlite3.Connection, key: str, row: tuple[str, str, str, str, float, str]
) -> int:
    """Append a stored entry (kind, inbound, principal, trust, time, payload); returns its seq."""
    cursor = connection.execute(
        "INSERT INTO log (session, kind, inbound_id, principal, trust, at, payload) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, *row),
    )
    return cursor.lastrowid or 0


def session_settings(connection: sqlite3.Connection, key: str) -> SessionSettings:
    """The settings of a session, within the caller's transaction; an unknown one has none."""
    row = connection.execute("SELECT settings FROM session WHERE key = ?", (key,)).fetchone()
    return SessionSettings() if row is None else _settings(row[0])


def free_for_next(connection: sqlite3.Connection, key: str, kept: int) -> bool:
    """Whether a session is idle; if so, its view is cut to the last ``kept`` turns.

    This bounds sessions in which nobody says ``/new``.
    """
    if is_open(connection, key):
        return False
    row = connection.execute(
        "SELECT seq FROM log WHERE session = ? AND kind = ? ORDER BY seq DESC LIMIT 1 OFFSET ?",
        (key, EntryKind.USER.value, kept - 1),
    ).fetchone()
    if row is not None:
        connection.execute(
            "UPDATE session SET live_from = max(live_from, ?) WHERE key = ?", (row[0], key)
        )
    return True


def _touch(connection: sqlite3.Connection, key: str, stamp: float) -> None:
    connection.execute(
        "INSERT INTO session (key, created_at, updated_at) VALUES (?, ?, ?) "
        "ON CONFLICT (key) DO UPDATE SET updated_at = excluded.updated_at",
        (key, stamp, stamp),
    )


def _live(connection: sqlite3.Connection, key: str, most: int | None) -> LiveSession:
    row = connection.execute(
        "SELECT live_from, settings FROM session WHERE key = ?", (key,)
    ).fetchone()
    if row is None:
        return LiveSession(key, (), SessionSettings())
    trimmed = _trimmed_results(connection, key, row[0])
    rows = _rows(connection, key, row[0] - 1, -1, trimmed, newest_first=True)
    newest: list[tuple[Any, ...]] = []
    size, is_cut = 0, False
    for one in rows:
        size += _size(one, trimmed)
        is_cut = most is not None and size > most
        if is_cut:
            break
        newest.append(one)
    entries = tuple(_read(key, reversed(newest), trimmed))
    if is_cut:  # no mark stands for what is older: the newest mark would be among these
        entries = _from_a_beginning(entries)
    return LiveSession(key, _view(entries), _settings(row[1]), is_cut)


def _size(row: tuple[Any, ...], trimmed: Mapping[int, Replaced]) -> int:
    """Characters of a stored entry, or of the note in its place; it may be damaged."""
    seq, payload = row[0], row[-1]
    if payload is None:
        return len(trimmed[seq].note) if seq in trimmed else 0
    return len(str(payload))


def _from_a_beginning(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The entries from the first that a view can begin with; none if there is none."""
    for kinds in ((EntryKind.USER, EntryKind.SENT), (EntryKind.ASSISTANT,)):
        for place, entry in enumerate(entries):
            if entry.kind in kinds:
                return entries[place:]
    return ()


def _view(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """What the model sees: the newest compaction in front, no entries of dead letters.

    Words sent to the chat while a turn ran stand behind that turn, which did not see them.
    """
    dead = {entry.inbound_id: entry.seq for entry in entries if entry.kind is EntryKind.DEAD_LETTER}
    if dead:
        # A compaction stays: it also sums up other turns.
        entries = tuple(
            entry
            for entry in entries
            if entry.kind is EntryKind.COMPACTED or entry.seq > dead.get(entry.inbound_id, 0)
        )
    marks = [entry for entry in entries if entry.kind is EntryKind.COMPACTED]
    rest = [entry for entry in entries if entry.kind is not EntryKind.COMPACTED]
    return (*marks[-1:], *_behind_turns(rest))


def _behind_turns(entries: Sequence[Entry]) -> Iterable[Entry]:
    """The entries, with each ``sent`` one moved behind the turn in which it stands."""
    last = {
        entry.inbound_id: place
        for place, entry in enumerate(entries)
        if entry.kind is not EntryKind.SENT
    }
    sent: list[Entry] = []
    end = -1
    for place, entry in enumerate(entries):
        if entry.kind is EntryKind.SENT:
            sent.append(entry)
        else:
            if place > end:
                yield from sent
                sent = []
            end = max(end, last[entry.inbound_id])
            yield entry
    yield from sent


def _settings(text: str) -> SessionSettings:
    try:
        record: Any = json.loads(text)
        return SessionSettings(record.get("model"), record.get("reasoning_effort"))
    except (ValueError, AttributeError):
        logger.error("ignored damaged session settings")
        return SessionSettings()


def _trimmed_results(connection: sqlite3.Connection, key: str, start: int) -> dict[int, Replaced]:
    """The trimmed results past ``start`` by their place in the log."""
    given: dict[int, Replaced] = {}
    rows = connection.execute(
        "SELECT seq, payload FROM log WHERE session = ? AND seq >= ? AND kind = 'gave_way'",
        (key, start),
    )
    for seq, payload in rows:
        try:
            _, _, record = decode(EntryKind.TRIMMED, payload)
            given.update((one.seq, one) for one in replaced_of(record))
        except (ValueError, AttributeError) as error:
            logger.error("left out damaged log entry {} of session {}: {}", seq, key, error)
    return given


def _rows(
    connection: sqlite3.Connection,
    key: str,
    after: int,
    limit: int,
    trimmed: Mapping[int, Replaced],
    *,
    newest_first: bool = False,
) -> Iterable[tuple[Any, ...]]:
    """Stored entries; the payload of those in ``trimmed`` is not read."""
    return connection.execute(
        "SELECT seq, kind, inbound_id, principal, trust, at, "
        "CASE WHEN seq IN (SELECT value FROM json_each(?)) THEN NULL ELSE payload END "
        f"FROM log WHERE session = ? AND seq > ? ORDER BY seq {'DESC' if newest_first else ''} "
        "LIMIT ?",
        (json.dumps(list(trimmed)), key, after, limit),
    )


def _read(
    key: str, rows: Iterable[tuple[Any, ...]], trimmed: Mapping[int, Replaced]
) -> Iterable[Entry]:
    for seq, kind, inbound_id, principal, trust, at, payload in rows:
        try:
            note = trimmed.get(seq) if payload is None else None
            if note is None:
                known, message, record = decode(kind, payload)
            else:
                message = ToolMessage(note.call_id, note.name, note.note)
                known, record = EntryKind.TOOL, {}
            yield Entry(
                kind=known,
                message=message,
                inbound_id=inbound_id,
                principal=principal,
                trust=Trust(trust),
                ok=bool(record.get("ok", True)),
                delivered=str(record.get("delivered", "")),
                model=str(record.get("model", "")),
                provider=str(record.get("provider", "")),
                usage=usage_of(record),
                keeps_from=record.get("keeps_from"),
                replaced=replaced_of(record),
                is_trimmed=note is not None,
                note=str(record.get("note", "")),
                seq=seq,
                at=time_of(at),
            )
        except (ValueError, TypeError, AttributeError) as error:
            logger.error("left out damaged log entry {} of session {}: {}", seq, key, error)


def time_of(stamp: float) -> datetime:
    """A stored time as an aware datetime."""
    return datetime.fromtimestamp(stamp, UTC)
