"""One SQLite file with one writer thread that commits in groups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

from loguru import logger

from nanobot.core.errors import StoreCorrupt, StoreError, StoreUnavailable
from nanobot.store.files import quarantine, sync_directory
from nanobot.store.salvage import salvage
from nanobot.store.schema import MIGRATIONS

T = TypeVar("T")

EXIT_WRITER_DIED = 70
"""Exit status (EX_SOFTWARE of sysexits) when the writer thread dies, for a supervisor."""

_GROUP = 256
_FULL = "PRAGMA synchronous=FULL"
_NORMAL = "PRAGMA synchronous=NORMAL"
_MOST_REBUILDS = 3
"""Upper bound of rebuilds by one process; a failing disk damages each new file again."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_STORAGE = _DAMAGE | {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
}
"""Errors of the file or its disk; every other error belongs to one statement."""


class Database:
    """The state database of one home; the one owner of its connection for writing.

    Writes are functions of a connection, run in order on the writer thread, several to a
    transaction. One whose function raises is rolled back alone and raises to its caller. With
    ``durable`` the transaction is synced to the disk before ``write`` returns (SQLite's
    ``synchronous=FULL``); without, it survives the death of the process but not that of the
    machine. Reads run on a connection and thread of their own and see every finished write.

    A file found to be damaged, at the start or later, is put aside. A new file replaces it with
    every row that can still be read, and the call that met the damage continues there.
    """

    def __init__(self, path: Path, *, on_fatal: Callable[[], None] | None = None) -> None:
        """Open, create or migrate. A damaged file is put aside and named in ``quarantined``."""
        self.path = path
        self.quarantined: Path | None = None
        """The path of the last damaged file, after it was put aside."""
        self.trouble = ""
        """The error of the last write; "" when it succeeded."""
        self._on_fatal = on_fatal or _exit
        self._jobs: queue.SimpleQueue[_Job[Any] | _Rebuild | None] = queue.SimpleQueue()
        self._generation = 0
        if _finish_rebuild(path):
            self.quarantined = max(path.parent.glob(f"{path.name}.corrupt-*"), default=None)
        try:
            connection = _open(path)
        except StoreCorrupt as damage:
            connection = self._take(_fresh_copy(path), damage)
        self._writer = threading.Thread(
            target=self._supervised, args=(connection,), name="state-writer", daemon=True
        )
        self._writer.start()
        self._reader: sqlite3.Connection | None = None
        self._reads = 0
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="state-reader")
        self._closed = False

    async def write(
        self, function: Callable[[sqlite3.Connection], T], *, durable: bool = False
    ) -> T:
        """Run ``function`` in a transaction and return its result once that is committed.

        Raises what ``function`` raised, or StoreUnavailable when the disk is full or read-only
        (nothing is changed then). Cancelling the wait does not undo the write.
        """
        if self._closed:
            raise StoreUnavailable("the state database is closed")
        loop = asyncio.get_running_loop()
        job = _Job(function, durable, loop, loop.create_future())
        self._jobs.put(job)
        result: T = await job.future
        return result

    async def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``function`` on a read-only connection and return its result.

        Raises what ``function`` raised, or StoreUnavailable when the file cannot be read.
        """
        if self._closed:
            raise StoreUnavailable("the state database is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, function)

    def close(self) -> None:
        """Finish queued writes and close; blocks until the writer is done. Twice is once."""
        if self._closed:
            return
        self._closed = True
        self._readers.submit(self._close_reader)
        self._readers.shutdown(wait=True)
        self._jobs.put(None)
        self._writer.join()

    def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return function(self._reading())
        except sqlite3.Error as error:
            failure = _translated(error)
            if failure is None:
                raise
            if not isinstance(failure, StoreCorrupt):
                raise failure from error
        rebuild = _Rebuild(failure, self._reads)
        self._jobs.put(rebuild)
        rebuild.done.wait()
        try:
            return function(self._reading())
        except sqlite3.Error as error:
            raise _translated(error) or error from error

    def _reading(self) -> sqlite3.Connection:
        """The connection for reading, to the file that is the database now."""
        if self._reader is None or self._reads != self._generation:
            self._close_reader()
            self._reads = self._generation
            self._reader = sqlite3.connect(
                f"{self.path.as_uri()}?mode=ro", uri=True, check_same_thread=False
            )
            self._reader.execute("PRAGMA busy_timeout=5000")
        return self._reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _supervised(self, connection: sqlite3.Connection) -> None:
        try:
            self._serve(connection)
        except BaseException:
            logger.opt(exception=True).critical("the state database's writer died; leaving")
            self._on_fatal()

    def _serve(self, connection: sqlite3.Connection) -> None:
        durable_now = True
        held: _Rebuild | None = None
        closing = False
        while not closing:
            first, held = held or self._jobs.get(), None
            if first is None:
                break
            if isinstance(first, _Rebuild):
                connection = self._rebuilt_for(first, connection)
                durable_now = True
                continue
            group = [first]
            while len(group) < _GROUP and held is None:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    closing = True
                    break
                if isinstance(job, _Rebuild):
                    held = job
                else:
                    group.append(job)
            durable = any(job.durable for job in group)
            if durable != durable_now:
                connection.execute(_FULL if durable else _NORMAL)
                durable_now = durable
            failure = _commit(connection, group)
            if isinstance(failure, StoreCorrupt) and self._generation < _MOST_REBUILDS:
                rebuilt = self._replaced(connection, failure)
                if rebuilt is not None:
                    connection, durable_now = rebuilt, True
                    failure = _commit(connection, group)
            self._note(failure)
            for one in group:
                one.settle(failure)
        if held is not None:
            held.done.set()
        connection.close()

    def _note(self, failure: StoreError | None) -> None:
        """Log the first of a series of failures, and its end."""
        text = "" if failure is None else str(failure)
        if text != self.trouble:
            if text:
                logger.error("{}; waiting messages are kept and tried again", text)
            else:
                logger.info("the state database can be written again")
        self.trouble = text

    def _rebuilt_for(self, request: _Rebuild, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Rebuild the file for a reader, unless that was done since."""
        try:
            if request.generation == self._generation < _MOST_REBUILDS:
                return self._replaced(connection, request.damage) or connection
            return connection
        finally:
            request.done.set()

    def _replaced(
        self, connection: sqlite3.Connection, damage: StoreCorrupt
    ) -> sqlite3.Connection | None:
        """A connection to a new file in place of the damaged one; None when none can be made."""
        try:
            fresh = _fresh_copy(self.path)
        except StoreError as error:
            logger.error("the damaged state database cannot be replaced: {}", error)
            return None
        # A failure from here on ends the writer; the next start completes the rebuild.
        # Closed first, since SQLite removes the journal of a closed database by its name.
        connection.close()
        return self._take(fresh, damage)

    def _take(self, fresh: Path, damage: StoreCorrupt) -> sqlite3.Connection:
        """Put the damaged file aside and ``fresh`` in its place."""
        self.quarantined = _set_aside(self.path)
        logger.error("{}; it is kept as {}", damage, self.quarantined)
        fresh.replace(self.path)
        sync_directory(self.path.parent)
        connection = _open(self.path)
        self._generation += 1
        return connection


