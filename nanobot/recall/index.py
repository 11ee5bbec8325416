"""The search index: an SQLite file derived from the session log and HISTORY.md."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from loguru import logger

from nanobot.core.chat import AssistantMessage, ToolMessage, UserMessage
from nanobot.core.errors import StoreUnavailable
from nanobot.core.messages import Principal, Trust
from nanobot.core.text import UNTRUSTED_MARK
from nanobot.core.turn_header import read_header
from nanobot.recall.chunks import Indexed, Paragraph, Sources, paragraphs, pieces
from nanobot.recall.terms import terms
from nanobot.session.entries import EntryKind, decode
from nanobot.store.files import file_stamp

T = TypeVar("T")

VERSION = 3
"""To be raised with every change of the tables or of ``terms``."""
HISTORY = ""
"""The session key of HISTORY.md's paragraphs; no session has it."""

_BATCH = 256
_BATCH_S = 0.05
"""Seconds after which a batch is committed, so that searches wait no longer."""
_RACY_NS = 2_000_000_000
"""A file changed this recently may change again with the same time stamp."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""Errors after which the index is rebuilt; SQLITE_ERROR stands for missing tables."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE fact (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE chunk (
    id         INTEGER PRIMARY KEY,
    session    TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    part       INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    speaker    TEXT NOT NULL,
    name       TEXT NOT NULL,
    at         REAL,
    untrusted  INTEGER NOT NULL,
    guest      INTEGER NOT NULL,
    inbound_id TEXT NOT NULL,
    text       TEXT NOT NULL
);
CREATE INDEX chunk_place ON chunk (session, seq, part);
CREATE INDEX chunk_at ON chunk (at);
CREATE TABLE known (session TEXT PRIMARY KEY, first INTEGER NOT NULL) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(terms, content='', tokenize='ascii');
CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, row);
INSERT INTO fact VALUES ('cursor', 0), ('chunks', 0), ('terms', 0), ('history', ''),
    ('sessions', 0);
PRAGMA user_version={VERSION};
COMMIT;
"""


