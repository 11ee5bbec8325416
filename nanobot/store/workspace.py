"""The workspace's first files, copied from the shipped templates; what exists is never touched."""

from __future__ import annotations

import shutil
from pathlib import Path


def seed(workspace: Path, templates: Path) -> tuple[Path, ...]:
    """Create the workspace and the template files it lacks; returns what was created."""
    created = []
    workspace.mkdir(parents=True, exist_ok=True)
    for template in sorted(templates.rglob("*.md")):
        target = workspace / template.relative_to(templates)
        if target.exists() or target.is_symlink():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(template, target)
        created.append(target)
    return tuple(created)
