"""The lists of skills: for the prompt, for the file of all skills, and for ``/skills``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.core.commands import Command, Invocation
from nanobot.core.text import shortened, text_tokens
from nanobot.prompts import render
from nanobot.skills.eligibility import CATALOGUE_TOKENS, SkillsSnapshot, SkillStatus
from nanobot.skills.reader import Source

_ROUND = 200
"""Tokens of the sentences round the list."""
_LENGTHS = (240, 180, 140, 110, 90, 70, 55, 40)
"""Characters of a shortened description, the longest that fits being taken."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The list for the prompt, and the tokens of each skill in it by name.

    ``is_short``: descriptions are cut, or skills left out.
    """

    text: str = ""
    costs: Mapping[str, int] = field(default_factory=dict)
    is_short: bool = False


def summary(statuses: Iterable[SkillStatus], cap: int = CATALOGUE_TOKENS) -> Summary:
    """The list of all skills that the model is told of; an empty text for none."""
    listed = [status for status in statuses if status.is_listed]
    if not listed:
        return Summary()
    room = cap - _ROUND
    entries = {status.skill.name: _entry(status) for status in listed}
    text = f"<skills>\n{''.join(entries.values())}</skills>"
    if text_tokens(text) <= room:
        return Summary(text, {name: text_tokens(entry) for name, entry in entries.items()})
    folders: dict[Path, list[SkillStatus]] = {}
    for status in sorted(listed, key=lambda one: list(Source).index(one.skill.source)):
        folders.setdefault(status.skill.folder.parent, []).append(status)
    for length in _LENGTHS:
        blocks = [_lines(folder, length) for folder in folders.values()]
        text = "\n".join(block.text for block in blocks)
        if text_tokens(text) <= room:
            return _joined(blocks)
    blocks = []
    for folder in sorted(folders.values(), key=len):
        block = _lines(folder, _LENGTHS[-1])
        if text_tokens(block.text) > room / 2:
            block = _names(folder, room)
        blocks.append(block)
        room -= text_tokens(block.text)
    return _joined(blocks)


def catalogue_lines(statuses: Iterable[SkillStatus]) -> str:
    """Every skill that the model is told of, a line each: name, path, whole description."""
    return "".join(
        f"- {status.skill.name} [{status.skill.path}]{_needs(status)}: "
        f"{status.skill.manifest.description}\n"
        for status in statuses
        if status.is_listed
    )


def _joined(blocks: Sequence[Summary]) -> Summary:
    costs = {name: cost for block in blocks for name, cost in block.costs.items()}
    return Summary("\n".join(block.text for block in blocks if block.text), costs, is_short=True)


def _lines(folder: Sequence[SkillStatus], length: int) -> Summary:
    """The skills of one folder with the beginning of their descriptions."""
    lines = {status.skill.name: _escaped(_line(status, length)) for status in folder}
    costs = {name: text_tokens(f"{line}\n") for name, line in lines.items()}
    return Summary(_block(folder, "\n".join(lines.values())), costs)


def _names(folder: Sequence[SkillStatus], room: int) -> Summary:
    """The names of those skills of one folder that can be used, as many as fit."""
    names = [status.skill.name for status in folder if status.is_eligible]
    costs: dict[str, int] = {}
    left = room - text_tokens(_block(folder, f"and {len(folder)} more"))
    for name in names:
        cost = text_tokens(f"{_escaped(name)}, ")
        if cost > left:
            break
        left -= cost
        costs[name] = cost
    if not costs:
        return Summary()
    others = len(folder) - len(costs)
    text = ", ".join(map(_escaped, costs)) + (f" and {others} more" if others else "")
    return Summary(_block(folder, text), costs)


def _block(folder: Sequence[SkillStatus], text: str) -> str:
    place = _escaped(str(folder[0].skill.folder.parent))
    return f'<skills in="{place}">\n{text}\n</skills>'


def _line(status: SkillStatus, length: int) -> str:
    about = shortened(status.skill.manifest.description, length)
    return f"- {status.skill.name}{_needs(status)}: {about}"


def _needs(status: SkillStatus) -> str:
    return "" if status.is_eligible else f" (missing {', '.join(status.missing)})"


def _entry(status: SkillStatus) -> str:
    skill = status.skill
    available = status.is_eligible
    lines = [
        f'  <skill available="{"true" if available else "false"}">',
        f"    <name>{_escaped(skill.name)}</name>",
        f"    <description>{_escaped(skill.manifest.description)}</description>",
        f"    <location>{_escaped(str(skill.path))}</location>",
    ]
    if not available:
        lines.append(f"    <requires>{_escaped(', '.join(status.missing))}</requires>")
    return "\n".join((*lines, "  </skill>\n"))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


LISTED = 40
"""Skills that ``/skills`` shows in a chat."""


def skills_command(skills: Callable[[], SkillsSnapshot]) -> Command:
    """``/skills``: what is there, what each costs, what is missing."""

    async def handler(invocation: Invocation) -> str:
        return listing(skills())

    return Command("skills", "the skills, and what each costs", handler)


def listing(snapshot: SkillsSnapshot) -> str:
    """The skills in Markdown, one a line, with their tokens in every prompt."""
    commands = {command.skill.name: command.name for command in snapshot.commands}
    lines = []
    for status in snapshot.statuses:
        skill = status.skill
        name = f"/{commands[skill.name]}" if skill.name in commands else skill.name
        cost = snapshot.costs.get(skill.name, 0)
        about = shortened(skill.manifest.description, 200)
        lines.append(f"- {name}: {state_of(status)}, {cost} tokens. {about}")
    lines += [f"- {broken.name}: broken: {broken.reason}" for broken in snapshot.broken]
    if not lines:
        return "There are no skills."
    if len(lines) > LISTED:
        lines[LISTED:] = [f"and {len(lines) - LISTED} more: `nanobot skills list`"]
    return "\n".join(
        (*lines, "", f"Their list takes {section_tokens(snapshot)} tokens of every prompt.")
    )


def section_tokens(snapshot: SkillsSnapshot) -> int:
    """Tokens that the section of skills takes in every prompt, as all reports estimate them."""
    if not snapshot.summary:
        return 0
    return text_tokens(render.skills(snapshot.summary, snapshot.catalogue))


def state_of(status: SkillStatus) -> str:
    """How a skill stands, in a few words."""
    if status.off_reason:
        state = f"off: {status.off_reason}"
    elif status.is_eligible:
        state = "ready"
    elif not status.enabled:
        state = "off"
    elif not status.fits_os:
        state = "for another system"
    else:
        state = f"missing {', '.join(status.missing)}"
    return ", ".join((state, *in_place_of(status)))


def in_place_of(status: SkillStatus) -> tuple[str, ...]:
    """Which skills of the same name are hidden by this one; nothing for none."""
    hidden = ", ".join(status.in_place_of)
    return (f"in place of the {hidden} one",) if hidden else ()