class RecallIndex:
    """Keeps the index in step with its sources. Every method blocks; none keeps a connection.

    Any process may call any method at any time: writers hold a lock file, and each batch is a
    transaction. A file that is damaged, missing or of another version is rebuilt.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def search(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Catch up, then run ``function`` on a connection for reading and return its result.

        Raises StoreUnavailable when the index can be neither read nor made.
        """
        try:
            self.catch_up()
        except StoreUnavailable as error:
            logger.warning("the search index is not up to date: {}", error)
        return self._mended(lambda: self._read(function))

    def catch_up(self, *, pause: Callable[[], None] = lambda: None) -> None:
        """Index what is new in the sources and remove what is gone from them.

        ``pause`` is called between batches. Raises StoreUnavailable when it cannot be written.
        """
        self._mended(lambda: self._catch_up(pause))

    def rebuild(self) -> Indexed:
        """Make the index anew and return what is in it. Raises StoreUnavailable."""
        with self._lock():
            self._remove()
        self.catch_up()
        return self._mended(lambda: self._read(_counted))

    def forget(self, session: str) -> None:
        """Remove a deleted session from the file now, rather than before the next search."""

        def write() -> None:
            with self._lock(), contextlib.closing(self._opened()) as connection:
                _in_transaction(connection, lambda: _forget(connection, session, None))

        self._mended(write)

    def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        with contextlib.closing(_connect(self.sources.index, "ro")) as connection:
            return function(connection)

    def _catch_up(self, pause: Callable[[], None]) -> None:
        if self._is_current():
            return
        done = False
        while not done:
            with self._lock(), contextlib.closing(self._opened()) as connection:
                _in_transaction(connection, lambda: self._take_history(connection))
                done = _in_transaction(connection, lambda: self._take_log(connection))
            pause()

    def _is_current(self) -> bool:
        """Whether nothing has changed since the last time, as far as a look can tell."""
        if not self.sources.index.exists():
            return False

        def look(connection: sqlite3.Connection) -> bool:
            if not _is_usable(connection):
                return False
            stamp = _stamp(self.sources.history)
            if not stamp or stamp != _fact(connection, "history"):
                return False
            with self._state() as state:
                return state is None or (
                    _fact(connection, "cursor") == _newest(state)
                    and _fact(connection, "sessions") == _sessions(state)
                )

        return self._read(look)

    def _take_history(self, connection: sqlite3.Connection) -> None:
        path = self.sources.history
        stamp = _stamp(path)
        if stamp and stamp == _fact(connection, "history"):
            return
        try:
            text = _contained(path).decode("utf-8", errors="replace").removeprefix("\ufeff")
        except FileNotFoundError:
            text = ""
        except OSError as error:
            logger.warning("{} cannot be read and is not searched anew: {}", path, error)
            return
        present = {one.digest: one for one in paragraphs(text, self.sources.zone)}
        held = connection.execute(
            "SELECT id, digest FROM chunk WHERE session = ?", (HISTORY,)
        ).fetchall()
        _remove_chunks(connection, [id_ for id_, digest in held if digest not in present])
        for _, digest in held:
            present.pop(digest, None)
        for paragraph in present.values():
            _add_paragraph(connection, paragraph)
        _set_fact(connection, "history", stamp)

    def _take_log(self, connection: sqlite3.Connection) -> bool:
        """Index a batch of log entries; returns whether that was the last one."""
        with self._state() as state:
            if state is None:
                return True
            newest = _newest(state)
            cursor = _fact(connection, "cursor")
            # The last number that the log gave to an entry, even one deleted since.
            given = state.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
            if cursor > (given[0] if given else 0):
                # The index was made from another state database.
                for (session,) in connection.execute("SELECT session FROM known").fetchall():
                    _forget(connection, session, None)
                cursor = 0
            rows = state.execute(
                "SELECT seq, session, kind, inbound_id, principal, trust, at, payload FROM log "
                "WHERE seq > ? AND seq <= ? AND (kind IN ('user', 'assistant') "
                "OR (kind = 'tool' AND payload LIKE '%\"delivered\":%')) ORDER BY seq LIMIT ?",
                (cursor, newest, _BATCH),
            )
            until = time.monotonic() + _BATCH_S
            count = 0
            for row in rows:
                _add_entry(connection, row)
                connection.execute(
                    "INSERT OR IGNORE INTO known VALUES (?, ?)", (row[1], _first(state, row[1]))
                )
                count, cursor = count + 1, row[0]
                if time.monotonic() > until:
                    break
            else:
                if count < _BATCH:
                    cursor = newest
            _set_fact(connection, "cursor", cursor)
            if cursor < newest:
                return False
            _leave_out_deleted(connection, state)
            return True

    @contextlib.contextmanager
    def _state(self) -> Iterator[sqlite3.Connection | None]:
        """The state database for reading; None while there is none, or it cannot be read."""
        if not self.sources.state.exists():
            yield None
            return
        with contextlib.closing(_connect(self.sources.state, "ro")) as state:
            try:
                state.execute("BEGIN")  # one moment for all that is read
                state.execute("SELECT 1 FROM log LIMIT 1").fetchone()
            except sqlite3.Error as error:
                logger.warning("the sessions cannot be searched anew: {}", error)
                yield None
                return
            yield state

    def _opened(self) -> sqlite3.Connection:
        """A connection for writing, to a file of this version; the lock is held."""
        path = self.sources.index
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(2):
            is_new = not path.exists()
            if is_new:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            connection = _connect(path, "rw")
            try:
                if is_new:
                    connection.executescript(_TABLES)
                if _is_usable(connection):
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()
            self._remove()
        raise StoreUnavailable(f"the search index {path} cannot be made")

    def _mended(self, function: Callable[[], T]) -> T:
        """The result of ``function``; a damaged index is rebuilt first."""
        try:
            return function()
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and (code & 0xFF) not in _DAMAGE:
                raise _unavailable(error) from error
            logger.warning("the search index is damaged and made anew: {}", error)
        except OSError as error:
            raise _unavailable(error) from error
        try:
            with self._lock():
                self._remove()
            self._catch_up(lambda: None)
            return function()
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error

    def _remove(self) -> None:
        path = self.sources.index
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the writers' lock, across processes; waits for it."""
        path = self.sources.index.with_suffix(".lock")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA busy_timeout=10000")
    if mode == "rw":
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA secure_delete=ON")
    return connection


