"""A folder of skills to test with, and a clock that stands still."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path


def write_skill(
    root: Path, name: str, *lines: str, body: str = "Do it.", openclaw: object = None
) -> Path:
    """``root/name/SKILL.md`` with these frontmatter lines; returns its path.

    ``openclaw`` becomes the object of that name in ``metadata``. A description is added where
    the lines have none.
    """
    path = root / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = [*lines]
    if not any(line.startswith("description:") for line in lines):
        header.append(f"description: About {name}.")
    if openclaw is not None:
        header.append(f"metadata: {json.dumps({'openclaw': openclaw})}")
    path.write_text("\n".join(["---", *header, "---", "", body, ""]), encoding="utf-8")
    return path


def write_raw(root: Path, name: str, content: str | bytes) -> Path:
    """``root/name/SKILL.md`` with exactly this content; returns its path."""
    path = root / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@dataclass
class StillClock:
    """A clock that moves when told to; by default so late that no file is young."""

    now: datetime = datetime.now(UTC) + timedelta(hours=1)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **span: float) -> None:
        self.now += timedelta(**span)
