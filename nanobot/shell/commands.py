"""Runs shell commands, sandboxed or not, within limits, and ends everything they started."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanobot.core.errors import ToolError
from nanobot.safety.paths import DiskView
from nanobot.shell.process_tree import LINGER_S, Captured, OutputBuffer, ProcessTree
from nanobot.shell.sandbox import Sandbox, shell
from nanobot.shell.supervisor import RUNS_ON

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
