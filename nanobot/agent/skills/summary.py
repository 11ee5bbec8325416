"""The skills as the prompt lists them, in XML, and what that costs.

The cost is a formula, so that a list of skills can show it: in UTF-8 bytes of escaped text

    18                                                          once, if any skill is listed
    + 114 + name + description + location                       for each skill that is available
    + 141 + name + description + location + requirements        for each that is not

divided by 4 and rounded up: a rule that a person can check, within a fifth of most tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterable

from nanobot.agent.skills.model import Standing

_OPEN = "<skills>\n"
_CLOSE = "</skills>"


def summary(standings: Iterable[Standing]) -> str:
    """The XML of all skills that the model is told of; "" for none."""
    entries = [_entry(standing) for standing in standings if standing.is_listed]
    return f"{_OPEN}{''.join(entries)}{_CLOSE}" if entries else ""


def summary_cost(standings: Iterable[Standing]) -> int:
    """Tokens that ``summary`` of the same skills takes in the prompt."""
    return _tokens(summary(standings))


def entry_cost(standing: Standing) -> int:
    """Tokens of one skill in the summary; 0 for one that is not listed."""
    return _tokens(_entry(standing)) if standing.is_listed else 0


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


def _tokens(text: str) -> int:
    return -(-len(text.encode()) // 4)
