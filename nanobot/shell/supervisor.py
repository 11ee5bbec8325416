"""The parent process of one unsandboxed command, which ends everything that the command started.

Run as a program (``python -I -S supervisor.py CONTROL_FD LINGER LASTING ARGV…``), standard library
only.
A process group does not hold a child that calls ``setsid``, and a process tree loses a child whose
parent has ended. On Linux the supervisor is therefore a *child subreaper* (prctl(2)): a process
that loses its parent becomes the supervisor's own child, whatever it did to hide.

The supervisor exits with the command's exit code (128 + signal number, as shells do) once all its
processes are gone. When the command ends, processes it left have LINGER seconds to end too; with
LASTING ``1`` they may run on, which is reported once. When CONTROL_FD reaches its end (the daemon
closed it, or died) everything is killed at once.
Where there is no /proc (macOS) the supervisor kills the command's process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

KILLED = 128 + signal.SIGKILL
RUNS_ON = "[the command itself has ended with exit code {code}; what it started runs on]"
_PR_SET_CHILD_SUBREAPER = 36
_GIVE_UP_S = 5.0
# Ignored signals stay ignored across exec: `yes | head` must end by SIGPIPE as everywhere.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def descendants(root: int) -> list[int]:
    """Process ids of all live descendants of ``root``, parents first; empty without /proc.

    Zombies are left out: they hold nothing, and whoever is their parent reaps them.
    """
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for process, parent, _, state in _processes():
        children.setdefault(parent, []).append(process)
        if state == "Z":
            zombies.add(process)
    found: list[int] = []
    waiting = [root]
    while waiting:
        offspring = children.get(waiting.pop(), ())
        waiting.extend(offspring)
        found.extend(process for process in offspring if process not in zombies)
    return found


def members(session: int) -> list[int]:
    """Process ids of all live processes of a session; empty without /proc."""
    return [
        process
        for process, _, belongs, state in _processes()
        if belongs == session and state != "Z"
    ]


def signal_all(processes: list[int], number: int) -> int:
    """Send signal ``number`` to each; returns how many could be signalled."""
    reached = 0
    for process in processes:
        # Gone meanwhile, or running as another user: nothing that could be done here.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
            reached += 1
    return reached


def _processes() -> Iterator[tuple[int, int, int, str]]:
    """(process id, parent's id, session id, state) of every process, from proc(5)."""
    try:
        entries = os.listdir("/proc")  # noqa: PTH208 - pathlib costs a third of the start-up time
    except OSError:
        return
    for entry in entries:
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                # The second field is the program's name in parentheses, which may hold any byte.
                state, parent, _, session = file.read().rpartition(b")")[2].split(None, 4)[:4]
        except (OSError, ValueError):  # gone meanwhile
            continue
        yield int(entry), int(parent), int(session), state.decode()


def main(arguments: list[str]) -> int:
    control, linger = int(arguments[0]), float(arguments[1])
    is_lasting, command = arguments[2] == "1", arguments[3:]
    _become_subreaper()
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.set_inheritable(control, False)
    try:
        # A group of its own: `kill 0` in a script must not reach the supervisor.
        leader = os.posix_spawnp(
            command[0], command, os.environ, setpgroup=0, setsigdef=_IGNORED_BY_PYTHON
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    events = select.poll()
    events.register(control, select.POLLIN)
    events.register(wake, select.POLLIN)
    status: int | None = None
    deadline: float | None = None
    while True:
        ended, any_left = _reap(leader)
        if ended is not None:
            status, deadline = ended, time.monotonic() + linger
        if not any_left:
            break
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            if not is_lasting:
                break
            with contextlib.suppress(OSError):  # the daemon has just died: that comes next
                print(RUNS_ON.format(code=status), file=sys.stderr, flush=True)
            deadline = left = None
        ready = [ready for ready, _ in events.poll(None if left is None else left * 1000)]
        if control in ready:
            break
        if wake in ready:
            os.read(wake, 4096)
    _kill_all(leader)
    return KILLED if status is None else status


def _become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap(leader: int) -> tuple[int | None, bool]:
    """Collect ended children: the leader's exit code if it is among them, and whether any live."""
    code: int | None = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if process == 0:
            return code, True
        if process == leader:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def _kill_all(leader: int) -> None:
    """Kill until nothing is left; bounded, since a process of another user cannot be killed."""
    if sys.platform != "linux":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    give_up = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < give_up:
        alive = descendants(os.getpid())
        if alive and not signal_all(alive, signal.SIGKILL):
            return
        _, any_left = _reap(leader)
        if not alive and not any_left:
            return
        time.sleep(0.002)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
