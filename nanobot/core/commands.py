"""Slash commands: names, help and handlers, the same in every channel."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from nanobot.core.messages import InboundMessage


@dataclass(frozen=True, slots=True)
class Invocation:
    """A typed command; ``argument`` is the text after its name."""

    inbound: InboundMessage
    argument: str


Handler: TypeAlias = Callable[[Invocation], Awaitable[str]]
"""Executes a command and returns the answer for whoever typed it."""


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command. A ``control`` command acts at once, even while a turn is running.

    An ``in_outage`` command acts at once only while the session waits for a model.
    """

    name: str
    help: str
    handler: Handler
    control: bool = False
    in_outage: bool = False


_FORM = re.compile(r"\A/([A-Za-z0-9_-]{1,64})(?:@\w+)?(?:\s+(.*))?\s*\Z", re.DOTALL)


def command_form(text: str) -> tuple[str, str] | None:
    """The name (lower case) and the argument of a text that has the form of a command."""
    form = _FORM.match(text.strip())
    return None if form is None else (form[1].lower(), (form[2] or "").strip())


Further: TypeAlias = Callable[[], tuple[tuple[str, str], ...]]
"""Returns the present names and help lines of commands that run as turns (skills)."""


def no_further() -> tuple[tuple[str, str], ...]:
    """A ``Further`` for an app without skills."""
    return ()


class CommandTable:
    """The commands of this app in the order of the menu, followed by the ``further`` ones."""

    def __init__(self, commands: Iterable[Command], further: Further = no_further) -> None:
        self._commands = {command.name: command for command in commands}
        self._further = further

    def find(self, text: str) -> tuple[Command, str] | None:
        """The command that ``text`` invokes and its argument; None for ordinary text."""
        form = command_form(text)
        if form is None:
            return None
        command = self._commands.get(form[0])
        return None if command is None else (command, form[1])

    def steers(self, text: str) -> bool:
        """Whether ``text`` may steer a running turn: commands and skill commands may not."""
        form = command_form(text)
        if form is None:
            return True
        # A skill's own name also invokes it, with hyphens in place of underscores.
        name = form[0].replace("-", "_")
        return form[0] not in self._commands and name not in dict(self._further())

    def menu(self) -> tuple[tuple[str, str], ...]:
        """Names and help lines, for a platform's command menu and for /help."""
        own = tuple((command.name, command.help) for command in self._commands.values())
        return own + self._further()