class _Rebuild:
    """A reader's request to replace a damaged file; ``done`` is set once it was served."""

    __slots__ = ("damage", "done", "generation")

    def __init__(self, damage: StoreCorrupt, generation: int) -> None:
        self.damage = damage
        self.generation = generation
        self.done = threading.Event()


class _Job(Generic[T]):
    """A queued write; its result is handed to the event loop that waits for it."""

    __slots__ = ("durable", "error", "function", "future", "loop", "result")

    def __init__(
        self,
        function: Callable[[sqlite3.Connection], T],
        durable: bool,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[T],
    ) -> None:
        self.function = function
        self.durable = durable
        self.loop = loop
        self.future = future
        self.result: T | None = None
        self.error: Exception | None = None

    def settle(self, failure: StoreError | None) -> None:
        """Hand over the result; ``failure`` is that of the whole transaction."""
        if failure is not None:
            self.error = failure
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


def _commit(connection: sqlite3.Connection, group: list[_Job[Any]]) -> StoreError | None:
    """Run a group in one transaction; a job can fail alone, a returned error fails them all."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for job in group:
            _run(connection, job)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # SQLite has rolled it back by itself
                connection.execute("ROLLBACK")
        return _translated(error) or StoreUnavailable(f"a transaction failed: {error}")
    return None


def _run(connection: sqlite3.Connection, job: _Job[Any]) -> None:
    job.result = job.error = None
    connection.execute("SAVEPOINT job")
    try:
        job.result = job.function(connection)
    except Exception as error:
        # Full, unwritable or damaged storage fails the whole transaction, not one job.
        if isinstance(error, sqlite3.Error) and _translated(error) is not None:
            raise
        connection.execute("ROLLBACK TO job")
        job.error = error
    connection.execute("RELEASE job")


def _translated(error: sqlite3.Error) -> StoreError | None:
    """The storage failure behind an error; None when the statement is wrong."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or (code & 0xFF) not in _STORAGE:
        return None
    if (code & 0xFF) in _DAMAGE:
        return StoreCorrupt(f"the state database is damaged: {error}")
    return StoreUnavailable(f"the state database cannot be used: {error}")


