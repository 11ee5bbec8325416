"""The slash commands of user-invocable skills, by names that every channel takes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from nanobot.skills.model import Skill, SlashCommand

NAME_MAX = 32
"""The most characters of a command (Telegram's Bot API, ``BotCommand.command``)."""


def sanitized(name: str) -> str:
    """The name in ``[a-z0-9_]{1,32}``: accents dropped, everything else an underscore."""
    letters = unicodedata.normalize("NFKD", name).lower()
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:NAME_MAX].strip("_") or "skill"


def slash_commands(skills: Iterable[Skill], reserved: Iterable[str]) -> tuple[SlashCommand, ...]:
    """One command for each user-invocable skill, by command name.

    Where two come to the same name, or one to a ``reserved`` name, a skill that bears the name
    as it is keeps it, then the first by name; the others get ``_2``, ``_3`` and so on.
    """
    taken = set(reserved)
    commands: list[SlashCommand] = []
    invocable = [skill for skill in skills if skill.user_invocable]
    for skill in sorted(
        invocable, key=lambda skill: (sanitized(skill.name) != skill.name, skill.name)
    ):
        base = name = sanitized(skill.name)
        number = 1
        while name in taken:
            number += 1
            suffix = f"_{number}"
            name = base[: NAME_MAX - len(suffix)] + suffix
        taken.add(name)
        commands.append(SlashCommand(name, skill, skill.command_tool))
    return tuple(sorted(commands, key=lambda command: command.name))
