"""Skills as slash commands: their names, what they mean, and the /skills list."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from nanobot.core.chat import ToolCall
from nanobot.core.commands import Command, Invocation, command_form
from nanobot.core.text import shortened, text_tokens
from nanobot.prompts import render
from nanobot.skills.eligibility import Skill, SkillBroken, SkillsSnapshot, SlashCommand, Standing
from nanobot.skills.reader import ALWAYS_MAX, read_body

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


RESERVED = frozenset(
    (
        *("start", "new", "stop", "help", "status", "model", "think", "compact", "usage"),
        *("skills", "memory", "cron", "approve", "deny", "exit", "quit"),
    )
)
"""Command names that are the program's own; a skill of such a name gets a number behind it."""


LISTED = 40
"""Skills that ``/skills`` shows in a chat."""


@dataclass(frozen=True, slots=True)
class SkillCall:
    """A skill invoked by its command; ``arguments`` is the text behind it, as typed."""

    command: SlashCommand
    arguments: str

    def instruction(self) -> str:
        """What the model reads instead of the typed line; raises SkillBroken if it is gone."""
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
        """The call of ``command-dispatch: tool``, with an id that is the same after a crash.

        ``known`` gives the parameters of a tool: one that takes only ``command``, such as exec,
        is given no more than that.
        """
        tool = self.command.tool
        values = self.command.tool_arguments(self.arguments)
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
    """What a turn's model reads: the skill's instruction, else what was typed."""
    if call is None:
        return text
    try:
        return call.instruction()
    except SkillBroken:
        return text


def skills_command(skills: Callable[[], SkillsSnapshot]) -> Command:
    """``/skills``: what is there, what each costs, what is missing."""

    async def handler(invocation: Invocation) -> str:
        return listing(skills())

    return Command("skills", "the skills, and what each costs", handler)


def listing(snapshot: SkillsSnapshot) -> str:
    """The skills in Markdown, one a line, with their tokens in every prompt."""
    commands = {command.skill.name: command.name for command in snapshot.commands}
    lines = []
    for standing in snapshot.standings:
        skill = standing.skill
        name = f"/{commands[skill.name]}" if skill.name in commands else skill.name
        cost = snapshot.costs.get(skill.name, 0)
        about = shortened(skill.description, 200)
        lines.append(f"- {name}: {state_of(standing)}, {cost} tokens. {about}")
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


def state_of(standing: Standing) -> str:
    """How a skill stands, in a few words."""
    if standing.held_back:
        state = f"off: {standing.held_back}"
    elif standing.is_eligible:
        state = "ready"
    elif not standing.enabled:
        state = "off"
    elif not standing.fits_os:
        state = "for another system"
    else:
        state = f"missing {', '.join(standing.missing)}"
    return ", ".join((state, *in_place_of(standing)))


def in_place_of(standing: Standing) -> tuple[str, ...]:
    """Which skills of the same name are hidden by this one; nothing for none."""
    hidden = ", ".join(standing.in_place_of)
    return (f"in place of the {hidden} one",) if hidden else ()