def _open(path: Path) -> sqlite3.Connection:
    """A connection for writing with the newest schema. Raises StoreCorrupt, StoreError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    created = not path.exists()
    connection: sqlite3.Connection | None = None
    try:
        if created:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.execute("PRAGMA busy_timeout=5000")
        version = _known_version(connection, path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(_FULL)
        _migrate(connection, path, version)
    except sqlite3.DatabaseError as error:
        if connection is not None:
            connection.close()
        raise _translated(error) or StoreError(f"{path} cannot be opened: {error}") from error
    except OSError as error:
        raise StoreUnavailable(f"the state database {path} cannot be opened: {error}") from error
    return connection


def _known_version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema version of the file, before anything in it is touched."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        connection.close()
        raise StoreError(
            f"{path} was written by a newer nanobot (schema {version}, this one knows "
            f"{len(MIGRATIONS)}): upgrade nanobot, or move the file away"
        )
    return version


def _migrate(connection: sqlite3.Connection, path: Path, version: int) -> None:
    if version == len(MIGRATIONS):
        return
    if version > 0:
        backup = path.with_name(f"{path.name}.v{version}.bak")
        backup.unlink(missing_ok=True)
        connection.execute("VACUUM INTO ?", (str(backup),))
        backup.chmod(0o600)
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        for statement in script.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={number}")
        connection.execute("COMMIT")


def _fresh_copy(path: Path) -> Path:
    """A new database beside ``path`` with every row that can be read of it; raises StoreError."""
    fresh = path.with_name(f"{path.name}.rebuilding")
    try:
        for file in (fresh, *_companions(fresh)):
            file.unlink(missing_ok=True)
        with contextlib.closing(_open(fresh)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            saved = salvage(path, connection)
            connection.execute("COMMIT")
        logger.error("{} rows of the damaged state database could be saved", saved)
        return fresh.replace(_rebuilt(path))
    except sqlite3.Error as error:
        raise _translated(error) or StoreError(f"{path} cannot be rebuilt: {error}") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be rebuilt: {error}") from error


def _finish_rebuild(path: Path) -> bool:
    """Complete a rebuild whose process died after it had put the damaged file aside."""
    rebuilt = _rebuilt(path)
    if not rebuilt.exists():
        return False
    if path.exists():
        rebuilt.unlink()
        return False
    rebuilt.replace(path)
    return True


def _rebuilt(path: Path) -> Path:
    return path.with_name(f"{path.name}.rebuilt")


def _companions(path: Path) -> tuple[Path, Path]:
    """The files that SQLite keeps beside a database."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _set_aside(path: Path) -> Path:
    """Put a damaged database and its companions aside; returns the database's new name."""
    aside = quarantine(path)
    for companion, kept in zip(_companions(path), _companions(aside), strict=True):
        if companion.exists():
            companion.rename(kept)
    return aside


def _exit() -> None:
    os._exit(EXIT_WRITER_DIED)
