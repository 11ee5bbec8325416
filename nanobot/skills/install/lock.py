"""skills.lock.json: what was installed, from where, with the hash of every file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.core.errors import StoreCorrupt
from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.install.bundle import Bundle, read_folder
from nanobot.store.files import locked, write_atomic


@dataclass(frozen=True, slots=True)
class Locked:
    """One installed skill; ``files`` are SHA-256 in hex by path."""

    source: str
    version: str
    installed_at: str
    files: Mapping[str, str]


def hashes(bundle: Bundle) -> dict[str, str]:
    """The SHA-256 of every file, in hex, by path."""
    return {path: hashlib.sha256(bundle[path].data).hexdigest() for path in sorted(bundle)}


class SkillLock:
    """The lock file of a home, which tools cannot reach; skills are named by root and name."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def installed(self, root: Path) -> dict[str, Locked]:
        """The skills that were installed into ``root``; raises StoreCorrupt."""
        try:
            return {
                name: Locked(
                    entry["source"], entry["version"], entry["installedAt"], dict(entry["files"])
                )
                for name, entry in self._document()["roots"].get(_key(root), {}).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreCorrupt(f"{self._file} is damaged: {error}; mend or remove it") from error

    def put(self, root: Path, name: str, locked: Locked) -> None:
        """Record an installation."""
        self._change(
            root,
            name,
            {
                "source": locked.source,
                "version": locked.version,
                "installedAt": locked.installed_at,
                "files": dict(locked.files),
            },
        )

    def remove(self, root: Path, name: str) -> None:
        """Forget an installation."""
        self._change(root, name, None)

    def changes(self, root: Path, name: str) -> tuple[str, ...]:
        """What is no longer as installed, such as ``changed: SKILL.md``; raises StoreCorrupt."""
        before = self.installed(root)[name].files
        try:
            now = hashes(read_folder(root / name))
        except (SkillBroken, OSError) as error:
            return (f"unreadable: {error}",)
        return (
            *(
                f"changed: {path}"
                for path in sorted(before)
                if now.get(path, "") not in ("", before[path])
            ),
            *(f"missing: {path}" for path in sorted(before.keys() - now.keys())),
            *(f"added: {path}" for path in sorted(now.keys() - before.keys())),
        )

    def _document(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {"version": 1, "roots": {}}
        return document

    def _change(self, root: Path, name: str, entry: dict[str, Any] | None) -> None:
        with locked(self._file):
            self.installed(root)  # a damaged file is said to be, not written over
            document = self._document()
            skills = document["roots"].setdefault(_key(root), {})
            skills.pop(name, None)
            if entry is not None:
                skills[name] = entry
            text = json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True)
            write_atomic(self._file, f"{text}\n".encode())


def _key(root: Path) -> str:
    return os.path.realpath(root)
