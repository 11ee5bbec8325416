"""Child processes: a command with everything it starts, and a worker that answers one request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nanobot.shell import supervisor
from nanobot.shell.supervisor import descendants, members, signal_all

LINGER_S = 0.5
"""Seconds that processes a command left running may outlive it."""

GRACE_S = 0.3
"""Seconds between SIGTERM and SIGKILL, so that `/stop` is done within a second."""

_BACKSTOP_S = 2.0
_READ_SIZE = 65536

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Captured:
    """A process's output: ``head`` and ``tail`` as text, ``omitted`` bytes between them."""

    head: str
    tail: str
    omitted: int

    def text(self) -> str:
        """Both ends in one, with a line that says how much is missing."""
        if not self.omitted:
            return self.head + self.tail
        return f"{self.head}\n[… {self.omitted:,} bytes left out …]\n{self.tail}"


class OutputBuffer:
    """Keeps the first ``head`` and the last ``tail`` bytes of a stream and counts the rest."""

    def __init__(self, head: int, tail: int) -> None:
        self._head_size = head
        self._tail_size = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_size + _READ_SIZE:
            del self._tail[: -self._tail_size]

    def captured(self) -> Captured:
        """What is kept by now, decoded as UTF-8; a character cut in two counts as omitted."""
        tail = bytes(self._tail[-self._tail_size :]) if self._tail_size else b""
        if len(self._head) + len(tail) == self._total:
            return Captured(_decoded(bytes(self._head) + tail), "", 0)
        head, tail = _whole_end(bytes(self._head)), _whole_start(tail)
        return Captured(_decoded(head), _decoded(tail), self._total - len(head) - len(tail))


class OutputStream(OutputBuffer):
    """An OutputBuffer that is read in instalments; new output sets ``stirred``.

    ``last_at`` is when output last came, on the clock of ``time.monotonic``.
    """

    def __init__(self, head: int, tail: int) -> None:
        super().__init__(head, tail)
        self.stirred = asyncio.Event()
        self.last_at = time.monotonic()

    @property
    def unread(self) -> int:
        """Bytes that have come since the last ``take``."""
        return self._total

    def feed(self, data: bytes) -> None:
        super().feed(data)
        self.last_at = time.monotonic()
        self.stirred.set()

    def take(self, *, is_complete: bool) -> Captured:
        """Remove and return the output since the last ``take``.

        A character cut off at the end is left for the next ``take``, unless ``is_complete``.
        """
        newest = bytes((self._head[-3:] + self._tail)[-3:])
        begun = b"" if is_complete else newest[len(_whole_end(newest)) :]
        in_tail = min(len(begun), len(self._tail))
        del self._tail[len(self._tail) - in_tail :]
        del self._head[len(self._head) - (len(begun) - in_tail) :]
        self._total -= len(begun)
        taken = self.captured()
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        super().feed(begun)
        return taken