def _in_transaction(connection: sqlite3.Connection, function: Callable[[], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = function()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _value(connection: sqlite3.Connection, query: str, *values: object) -> Any:
    """The value that a query gives; raises DatabaseError if it gives none."""
    row = connection.execute(query, values).fetchone()
    if row is None:
        raise sqlite3.DatabaseError("a row is missing")
    return row[0]


def _is_usable(connection: sqlite3.Connection) -> bool:
    """Whether a file is of this version, and its chunks and words end alike."""
    if _value(connection, "PRAGMA user_version") != VERSION:
        return False
    last_chunk = _value(connection, "SELECT max(id) FROM chunk")
    return bool(last_chunk == _value(connection, "SELECT max(id) FROM words_docsize"))


def _fact(connection: sqlite3.Connection, name: str) -> Any:
    return _value(connection, "SELECT value FROM fact WHERE name = ?", name)


def _set_fact(connection: sqlite3.Connection, name: str, value: int | str) -> None:
    connection.execute("UPDATE fact SET value = ? WHERE name = ?", (value, name))


def _count(connection: sqlite3.Connection, chunks: int, words: int) -> None:
    connection.execute(
        "UPDATE fact SET value = value + CASE name WHEN 'chunks' THEN ? ELSE ? END "
        "WHERE name IN ('chunks', 'terms')",
        (chunks, words),
    )


def _stamp(path: Path) -> str:
    """A text that differs whenever a file was changed; "" if it may change again unnoticed."""
    try:
        status = path.stat()
    except OSError:
        return "none"
    if abs(time.time_ns() - status.st_mtime_ns) < _RACY_NS:
        return ""
    return f"{path}:{file_stamp(status)}"


def _contained(history: Path) -> bytes:
    """The bytes of HISTORY.md; a link may lead only to Markdown in the workspace. Raises OSError.

    A command could have made the link, to a file that it cannot read itself.
    """
    real = history.resolve(strict=True)
    if not real.is_relative_to(history.parent.parent.resolve()) or real.suffix != ".md":
        raise PermissionError(f"it leads to {real}, outside the workspace")
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError("it is no regular file")
        return file.read()


def _newest(state: sqlite3.Connection) -> Any:
    return _value(state, "SELECT coalesce(max(seq), 0) FROM log")


def _sessions(state: sqlite3.Connection) -> Any:
    return _value(state, "SELECT count(*) FROM session")


def _first(state: sqlite3.Connection, session: str) -> Any:
    """The number of a session's first entry, which no other session ever gets; None if gone."""
    return _value(state, "SELECT min(seq) FROM log WHERE session = ?", session)


def _leave_out_deleted(connection: sqlite3.Connection, state: sqlite3.Connection) -> None:
    """Remove the sessions that are gone, even if one of the same name has begun since."""
    for session, known in connection.execute("SELECT session, first FROM known").fetchall():
        first = _first(state, session)
        if first == known:
            continue
        _forget(connection, session, first)
        if first is not None:
            connection.execute("INSERT INTO known VALUES (?, ?)", (session, first))
    _set_fact(connection, "sessions", _sessions(state))


def _forget(connection: sqlite3.Connection, session: str, first: int | None) -> None:
    """Remove a session's chunks before the entry ``first``; None: all of them."""
    rows = connection.execute(
        "SELECT id FROM chunk WHERE session = ? AND (? IS NULL OR seq < ?)",
        (session, first, first),
    )
    _remove_chunks(connection, [id_ for (id_,) in rows])
    connection.execute("DELETE FROM known WHERE session = ?", (session,))
    # What FTS5 deletes it only marks, until the parts of its index are merged.
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")


def _remove_chunks(connection: sqlite3.Connection, ids: Iterable[int]) -> None:
    for id_ in ids:
        name, text = connection.execute(
            "SELECT name, text FROM chunk WHERE id = ?", (id_,)
        ).fetchone()
        found = terms(f"{name} {text}")
        connection.execute(
            "INSERT INTO words (words, rowid, terms) VALUES ('delete', ?, ?)",
            (id_, " ".join(found)),
        )
        connection.execute("DELETE FROM chunk WHERE id = ?", (id_,))
        _count(connection, -1, -len(found))


def _add_paragraph(connection: sqlite3.Connection, paragraph: Paragraph) -> None:
    at = paragraph.at.timestamp() if paragraph.at else None
    for part, piece in enumerate(pieces(paragraph.text)):
        untrusted = UNTRUSTED_MARK in paragraph.text
        values = (HISTORY, 0, part, paragraph.digest, "", "", at, untrusted, False, "", piece)
        _add(connection, values)


def _add_entry(connection: sqlite3.Connection, row: Sequence[object]) -> None:
    seq, session, kind, inbound_id, principal, trust, at, payload = row
    try:
        known, message, record = decode(str(kind), str(payload))
        is_guest = not Principal.parse(str(principal)).is_owner
    except ValueError:
        return
    text = name = ""
    speaker = EntryKind.ASSISTANT.value
    match message:
        case UserMessage(content):
            header, text = read_header(content)
            name, speaker = header.sender, known.value
        case AssistantMessage(content):
            text = content
        case ToolMessage():
            text = str(record.get("delivered", ""))
    is_untrusted = trust != Trust.TRUSTED.value
    for part, piece in enumerate(pieces(text)):
        values = (session, seq, part, "", speaker, name, at, is_untrusted, is_guest, inbound_id)
        _add(connection, (*values, piece))


def _add(connection: sqlite3.Connection, values: Sequence[object]) -> None:
    cursor = connection.execute(
        "INSERT INTO chunk (session, seq, part, digest, speaker, name, at, untrusted, guest, "
        "inbound_id, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
    found = terms(f"{values[5]} {values[10]}")
    connection.execute(
        "INSERT INTO words (rowid, terms) VALUES (?, ?)", (cursor.lastrowid, " ".join(found))
    )
    _count(connection, 1, len(found))


def _counted(connection: sqlite3.Connection) -> Indexed:
    row = connection.execute(
        "SELECT count(*), count(DISTINCT session) - max(session = ''), "
        "count(DISTINCT CASE WHEN session = '' THEN digest END) FROM chunk"
    ).fetchone()
    return Indexed(row[0], row[1] or 0, row[2])


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the search index cannot be used: {error}")
