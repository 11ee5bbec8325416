"""Background processes: commands that outlive the call which started them, each in its session."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.core.errors import ToolError
from nanobot.safety.paths import DiskView
from nanobot.shell.commands import CommandRunner
from nanobot.shell.process_tree import Captured, OutputStream, ProcessTree

QUIET_S = 0.25
"""How long a process must have written nothing for its output to count as complete for now."""

WRITE_LIMIT_S = 5.0
"""How long a process may take to read what is written to it."""


@dataclass(frozen=True, slots=True)
class BackgroundLimits:
    """How many may run, how many that have ended are kept, and bytes of unread output of each."""

    per_session: int = 8
    overall: int = 32
    ended: int = 32
    head: int = 16 * 1024
    tail: int = 48 * 1024


@dataclass(frozen=True, slots=True)
class BackgroundState:
    """How a process does; ``seconds`` since it began, or since it ended.

    ``exit_code`` is None while it runs. ``reason`` says why it ended, if not by itself.
    """

    id: str
    command: str
    exit_code: int | None
    reason: str
    seconds: float
    unread: int


@dataclass(slots=True)
class _Process:
    """One process; its ``watcher`` alone says when it is over."""

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
        return self.tree.exit_code if self.is_over else None

    def close_input(self) -> None:
        if self.stdin is not None:
            asyncio.get_running_loop().remove_writer(self.stdin)
            os.close(self.stdin)
            self.stdin = None


def random_id() -> str:
    """A short name that no process of a former run had, so that none is taken for another."""
    return f"bg-{secrets.token_hex(3)}"


class BackgroundProcesses:
    """Owns the processes that commands with ``background`` are; as long-lived as the daemon.

    A process belongs to the session that started it: no other can see it. It ends by itself, by
    ``kill``, with its turn when the user stops that (``kill_turn``), and at the latest when
    nanobot ends. ``lasting`` is false where nanobot ends with its first answer.
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
        self._processes: dict[str, _Process] = {}

    def start(
        self,
        command: str,
        *,
        session_key: str,
        inbound_id: str,
        cwd: Path,
        environment: Mapping[str, str],
        view: DiskView,
        sandboxed: bool,
        timeout: float | None = None,
    ) -> str:
        """Start ``command`` and return its id; raises ToolError.

        After ``timeout`` seconds it is stopped. It can be written to, and it has not ended before
        everything that it started has.
        """
        self._make_room(session_key)
        output = OutputStream(self._limits.head, self._limits.tail)
        read_end, stdin = os.pipe()
        try:
            os.set_blocking(stdin, False)
            tree = self._runner.start(
                command,
                cwd=cwd,
                environment=environment,
                view=view,
                sandboxed=sandboxed,
                stdin=read_end,
                lasting=True,
                buffer=output,
            )
        except BaseException:
            os.close(stdin)
            raise
        finally:
            os.close(read_end)
        process = _Process(
            id=self._new_id(),
            command=command,
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

    def of_session(self, session_key: str) -> tuple[BackgroundState, ...]:
        """The processes of a session, the oldest first."""
        return tuple(
            _state(process)
            for process in self._processes.values()
            if process.session_key == session_key
        )

    def running(self) -> int:
        """How many run now, in all sessions."""
        return sum(not process.is_over for process in self._processes.values())

    def state(self, session_key: str, process_id: str) -> BackgroundState:
        """How one process of a session does; raises ToolError when it has none of that id."""
        return _state(self._find(session_key, process_id))

    async def poll(
        self, session_key: str, process_id: str, timeout: float
    ) -> tuple[BackgroundState, Captured]:
        """How a process does and what it has written since the last poll; raises ToolError.

        Returns when it has ended, or has written something and fallen silent, or after
        ``timeout`` seconds.
        """
        process = self._find(session_key, process_id)
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
        taken = output.take(is_complete=process.is_over)
        return _state(process), taken

    async def write(self, session_key: str, process_id: str, data: bytes, *, eof: bool) -> None:
        """Write to a process's standard input, and with ``eof`` close it; raises ToolError."""
        process = self._find(session_key, process_id)
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
        # What it wrote before is not yet the response: see QUIET_S.
        process.output.last_at = time.monotonic()

    async def kill(self, session_key: str, process_id: str) -> None:
        """End a process with everything it started; raises ToolError."""
        await self._end((self._find(session_key, process_id),), "stopped on request")

    async def kill_turn(self, inbound_id: str) -> int:
        """End what was started in the turn of an inbound, which the user stopped; how many."""
        return await self._end(
            tuple(p for p in self._processes.values() if p.inbound_id == inbound_id),
            "stopped by the user",
        )

    async def kill_session(self, session_key: str) -> int:
        """End what belongs to a session, and forget it; returns how many ran."""
        processes = tuple(p for p in self._processes.values() if p.session_key == session_key)
        ended = await self._end(processes, "stopped with its session")
        for process in processes:
            self._processes.pop(process.id, None)
        return ended

    async def aclose(self) -> None:
        """End everything."""
        await self._end(tuple(self._processes.values()), "stopped with nanobot")

    async def _end(self, processes: tuple[_Process, ...], reason: str) -> int:
        running = [process for process in processes if not process.is_over]
        for process in running:
            process.reason = process.reason or reason
        await asyncio.gather(*(self._runner.stop(process.tree) for process in running))
        if running:
            await asyncio.wait({process.watcher for process in running})
        return len(running)

    async def _watch(self, process: _Process, timeout: float | None) -> None:
        """Wait for the end of a process, and free what it held."""
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
                self._forget_oldest()

    def _find(self, session_key: str, process_id: str) -> _Process:
        process = self._processes.get(process_id)
        if process is None or process.session_key != session_key:
            known = ", ".join(state.id for state in self.of_session(session_key)) or "none"
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

    def _forget_oldest(self) -> None:
        ended = [process for process in self._processes.values() if process.is_over]
        for process in ended[: max(len(ended) - self._limits.ended, 0)]:
            del self._processes[process.id]


def _state(process: _Process) -> BackgroundState:
    return BackgroundState(
        process.id,
        process.command,
        process.exit_code,
        process.reason if process.is_over else "",
        time.monotonic() - process.changed_at,
        process.output.unread,
    )


async def _writable(process: _Process, descriptor: int) -> None:
    """Wait until a process's input can be written to again, if only to learn that it is gone."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        if process.stdin == descriptor:
            loop.remove_writer(descriptor)