class ProcessTree:
    """One running program and all its descendants. The caller of ``start`` must await ``close``.

    A *contained* tree dies with its first process (bubblewrap's pid namespace); any other gets a
    supervisor (see that module). Standard output and error are one stream, read all the time, so
    that no amount of output blocks the program or fills the memory.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output: int,
        control: int | None,
        buffer: OutputBuffer,
    ) -> None:
        self._process = process
        self._output = output
        self._control = control
        self._contained = control is None
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._loop.add_reader(output, self._read)
        threading.Thread(target=self._watch, name=f"wait-{process.pid}", daemon=True).start()

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: str,
        environment: Mapping[str, str],
        buffer: OutputBuffer,
        contained: bool,
        stdin: int = subprocess.DEVNULL,
        lasting: bool = False,
    ) -> ProcessTree:
        """Start ``argv`` in a session of its own, without a terminal; raises OSError.

        ``lasting``: processes that it leaves running are not ended soon after it. (In a contained
        tree ``argv`` itself must see to that.)

        Starts on the event loop's thread, without a suspension: a cancellation cannot lose the
        process, and Linux kills a child with PR_SET_PDEATHSIG when the *thread* that started it
        ends.
        """
        output, written = os.pipe()
        os.set_blocking(output, False)
        control: int | None = None
        watched: int | None = None
        if not contained:
            watched, control = os.pipe()
            argv = [
                *(sys.executable, "-I", "-S", supervisor.__file__),
                *(str(watched), str(LINGER_S), "1" if lasting else "0", *argv),
            ]
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=dict(environment),
                stdin=stdin,
                stdout=written,
                stderr=written,
                pass_fds=() if watched is None else (watched,),
                start_new_session=True,
            )
        except BaseException:
            _close(output, control)
            raise
        finally:
            _close(written, watched)
        return cls(process, output, control, buffer)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code (128 + signal number if a signal ended it), None while it runs."""
        return self._exited.result() if self._exited.done() else None

    def captured(self) -> Captured:
        """The output so far."""
        return self._buffer.captured()

    async def wait(self) -> int:
        """Wait until the program has ended and its output is complete; returns the exit code."""
        code = await asyncio.shield(self._exited)
        # All writers are dead or dying; do not wait for a process of another user, which cannot
        # be killed.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._ended.wait()
        return code

    async def stop(self, grace: float = GRACE_S) -> None:
        """Ask every process of the tree to end, then ``close`` it."""
        try:
            if not self._exited.done():
                alive = await asyncio.to_thread(descendants, self.pid)
                signal_all(alive, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Kill and reap what is left and free the descriptors; may be called twice."""
        self._kill()
        await uninterrupted(self._buried())

    def _kill(self) -> None:
        if not self._contained:
            _close(self._control)
            self._control = None
        elif not self._exited.done():
            # Its children too: in its first instants bubblewrap has not yet bound them to itself.
            signal_all([self.pid, *descendants(self.pid)], signal.SIGKILL)

    async def _buried(self) -> None:
        try:
            async with asyncio.timeout(_BACKSTOP_S):
                await self.wait()
        except TimeoutError:
            # The supervisor itself was stopped, or hangs.
            signal_all([*descendants(self.pid), self.pid], signal.SIGKILL)
            await self.wait()
        finally:
            if not self._contained and self._process.returncode == -signal.SIGKILL:
                # Whoever kills the supervisor (`pkill python`) leaves orphans behind.
                signal_all(members(self.pid), signal.SIGKILL)
            self._stop_reading()

    def _watch(self) -> None:
        if hasattr(os, "waitid"):
            # It stays a zombie until the loop's thread reaps it, so that no signal can reach
            # another process with the same id.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        code = self._process.wait()
        self._exited.set_result(128 - code if code < 0 else code)

    def _read(self) -> None:
        try:
            data = os.read(self._output, _READ_SIZE)
        except BlockingIOError:
            return
        if data:
            self._buffer.feed(data)
        else:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._loop.remove_reader(self._output)
            os.close(self._output)


async def uninterrupted(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await bounded clean-up to its end, then raise a cancellation that arrived meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


async def run_worker(
    program: str, request: bytes, *, seconds: float, pass_fds: Sequence[int] = ()
) -> tuple[bytes, int | None]:
    """Let a Python program of its own process answer one request; (its output, its exit code).

    The program reads ``request`` from standard input. After ``seconds`` it is killed: the exit
    code is then None, and the output what it had written.
    """
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-X", "utf8", "-W", "ignore", program),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        pass_fds=pass_fds,
        start_new_session=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    output = bytearray()
    try:
        async with asyncio.timeout(seconds):
            worker.stdin.write(request)
            worker.stdin.close()
            while data := await worker.stdout.read(_READ_SIZE):
                output += data
            return bytes(output), await worker.wait()
    except TimeoutError:
        return bytes(output), None
    finally:
        if worker.returncode is None:
            # Not worker.kill(), which may reap a process that asyncio's own thread waits for.
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        await uninterrupted(_reaped(worker, worker.stdout))


async def _reaped(worker: asyncio.subprocess.Process, output: asyncio.StreamReader) -> None:
    await output.read()  # some versions of Python wait for the end of the output
    await worker.wait()


def _close(*descriptors: int | None) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)


def _decoded(data: bytes) -> str:
    # NUL is legal UTF-8 but not in what databases, terminals and providers take as text.
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _whole_end(data: bytes) -> bytes:
    """``data`` without a UTF-8 sequence cut off at its end."""
    for length in range(1, min(4, len(data)) + 1):
        byte = data[-length]
        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-length] if needed > length else data
    return data


def _whole_start(data: bytes) -> bytes:
    """``data`` without continuation bytes of a UTF-8 sequence cut off at its start."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
