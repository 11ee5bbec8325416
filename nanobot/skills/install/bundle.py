"""Reads the files of a skill from a folder, zip or tar into memory, and refuses unsafe ones."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias, cast

from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.reader import SKILL_FILE

_IGNORED = frozenset((".git", "__pycache__", "__MACOSX", ".DS_Store", "node_modules", ".venv"))
_NAME = re.compile(r"[^\\:]+")
_NAME_BYTES = 200
_PATH_BYTES = 512
_CENTRAL_HEADER = b"PK\x01\x02"


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds for a bundle; bytes are counted unpacked.

    ``entries`` counts everything an archive lists, also folders and ignored files.
    """

    files: int = 1000
    entries: int = 10_000
    file_bytes: int = 8 * 1024**2
    total_bytes: int = 32 * 1024**2


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a skill."""

    data: bytes
    executable: bool = False


Bundle: TypeAlias = Mapping[str, BundleFile]
"""Files by their path in the folder, with ``/``."""


class _Collector:
    """Collects files one by one; raises SkillBroken for unsafe paths and beyond the limits."""

    def __init__(self, limits: Limits) -> None:
        self.files: dict[str, BundleFile] = {}
        self._limits = limits
        self._total = 0
        self._entries = 0
        self._folded: set[str] = set()
        self._folders: set[str] = set()

    def path(self, name: str) -> str | None:
        """The checked path of an entry, None for what is left out; raises SkillBroken."""
        self._entries += 1
        if self._entries > self._limits.entries:
            raise SkillBroken(f"refused: more than {self._limits.entries} entries")
        pure = PurePosixPath(name)
        parts = pure.parts
        if pure.is_absolute() or ".." in parts or not all(map(_NAME.fullmatch, parts)):
            raise SkillBroken(f"refused: the path {name[:200]!r} leads out of the skill's folder")
        if not all(map(str.isprintable, parts)):
            raise SkillBroken(f"refused: the name {name[:200]!r} cannot be shown")
        path = "/".join(parts)
        if len(path.encode()) > _PATH_BYTES or any(len(p.encode()) > _NAME_BYTES for p in parts):
            raise SkillBroken(f"refused: the name {name[:200]!r} is too long")
        # A tar of "." begins with the folder itself.
        return path if parts and _IGNORED.isdisjoint(parts) else None

    def add(self, path: str, stream: IO[bytes], *, executable: bool) -> None:
        # As the file systems see it that tell neither case nor the forms of an accent apart.
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        folders = {str(parent) for parent in PurePosixPath(folded).parents}
        if folded in self._folded | self._folders or not folders.isdisjoint(self._folded):
            raise SkillBroken(f"refused: {path} is there twice")
        if len(self.files) >= self._limits.files:
            raise SkillBroken(f"refused: more than {self._limits.files} files")
        room = min(self._limits.file_bytes, self._limits.total_bytes - self._total)
        # What an archive says of its sizes is not believed: reading stops at the limit.
        data = stream.read(room + 1)
        if len(data) > room:
            raise SkillBroken(f"refused: {path} is too large unpacked")
        self._total += len(data)
        self._folded.add(folded)
        self._folders |= folders
        self.files[path] = BundleFile(data, executable)


def read_folder(folder: Path, limits: Limits = Limits()) -> Bundle:
    """The files of a folder; raises SkillBroken for links, devices and too much."""
    collector = _Collector(limits)
    try:
        for path in _walk(folder):
            relative = collector.path(path.relative_to(folder).as_posix())
            if relative is not None:
                _add_file(collector, relative, path)
    except OSError as error:
        raise SkillBroken(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    return collector.files


def _add_file(collector: _Collector, relative: str, path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise SkillBroken(f"refused: {relative} is a link or no ordinary file")
    # What was a file a moment ago may be a link or a pipe by now.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise SkillBroken(f"refused: {relative} is a link or no ordinary file")
        collector.add(relative, stream, executable=bool(mode & 0o100))


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name in _IGNORED:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)


def read_archive(data: bytes, limits: Limits = Limits()) -> Bundle:
    """The files of a zip or (compressed) tar; raises SkillBroken."""
    try:
        return _read_zip(data, limits) if data.startswith(b"PK") else _read_tar(data, limits)
    except (
        *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError),
        *(NotImplementedError, RuntimeError, ValueError, struct.error),
    ) as error:
        raise SkillBroken(f"the archive cannot be read: {error}") from error


def _read_zip(data: bytes, limits: Limits) -> Bundle:
    collector = _Collector(limits)
    # Counted before zipfile makes an object of each.
    if data.count(_CENTRAL_HEADER) > limits.entries:
        raise SkillBroken(f"refused: more than {limits.entries} entries")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            path = collector.path(entry.filename)
            mode = entry.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise SkillBroken(f"refused: {entry.filename} is a link or no ordinary file")
            if path is None or entry.is_dir():
                continue
            with archive.open(entry) as stream:
                collector.add(path, stream, executable=bool(mode & 0o100))
    return collector.files


def _read_tar(data: bytes, limits: Limits) -> Bundle:
    collector = _Collector(limits)
    # Headers may be bombs, too: the whole unpacked stream has a limit.
    stream = _Bounded(_unpacked(data), limits.total_bytes + 2048 * (limits.files + 1))
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
        for entry in archive:
            path = collector.path(entry.name)
            if not entry.isfile() and not entry.isdir():
                raise SkillBroken(f"refused: {entry.name} is a link or no ordinary file")
            if path is None or entry.isdir():
                continue
            content = archive.extractfile(entry)
            if content is not None:
                collector.add(path, content, executable=bool(entry.mode & 0o100))
    return collector.files


def _unpacked(data: bytes) -> IO[bytes]:
    raw = io.BytesIO(data)
    if data.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if data.startswith(b"BZh"):
        return cast("IO[bytes]", bz2.BZ2File(raw))
    if data.startswith(b"\xfd7zXZ\x00"):
        return cast("IO[bytes]", lzma.LZMAFile(raw))
    return raw


class _Bounded:
    """A stream that raises SkillBroken after ``limit`` bytes."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._left = limit

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise SkillBroken("refused: the archive is too large unpacked")
        return data


