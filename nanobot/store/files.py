"""Atomic writes and quarantine for the files we own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from nanobot.core.errors import StoreUnavailable

_WRITING = threading.RLock()


@contextlib.contextmanager
def alone_with_files() -> Iterator[None]:
    """Hold off every other read-change-write of this process, so that none is lost."""
    with _WRITING:
        yield


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` so that a reader sees the old or the new, never a part.

    Temporary file in the same directory, fsync, rename, fsync of the directory. The permissions
    of an existing file are kept when ``mode`` is negative.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode < 0:
        mode = path.stat().st_mode & 0o7777 if path.exists() else 0o644
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def file_stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    """A value that differs whenever a file was changed or replaced."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone with ``path`` among processes, by a lock file beside it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise StoreUnavailable, naming ``folder``, where the disk is full or cannot be written."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{folder}: cannot be written: {error.strerror}") from error


def sync_directory(directory: Path) -> None:
    """Make renames in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def quarantine(path: Path) -> Path:
    """Put a damaged file aside under a name with the time; returns the new path."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    os.replace(path, aside)  # noqa: PTH105
    return aside


def remove_older(folder: Path, before: float) -> int:
    """Remove the files under ``folder`` last written before that time, and folders left empty.

    Links are never followed, also not where one takes the place of a folder meanwhile. What
    cannot be removed stays. Returns how many files went.
    """
    removed = 0
    if not folder.is_dir():
        return removed
    for _, folders, files, place in os.fwalk(folder.resolve(), topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=place, follow_symlinks=False).st_mtime < before:
                    os.unlink(name, dir_fd=place)
                    removed += 1
        for name in folders:
            with contextlib.suppress(OSError):  # not empty, or a link
                os.rmdir(name, dir_fd=place)
    return removed
