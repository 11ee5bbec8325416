"""One skill read from its folder, and the skills as the prompt lists them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.core.text import shortened, text_tokens
from nanobot.skills.eligibility import BrokenSkill, Skill, SkillBroken, Source, Standing
from nanobot.skills.frontmatter import (
    HEADER_MAX,
    Frontmatter,
    header_of,
    newlines_unified,
    read,
    split,
)
from nanobot.skills.manifest import Manifest, read_manifest

SKILL_FILE = "SKILL.md"

FILE_MAX = 8 * 1024 * 1024
"""The most bytes a SKILL.md may have."""

ALWAYS_MAX = 32_000
"""The most characters of one body that are put into every prompt; the rest stays on disk."""

ALWAYS_TOTAL = 64_000
"""The most characters of all those bodies together."""

# O_NONBLOCK: opening a FIFO that somebody called SKILL.md must not wait for a writer.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
        manifest = _manifest(read_frontmatter(path), folder.name)
    except SkillBroken as reason:
        return BrokenSkill(folder.name, source, path, str(reason))
    return Skill(
        name=folder.name, source=source, folder=folder, path=path, readable=readable, **manifest
    )


def _manifest(frontmatter: Frontmatter | None, folder_name: str) -> Manifest:
    try:
        return read_manifest(frontmatter, folder_name)
    except SkillBroken as reason:
        if frontmatter is None or not frontmatter.complaint:
            raise
        raise SkillBroken(f"{reason} (as YAML: {frontmatter.complaint})") from reason


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


def in_context(skill: Skill) -> str:
    """A skill in full for a prompt: heading and body; raises SkillBroken."""
    return f"### Skill: {skill.name}\n\n{read_body(skill)}"


def always_in_context(skill: Skill, room: int) -> str:
    """The same, cut where it would flood each prompt, after a line that says the folder.

    The line is needed because the relative paths of the body mean nothing to its reader. A body of
    more than ``room`` characters is left out, with a note.
    """
    text = in_context(skill)
    if min(len(text), ALWAYS_MAX) > room:
        return f"### Skill: {skill.name}\n\n[Left out for its length: read {skill.path}]"
    if len(text) > ALWAYS_MAX:
        cut = text.rfind("\n", 0, ALWAYS_MAX) + 1 or ALWAYS_MAX
        text = f"{text[:cut].rstrip()}\n\n[Cut here: the rest is in {skill.path}]"
    return f"Folder of the skill {skill.name}: {skill.folder}\n\n{text}"


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


CAP = 4000
"""Tokens that the prompt's section of skills may have, unless configured."""
_ROUND = 200
"""Tokens of the sentences round the list."""
_LENGTHS = (240, 180, 140, 110, 90, 70, 55, 40)
"""Characters of a shortened description, the longest that fits being taken."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The list for the prompt, and the tokens of each skill in it by name.

    ``is_short``: descriptions are cut, or skills left out.
    """

    text: str = ""
    costs: Mapping[str, int] = field(default_factory=dict)
    is_short: bool = False


def summary(standings: Iterable[Standing], cap: int = CAP) -> Summary:
    """The list of all skills that the model is told of; an empty text for none."""
    listed = [standing for standing in standings if standing.is_listed]
    if not listed:
        return Summary()
    room = cap - _ROUND
    entries = {standing.skill.name: _entry(standing) for standing in listed}
    text = f"<skills>\n{''.join(entries.values())}</skills>"
    if text_tokens(text) <= room:
        return Summary(text, {name: text_tokens(entry) for name, entry in entries.items()})
    folders: dict[Path, list[Standing]] = {}
    for standing in sorted(listed, key=lambda one: list(Source).index(one.skill.source)):
        folders.setdefault(standing.skill.folder.parent, []).append(standing)
    for length in _LENGTHS:
        blocks = [_lines(folder, length) for folder in folders.values()]
        text = "\n".join(block.text for block in blocks)
        if text_tokens(text) <= room:
            return _joined(blocks)
    blocks = []
    for folder in sorted(folders.values(), key=len):
        block = _lines(folder, _LENGTHS[-1])
        if text_tokens(block.text) > room / 2:
            block = _names(folder, room)
        blocks.append(block)
        room -= text_tokens(block.text)
    return _joined(blocks)


def catalogue_lines(standings: Iterable[Standing]) -> str:
    """Every skill that the model is told of, a line each: name, path, whole description."""
    return "".join(
        f"- {standing.skill.name} [{standing.skill.path}]{_needs(standing)}: "
        f"{standing.skill.description}\n"
        for standing in standings
        if standing.is_listed
    )


def _joined(blocks: Sequence[Summary]) -> Summary:
    costs = {name: cost for block in blocks for name, cost in block.costs.items()}
    return Summary("\n".join(block.text for block in blocks if block.text), costs, is_short=True)


def _lines(folder: Sequence[Standing], length: int) -> Summary:
    """The skills of one folder with the beginning of their descriptions."""
    lines = {standing.skill.name: _escaped(_line(standing, length)) for standing in folder}
    costs = {name: text_tokens(f"{line}\n") for name, line in lines.items()}
    return Summary(_block(folder, "\n".join(lines.values())), costs)


def _names(folder: Sequence[Standing], room: int) -> Summary:
    """The names of those skills of one folder that can be used, as many as fit."""
    names = [standing.skill.name for standing in folder if standing.is_eligible]
    costs: dict[str, int] = {}
    left = room - text_tokens(_block(folder, f"and {len(folder)} more"))
    for name in names:
        cost = text_tokens(f"{_escaped(name)}, ")
        if cost > left:
            break
        left -= cost
        costs[name] = cost
    if not costs:
        return Summary()
    others = len(folder) - len(costs)
    text = ", ".join(map(_escaped, costs)) + (f" and {others} more" if others else "")
    return Summary(_block(folder, text), costs)


def _block(folder: Sequence[Standing], text: str) -> str:
    place = _escaped(str(folder[0].skill.folder.parent))
    return f'<skills in="{place}">\n{text}\n</skills>'


def _line(standing: Standing, length: int) -> str:
    about = shortened(standing.skill.description, length)
    return f"- {standing.skill.name}{_needs(standing)}: {about}"


def _needs(standing: Standing) -> str:
    return "" if standing.is_eligible else f" (missing {', '.join(standing.missing)})"


def _entry(standing: Standing) -> str:
    skill = standing.skill
    available = standing.is_eligible
    lines = [
        f'  <skill available="{"true" if available else "false"}">',
        f"    <name>{_escaped(skill.name)}</name>",
        f"    <description>{_escaped(skill.description)}</description>",
        f"    <location>{_escaped(str(skill.path))}</location>",
    ]
    if not available:
        lines.append(f"    <requires>{_escaped(', '.join(standing.missing))}</requires>")
    return "\n".join((*lines, "  </skill>\n"))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