def skill_in(bundle: Bundle, folder: str = "") -> tuple[str, Bundle]:
    """The one skill of a bundle: its folder's path ("" for the root) and its files.

    ``folder`` chooses where there are several. Raises SkillBroken for none and for several.
    """
    wanted = folder.strip("/")
    homes = sorted(
        path.removesuffix(SKILL_FILE).rstrip("/")
        for path in bundle
        if PurePosixPath(path).name == SKILL_FILE
    )
    outer = [home for home in homes if not any(_is_in(home, other) for other in homes)]
    chosen = [wanted] if wanted and wanted in homes else [] if wanted else outer
    if len(chosen) != 1:
        found = f"; there are {', '.join(outer[:20])}: add #FOLDER" if outer else ""
        where = f" in {wanted}" if wanted else ""
        raise SkillBroken(f"not one {SKILL_FILE}{where}{found}")
    prefix = f"{chosen[0]}/" if chosen[0] else ""
    files = {
        path.removeprefix(prefix): file for path, file in bundle.items() if path.startswith(prefix)
    }
    return chosen[0], files


def _is_in(home: str, other: str) -> bool:
    return home != other and (not other or home.startswith(f"{other}/"))


def hashes(bundle: Bundle) -> dict[str, str]:
    """The SHA-256 of every file, in hex, by path."""
    return {path: hashlib.sha256(bundle[path].data).hexdigest() for path in sorted(bundle)}


def write_bundle(bundle: Bundle, folder: Path) -> None:
    """Put the files into a folder that is new."""
    folder.mkdir(parents=True)
    for path, file in bundle.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(0o755 if file.executable else 0o644)
