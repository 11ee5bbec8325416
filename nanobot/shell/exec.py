"""The exec and process tools, and the rules about commands that are refused."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from nanobot.core.errors import ToolError
from nanobot.core.events import Notice
from nanobot.core.messages import Trust
from nanobot.core.text import one_line
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.safety.paths import PathResolver, Paths, existing
from nanobot.shell.commands import (
    BackgroundProcess,
    BackgroundProcesses,
    CommandResult,
    CommandRunner,
    ShellCommand,
)
from nanobot.shell.process_tree import Captured
from nanobot.shell.sandbox import SandboxMode

LONGEST_S = 3600.0

_WARNED_SESSIONS = 10_000


class ExecArguments(ToolArguments):
    command: str = Field(min_length=1)
    working_dir: str = Field(default=".", description="default: the workspace")
    timeout: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = Field(
        default=None, description="seconds"
    )
    background: bool = Field(default=False, description="return an id for `process` at once")


class Exec(Tool[ExecArguments]):
    """Runs commands for owners; remembers only which sessions it warned of a missing sandbox."""

    name = "exec"
    description = (
        "Run a bash command, without terminal or input. In its sandbox ~ is the workspace, and "
        "only that and /tmp keep what it writes; "
        "everything it started ends with it, unless it runs in the background (servers, tmux)."
    )
    effect = Effect.WRITE
    arguments = ExecArguments
    timeout_s = None  # the runner's own limit, after which the output so far is still shown

    def __init__(
        self,
        resolver: PathResolver,
        runner: CommandRunner,
        background: BackgroundProcesses,
        default_timeout: float = 60.0,
    ) -> None:
        self._resolver = resolver
        self._runner = runner
        self._background = background
        self._default_timeout = default_timeout
        self._warned: dict[str, None] = {}

    async def run(self, args: ExecArguments, context: ToolContext) -> ToolOutput:
        if not context.principal.is_owner:
            raise ToolError("Only the owner's turns may run commands.")
        paths = self._resolver.for_context(context)
        directory = existing(paths, args.working_dir)
        if not directory.is_dir():
            raise ToolError(f"{paths.show(directory)} is not a directory.")
        destroyed = destruction_in(args.command)
        if destroyed:
            raise ToolError(
                f"Refused: the command {destroyed}. If the owner really wants that, they must "
                "run it themselves."
            )
        sandboxed, warning = await self._protection(context, paths)
        command = ShellCommand(
            args.command, directory, context.environment, paths.view(), sandboxed
        )
        if args.background:
            process_id = self._background.start(
                command,
                session_key=context.session_key,
                inbound_id=context.inbound_id,
                timeout=args.timeout,
            )
            return ToolOutput(self._begun(process_id, args.timeout) + warning, trust_of_commands())
        timeout = args.timeout or self._default_timeout
        result = await self._runner.run(command, timeout=timeout)
        return ToolOutput(_report(result, timeout) + warning, trust_of_commands())

    async def stopped(self, inbound_id: str) -> None:
        await self._background.kill_turn(inbound_id)

    async def _protection(self, context: ToolContext, paths: Paths) -> tuple[bool, str]:
        """Whether to use the sandbox, and a warning for the model; raises ToolError.

        Without a sandbox, commands run only while the owner is at the terminal and can stop them,
        and never when they must stay in the workspace.
        """
        mode = self._runner.sandbox.policy.mode
        if mode is SandboxMode.OFF:
            return False, ""
        probe = await self._runner.sandbox.probe()
        if probe.works:
            return True, ""
        if mode is SandboxMode.AUTO and context.attended and not paths.restrict:
            return False, self._warned_once(context, probe.reason)
        raise ToolError(
            f"Refused: no sandbox works on this machine ({probe.reason}), and without one "
            "commands run only at the owner's own terminal, and with "
            "tools.restrictToWorkspace nowhere. The owner can run `nanobot status`, "
            "or set tools.exec.sandbox to off."
        )

    def _begun(self, process_id: str, timeout: float | None) -> str:
        """The result text for a command that was started in the background."""
        until = "" if timeout is None else f", for at most {timeout:g} s"
        text = f"Runs in the background as {process_id}{until}; see what it says with process."
        if self._background.lasting:
            return text
        return (
            f"{text}\n[No gateway is running: it ends as soon as you have given your final answer. "
            "`nanobot gateway` would keep it.]"
        )

    def _warned_once(self, context: ToolContext, reason: str) -> str:
        if context.session_key in self._warned:
            return ""
        if len(self._warned) >= _WARNED_SESSIONS:
            del self._warned[next(iter(self._warned))]
        self._warned[context.session_key] = None
        text = f"No sandbox works on this machine ({reason}): commands run with your full rights."
        context.emit(Notice(text))
        return f"\n[{text}]"


def trust_of_commands() -> Trust:
    """The trust of every command's output.

    Trusted even with the network on, though a command may print what an outsider wrote: otherwise
    every turn that runs `git status` would need an approval, and owners would learn to click it
    away. An owner who wants less can turn `tools.exec.network` off.
    """
    return Trust.TRUSTED


def _report(result: CommandResult, timeout: float) -> str:
    """The result text of a command: its output, and how it ended unless that is obvious."""
    output = result.output.text().rstrip("\n")
    if result.timed_out:
        ending = f"[stopped after {timeout:g} s, with everything it started]"
    elif result.exit_code:
        ending = f"[exit code {result.exit_code}]"
    else:
        ending = "" if output else "[no output]"
    return "\n".join(filter(None, (output, ending)))


LONGEST_WAIT_S = 600.0

_SHOWN_COMMAND = 120


class ProcessArguments(ToolArguments):
    action: Literal["list", "poll", "write", "kill"]
    id: str = ""
    input: str = Field(default="", description="a line for it")
    eof: bool = Field(default=False, description="close its input")
    timeout_s: float = Field(
        default=2.0, ge=0, le=LONGEST_WAIT_S, description="how long to wait for output"
    )


class Process(Tool[ProcessArguments]):
    """Shows and steers a session's background commands."""

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
        process, output = await self._background.poll(session, args.id, args.timeout_s)
        return ToolOutput(_process_report(process, output), trust_of_commands())

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


