"""Reads a skill from its folder: SKILL.md within limits, through safe links only."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nanobot.skills.frontmatter import (
    HEADER_MAX,
    Frontmatter,
    SkillBroken,
    header_of,
    newlines_unified,
    read,
    split,
)
from nanobot.skills.manifest import Manifest, read_manifest

SKILL_FILE = "SKILL.md"

FILE_MAX = 8 * 1024 * 1024
"""Upper bound of bytes in a SKILL.md."""

ALWAYS_MAX = 32_000
"""Upper bound of characters of one body in a prompt; the rest stays on disk."""

# O_NONBLOCK: opening a FIFO that somebody called SKILL.md must not wait for a writer.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Source(StrEnum):
    """Where a skill was found, highest first: of the same name the higher wins."""

    WORKSPACE = "workspace"
    SHARED = "shared"
    BUILTIN = "builtin"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill by its frontmatter; the body stays on disk.

    ``name`` is the name of its folder, by which everything refers to it. ``folder`` and ``path``
    (of SKILL.md) are as they were found; ``readable`` are the same with links resolved.
    """

    name: str
    source: Source
    folder: Path
    path: Path
    readable: tuple[Path, ...]
    manifest: Manifest

    @property
    def keys(self) -> tuple[str, ...]:
        """The names under which the configuration may refer to it, first choice first."""
        keys = (self.manifest.key, self.manifest.name, self.name)
        return tuple(dict.fromkeys(key for key in keys if key))


@dataclass(frozen=True, slots=True)
class BrokenSkill:
    """A folder that means to be a skill and is none; ``reason`` is one line for its author."""

    name: str
    source: Source
    path: Path
    reason: str


def read_skill(source: Source, folder: Path, *, protected: tuple[Path, ...]) -> Skill | BrokenSkill:
    """The skill in ``folder``, or why it is none; its body is not read.

    The folder may be a link, but not to one that contains a ``protected`` path (resolved): all
    of a skill's folder may be read by tools, and the folder of all skills is no skill.
    """
    path = folder / SKILL_FILE
    try:
        if not folder.name.isprintable() or not folder.name.strip():
            raise SkillBroken("the folder's name holds characters that cannot be shown")
        readable = _readable(folder, protected)
        frontmatter = read_frontmatter(path)
        try:
            manifest = read_manifest(frontmatter, folder.name)
        except SkillBroken as reason:
            if frontmatter is None or not frontmatter.complaint:
                raise
            raise SkillBroken(f"{reason} (as YAML: {frontmatter.complaint})") from reason
    except SkillBroken as reason:
        return BrokenSkill(folder.name, source, path, str(reason))
    return Skill(
        name=folder.name,
        source=source,
        folder=folder,
        path=path,
        readable=readable,
        manifest=manifest,
    )


def read_frontmatter(path: Path) -> Frontmatter | None:
    """The frontmatter of a SKILL.md, None if it has none; raises SkillBroken."""
    limit = HEADER_MAX + 4  # a byte order mark and one byte that tells whether there is more
    head = _read(path, limit)
    header = header_of(head, is_whole=len(head) < limit)
    return None if header is None else read(header)


def read_text(path: Path) -> str:
    """All of a SKILL.md; raises SkillBroken. What is not UTF-8 becomes U+FFFD."""
    return _read(path, FILE_MAX).decode("utf-8-sig", errors="replace")


def read_body(skill: Skill) -> str:
    """The Markdown after the frontmatter with ``{baseDir}`` filled in; raises SkillBroken."""
    _, body = split(newlines_unified(read_text(skill.path)))
    return body.strip().replace("{baseDir}", str(skill.folder))


def _read(path: Path, limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file."""
    try:
        with os.fdopen(_opened(path), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SkillBroken(f"{SKILL_FILE} is not a regular file")
            if status.st_size > FILE_MAX:
                raise SkillBroken(f"{SKILL_FILE} is larger than {FILE_MAX // 1024**2} MB")
            parts: list[bytes] = []
            while limit > 0 and (part := file.read(limit)):
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
    except OSError as error:
        raise SkillBroken(f"{SKILL_FILE} cannot be read: {error.strerror}") from error


def _opened(path: Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    return os.open(_target(path), _FLAGS)


def _target(path: Path) -> Path:
    """Where a linked SKILL.md really is: inside its folder, or a SKILL.md elsewhere.

    Anything else would put a file that tools may not read (a config, a key) before the model.
    Raises OSError for a link to nowhere or in a circle.
    """
    target = Path(os.path.realpath(path, strict=True))
    if target.name == SKILL_FILE or target.is_relative_to(os.path.realpath(path.parent)):
        return target
    raise SkillBroken(f"{SKILL_FILE} is a link to another kind of file outside its folder")


def _readable(folder: Path, protected: tuple[Path, ...]) -> tuple[Path, ...]:
    try:
        real = Path(os.path.realpath(folder, strict=True))
        path = folder / SKILL_FILE
        target = _target(path) if path.is_symlink() else real
    except OSError as error:
        raise SkillBroken(f"{SKILL_FILE} cannot be read: {error.strerror}") from error
    for place in protected:
        if place.is_relative_to(real):
            raise SkillBroken(f"its folder is {real}, which contains {place}")
    return (real,) if target.is_relative_to(real) else (real, target)
