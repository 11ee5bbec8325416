"""Work on a skill: start one, lint it, pack it, and install the programs it needs."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nanobot.core.errors import NanobotError
from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.install.bundle import read_folder
from nanobot.skills.manifest import InstallKind
from nanobot.skills.reader import BrokenSkill, Skill, Source, read_body, read_skill
from nanobot.store.files import write_atomic

BODY_LINES = 500
"""The most lines of a SKILL.md (AgentSkills standard); the rest belongs into references/."""
_LINK = re.compile(r"\]\((?!https?:|mailto:|#|/)([\w./-]+\.\w+)(?:[#?][^)]*)?\)")
_OWN = re.compile(r"\{baseDir\}/([\w./-]+\.\w+)")
_BARE = re.compile(
    r"(?<![\w/.~}<-])(?:\./)?((?:scripts|references|assets)/[\w./-]*\w\.\w+)(?![\w*<{])"
)
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*(\w*)")
_SHELLS = ("bash", "sh", "shell", "zsh", "console")
_EXAMPLE = re.compile(
    r"\b(?:e\.g|examples?|such as|for instance|imagine|would|might|could|looks? like)\b",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"\b(?:your|my|example|sample|foo|name|path)\b", re.IGNORECASE)


def lint(skill: Skill) -> tuple[str, ...]:
    """The problems of a skill, one line each."""
    try:
        body = read_body(skill)
    except SkillBroken as error:
        return (str(error),)
    found = list(skill.manifest.notes)
    if not body:
        found.append("the body is empty")
    lines = body.count("\n") + 1
    if lines > BODY_LINES:
        found.append(f"the body has {lines} lines: put details into references/")
    for reference in _references(body.replace(str(skill.folder), "{baseDir}")):
        if not (skill.folder / reference).exists():
            found.append(f"{reference} is named in the body, but it is not there")
    return tuple(dict.fromkeys(found))


def _references(body: str) -> Iterator[str]:
    """The skill's own files that the body sends its reader to.

    Examples are left out: what a line gives as one, placeholders, links in code, and blocks of
    code that are no commands (trees, sample files).
    """
    fence = language = ""
    for line in body.split("\n"):
        mark = _FENCE.match(line)
        if mark and (not fence or (mark[1].startswith(fence) and not mark[2])):
            fence, language = ("", "") if fence else (mark[1], mark[2].lower())
            continue
        named = _OWN.findall(line)
        if not _EXAMPLE.search(line) and (not fence or language in _SHELLS):
            links = [] if fence else _LINK.findall(re.sub(r"`[^`]*`", "", line))
            named = [*links, *named, *_BARE.findall(line)]
        for reference in named:
            if not _PLACEHOLDER.search(reference.replace("_", " ")):
                yield reference


NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
"""A name by the AgentSkills standard: at most 64 lower-case letters, digits, single hyphens."""
_SKILL = """---
name: {name}
description: What it does. Use when …
---

# {title}

What the assistant does not know yet, in the imperative. Files lie in {{baseDir}}.
"""


class PackageError(NanobotError):
    """A skill cannot be made or packed; the text says why."""


def new_skill(name: str, root: Path) -> Path:
    """``root/name/SKILL.md`` to be filled in; raises PackageError."""
    if not NAME.fullmatch(name) or len(name) > 64:
        raise PackageError(f"{name!r}: a name has lower-case letters, digits and single hyphens")
    path = root / name / "SKILL.md"
    if path.parent.exists():
        raise PackageError(f"{path.parent} exists already")
    path.parent.mkdir(parents=True)
    text = _SKILL.format(name=name, title=name.replace("-", " ").capitalize())
    path.write_text(text, encoding="utf-8")
    return path


def package(folder: Path, out: Path) -> tuple[Path, tuple[str, ...]]:
    """Pack a skill into ``out/NAME.skill``; gives the file and what the linter says.

    Raises PackageError for what is no skill, and for links and files outside the folder.
    """
    folder = folder.absolute()
    skill = read_skill(Source.EXTRA, folder, protected=())
    if isinstance(skill, BrokenSkill):
        raise PackageError(f"{folder}: {skill.reason}")
    try:
        bundle = read_folder(folder)
    except SkillBroken as error:
        raise PackageError(f"{folder}: {error}") from error
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, file in sorted(bundle.items()):
            # A fixed time: the same files give the same archive.
            entry = zipfile.ZipInfo(f"{folder.name}/{path}", (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if file.executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.data)
    target = out / f"{folder.name}.skill"
    write_atomic(target, data.getvalue(), mode=0o644)
    return target, lint(skill)


_INSTALLERS = (
    (InstallKind.BREW, "formula"),
    (InstallKind.NODE, "package"),
    (InstallKind.UV, "package"),
    (InstallKind.GO, "module"),
)
"""The kinds of installers that are run, preferred first, and the field that names the target."""

_NODE = {
    "npm": ("npm", "install", "-g", "--ignore-scripts"),
    "pnpm": ("pnpm", "add", "-g", "--ignore-scripts"),
    "yarn": ("yarn", "global", "add", "--ignore-scripts"),
    "bun": ("bun", "add", "-g", "--ignore-scripts"),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """An installer of a program that a skill needs; ``command`` is empty for a download."""

    label: str
    command: tuple[str, ...] = ()
    url: str = ""


def offers(
    skill: Skill, *, platform: str, which: Callable[[str], str | None], node_manager: str
) -> tuple[Offer, ...]:
    """The preferred installer whose program is here, else every download.

    A target that would be read as an option is not offered.
    """
    specs = [spec for spec in skill.manifest.install if not spec.os or platform in spec.os]
    for kind, field in _INSTALLERS:
        for spec in specs:
            target: str = getattr(spec, field)
            if spec.kind is not kind or not target or target.startswith("-"):
                continue
            command = _install_command(kind, target, node_manager)
            if which(command[0]):
                return (Offer(spec.label or f"{kind} {target}", command),)
    return tuple(
        Offer(spec.label or f"{spec.kind} {spec.url}", url=spec.url)
        for spec in specs
        if spec.kind is InstallKind.DOWNLOAD and spec.url
    )


def _install_command(kind: InstallKind, target: str, node_manager: str) -> tuple[str, ...]:
    if kind is InstallKind.NODE:
        return (*_NODE[node_manager], target)
    if kind is InstallKind.UV:
        return ("uv", "tool", "install", target)
    if kind is InstallKind.GO:
        return ("go", "install", target if "@" in target else f"{target}@latest")
    return ("brew", "install", target)
