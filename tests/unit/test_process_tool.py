"""Background processes and the process tool: output in instalments, ownership, and every end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.errors import ToolError
from nanobot.core.messages import Role
from nanobot.safety.paths import PathResolver
from nanobot.shell.commands import BackgroundLimits, BackgroundProcesses, CommandRunner, random_id
from nanobot.shell.exec import Exec, ExecArguments, Process, ProcessArguments
from nanobot.shell.process_tree import Captured, OutputStream
from nanobot.shell.sandbox import Sandbox, SandboxMode, SandboxPolicy
from nanobot.store.home import Home
from tests.fakes.tool_turns import tool_turn


class Bench:
    """exec and process in a home of its own; ids count from ``bg-1``."""

    def __init__(self, root: Path, mode: SandboxMode, limits: BackgroundLimits) -> None:
        self.home = Home(root)
        self.workspace = self.home.default_workspace
        self.workspace.mkdir(parents=True)
        sandbox = Sandbox(
            SandboxPolicy(mode=mode), environ={"PATH": "/usr/bin:/bin"}, user_home=Path.home()
        )
        self.sandbox = sandbox
        self.runner = CommandRunner(sandbox)
        numbers = count(1)
        self.background = BackgroundProcesses(
            self.runner, limits=limits, new_id=lambda: f"bg-{next(numbers)}"
        )
        self.exec = Exec(PathResolver(self.home, restrict=False), self.runner, self.background)
        self.process = Process(self.background)

    async def start(self, command: str, *, session: str = "cli:direct", turn: str = "in:1") -> str:
        """Run a command in the background; returns its id."""
        await self.exec.run(
            ExecArguments(command=command, background=True),
            tool_turn(self.workspace, session=session, inbound_id=turn),
        )
        return self.background.of_session(session)[-1].id

    async def do(self, action: str, *, session: str = "cli:direct", **arguments: object) -> str:
        """What the model reads of a call of the process tool."""
        args = ProcessArguments.model_validate({"action": action, **arguments})
        return (await self.process.run(args, tool_turn(self.workspace, session=session))).text

    async def aclose(self) -> None:
        await self.background.aclose()
        await self.runner.aclose()


@pytest.fixture(params=[SandboxMode.OFF, SandboxMode.REQUIRE], ids=["open", "sandboxed"])
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Both ways of running commands."""
    bench = Bench(tmp_path.resolve() / "home", request.param, BackgroundLimits())
    if request.param is SandboxMode.REQUIRE and not (await bench.sandbox.probe()).works:
        pytest.skip("no sandbox works on this machine")
    yield bench
    await bench.aclose()


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Bench]:
    """An unsandboxed bench with small limits."""
    limits = BackgroundLimits(per_session=2, overall=3, ended=2, head=10, tail=10)
    bench = Bench(tmp_path.resolve() / "home", SandboxMode.OFF, limits)
    yield bench
    await bench.aclose()


