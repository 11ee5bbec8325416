"""Excerpts of Markdown files that are longer than a prompt may hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from nanobot.prompts import render

BOOTSTRAP_FILES = ("AGENTS.md", "SOUL.md", "USER.md", "TOOLS.md", "IDENTITY.md")
MEMORY = "memory/MEMORY.md"
FILE_CAP = 20_000
"""Characters of each file that reach a prompt, unless configured."""
HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$")

_FENCE = re.compile(r"^\s*(?:```|~~~)")
_IMPORTANT = re.compile(r"\bIMPORTANT\b|(?i:[*_\[(#]important\b|\bimportant:)|[❗⚠]")
_MARK = "[… lines {}-{}]"


def excerpt(text: str, cap: int, path: Path) -> str:
    """``text`` itself, or about ``cap`` characters of it with a note that names the file.

    Sections whose heading says "important", and lines marked so, come first. All sections share
    the rest of the room; each is cut in its middle.
    """
    if len(text) <= cap:
        return text
    lines = text.split("\n")
    places = _sections(lines)
    kept: dict[int, str] = {}
    room = cap
    for wanted in (True, False):
        groups = [[at for at, vital in section if vital is wanted] for section in places]
        room = _fill(kept, lines, groups, room)
    shown: list[str] = []
    after = 0  # the line behind the last one shown
    for at in [*sorted(kept), len(lines)]:
        if any(line.strip() for line in lines[after:at]):
            shown.append(_MARK.format(after + 1, at))
        if at < len(lines):
            shown.append(kept[at])
        after = at + 1
    note = render.cut_file(sum(map(len, kept.values())), len(text), path)
    return "\n".join([*shown, "", note])


def too_long(name: str, characters: int, cap: int) -> str:
    """A warning for the owner of a file that is longer than its cap; "" for any other."""
    if characters <= cap:
        return ""
    return (
        f"{name} has {characters:,} characters, of which conversations see {cap:,}: shorten it, "
        "or raise agents.defaults.bootstrapFileChars"
    )


def headings(lines: Sequence[str]) -> Iterable[tuple[int, int, str]]:
    """The place, the level and the title of each heading outside code blocks."""
    fenced = False
    for place, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and (heading := HEADING.match(line.rstrip("\r"))):
            yield place, len(heading[1]), heading[2]


def _sections(lines: Sequence[str]) -> list[list[tuple[int, bool]]]:
    """Each section's lines as (place, whether it is a heading or important)."""
    starts = {place: (level, title) for place, level, title in headings(lines)}
    sections: list[list[tuple[int, bool]]] = [[]]
    vital_level = 0  # level of the enclosing important section, or 0
    for place, line in enumerate(lines):
        if place in starts:
            sections.append([])
            level, title = starts[place]
            if not 0 < vital_level < level:
                vital_level = level if "important" in title.casefold() else 0
        vital = vital_level > 0 or place in starts or bool(_IMPORTANT.search(line))
        sections[-1].append((place, vital))
    return sections


def _fill(
    kept: dict[int, str], lines: Sequence[str], groups: Sequence[Sequence[int]], room: int
) -> int:
    """Keep lines from both ends of each group within a fair share of ``room``; return the rest.

    A line is cut only if the share of its group does not hold a single line.
    """
    by_size = sorted(filter(None, groups), key=lambda group: sum(len(lines[at]) for at in group))
    for place, group in enumerate(by_size):
        share = left = room // (len(by_size) - place)
        last = len(group) - 1
        for order in sorted(range(len(group)), key=lambda order: min(order, last - order)):
            line = lines[group[order]]
            if len(line) + 1 > left:
                if left == share > 0:
                    kept[group[order]] = line[:share]
                    left = 0
                break
            kept[group[order]] = line
            left -= len(line) + 1
        room -= share - left
    return room
