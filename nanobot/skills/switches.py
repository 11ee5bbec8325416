"""The record of skills that are off until the owner enables them.

The record lies in the home, where file tools cannot write.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.core.messages import Trust
from nanobot.core.ports import Clock
from nanobot.skills.reader import SKILL_FILE
from nanobot.store.files import locked, write_atomic

if TYPE_CHECKING:
    from nanobot.core.tool import ToolContext

BY_OWNER = "switched off by the owner"
BY_TAINT = "written in a turn that had read untrusted content; `nanobot skills enable {name}`"
UNREADABLE = "{path} cannot be read, so it is not known what the owner trusts"


@dataclass(frozen=True, slots=True)
class Off:
    """Why a skill is off.

    ``by_owner``: it is off in every folder; otherwise only in those that tools can write to.
    """

    reason: str
    by_owner: bool


OffSwitches = Mapping[str, Off]
"""The skills that are off, by the name of their folder; ``*`` stands for every one."""

OffSource = Callable[[], OffSwitches]
"""Where the loader asks what is off."""


class SkillSwitches:
    """The record of one workspace; several processes may read and change it at the same time.

    A record that cannot be read holds back every skill that tools could have written.
    """

    def __init__(
        self, file: Path, workspace: Path, clock: Clock, *, extra_dirs: Iterable[Path] = ()
    ) -> None:
        self._file = file
        self._key = os.path.realpath(workspace)
        self._roots = (Path(workspace) / "skills", *extra_dirs)
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[tuple[int, ...] | None, OffSwitches] = (None, {})

    def off(self) -> OffSwitches:
        """The skills that are off now; one stat if nothing has changed."""
        signature = self._signature()
        with self._lock:
            if signature is None or self._seen[0] != signature:
                self._seen = (signature, self._read() if signature else {})
            return self._seen[1]

    def note_write(self, context: ToolContext, path: Path) -> None:
        """Switch off the skill that holds the real ``path``, which a tainted turn is to write."""
        if context.trust is Trust.TRUSTED:
            return
        for name in self._skills_of(path):
            self._change(
                name,
                {
                    "by": "taint",
                    "at": self._clock().isoformat(),
                    "session": context.session_key,
                    "inbound": context.inbound_id,
                    "file": str(path),
                },
            )

    def disable(self, name: str) -> None:
        """Switch a skill off, wherever it comes from."""
        self._change(name, {"by": "owner", "at": self._clock().isoformat()})

    def enable(self, name: str) -> bool:
        """Switch a skill on again; False if it was not off."""
        return self._change(name, None)

    def _skills_of(self, path: Path) -> Iterator[str]:
        """The skills whose folder holds ``path``, be it through a link, or whose text it is."""
        for root in self._roots:
            real = Path(os.path.realpath(root))
            if real in path.parents:
                yield path.relative_to(real).parts[0]
            if not root.is_dir():
                continue
            for entry in root.iterdir():
                is_inside = entry.is_symlink() and Path(os.path.realpath(entry)) in path.parents
                text = entry / SKILL_FILE
                if is_inside or (text.is_symlink() and Path(os.path.realpath(text)) == path):
                    yield entry.name

    def _signature(self) -> tuple[int, ...] | None:
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return (-1, error.errno or 0)
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def _read(self) -> OffSwitches:
        try:
            records = self._records(self._document())
            return {
                name: (
                    Off(BY_OWNER, by_owner=True)
                    if record["by"] == "owner"
                    else Off(BY_TAINT.format(name=name), by_owner=False)
                )
                for name, record in records.items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {"*": Off(UNREADABLE.format(path=self._file), by_owner=False)}

    def _document(self) -> dict[str, Any]:
        try:
            document = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {"version": 1, "workspaces": {}}
        if not isinstance(document, dict) or not isinstance(document.get("workspaces"), dict):
            raise TypeError("not a record of skills")
        return document

    def _records(self, document: dict[str, Any]) -> dict[str, dict[str, str]]:
        records: dict[str, dict[str, str]] = document["workspaces"].setdefault(self._key, {})
        return records

    def _change(self, name: str, record: dict[str, str] | None) -> bool:
        with self._lock, locked(self._file):
            document = self._document()
            records = self._records(document)
            before = records.pop(name, None)
            if record is not None:
                # What the owner switched off stays off by the owner, whoever writes to it later.
                is_owners = before is not None and before.get("by") == "owner"
                records[name] = before if before is not None and is_owners else record
            if records.get(name) != before:
                text = json.dumps(document, ensure_ascii=False, indent=2)
                write_atomic(self._file, f"{text}\n".encode())
            return before is not None
