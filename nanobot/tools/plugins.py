"""Tools of other packages, which name them in the entry point group ``nanobot.tools``.

A package declares ``[project.entry-points."nanobot.tools"]`` with a line ``anything =
"module:name"`` for each tool; ``name`` is called with a ``ToolHost`` and returns a
``nanobot.core.tool.Tool`` (so a subclass of Tool whose constructor takes the host will do). Such a
tool serves the owner's turns only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from loguru import logger

from nanobot.core.errors import ToolError
from nanobot.core.text import one_line
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.store.home import Home, file_name

GROUP = "nanobot.tools"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")  # what providers take as the name of a tool


@dataclass(frozen=True, slots=True)
class ToolHost:
    """The environment and a folder of its own, given to a tool of another package."""

    environ: Mapping[str, str]
    folder: Path

    def data_dir(self) -> Path:
        """A private folder for the package's data, made on first use."""
        for place in (self.folder.parent, self.folder):
            place.mkdir(mode=0o700, exist_ok=True)
        return self.folder


@dataclass(frozen=True, slots=True)
class Plugins:
    """The tools that were found, in a fixed order, and a line for each that cannot be used."""

    tools: tuple[Tool[Any], ...] = ()
    problems: tuple[str, ...] = ()


def load_plugins(home: Home, environ: Mapping[str, str], taken: Iterable[str]) -> Plugins:
    """The tools of all installed packages; a broken one is logged and left out.

    ``taken`` are the names of the built-in tools. Blocks: imports other people's modules.
    """
    tools: dict[str, Tool[Any]] = {}
    problems: list[str] = []
    names = set(taken)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (_package(entry), entry.name)):
        try:
            folder = home.plugins / file_name(_package(entry))
            tool = _loaded(entry, ToolHost(environ, folder))
            if tool.name in names:
                raise _Unusable(f"there is another tool of the name {tool.name}")
        except _Unusable as error:
            problem = str(error)
        except Exception as error:  # the supervision point of code that is not ours
            logger.opt(exception=error).debug("the tool {} failed to load", entry.value)
            problem = f"{type(error).__name__}: {error}".rstrip(": ")
        else:
            names.add(tool.name)
            tools[tool.name] = tool
            continue
        problems.append(f"{entry.name} of {_package(entry)}: {one_line(problem)}")
        logger.warning("a tool is left out: {}", problems[-1])
    return Plugins(tuple(tools.values()), tuple(problems))


class _Unusable(Exception):
    """Why a tool that could be loaded cannot be used."""


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _loaded(entry: EntryPoint, host: ToolHost) -> Tool[Any]:
    tool = entry.load()(host)
    if not isinstance(tool, Tool):
        raise _Unusable(f"{entry.value} makes no nanobot.core.tool.Tool")
    missing = [
        name
        for name in ("name", "description", "effect", "arguments")
        if not hasattr(type(tool), name)
    ]
    if missing:
        raise _Unusable(f"it does not say its {' and '.join(missing)}")
    if not (isinstance(tool.name, str) and _NAME.fullmatch(tool.name)):
        raise _Unusable(f"{tool.name!r} is no name that models can call")
    if not isinstance(tool.effect, Effect):
        raise _Unusable("its effect is none")
    if not (isinstance(tool.arguments, type) and issubclass(tool.arguments, ToolArguments)):
        raise _Unusable("its arguments are no ToolArguments")
    return _for_owners(tool)


def _for_owners(tool: Tool[Any]) -> Tool[Any]:
    """``tool`` for the owner's turns only, so that its author need not think of guests."""

    class ForOwners(Tool[Any]):
        name = tool.name
        description = tool.description
        effect = tool.effect
        arguments = tool.arguments
        timeout_s = tool.timeout_s
        polls = tool.polls

        async def run(self, args: Any, context: ToolContext) -> ToolOutput:
            if not context.principal.is_owner:
                raise ToolError(f"Only the owner's turns may use {tool.name}.")
            output = await tool.run(args, context)
            if not isinstance(output, ToolOutput):
                raise TypeError(f"{tool.name} gave {type(output).__name__}, no ToolOutput")
            return output

        async def recovered_call(self, inbound_id: str, call_id: str) -> str | None:
            return await tool.recovered_call(inbound_id, call_id)

        async def stopped(self, inbound_id: str) -> None:
            await tool.stopped(inbound_id)

    ForOwners.spec()  # a schema that cannot be made is found here, not in every turn
    return ForOwners()
