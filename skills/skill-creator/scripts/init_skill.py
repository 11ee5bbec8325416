#!/usr/bin/env python3
"""Make a new skill: init_skill.py NAME --path DIR writes DIR/NAME/SKILL.md."""

import argparse
import re
import sys
from pathlib import Path

TEXT = """---
name: {name}
description: What it does. Use when …
---

# {title}

What to do, in the imperative, with the commands as they are run. Files lie in {{baseDir}}.
"""


def main() -> int:
    """Write the file and say where; 1 with a reason when that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--path", type=Path, required=True, help="the folder of all skills")
    options = parser.parse_args()
    if len(options.name) > 64 or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", options.name):
        print("a name has lower-case letters, digits and single hyphens", file=sys.stderr)
        return 1
    folder = options.path / options.name
    if folder.exists():
        print(f"{folder} exists already", file=sys.stderr)
        return 1
    folder.mkdir(parents=True)
    text = TEXT.format(name=options.name, title=options.name.replace("-", " ").capitalize())
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    print(folder / "SKILL.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
