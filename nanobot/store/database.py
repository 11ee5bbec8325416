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
from nanobot.store.files import quarantine
from nanobot.store.schema import MIGRATIONS

T = TypeVar("T")

EXIT_WRITER_DIED = 70
"""The exit status (EX_SOFTWARE of sysexits) when the writer thread dies: a supervisor restarts."""

_GROUP = 256
_FULL = "PRAGMA synchronous=FULL"
_NORMAL = "PRAGMA synchronous=NORMAL"


class Database:
    """The state database of one home; the one owner of its connection for writing.

    Writes are functions of a connection, run in order on the writer thread, several to a
    transaction. One whose function raises is rolled back alone and raises to its caller. With
    ``durable`` the transaction is synced to the disk before ``write`` returns (SQLite's
    ``synchronous=FULL``); without, it survives the death of the process but not that of the
    machine. Reads run on a connection and thread of their own and see every finished write.
    """

    def __init__(self, path: Path, *, on_fatal: Callable[[], None] | None = None) -> None:
        """Open, create or migrate. A damaged file is put aside and named in ``quarantined``."""
        self.path = path
        self.quarantined: Path | None = None
        self._on_fatal = on_fatal or _exit
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        try:
            connection = _open(path)
        except StoreCorrupt:
            self.quarantined = _set_aside(path)
            connection = _open(path)
        self._writer = threading.Thread(
            target=self._supervised, args=(connection,), name="state-writer", daemon=True
        )
        self._writer.start()
        self._reader: sqlite3.Connection | None = None
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
        """Run ``function`` on a read-only connection and return its result."""
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
        if self._reader is None:
            self._reader = sqlite3.connect(
                f"{self.path.as_uri()}?mode=ro", uri=True, check_same_thread=False
            )
            self._reader.execute("PRAGMA busy_timeout=5000")
        return function(self._reader)

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
        while (first := self._jobs.get()) is not None:
            group = [first]
            closing = False
            while len(group) < _GROUP:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    closing = True
                    break
                group.append(job)
            durable = any(job.durable for job in group)
            if durable != durable_now:
                connection.execute(_FULL if durable else _NORMAL)
                durable_now = durable
            _commit(connection, group)
            if closing:
                break
        connection.close()


class _Job(Generic[T]):
    """A write that waits for its turn; its outcome is handed to its own event loop."""

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

    def settle(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


def _commit(connection: sqlite3.Connection, group: list[_Job[Any]]) -> None:
    """Run a group in one transaction; each job can fail alone, the commit fails for all."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for job in group:
            _run(connection, job)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        failure = _translated(error)
        for job in group:
            job.error = failure
        logger.error("a write to the state database failed: {}", failure)
    for job in group:
        job.settle()


def _run(connection: sqlite3.Connection, job: _Job[Any]) -> None:
    connection.execute("SAVEPOINT job")
    try:
        job.result = job.function(connection)
    except Exception as error:
        # Full, unwritable or damaged storage fails the whole transaction, not one job.
        if type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError):
            raise
        connection.execute("ROLLBACK TO job")
        job.error = error
    connection.execute("RELEASE job")


def _translated(error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and (code & 0xFF) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(f"the state database is damaged: {error}")
    return StoreUnavailable(f"the state database cannot be written: {error}")


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
        raise _translated(error) from error
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


def _set_aside(path: Path) -> Path:
    """Put a damaged database and its companions aside; returns the database's new name."""
    aside = quarantine(path)
    for suffix in ("-wal", "-shm"):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(aside.with_name(aside.name + suffix))
    logger.error("the state database was damaged and is kept as {}", aside)
    return aside


def _exit() -> None:
    os._exit(EXIT_WRITER_DIED)