def _process_report(process: BackgroundProcess, output: Captured) -> str:
    """The result text of a poll: the new output, and the state of the process."""
    text = output.text().rstrip("\n")
    if process.exit_code is None:
        ending = "[running]" if text else "[running, no new output]"
    else:
        ending = f"[{_ending(process)}]"
    return "\n".join(filter(None, (text, ending)))


def _listed(processes: tuple[BackgroundProcess, ...]) -> str:
    if not processes:
        return "No background process runs in this conversation."
    lines = []
    for process in processes:
        span = _span(process.seconds)
        does = (
            f"running for {span}"
            if process.exit_code is None
            else f"{_ending(process)}, {span} ago"
        )
        unread = f"; {process.output.unread:,} bytes unread" if process.output.unread else ""
        lines.append(f"{process.id} ({does}{unread}): {one_line(process.command, _SHOWN_COMMAND)}")
    return "\n".join(lines)


def _ending(process: BackgroundProcess) -> str:
    if process.reason:
        return f"{process.reason}, with everything it started"
    return f"ended with exit code {process.exit_code}"


def _span(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


# -- command rules: what is refused -------------------------------------------------------------

_PREFIXES = frozenset({"sudo", "doas", "env", "nohup", "time", "exec", "command", "nice", "then"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_SYSTEM_PLACES = re.compile(
    r"(/|/\*|~|\$\{?HOME\}?|/(bin|boot|dev|etc|home|lib|lib64|opt|root|sbin|usr|var|Users|System))"
    r"/?\*?"
)
_DISK = re.compile(r"/dev/(sd|hd|vd|xvd|nvme|mmcblk|disk|rdisk|mapper/)\w*")
_FORK_BOMB = re.compile(r"(\b\w{1,30}|:)\s*\(\)\s*\{\s*\1\s*\|\s*\1\s*&\s*\}\s*;\s*\1")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_SEPARATOR = re.compile(r"[();&|<>\n]+|[{}!]")
_MAX_LENGTH = 20_000


def destruction_in(command: str) -> str | None:
    """The damage that a shell command would plainly do, or None; quoted text does not count."""
    command = command[:_MAX_LENGTH]
    if _FORK_BOMB.search(command):
        return "starts processes without end"
    try:
        words = list(_words(_code(command)))
    except ValueError:  # unbalanced quotes: the shell will say so
        return None
    for word, following in itertools.pairwise(words):
        if word.startswith(">") and _DISK.fullmatch(following):
            return f"overwrites the disk {following}"
    return next(filter(None, map(_verdict, _simple_commands(words))), None)


def _code(command: str) -> str:
    """The command without comment lines and here-documents."""
    kept: list[str] = []
    end: str | None = None
    for line in command.replace("\\\n", " ").split("\n"):
        if end is not None:
            end = None if line.strip() == end else end
        elif not line.lstrip().startswith("#"):
            kept.append(line)
            document = _HERE_DOCUMENT.search(line)
            end = document[2] if document else None
    return "\n".join(kept)


def _words(code: str) -> Iterator[str]:
    lexer = shlex.shlex(code, posix=True, punctuation_chars="();&|<>\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    return iter(lexer)


def _simple_commands(words: Sequence[str]) -> Iterator[list[str]]:
    current: list[str] = []
    for word in words:
        if _SEPARATOR.fullmatch(word):
            yield current
            current = []
        else:
            current.append(word)
    yield current


def _verdict(words: list[str]) -> str | None:
    while words and (words[0] in _PREFIXES or re.fullmatch(r"\w+=.*", words[0], re.DOTALL)):
        words = words[1:]
        while words and words[0].startswith("-"):
            words = words[1:]
    if not words:
        return None
    program = words[0].rpartition("/")[2].removeprefix("\\")
    options = [word for word in words[1:] if word.startswith("-")]
    operands = [word for word in words[1:] if not word.startswith("-")]
    places = [word for word in operands if _SYSTEM_PLACES.fullmatch(word)]
    if program in _SHELLS and "-c" in options and operands:
        return destruction_in(operands[0])
    if program == "rm" and places and any(_is_recursive(option) for option in options):
        return f"deletes {places[0]}"
    if (
        program in {"chmod", "chown"}
        and places
        and any(_is_recursive(option) for option in options)
    ):
        return f"changes the rights of everything in {places[0]}"
    if program == "find" and places and "-delete" in options and len(options) == 1:
        return f"deletes {places[0]}"
    if program.partition(".")[0] in {"mkfs", "wipefs", "blkdiscard"} and operands:
        return "erases a disk"
    if program == "dd" and any(
        _DISK.fullmatch(word.removeprefix("of=")) for word in operands if word.startswith("of=")
    ):
        return "overwrites a disk"
    if program in {"shutdown", "reboot", "halt", "poweroff"} and not {"--help", "-c"} & {*options}:
        return "turns the machine off"
    if program == "systemctl" and {"poweroff", "reboot", "halt", "kexec"} & {*operands[:1]}:
        return "turns the machine off"
    return None


def _is_recursive(option: str) -> bool:
    if option.startswith("--"):
        return option in {"--recursive", "--no-preserve-root"}
    return "r" in option or "R" in option
