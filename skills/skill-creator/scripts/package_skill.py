#!/usr/bin/env python3
"""Pack a skill: package_skill.py DIR [--out DIR] writes NAME.skill, a zip of the folder."""

import argparse
import os
import sys
import zipfile
from pathlib import Path

from check_skill import errors

LEFT_OUT = {".git", "__pycache__", ".DS_Store", "node_modules", ".venv"}


def files(folder: Path) -> list[Path]:
    """The files to pack; raises ValueError for a link, a pipe and the like."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for path in (Path(place) / name for name in [*folders, *sorted(set(names) - LEFT_OUT)]):
            if path.is_symlink():
                raise ValueError(f"{path} is a link; put the file itself there")
            if path.is_file():
                found.append(path)
            elif not path.is_dir():
                raise ValueError(f"{path} is no ordinary file")
    return found


def pack(folder: Path, paths: list[Path], target: Path) -> None:
    """Write the zip; the same files give the same bytes whenever they were written."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            name = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if os.access(path, os.X_OK) else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())


def main() -> int:
    """Write the archive and say where; 1 with a reason when that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    folder = options.folder.absolute()
    target = options.out / f"{folder.name}.skill"
    try:
        reason = "\n".join(errors(folder))
        if not reason:
            options.out.mkdir(parents=True, exist_ok=True)
            pack(folder, files(folder), target)
    except (ValueError, OSError) as error:
        reason = str(error)
    if reason:
        print(reason, file=sys.stderr)
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
