"""Slash commands: a table of names, help and handlers, the same in every channel."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from nanobot.core.messages import InboundMessage


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command as somebody typed it; ``argument`` is the text after its name."""

    inbound: InboundMessage
    argument: str


Handler: TypeAlias = Callable[[Invocation], Awaitable[str]]
"""Does what a command says and returns the answer for whoever typed it."""


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command. ``control`` ones act at once, even while a turn of the session runs."""

    name: str
    help: str
    handler: Handler
    control: bool = False


_FORM = re.compile(r"\A/([A-Za-z0-9_-]{1,64})(?:@\w+)?(?:\s+(.*))?\s*\Z", re.DOTALL)


class CommandTable:
    """The commands of this app, in the order of the menu."""

    def __init__(self, commands: Iterable[Command]) -> None:
        self._commands = {command.name: command for command in commands}

    def find(self, text: str) -> tuple[Command, str] | None:
        """The command that ``text`` invokes and its argument; None when it is ordinary text."""
        form = _FORM.match(text.strip())
        if form is None:
            return None
        command = self._commands.get(form[1].lower())
        return None if command is None else (command, (form[2] or "").strip())

    def menu(self) -> tuple[tuple[str, str], ...]:
        """Names and help lines, for a platform's command menu and for /help."""
        return tuple((command.name, command.help) for command in self._commands.values())