def alive(marker: str) -> list[int]:
    """The processes with ``marker`` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in words:
                found.append(int(entry.name))
    return found


async def until(condition: Callable[[], bool], within: float = 20.0) -> bool:
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - asks the kernel
        await asyncio.sleep(0.01)
    return condition()


# --- output and input -----------------------------------------------------------------------------


async def test_a_poll_gives_what_came_since_the_last_one(bench: Bench) -> None:
    name = await bench.start("echo one; read line; echo got $line; read line; exit 3")

    texts = [
        await bench.do("poll", id=name, timeout_s=20),
        await bench.do("poll", id=name, timeout_s=0),
        await bench.do("write", id=name, input="x y", timeout_s=20),
        await bench.do("write", id=name, input="end\n", timeout_s=20),
        await bench.do("poll", id=name),
    ]

    assert texts == [
        "one\n[running]",
        "[running, no new output]",
        "got x y\n[running]",
        "[ended with exit code 3]",
        "[ended with exit code 3]",
    ]


async def test_a_shell_keeps_its_state_from_line_to_line(bench: Bench) -> None:
    name = await bench.start("bash")

    await bench.do("write", id=name, input="cd /usr; WORD=kept", timeout_s=0)
    text = await bench.do("write", id=name, input="echo $WORD in $PWD", timeout_s=20)

    assert text == "kept in /usr\n[running]"


async def test_the_end_of_the_input_can_be_given(bench: Bench) -> None:
    name = await bench.start("wc -c")

    text = await bench.do("write", id=name, input="four", eof=True, timeout_s=20)

    assert text == "5\n[ended with exit code 0]"


async def test_a_response_is_not_taken_for_what_was_written_before(small: Bench) -> None:
    name = await small.start("echo ready; read line; echo done")
    assert await until(lambda: small.background.find("cli:direct", name).output.unread > 0)

    text = await small.do("write", id=name, input="go", timeout_s=20)

    assert text == "ready\ndone\n[ended with exit code 0]"


async def test_what_cannot_be_written_says_why(small: Bench) -> None:
    ended = await small.start("exit 0")
    await small.do("poll", id=ended, timeout_s=20)
    closed = await small.start("exec <&-; echo closed; exec sleep 100")
    await small.do("poll", id=closed, timeout_s=20)
    given = await small.start("exec cat")
    await small.do("write", id=given, eof=True, timeout_s=0)

    with pytest.raises(ToolError, match="bg-1 has ended; nothing more"):
        await small.do("write", id=ended, input="x")
    with pytest.raises(ToolError, match="write needs an input"):
        await small.do("write", id=closed)


async def test_a_write_ends_when_the_process_dies_without_reading(small: Bench) -> None:
    name = await small.start("exec sleep 100")
    writing = asyncio.create_task(small.do("write", id=name, input="x" * 1_000_000))
    await asyncio.sleep(0)

    await small.do("kill", id=name)

    with pytest.raises(ToolError, match=r"bg-1 has (closed its input|ended before)"):
        await writing


async def test_a_process_that_does_not_read_holds_the_writer_only_so_long(
    small: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanobot.shell.commands.WRITE_LIMIT_S", 0.1)
    name = await small.start("exec sleep 100")

    with pytest.raises(ToolError, match=r"does not read its input: 65,536 of 1,000,001 bytes"):
        await small.do("write", id=name, input="x" * 1_000_000)


async def test_a_flood_of_output_is_kept_within_bounds(small: Bench) -> None:
    name = await small.start("printf '%010d' 1; head -c 100000000 /dev/zero; printf '%010d' 2")

    text = await small.do("poll", id=name, timeout_s=60)

    assert text == (
        f"{1:010d}\n[… 100,000,000 bytes left out …]\n{2:010d}\n[ended with exit code 0]"
    )


async def test_a_poll_of_a_process_that_never_falls_silent_ends_at_its_limit(small: Bench) -> None:
    name = await small.start("while :; do echo x; done")

    text = await small.do("poll", id=name, timeout_s=0.5)

    assert text.endswith("[running]")


@given(
    st.text(alphabet="aé€😀\n", max_size=40),
    st.lists(st.integers(0, 160), max_size=6),
    st.integers(0, 200),
    st.integers(4, 200),
)
def test_instalments_of_any_cut_make_up_the_whole_text(
    text: str, cuts: list[int], head: int, tail: int
) -> None:
    async def read() -> list[Captured]:
        stream = OutputStream(head, tail)
        data = text.encode()
        places = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
        taken = []
        for start, end in pairwise(places):
            stream.feed(data[start:end])
            taken.append(stream.take(is_complete=False))
        return [*taken, stream.take(is_complete=True)]

    taken = asyncio.run(read())

    kept = "".join(part.head + part.tail for part in taken)
    omitted = sum(part.omitted for part in taken)
    assert "\ufffd" not in kept
    assert len(kept.encode()) + omitted == len(text.encode())
    if not omitted:
        assert kept == text


# --- what belongs to whom -------------------------------------------------------------------------


async def test_processes_are_listed_with_how_they_do(bench: Bench) -> None:
    await bench.start("exit 2")
    await bench.do("poll", id="bg-1", timeout_s=20)
    await bench.start("echo hi;\n cat")
    assert await until(lambda: bench.background.find("cli:direct", "bg-2").output.unread == 3)

    text = await bench.do("list")

    first, second = text.splitlines()
    assert first.startswith("bg-1 (ended with exit code 2, ")
    assert first.endswith(" s ago): exit 2")
    assert second.startswith("bg-2 (running for ")
    assert second.endswith(" s; 3 bytes unread): echo hi; cat")


async def test_a_session_sees_its_own_processes_only(small: Bench) -> None:
    name = await small.start("cat", session="telegram:1")

    assert await small.do("list", session="telegram:2") == (
        "No background process runs in this conversation."
    )
    for action in ("poll", "write", "kill"):
        with pytest.raises(ToolError, match=r"There is no background process 'bg-1' here"):
            await small.do(action, id=name, input="x", session="telegram:2")
    assert await small.do("poll", id=name, timeout_s=0, session="telegram:1") == (
        "[running, no new output]"
    )


async def test_a_guest_sees_and_steers_nothing(small: Bench) -> None:
    await small.start("cat")
    context = tool_turn(small.workspace, role=Role.GUEST, attended=True)

    for action in ("list", "poll", "write", "kill"):
        args = ProcessArguments.model_validate({"action": action, "id": "bg-1", "input": "x"})
        with pytest.raises(ToolError, match="Only the owner"):
            await small.process.run(args, context)
    assert small.background.find("cli:direct", "bg-1").exit_code is None


async def test_a_call_without_an_id_says_what_it_needs(small: Bench) -> None:
    with pytest.raises(ToolError, match="kill needs the id of a process; list shows them"):
        await small.do("kill")


async def test_a_plainly_destructive_line_is_not_written(small: Bench) -> None:
    name = await small.start("bash")

    with pytest.raises(ToolError, match="Refused: the input deletes /home"):
        await small.do("write", id=name, input="rm -rf /home")


async def test_there_is_a_limit_for_a_session_and_one_for_all(small: Bench) -> None:
    for _ in range(2):
        await small.start("cat", session="a:1")

    with pytest.raises(
        ToolError, match=r"2 background processes run in this .*: bg-1, bg-2\. Kill"
    ):
        await small.start("cat", session="a:1")
    await small.start("cat", session="a:2")
    with pytest.raises(ToolError, match="3 background processes run in all conversations"):
        await small.start("cat", session="a:3")
    await small.do("kill", id="bg-1", session="a:1")

    assert await small.start("cat", session="a:3") == "bg-4"


async def test_the_last_that_ended_are_kept_for_reading(small: Bench) -> None:
    for number in range(4):
        name = await small.start(f"echo {number}")
        await small.background.poll("cli:direct", name, 20)

    assert [state.id for state in small.background.of_session("cli:direct")] == ["bg-3", "bg-4"]


def test_ids_differ_from_run_to_run() -> None:
    names = {random_id() for _ in range(50)}

    assert len(names) == 50
    assert all(name.startswith("bg-") and len(name) == 9 for name in names)


# --- ends -----------------------------------------------------------------------------------------


@pytest.fixture
def marker() -> Iterator[str]:
    """A word for command lines; nothing that has it may be left alive."""
    word = f"marker-{uuid4().hex}"
    yield word
    assert alive(word) == []


def family(marker: str) -> str:
    """A command with children, one of which hides in a session of its own."""
    return (
        f"setsid bash -c 'sleep 300; : {marker}' & bash -c 'sleep 300; : {marker}' & "
        f"echo begun; sleep 300; : {marker}"
    )


async def begun(bench: Bench, name: str, session: str = "cli:direct") -> None:
    assert await until(lambda: bench.background.find(session, name).output.unread >= 6)


async def test_kill_ends_it_with_everything_it_started(bench: Bench, marker: str) -> None:
    name = await bench.start(family(marker))
    await begun(bench, name)
    assert len(alive(marker)) >= 3

    text = await bench.do("kill", id=name)

    assert text.startswith("begun\n")
    assert text.endswith("[stopped on request, with everything it started]")
    assert alive(marker) == []
    assert (await bench.do("kill", id=name)).startswith("[stopped on request")


async def test_a_process_may_end_in_order_when_it_is_killed(bench: Bench) -> None:
    name = await bench.start(
        "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    )
    await begun(bench, name)

    text = await bench.do("kill", id=name)

    assert "saved" in text


async def test_what_a_command_leaves_running_runs_on(bench: Bench, marker: str) -> None:
    name = await bench.start(f"mkfifo in; setsid bash -c 'cat <in >out; : {marker}' & exit 7")
    told = "[the command itself has ended with exit code 7; what it started runs on]\n[running]"

    assert await bench.do("poll", id=name, timeout_s=20) == told
    await bench.exec.run(ExecArguments(command="echo word >in"), tool_turn(bench.workspace))
    text = await bench.do("poll", id=name, timeout_s=20)

    assert text == "[ended with exit code 7]"
    assert (bench.workspace / "out").read_text() == "word\n"


async def test_stopping_a_turn_ends_what_it_started_and_nothing_else(
    bench: Bench, marker: str
) -> None:
    first = await bench.start(family(marker), turn="in:1")
    second = await bench.start("cat", turn="in:2")
    await begun(bench, first)

    ended = await bench.background.kill_turn("in:1")

    assert ended == 1
    assert alive(marker) == []
    assert (await bench.do("poll", id=first)).endswith(
        "[stopped by the user, with everything it started]"
    )
    assert await bench.do("poll", id=second, timeout_s=0) == "[running, no new output]"


async def test_a_process_started_this_instant_can_be_ended(bench: Bench, marker: str) -> None:
    name = await bench.start(f"sleep 300; : {marker}")

    await bench.do("kill", id=name)

    assert alive(marker) == []


async def test_ending_a_session_forgets_its_processes(small: Bench, marker: str) -> None:
    await small.start(f"sleep 300; : {marker}", session="a:1")
    await small.start("cat", session="a:2")

    await small.background.kill_session("a:1")

    assert alive(marker) == []
    assert small.background.of_session("a:1") == ()
    assert [state.id for state in small.background.of_session("a:2")] == ["bg-2"]


async def test_closing_ends_everything(bench: Bench, marker: str) -> None:
    for session in ("a:1", "a:2", "a:3"):
        name = await bench.start(family(marker), session=session)
        await begun(bench, name, session)

    await bench.background.aclose()

    assert alive(marker) == []


async def test_nothing_stays_open_after_a_hundred_processes(small: Bench) -> None:
    async def run_one() -> None:
        name = await small.start("echo x")
        await small.background.poll("cli:direct", name, 20)

    await run_one()
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(100):
        await run_one()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_tmux_server_lives_on_and_serves_later_commands(bench: Bench) -> None:
    if not Path("/usr/bin/tmux").exists():
        pytest.skip("tmux is not installed")

    async def run(command: str) -> str:
        args = ExecArguments(command=command, timeout=20)
        return (await bench.exec.run(args, tool_turn(bench.workspace))).text

    name = await bench.start("tmux -S tmux.sock -f /dev/null new-session -d -s work 'cat >typed'")
    assert await until(lambda: (bench.workspace / "typed").exists())

    await run("tmux -S tmux.sock send-keys -t work 'hello there' Enter")
    assert await until(lambda: (bench.workspace / "typed").read_text() == "hello there\n")
    await run("tmux -S tmux.sock kill-server")

    assert (await bench.do("poll", id=name, timeout_s=20)).endswith("[ended with exit code 0]")
