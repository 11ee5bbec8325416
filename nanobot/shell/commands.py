"""Runs shell commands: within a time limit, or in the background of their session."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.core.errors import ToolError
from nanobot.safety.paths import DiskView
from nanobot.shell.process_tree import (
    LINGER_S,
    Captured,
    OutputBuffer,
    OutputStream,
    ProcessTree,
)
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
class ShellCommand:
    """A command for the shell, and where it runs.

    ``environment`` holds the turn's own variables, added to the few that all commands have.
    """

    text: str
    cwd: Path
    environment: Mapping[str, str]
    view: DiskView
    sandboxed: bool


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended; ``exit_code`` is None if it was killed after its time limit."""

    exit_code: int | None
    output: Captured
    seconds: float

    @property
    def timed_out(self) -> bool:
        return self.exit_code is None


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Bytes kept of the beginning and of the end of a command's output.

    The model is shown less at once; the rest is spilled into a file that it can search.
    """

    head: int = 128 * 1024
    tail: int = 384 * 1024


class CommandRunner:
    """Starts commands and owns all that run; lives as long as the daemon."""

    def __init__(self, sandbox: Sandbox, limits: OutputLimits | None = None) -> None:
        self.sandbox = sandbox
        self._limits = limits or OutputLimits()
        self._running: set[ProcessTree] = set()

    async def run(self, command: ShellCommand, *, timeout: float) -> CommandResult:
        """Run ``command`` for at most ``timeout`` seconds; raises ToolError.

        On exit, time-out and cancellation alike, no process of the command is left.
        """
        began = time.monotonic()
        tree = self.start(command)
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
        command: ShellCommand,
        *,
        stdin: int = subprocess.DEVNULL,
        lasting: bool = False,
        buffer: OutputBuffer | None = None,
    ) -> ProcessTree:
        """Start ``command`` and leave it running; the caller must ``stop`` it in the end.

        A ``lasting`` command ends with the last of the processes it started, such as a daemon.
        """
        sandboxed = command.sandboxed
        script = _RUN_LASTING if sandboxed and lasting else _RUN
        argv = ["/bin/sh", "-c", script, "sh", shell(), "-c", command.text]
        if sandboxed:
            argv = self.sandbox.wrap(argv, view=command.view, cwd=command.cwd)
        variables = self.sandbox.environment(
            command.view if sandboxed else None, command.environment
        )
        try:
            tree = ProcessTree.start(
                argv,
                cwd="/" if sandboxed else str(command.cwd),
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


QUIET_S = 0.25
"""Seconds of silence after which the output of a process counts as complete for now."""

WRITE_LIMIT_S = 5.0
"""Seconds that a process may take to read what is written to its input."""


@dataclass(frozen=True, slots=True)
class BackgroundLimits:
    """How many processes may run, how many ended ones are kept, and bytes of unread output."""

    per_session: int = 8
    overall: int = 32
    ended: int = 32
    head: int = 16 * 1024
    tail: int = 48 * 1024


@dataclass(slots=True)
class BackgroundProcess:
    """A process that outlives the call which started it; its ``watcher`` says when it is over.

    ``changed_at`` is when it began or ended, on the clock of ``time.monotonic``. ``reason`` says
    why it was ended; "" if it ended by itself.
    """

    id: str
    command: str
    session_key: str
    inbound_id: str
    tree: ProcessTree
    output: OutputStream
    stdin: int | None
    changed_at: float
    watcher: asyncio.Task[None] = field(init=False)
    is_over: bool = False
    reason: str = ""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.tree.exit_code if self.is_over else None

    @property
    def seconds(self) -> float:
        """How long it has run, or ago it has ended."""
        return time.monotonic() - self.changed_at

    def close_input(self) -> None:
        if self.stdin is not None:
            asyncio.get_running_loop().remove_writer(self.stdin)
            os.close(self.stdin)
            self.stdin = None


def random_id() -> str:
    """A short id that no process of an earlier run had."""
    return f"bg-{secrets.token_hex(3)}"


class BackgroundProcesses:
    """Owns the commands that run in the background; lives as long as the daemon.

    Only the session that started a process sees it. A process ends by itself, by ``kill``, when
    the user stops its turn (``kill_turn``), and at the latest when nanobot ends. ``lasting`` is
    false where nanobot ends with its first answer.
    """

    def __init__(
        self,
        runner: CommandRunner,
        *,
        lasting: bool = True,
        limits: BackgroundLimits = BackgroundLimits(),
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self.lasting = lasting
        self._runner = runner
        self._limits = limits
        self._new_id = new_id
        self._processes: dict[str, BackgroundProcess] = {}

    def start(
        self,
        command: ShellCommand,
        *,
        session_key: str,
        inbound_id: str,
        timeout: float | None = None,
    ) -> str:
        """Start ``command`` with an open input and return its id; raises ToolError.

        It is stopped after ``timeout`` seconds, and ends with the last process it started.
        """
        self._make_room(session_key)
        output = OutputStream(self._limits.head, self._limits.tail)
        read_end, stdin = os.pipe()
        try:
            os.set_blocking(stdin, False)
            tree = self._runner.start(command, stdin=read_end, lasting=True, buffer=output)
        except BaseException:
            os.close(stdin)
            raise
        finally:
            os.close(read_end)
        process = BackgroundProcess(
            id=self._new_id(),
            command=command.text,
            session_key=session_key,
            inbound_id=inbound_id,
            tree=tree,
            output=output,
            stdin=stdin,
            changed_at=time.monotonic(),
        )
        process.watcher = asyncio.create_task(self._watch(process, timeout), name=process.id)
        self._processes[process.id] = process
        return process.id

    def of_session(self, session_key: str) -> tuple[BackgroundProcess, ...]:
        """The processes of a session, the oldest first."""
        return tuple(p for p in self._processes.values() if p.session_key == session_key)

    def running(self) -> int:
        """How many run now, in all sessions."""
        return sum(not process.is_over for process in self._processes.values())

    async def poll(
        self, session_key: str, process_id: str, timeout: float
    ) -> tuple[BackgroundProcess, Captured]:
        """A process, and its output since the last poll; raises ToolError.

        Returns once the process has ended, or has written something and fallen silent, or after
        ``timeout`` seconds.
        """
        process = self.find(session_key, process_id)
        output = process.output
        deadline = time.monotonic() + timeout
        while not process.is_over:
            until = deadline
            if output.unread:
                until = min(deadline, output.last_at + QUIET_S)
            if (left := until - time.monotonic()) <= 0:
                break
            output.stirred.clear()
            try:
                async with asyncio.timeout(left):
                    await output.stirred.wait()
            except TimeoutError:
                continue
        return process, output.take(is_complete=process.is_over)

    async def write(self, session_key: str, process_id: str, data: bytes, *, eof: bool) -> None:
        """Write to a process's standard input, and with ``eof`` close it; raises ToolError."""
        process = self.find(session_key, process_id)
        if process.is_over or process.stdin is None:
            what = "has ended" if process.is_over else "has had the end of its input"
            raise ToolError(f"{process_id} {what}; nothing more can be written to it.")
        rest = memoryview(data)
        try:
            async with asyncio.timeout(WRITE_LIMIT_S):
                while rest and process.stdin is not None:
                    try:
                        rest = rest[os.write(process.stdin, rest) :]
                    except BlockingIOError:
                        await _writable(process, process.stdin)
        except TimeoutError as error:
            raise ToolError(
                f"{process_id} does not read its input: {len(data) - len(rest):,} of "
                f"{len(data):,} bytes were taken within {WRITE_LIMIT_S:g} s."
            ) from error
        except OSError as error:
            raise ToolError(f"{process_id} has closed its input.") from error
        if rest:
            raise ToolError(f"{process_id} has ended before it read everything.")
        if eof:
            process.close_input()
        # Earlier output is not the response: wait for QUIET_S from now on.
        process.output.last_at = time.monotonic()

    async def kill(self, session_key: str, process_id: str) -> None:
        """End a process with everything it started; raises ToolError."""
        await self._end((self.find(session_key, process_id),), "stopped on request")

    async def kill_turn(self, inbound_id: str) -> int:
        """End what the turn of an inbound started, because the user stopped it; how many ran."""
        return await self._end(
            tuple(p for p in self._processes.values() if p.inbound_id == inbound_id),
            "stopped by the user",
        )

    async def kill_session(self, session_key: str) -> None:
        """End and forget a session's processes."""
        processes = self.of_session(session_key)
        await self._end(processes, "stopped with its session")
        for process in processes:
            self._processes.pop(process.id, None)

    async def aclose(self) -> None:
        """End everything."""
        await self._end(tuple(self._processes.values()), "stopped with nanobot")

    async def _end(self, processes: tuple[BackgroundProcess, ...], reason: str) -> int:
        running = [process for process in processes if not process.is_over]
        for process in running:
            process.reason = process.reason or reason
        await asyncio.gather(*(self._runner.stop(process.tree) for process in running))
        if running:
            await asyncio.wait({process.watcher for process in running})
        return len(running)

    async def _watch(self, process: BackgroundProcess, timeout: float | None) -> None:
        """Wait until a process ends, then free its resources."""
        try:
            async with asyncio.timeout(timeout):
                await process.tree.wait()
        except TimeoutError:
            process.reason = f"stopped after {timeout:g} s"
        finally:
            try:
                await self._runner.stop(process.tree)
            finally:
                process.close_input()
                process.is_over = True
                process.changed_at = time.monotonic()
                process.output.stirred.set()
                ended = [one for one in self._processes.values() if one.is_over]
                for oldest in ended[: max(len(ended) - self._limits.ended, 0)]:
                    del self._processes[oldest.id]

    def find(self, session_key: str, process_id: str) -> BackgroundProcess:
        """A process of a session; raises ToolError when it has none of that id."""
        process = self._processes.get(process_id)
        if process is None or process.session_key != session_key:
            known = ", ".join(other.id for other in self.of_session(session_key)) or "none"
            raise ToolError(
                f"There is no background process {process_id!r} here (there is: {known}). "
                "They end when nanobot is restarted."
            )
        return process

    def _make_room(self, session_key: str) -> None:
        running = [process for process in self._processes.values() if not process.is_over]
        own = [process for process in running if process.session_key == session_key]
        if len(own) >= self._limits.per_session:
            named = ", ".join(process.id for process in own)
            raise ToolError(
                f"{len(own)} background processes run in this conversation, as many as may: "
                f"{named}. Kill one with process first."
            )
        if len(running) >= self._limits.overall:
            raise ToolError(
                f"{len(running)} background processes run in all conversations together, as "
                "many as may. Run the command without background, or later."
            )


async def _writable(process: BackgroundProcess, descriptor: int) -> None:
    """Wait until a process's input can be written to again, or is gone."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        if process.stdin == descriptor:
            loop.remove_writer(descriptor)
