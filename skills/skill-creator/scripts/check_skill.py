#!/usr/bin/env python3
"""Check a skill: check_skill.py DIR prints what is wrong with it; exit code 1 if anything is."""

import json
import re
import sys
from pathlib import Path

PLACEHOLDER = "What it does. Use when"
QUOTED_NEEDED = re.compile(r"[\[\]{}&*!|>%@`#,?-]|.*(?:: | #|:$)")


def header_of(folder: Path) -> tuple[dict[str, str], str]:
    """The one-line fields of the frontmatter and the body; raises ValueError without one."""
    path = folder / "SKILL.md"
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    found = re.match(r"---\s*\n(.*?)\n---[ \t]*(?:\n|$)(.*)", text, re.DOTALL)
    if found is None:
        raise ValueError("SKILL.md does not begin with frontmatter between --- lines")
    pairs = re.findall(r"^([A-Za-z][\w-]*):[ \t]*(.*?)[ \t]*$", found[1], re.MULTILINE)
    return dict(pairs), found[2]


def errors(folder: Path) -> list[str]:
    """What makes the folder no skill to hand on."""
    try:
        fields, _ = header_of(folder)
    except ValueError as error:
        return [str(error)]
    found = [f"{name} is missing" for name in ("name", "description") if not fields.get(name)]
    name = fields.get("name", "").strip("\"'")
    if name and name != folder.name:
        found.append(f"the name {name} is not the folder's ({folder.name})")
    if name and (len(name) > 64 or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)):
        found.append(f"the name {name} has more than lower-case letters, digits, single hyphens")
    if len(fields.get("description", "")) > 1024:
        found.append("the description is longer than 1024 characters")
    for key, value in fields.items():
        if key != "metadata" and QUOTED_NEEDED.match(value) and value not in ("|", ">"):
            found.append(f"{key} needs quotes: YAML would read it differently")
    metadata = fields.get("metadata", "")
    if metadata.startswith("{"):
        try:
            json.loads(metadata)
        except ValueError as error:
            found.append(f"metadata is not JSON: {error}")
    return found


def advice(folder: Path) -> list[str]:
    """What makes a skill that works less useful; for a folder without errors."""
    fields, body = header_of(folder)
    description, found = fields["description"], []
    if PLACEHOLDER in description:
        found.append("the description is not written yet")
    elif not re.search(r"\b(when|whenever|for|if)\b", description, re.IGNORECASE):
        found.append("the description does not say when to use the skill")
    if not body.strip():
        found.append("the body is empty")
    if body.count("\n") > 500:
        found.append("the body has more than 500 lines: move details to references/")
    for path in dict.fromkeys(re.findall(r"\{baseDir\}/([\w./-]+\.\w+)", body)):
        if not (folder / path).exists():
            found.append(f"{path} is named in the body, but it is not there")
    return found


def main() -> int:
    """Print the problems, one a line."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]).absolute()
    found = errors(folder) or advice(folder)
    print("\n".join(found) or f"{folder.name}: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
