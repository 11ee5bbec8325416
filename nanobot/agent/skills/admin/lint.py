"""What a linter says of a skill: its frontmatter, its length, its references."""

from __future__ import annotations

import re

from nanobot.agent.skills.model import Skill, SkillBroken
from nanobot.agent.skills.reader import read_body

BODY_LINES = 500
"""The most lines of a SKILL.md (AgentSkills standard); the rest belongs into references/."""
_REFERENCE = re.compile(
    r"\]\((?!https?:|mailto:|#|/)([^)\s#?]+)|(?:\{baseDir\}/|\b(?=(?:scripts|references|assets)/))"
    r"([\w./-]+\.\w+)"
)


def lint(skill: Skill) -> tuple[str, ...]:
    """One line for each thing that is not as it should be."""
    try:
        body = read_body(skill)
    except SkillBroken as error:
        return (str(error),)
    found = list(skill.notes)
    if not body:
        found.append("the body is empty")
    lines = body.count("\n") + 1
    if lines > BODY_LINES:
        found.append(f"the body has {lines} lines: put details into references/")
    raw = body.replace(str(skill.folder), "{baseDir}")
    for match in _REFERENCE.finditer(raw):
        reference = (match[1] or match[2]).removeprefix("{baseDir}/").rstrip(".")
        if not (skill.folder / reference).exists():
            found.append(f"{reference} is named in the body, but it is not there")
    return tuple(dict.fromkeys(found))
