"""The tools of a profile in a fixed order, and how they are called."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from loguru import logger
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nanobot.core.chat import ToolCall, ToolSpec
from nanobot.core.errors import ToolError
from nanobot.core.messages import Trust
from nanobot.core.text import one_line, read_json
from nanobot.core.tool import DEFAULT_TIMEOUT_S, Effect, Tool, ToolContext, ToolOutput
from nanobot.internet.reading import DocumentReader
from nanobot.safety.paths import PathResolver
from nanobot.shell.commands import BackgroundProcesses, CommandRunner
from nanobot.shell.exec import Exec, Process
from nanobot.tools.files import EditFile, ListDir, ReadFile, WriteFile
from nanobot.tools.images import Pictures
from nanobot.tools.search import FindFiles, Grep

AnyTool: TypeAlias = Tool[Any]
Mask: TypeAlias = Callable[[str], str]

_SUMMARY_LENGTH = 80


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call; if not ``ok``, the text says why it failed and what to do."""

    output: ToolOutput
    ok: bool


class ToolRegistry:
    """An ordered set of tools. ``mask`` removes secrets from their results.

    ``timeout_s`` is the wall-clock limit of tools without one of their own.
    """

    def __init__(
        self,
        tools: Iterable[AnyTool],
        *,
        mask: Mask | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._tools: dict[str, AnyTool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are named {tool.name!r}")
            self._tools[tool.name] = tool
        self._specs = {tool.name: tool.spec() for tool in self._tools.values()}
        self._mask: Mask = mask or str
        self._timeout_s = timeout_s

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them, always in the same order."""
        return tuple(self._specs.values())

    def without(self, *names: str) -> ToolRegistry:
        """A registry without some of the tools, for a profile that must not have them."""
        kept = (tool for name, tool in self._tools.items() if name not in names)
        return ToolRegistry(kept, mask=self._mask, timeout_s=self._timeout_s)

    def effect_of(self, name: str) -> Effect:
        """The effect of a tool; one that does not exist counts as writing."""
        tool = self._tools.get(name)
        return Effect.WRITE if tool is None else tool.effect

    def polls(self, name: str) -> bool:
        """Whether repeating the same call of a tool is a way to wait."""
        tool = self._tools.get(name)
        return tool is not None and tool.polls

    def parameters_of(self, name: str) -> Mapping[str, Any]:
        """The JSON Schemas of a tool's parameters by name; none for a tool there is not."""
        return _properties(self._specs[name]) if name in self._specs else {}

    def summary(self, call: ToolCall) -> str:
        """The arguments of a call in one line of at most 80 characters, secrets masked."""
        try:
            arguments = json.loads(call.arguments or "{}", strict=False)
        except ValueError:
            arguments = call.arguments
        if isinstance(arguments, dict):
            # In the tool's order, whatever the model's: a path tells more than a file's content.
            known = self.parameters_of(call.name)
            names = [name for name in known if name in arguments]
            names += [name for name in arguments if name not in known]
            shown = [_plain(arguments[name]) for name in names[:1]]
            shown += [f"{name}={_plain(arguments[name])}" for name in names[1:]]
            text = ", ".join(shown)
        else:
            text = _plain(arguments)
        return one_line(self._mask(text[:10_000]), _SUMMARY_LENGTH)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Run one call within its time limit; raises nothing but CancelledError."""
        result = await self._execute(call, context)
        output = replace(result.output, text=self._mask(result.output.text))
        return ToolResult(output, result.ok)

    async def _execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        try:
            tool = self._tools.get(call.name)
            if tool is None:
                near = difflib.get_close_matches(call.name, self._tools, n=3, cutoff=0.5)
                known = f"there are {', '.join(self._tools)}."
                hint = f"did you mean {' or '.join(near)}?" if near else known
                raise ToolError(f"There is no tool {call.name!r}; {hint}")
            arguments = _validated(tool, self._specs[tool.name], call.arguments)
            seconds = self._timeout_s if tool.timeout_s == DEFAULT_TIMEOUT_S else tool.timeout_s
            async with asyncio.timeout(seconds) as limit:
                output = await tool.run(arguments, context)
        except ToolError as error:
            return _failure(str(error), error.trust)
        except TimeoutError as error:
            if limit.expired():
                return _failure(f"{call.name} was stopped after {seconds:g} seconds.")
            return self._defect(call, context, error)
        except Exception as error:
            return self._defect(call, context, error)
        return ToolResult(output, ok=True)

    async def recovered_call(self, call: ToolCall, inbound_id: str) -> str | None:
        """The result of a call that a crash interrupted; None if it cannot be known."""
        tool = self._tools.get(call.name)
        return None if tool is None else await tool.recovered_call(inbound_id, call.id)

    async def stopped(self, inbound_id: str) -> None:
        """Tell every tool that the user stopped a turn, to end what it left running."""
        for tool in self._tools.values():
            try:
                await tool.stopped(inbound_id)
            except Exception as error:
                logger.bind(inbound=inbound_id).opt(exception=error).error(
                    "tool {} failed to end what a stopped turn left running", tool.name
                )

    def _defect(self, call: ToolCall, context: ToolContext, error: Exception) -> ToolResult:
        logger.bind(session=context.session_key, inbound=context.inbound_id).opt(
            exception=error
        ).error("tool {} failed", call.name)
        reason = one_line(str(error))
        return _failure(f"{call.name} failed: {type(error).__name__}: {reason}".rstrip(": "))


def default_tools(
    resolver: PathResolver,
    runner: CommandRunner,
    background: BackgroundProcesses,
    pictures: Pictures,
    *,
    exec_timeout: float = 60.0,
) -> tuple[AnyTool, ...]:
    """The tools that work on the owner's files, in the order in which models are told of them."""
    return (
        ReadFile(resolver, pictures, DocumentReader()),
        WriteFile(resolver),
        EditFile(resolver),
        ListDir(resolver),
        FindFiles(resolver),
        Grep(resolver),
        Exec(resolver, runner, background, exec_timeout),
        Process(background),
    )


def _failure(text: str, trust: Trust = Trust.TRUSTED) -> ToolResult:
    return ToolResult(ToolOutput(text, trust), ok=False)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parsed(tool: AnyTool, spec: ToolSpec, text: str) -> dict[str, Any]:
    """A model's arguments as an object; broken ones are repaired for tools that only read."""
    try:
        value = read_json(text if text.strip() else "{}")
    except (EOFError, ValueError) as error:
        if tool.effect is Effect.WRITE:
            if isinstance(error, EOFError):
                raise ToolError(cut_off(tool.name)) from error
            raise ToolError(
                f"The arguments of {tool.name} are no JSON ({error}) and nothing was done. "
                "Send the call again."
            ) from error
        import json_repair

        try:
            value = json_repair.loads(text)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise ToolError(f"The arguments of {tool.name} are not a JSON object. {_signature(spec)}")
    # A half of a surrogate pair (a cut emoji) cannot be written to any file.
    cleaned: dict[str, Any] = _well_formed(value) if "\\ud" in text.lower() else value
    return cleaned


def cut_off(name: str) -> str:
    """The error text for a call whose arguments may have been cut off."""
    return (
        f"The arguments of {name} end in the middle and nothing was done. "
        "Send the call again, long content in several parts."
    )


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_well_formed(item) for item in value]
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    return value


def _validated(tool: AnyTool, spec: ToolSpec, text: str) -> Any:
    # `null` is how many models write "not given".
    required = spec.parameters.get("required", ())
    given = {
        name: value
        for name, value in _parsed(tool, spec, text).items()
        if value is not None or name in required
    }
    try:
        return tool.arguments.model_validate(given)
    except ValidationError as error:
        problems = "; ".join(_problem(spec, detail) for detail in error.errors(include_url=False))
        raise ToolError(
            f"Wrong arguments for {tool.name}: {problems}. {_signature(spec)}"
        ) from error


def _problem(spec: ToolSpec, detail: ErrorDetails) -> str:
    field = ".".join(map(str, detail["loc"])) or "arguments"
    if detail["type"] == "missing":
        return f"{field} is required"
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field, _properties(spec), n=1)
        return f"there is no {field}" + (f" (did you mean {near[0]}?)" if near else "")
    given = one_line(repr(detail["input"]), 60)
    return f"{field}: {detail['msg'][:1].lower()}{detail['msg'][1:]}, not {given}"


def _signature(spec: ToolSpec) -> str:
    """The parameters of a tool in a line, as a reminder."""
    required = spec.parameters.get("required", ())
    parameters = (
        f"{name} ({schema.get('type', 'any')}{', required' if name in required else ''})"
        for name, schema in _properties(spec).items()
    )
    return f"Parameters: {', '.join(parameters) or 'none'}."


def _properties(spec: ToolSpec) -> Mapping[str, Mapping[str, Any]]:
    properties: Mapping[str, Mapping[str, Any]] = spec.parameters.get("properties", {})
    return properties
