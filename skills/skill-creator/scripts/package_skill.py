#!/usr/bin/env python3
"""Pack a skill: package_skill.py DIR [--out DIR] writes NAME.skill, a zip of the folder."""

import argparse
import os
import re
import sys
import zipfile
from pathlib import Path

LEFT_OUT = {".git", "__pycache__", ".DS_Store", "node_modules", ".venv"}


def problem(folder: Path) -> str:
    """Why the folder is no skill to hand on, or nothing."""
    path = folder / "SKILL.md"
    if not path.is_file():
        return f"{path} is missing"
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    header = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    if header is None:
        return "SKILL.md does not begin with frontmatter between --- lines"
    for field in ("name", "description"):
        if not re.search(rf"^{field}:\s*\S", header[1], re.MULTILINE):
            return f"{field} is missing in the frontmatter"
    return ""


def files(folder: Path) -> list[Path]:
    """The files to pack; raises ValueError for a link."""
    found = []
    for place, folders, names in os.walk(folder):
        for name in folders + names:
            if (Path(place) / name).is_symlink():
                raise ValueError(f"{Path(place) / name} is a link; put the file itself there")
        folders[:] = sorted(set(folders) - LEFT_OUT)
        found += [Path(place) / name for name in sorted(set(names) - LEFT_OUT)]
    return found


def main() -> int:
    """Write the archive and say where; 1 with a reason when that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    folder = options.folder.absolute()
    try:
        reason = problem(folder)
        packed = [] if reason else files(folder)
    except ValueError as error:
        reason = str(error)
    if reason:
        print(reason, file=sys.stderr)
        return 1
    target = options.out / f"{folder.name}.skill"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in packed:
            archive.write(path, f"{folder.name}/{path.relative_to(folder).as_posix()}")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
