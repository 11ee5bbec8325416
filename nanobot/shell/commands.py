"""Runs shell commands within limits, and warns of plainly destructive ones."""

from __future__ import annotations

import asyncio
import itertools
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanobot.core.errors import ToolError
from nanobot.safety.paths import DiskView
from nanobot.shell.process_tree import LINGER_S, Captured, OutputBuffer, ProcessTree
from nanobot.shell.sandbox import Sandbox, shell
from nanobot.shell.supervisor import RUNS_ON

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
    """What a shell command would plainly destroy, or None; quoted text is not a command."""
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


# No core files, files of at most 4 GiB (in blocks of 512 bytes), and a fork bomb has an end.
# dash names the limit on processes -p, all others -u. A lower limit already there stays.
_LIMITS = "{ ulimit -c 0; ulimit -f 8388608; ulimit -u 8192 || ulimit -p 8192; } 2>/dev/null; "
_RUN = _LIMITS + 'exec "$@"'
# In a sandbox everything ends with its first process, so that one stays while there are others:
# bubblewrap's own is number 1. Asked to end (TERM) it leaves the others the time to do so, and
# says nothing about it (as shells do on their standard error).
_RUN_LASTING = (
    _LIMITS
    + """trap : TERM; exec 3>&2 2>/dev/null; (exec "$@" 2>&3 3>&-); code=$?
others() {
    for place in /proc/[0-9]*; do
        case $place in /proc/1|/proc/$$) ;; *) return 0 ;; esac
    done
    return 1
}
others && sleep LINGER && others && echo "RUNS_ON" >&3
while others; do sleep 2; done
exit $code""".replace("LINGER", str(LINGER_S)).replace("RUNS_ON", RUNS_ON.format(code="$code"))
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: ``exit_code`` is None when the time was over and it was killed."""

    exit_code: int | None
    output: Captured
    seconds: float

    @property
    def timed_out(self) -> bool:
        return self.exit_code is None


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Bytes kept of the beginning and of the end of a command's output.

    Far more than a model is shown at once: what is too long for it is spilled into a file, where
    it can search for the error in the middle.
    """

    head: int = 128 * 1024
    tail: int = 384 * 1024


class CommandRunner:
    """Starts commands and owns all that run; as long-lived as the daemon."""

    def __init__(self, sandbox: Sandbox, limits: OutputLimits | None = None) -> None:
        self.sandbox = sandbox
        self._limits = limits or OutputLimits()
        self._running: set[ProcessTree] = set()

    async def run(
        self,
        command: str,
        *,
        cwd: Path,
        timeout: float,
        environment: Mapping[str, str],
        view: DiskView,
        sandboxed: bool,
    ) -> CommandResult:
        """Run ``command`` by the shell for at most ``timeout`` seconds; raises ToolError.

        However this ends (exit, time-out, cancellation), no process of the command is left.
        """
        began = time.monotonic()
        tree = self.start(command, cwd=cwd, environment=environment, view=view, sandboxed=sandboxed)
        exit_code: int | None = None
        try:
            async with asyncio.timeout(timeout) as limit:
                exit_code = await tree.wait()
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            await self.stop(tree)
        return CommandResult(exit_code, tree.captured(), time.monotonic() - began)

    def start(
        self,
        command: str,
        *,
        cwd: Path,
        environment: Mapping[str, str],
        view: DiskView,
        sandboxed: bool,
        stdin: int = subprocess.DEVNULL,
        lasting: bool = False,
        buffer: OutputBuffer | None = None,
    ) -> ProcessTree:
        """Start ``command`` and leave it running; the caller must ``stop`` it in the end.

        ``environment`` holds the turn's own variables, added to the few that all commands have.
        ``lasting``: it has not ended before everything that it started has, such as a daemon.
        """
        script = _RUN_LASTING if sandboxed and lasting else _RUN
        argv = ["/bin/sh", "-c", script, "sh", shell(), "-c", command]
        sandbox = self.sandbox
        if sandboxed:
            argv = sandbox.wrap(argv, view=view, cwd=cwd)
            variables = sandbox.environment(view, environment)
        else:
            variables = sandbox.open_environment(environment)
        try:
            tree = ProcessTree.start(
                argv,
                cwd="/" if sandboxed else str(cwd),
                environment=variables,
                buffer=buffer or OutputBuffer(self._limits.head, self._limits.tail),
                contained=sandboxed,
                stdin=stdin,
                lasting=lasting,
            )
        except (OSError, ValueError) as error:
            # Too long, a NUL in it, no more processes or descriptors.
            raise ToolError(f"The command could not be started: {error}.") from error
        self._running.add(tree)
        return tree

    async def stop(self, tree: ProcessTree) -> None:
        """End a tree and everything in it."""
        try:
            await tree.stop()
        finally:
            self._running.discard(tree)

    async def aclose(self) -> None:
        """End everything that still runs."""
        await asyncio.gather(*map(self.stop, tuple(self._running)))
