"""Making a skill: its first files, and the ``.skill`` archive to hand it on."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

from nanobot.core.errors import NanobotError
from nanobot.skills.install.bundle import read_folder
from nanobot.skills.install.lint import lint
from nanobot.skills.model import BrokenSkill, SkillBroken, Source
from nanobot.skills.reader import read_skill
from nanobot.store.files import write_atomic

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
