"""Skills as slash commands: their names, and what the model or a tool gets for one."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from nanobot.core.chat import ToolCall
from nanobot.core.commands import command_form
from nanobot.prompts import render
from nanobot.skills.eligibility import SkillsSnapshot, SlashCommand
from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.reader import ALWAYS_MAX, Skill, read_body

NAME_MAX = 32
"""Upper bound of characters in a command (Telegram's Bot API, ``BotCommand.command``)."""


def sanitized(name: str) -> str:
    """The name in ``[a-z0-9_]{1,32}``: accents dropped, everything else an underscore."""
    letters = unicodedata.normalize("NFKD", name).lower()
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:NAME_MAX].strip("_") or "skill"


def slash_commands(skills: Iterable[Skill], reserved: Iterable[str]) -> tuple[SlashCommand, ...]:
    """One command for each user-invocable skill, by command name.

    Of several skills with the same command name, the one whose own name it is keeps it, else the
    first by name; the others, and those with a ``reserved`` name, get ``_2``, ``_3`` and so on.
    """
    taken = set(reserved)
    commands: list[SlashCommand] = []
    invocable = [skill for skill in skills if skill.manifest.user_invocable]
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
        commands.append(SlashCommand(name, skill))
    return tuple(sorted(commands, key=lambda command: command.name))


RESERVED = frozenset(
    (
        *("start", "new", "stop", "help", "status", "model", "think", "compact", "usage"),
        *("skills", "memory", "cron", "approve", "deny", "exit", "quit"),
    )
)
"""Names of nanobot's own commands; a skill of such a name gets a number behind it."""


@dataclass(frozen=True, slots=True)
class SkillCall:
    """A skill invoked by its command; ``arguments`` is the text behind it, as typed."""

    command: SlashCommand
    arguments: str

    def instruction(self) -> str:
        """The text for the model in place of the typed line; raises SkillBroken if it is gone."""
        skill = self.command.skill
        body = read_body(skill)
        if len(body) > ALWAYS_MAX:
            body = f"{body[:ALWAYS_MAX].rstrip()}\n\n[Cut here: the rest is in {skill.path}]"
        return render.skill_command(
            command=self.command.name,
            skill=skill.name,
            folder=skill.folder,
            body=body,
            arguments=self.arguments,
        )

    def tool_call(self, inbound_id: str, known: Callable[[str], Mapping[str, object]]) -> ToolCall:
        """The tool call of a ``command-dispatch: tool`` skill; its id is the same after a crash.

        ``known`` gives the parameters of a tool, which gets no argument beyond them.
        """
        tool = self.command.tool
        values = {
            "command": self.arguments,
            "commandName": self.command.name,
            "skillName": self.command.skill.name,
        }
        parameters = known(tool)
        taken = {name: value for name, value in values.items() if name in parameters}
        digest = hashlib.sha256(inbound_id.encode()).hexdigest()[:20]
        return ToolCall(f"call_{digest}", tool, json.dumps(taken or values, ensure_ascii=False))


def skill_call(text: str, snapshot: SkillsSnapshot) -> SkillCall | None:
    """The skill that ``text`` invokes, by its command or its own name; None for other text."""
    form = command_form(text)
    if form is None:
        return None
    name, arguments = form
    command = snapshot.command(name) or snapshot.command(sanitized(name))
    return None if command is None else SkillCall(command, arguments)


def instruction_or_text(call: SkillCall | None, text: str) -> str:
    """The user message for the model: the skill's instruction, else the typed text."""
    if call is None:
        return text
    try:
        return call.instruction()
    except SkillBroken:
        return text
