"""What a linter says of a skill: its frontmatter, its length, its references."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nanobot.skills.model import Skill, SkillBroken
from nanobot.skills.reader import read_body

BODY_LINES = 500
"""The most lines of a SKILL.md (AgentSkills standard); the rest belongs into references/."""
_LINK = re.compile(r"\]\((?!https?:|mailto:|#|/)([\w./-]+\.\w+)(?:[#?][^)]*)?\)")
_OWN = re.compile(r"\{baseDir\}/([\w./-]+\.\w+)")
_BARE = re.compile(
    r"(?<![\w/.~}<-])(?:\./)?((?:scripts|references|assets)/[\w./-]*\w\.\w+)(?![\w*<{])"
)
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*(\w*)")
_SHELLS = ("bash", "sh", "shell", "zsh", "console")
_EXAMPLE = re.compile(
    r"\b(?:e\.g|examples?|such as|for instance|imagine|would|might|could|looks? like)\b",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"\b(?:your|my|example|sample|foo|name|path)\b", re.IGNORECASE)


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
    for reference in _references(body.replace(str(skill.folder), "{baseDir}")):
        if not (skill.folder / reference).exists():
            found.append(f"{reference} is named in the body, but it is not there")
    return tuple(dict.fromkeys(found))


def _references(body: str) -> Iterator[str]:
    """The skill's own files that the body sends its reader to.

    Examples are left out: what a line gives as one, placeholders, links in code, and blocks of
    code that are no commands (trees, sample files).
    """
    fence = language = ""
    for line in body.split("\n"):
        mark = _FENCE.match(line)
        if mark and (not fence or (mark[1].startswith(fence) and not mark[2])):
            fence, language = ("", "") if fence else (mark[1], mark[2].lower())
            continue
        named = _OWN.findall(line)
        if not _EXAMPLE.search(line) and (not fence or language in _SHELLS):
            links = [] if fence else _LINK.findall(re.sub(r"`[^`]*`", "", line))
            named = [*links, *named, *_BARE.findall(line)]
        for reference in named:
            if not _PLACEHOLDER.search(reference.replace("_", " ")):
                yield reference
