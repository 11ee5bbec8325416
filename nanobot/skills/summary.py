"""The skills as the prompt lists them, within a cap of tokens.

As long as they fit, each is an XML element with its whole description and its location. Beyond that
each is a line under its folder with the beginning of its description. Where not even that fits, the
small folders keep their lines and the large ones give names, as many as there is room for. The
file of ``catalogue_lines`` then has what the prompt has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.core.text import shortened
from nanobot.core.tokens import text_tokens
from nanobot.skills.model import Source, Standing

CAP = 4000
"""Tokens that the prompt's section of skills may have, unless configured."""
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


def summary(standings: Iterable[Standing], cap: int = CAP) -> Summary:
    """The list of all skills that the model is told of; an empty text for none."""
    listed = [standing for standing in standings if standing.is_listed]
    if not listed:
        return Summary()
    room = cap - _ROUND
    entries = {standing.skill.name: _entry(standing) for standing in listed}
    text = f"<skills>\n{''.join(entries.values())}</skills>"
    if text_tokens(text) <= room:
        return Summary(text, {name: text_tokens(entry) for name, entry in entries.items()})
    folders: dict[Path, list[Standing]] = {}
    for standing in sorted(listed, key=lambda one: list(Source).index(one.skill.source)):
        folders.setdefault(standing.skill.folder.parent, []).append(standing)
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


def catalogue_lines(standings: Iterable[Standing]) -> str:
    """Every skill that the model is told of, a line each: name, path, whole description."""
    return "".join(
        f"- {standing.skill.name} [{standing.skill.path}]{_needs(standing)}: "
        f"{standing.skill.description}\n"
        for standing in standings
        if standing.is_listed
    )


def _joined(blocks: Sequence[Summary]) -> Summary:
    costs = {name: cost for block in blocks for name, cost in block.costs.items()}
    return Summary("\n".join(block.text for block in blocks if block.text), costs, is_short=True)


def _lines(folder: Sequence[Standing], length: int) -> Summary:
    """The skills of one folder with the beginning of their descriptions."""
    lines = {standing.skill.name: _escaped(_line(standing, length)) for standing in folder}
    costs = {name: text_tokens(f"{line}\n") for name, line in lines.items()}
    return Summary(_block(folder, "\n".join(lines.values())), costs)


def _names(folder: Sequence[Standing], room: int) -> Summary:
    """The names of those skills of one folder that can be used, as many as fit."""
    names = [standing.skill.name for standing in folder if standing.is_eligible]
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


def _block(folder: Sequence[Standing], text: str) -> str:
    place = _escaped(str(folder[0].skill.folder.parent))
    return f'<skills in="{place}">\n{text}\n</skills>'


def _line(standing: Standing, length: int) -> str:
    about = shortened(standing.skill.description, length)
    return f"- {standing.skill.name}{_needs(standing)}: {about}"


def _needs(standing: Standing) -> str:
    return "" if standing.is_eligible else f" (missing {', '.join(standing.missing)})"


def _entry(standing: Standing) -> str:
    skill = standing.skill
    available = standing.is_eligible
    lines = [
        f'  <skill available="{"true" if available else "false"}">',
        f"    <name>{_escaped(skill.name)}</name>",
        f"    <description>{_escaped(skill.description)}</description>",
        f"    <location>{_escaped(str(skill.path))}</location>",
    ]
    if not available:
        lines.append(f"    <requires>{_escaped(', '.join(standing.missing))}</requires>")
    return "\n".join((*lines, "  </skill>\n"))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
