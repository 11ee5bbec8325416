"""The process tool: the background processes of this conversation, and how to talk to them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nanobot.core.errors import ToolError
from nanobot.core.text import one_line
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.shell.background import BackgroundProcesses, BackgroundState
from nanobot.shell.exec import trust_of_commands
from nanobot.shell.hints import destruction_in
from nanobot.shell.process_tree import Captured

LONGEST_S = 600.0

_SHOWN_COMMAND = 120


class ProcessArguments(ToolArguments):
    action: Literal["list", "poll", "write", "kill"]
    id: str = ""
    input: str = Field(default="", description="a line for it")
    eof: bool = Field(default=False, description="close its input")
    timeout_s: float = Field(
        default=2.0, ge=0, le=LONGEST_S, description="how long to wait for output"
    )


class Process(Tool[ProcessArguments]):
    """Shows and steers what ``exec`` left running; each session sees its own processes only."""

    name = "process"
    description = (
        "Background commands of this conversation: list them, poll for new output, write a line "
        "to one (shows the response), kill one."
    )
    effect = Effect.WRITE
    arguments = ProcessArguments
    timeout_s = None  # poll keeps the time it is given
    polls = True

    def __init__(self, background: BackgroundProcesses) -> None:
        self._background = background

    async def run(self, args: ProcessArguments, context: ToolContext) -> ToolOutput:
        if not context.principal.is_owner:
            raise ToolError("Only the owner's turns may see or steer processes.")
        session = context.session_key
        if args.action == "list":
            return ToolOutput(_listed(self._background.of_session(session)), trust_of_commands())
        if not args.id:
            raise ToolError(f"{args.action} needs the id of a process; list shows them.")
        if args.action == "write":
            await self._write(args, session)
        elif args.action == "kill":
            await self._background.kill(session, args.id)
        state, output = await self._background.poll(session, args.id, args.timeout_s)
        return ToolOutput(_report(state, output), trust_of_commands())

    async def _write(self, args: ProcessArguments, session: str) -> None:
        if not args.input and not args.eof:
            raise ToolError("write needs an input, or eof to close it.")
        destroyed = destruction_in(args.input)
        if destroyed:
            raise ToolError(
                f"Refused: the input {destroyed}. If the owner really wants that, they must "
                "do it themselves."
            )
        # A program without a terminal reads lines; models forget to end theirs.
        ending = "" if not args.input or args.input.endswith("\n") else "\n"
        await self._background.write(session, args.id, (args.input + ending).encode(), eof=args.eof)


def _report(state: BackgroundState, output: Captured) -> str:
    """What the model reads of a poll: the new output, and how the process does."""
    text = output.text().rstrip("\n")
    if state.exit_code is None:
        ending = "[running]" if text else "[running, no new output]"
    else:
        ending = f"[{_ending(state)}]"
    return "\n".join(filter(None, (text, ending)))


def _listed(states: tuple[BackgroundState, ...]) -> str:
    if not states:
        return "No background process runs in this conversation."
    lines = []
    for state in states:
        span = _span(state.seconds)
        does = f"running for {span}" if state.exit_code is None else f"{_ending(state)}, {span} ago"
        unread = f"; {state.unread:,} bytes unread" if state.unread else ""
        lines.append(f"{state.id} ({does}{unread}): {one_line(state.command, _SHOWN_COMMAND)}")
    return "\n".join(lines)


def _ending(state: BackgroundState) -> str:
    if state.reason:
        return f"{state.reason}, with everything it started"
    return f"ended with exit code {state.exit_code}"


def _span(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
