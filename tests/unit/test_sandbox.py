"""What commands can see, and that nothing of them is left, with a sandbox and without."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from nanobot.core.errors import ToolError
from nanobot.safety.paths import DiskView
from nanobot.shell import process_tree as process
from nanobot.shell.commands import CommandResult, CommandRunner, OutputLimits, ShellCommand
from nanobot.shell.process_tree import OutputBuffer
from nanobot.shell.sandbox import Probe, Sandbox, SandboxNetwork, SandboxPolicy
from nanobot.shell.supervisor import descendants

# Hides in every way there is: new sessions, lost parents, ignored signals, an empty environment,
# closed output.
ESCAPE_ARTIST = """
import os, signal, sys, time

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)

def hide(marker, *, closed):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    if closed:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
    os.execve(sys.executable, [sys.executable, "-c", sys.argv[3], marker], {})

hide(sys.argv[1], closed=False)
hide(sys.argv[1], closed=True)
print("hidden", flush=True)
time.sleep(float(sys.argv[2]))
"""
HIDDEN = "import time; time.sleep(1000)"


def sandbox_of(
    policy: SandboxPolicy | None = None, environ: Mapping[str, str] | None = None
) -> Sandbox:
    return Sandbox(
        policy or SandboxPolicy(), environ={**os.environ, **(environ or {})}, user_home=Path.home()
    )


def works() -> bool:
    return shutil.which("bwrap") is not None and asyncio.run(sandbox_of().probe()).works


needs_sandbox = pytest.mark.skipif(not works(), reason="no sandbox works on this machine")
both_ways = pytest.mark.parametrize(
    "sandboxed", [pytest.param(True, marks=needs_sandbox, id="sandboxed"), False]
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path.resolve() / "workspace"
    workspace.mkdir()
    return workspace


@pytest.fixture
async def runner() -> AsyncIterator[CommandRunner]:
    runner = CommandRunner(sandbox_of())
    yield runner
    await runner.aclose()


async def run(
    runner: CommandRunner,
    command: str,
    workspace: Path,
    *,
    sandboxed: bool,
    timeout: float = 20.0,
    view: DiskView | None = None,
    environment: dict[str, str] | None = None,
) -> CommandResult:
    view = view or DiskView((workspace,))
    return await runner.run(
        ShellCommand(command, workspace, environment or {}, view, sandboxed), timeout=timeout
    )


async def stopped_after_saying(
    runner: CommandRunner, said: str, command: str, workspace: Path, *, sandboxed: bool
) -> CommandResult:
    """Run a command into its time limit, which is long enough for it to have ``said`` something.

    How long that takes depends on the machine: a short limit is tried first.
    """
    for timeout in (0.5, 2.0, 8.0, 20.0):
        result = await run(runner, command, workspace, sandboxed=sandboxed, timeout=timeout)
        if said in result.output.text():
            break
    return result


async def printed(runner: CommandRunner, command: str, workspace: Path, **options: object) -> str:
    result = await run(runner, command, workspace, sandboxed=True, **options)  # type: ignore[arg-type]
    return result.output.text().strip()


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


async def eventually(condition: Callable[[], bool], within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - asks the kernel
        await asyncio.sleep(0.01)
    return condition()


def artist(workspace: Path, seconds: float) -> tuple[str, str]:
    """(command, marker) of the escape artist, which stays ``seconds`` itself."""
    script = workspace / "artist.py"
    script.write_text(ESCAPE_ARTIST)
    marker = f"marker-{uuid4().hex}"
    return f"exec /usr/bin/env python3 artist.py {marker} {seconds} '{HIDDEN}'", marker


# --- ends ---------------------------------------------------------------------------------------


@both_ways
async def test_a_command_gives_its_output_and_exit_code(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    result = await run(runner, "echo out; echo err >&2; exit 3", workspace, sandboxed=sandboxed)

    assert (result.exit_code, result.output.text(), result.timed_out) == (3, "out\nerr\n", False)


@both_ways
@pytest.mark.parametrize(
    ("command", "code"),
    [("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill 0", 143), ("exit 300", 44)],
)
async def test_an_end_by_a_signal_is_told_as_shells_do(
    runner: CommandRunner, workspace: Path, sandboxed: bool, command: str, code: int
) -> None:
    result = await run(runner, command, workspace, sandboxed=sandboxed)

    assert result.exit_code == code


@both_ways
async def test_input_is_empty(runner: CommandRunner, workspace: Path, sandboxed: bool) -> None:
    result = await run(runner, "cat; read line || echo none", workspace, sandboxed=sandboxed)

    assert (result.exit_code, result.output.text()) == (0, "none\n")


@both_ways
async def test_a_reader_that_leaves_ends_its_writer_by_sigpipe(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    result = await run(
        runner, 'yes | head -n 1; echo "${PIPESTATUS[0]}"', workspace, sandboxed=sandboxed
    )

    assert result.output.text() == "y\n141\n"


@both_ways
async def test_a_flood_of_output_is_kept_head_and_tail_in_little_memory(
    workspace: Path, sandboxed: bool
) -> None:
    runner = CommandRunner(sandbox_of(), OutputLimits(head=10, tail=6))

    result = await run(
        runner,
        "echo begin; head -c 30000000 /dev/zero | tr '\\0' x; echo end",
        workspace,
        sandboxed=sandboxed,
    )

    captured = result.output
    assert (captured.head, captured.tail) == ("begin\nxxxx", "xxend\n")
    assert captured.omitted == 30_000_000 + len("begin\nend\n") - 16
    assert "29,999,994 bytes left out" in captured.text()


@both_ways
async def test_a_command_over_its_time_is_stopped_with_its_output_so_far(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    result = await stopped_after_saying(
        runner, "first", "echo first; sleep 1000", workspace, sandboxed=sandboxed
    )

    assert (result.timed_out, result.output.text()) == (True, "first\n")


@both_ways
async def test_what_is_stopped_may_clean_up_first(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    command = "trap 'echo tidy > done; exit' TERM; echo ready; while :; do sleep 0.01; done"

    await stopped_after_saying(runner, "ready", command, workspace, sandboxed=sandboxed)

    assert (workspace / "done").read_text() == "tidy\n"


@both_ways
async def test_a_child_in_the_background_does_not_keep_the_command_open(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    marker = f"1000.{uuid4().int}"

    result = await run(
        runner, f"sleep {marker} & echo started", workspace, sandboxed=sandboxed, timeout=20
    )

    assert (result.exit_code, result.output.text()) == (0, "started\n")
    assert await eventually(lambda: not alive(marker))


# --- nothing is left ----------------------------------------------------------------------------


@both_ways
async def test_an_escape_artist_does_not_survive_its_time(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    command, marker = artist(workspace, 1000)

    result = await stopped_after_saying(runner, "hidden", command, workspace, sandboxed=sandboxed)

    assert (result.timed_out, result.output.text()) == (True, "hidden\n")
    assert await eventually(lambda: not alive(marker))


@both_ways
async def test_an_escape_artist_does_not_survive_the_end_of_its_command(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    command, marker = artist(workspace, 0)

    result = await run(runner, command, workspace, sandboxed=sandboxed)

    assert (result.exit_code, result.output.text()) == (0, "hidden\n")
    assert await eventually(lambda: not alive(marker))


@both_ways
async def test_cancelling_kills_everything(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    command, marker = artist(workspace, 1000)
    task = asyncio.create_task(run(runner, command, workspace, sandboxed=sandboxed))
    assert await eventually(lambda: len(alive(f"-c\0{HIDDEN}\0{marker}\0")) == 2)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await eventually(lambda: not alive(marker))


@both_ways
async def test_cancelling_twice_in_a_row_kills_everything(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    command, marker = artist(workspace, 1000)
    task = asyncio.create_task(run(runner, command, workspace, sandboxed=sandboxed))
    assert await eventually(lambda: len(alive(f"-c\0{HIDDEN}\0{marker}\0")) == 2)

    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await eventually(lambda: not alive(marker))


@both_ways
async def test_cancelling_at_once_leaves_nothing(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    marker = f"1000.{uuid4().int}"
    for steps in range(4):
        task = asyncio.create_task(run(runner, f"sleep {marker}", workspace, sandboxed=sandboxed))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert await eventually(lambda: not alive(marker))


@both_ways
async def test_closing_the_runner_ends_what_runs(workspace: Path, sandboxed: bool) -> None:
    runner = CommandRunner(sandbox_of())
    marker = f"1000.{uuid4().int}"
    tree = runner.start(
        ShellCommand(f"sleep {marker}", workspace, {}, DiskView((workspace,)), sandboxed)
    )
    assert await eventually(lambda: bool(alive(marker)))

    await runner.aclose()

    assert tree.exit_code not in (None, 0)
    assert await eventually(lambda: not alive(marker))


DAEMON = """
import asyncio, os, sys
from pathlib import Path
from nanobot.shell.commands import CommandRunner, ShellCommand
from nanobot.safety.paths import DiskView
from nanobot.shell.sandbox import Sandbox, SandboxPolicy

async def main(workspace, command, sandboxed):
    sandbox = Sandbox(SandboxPolicy(), environ=os.environ, user_home=Path.home())
    await CommandRunner(sandbox).run(
        ShellCommand(command, workspace, {}, DiskView((workspace,)), sandboxed), timeout=1000
    )

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"))
"""


@both_ways
async def test_nothing_survives_a_daemon_that_is_killed(workspace: Path, sandboxed: bool) -> None:
    command, marker = artist(workspace, 1000)
    daemon = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DAEMON, str(workspace), command, str(sandboxed))
    )
    try:
        assert await eventually(lambda: len(alive(f"-c\0{HIDDEN}\0{marker}\0")) == 2, within=20.0)
    finally:
        daemon.kill()
        await daemon.wait()

    assert await eventually(lambda: not alive(marker))


@pytest.mark.parametrize("number", ["STOP", "KILL"])
async def test_an_attack_on_the_supervisor_does_not_save_its_command(
    runner: CommandRunner, workspace: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setattr(process, "_BACKSTOP_S", 0.3)
    marker = f"1000.{uuid4().int}"

    await run(
        runner, f"kill -{number} $PPID; sleep {marker}", workspace, sandboxed=False, timeout=0.5
    )

    assert await eventually(lambda: not alive(marker))


@both_ways
async def test_many_commands_leave_no_descriptor_thread_or_zombie(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    async def some(number: int) -> None:
        for _ in range(number):
            await asyncio.gather(
                run(runner, "echo x | cat", workspace, sandboxed=sandboxed),
                run(runner, "sleep 100 & exit 1", workspace, sandboxed=True)
                if sandboxed
                else run(runner, "exit 1", workspace, sandboxed=False),
            )

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def children() -> list[int]:
        return descendants(os.getpid()) + zombies()

    await some(2)
    before = descriptors()
    await some(28)

    assert descriptors() == before
    assert await eventually(lambda: not children())


def zombies() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) == os.getpid():
                found.append(int(entry.name))
    return found


async def test_a_command_that_cannot_be_started_is_an_error_to_read(
    runner: CommandRunner, workspace: Path
) -> None:
    for command in ("a\0b", "x" * 3_000_000):
        with pytest.raises(ToolError, match="could not be started"):
            await run(runner, command, workspace, sandboxed=False)


# --- the environment ----------------------------------------------------------------------------


@both_ways
async def test_a_command_gets_no_secret_of_the_daemons_environment(
    workspace: Path, sandboxed: bool
) -> None:
    secrets = {
        "OPENAI_API_KEY": "sk-fake-0123456789",
        "NANOBOT_CHANNELS__TELEGRAM__TOKEN": "12345678:fake",
        "AWS_SECRET_ACCESS_KEY": "fake",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "HTTPS_PROXY": "http://user:fake@proxy.invalid",
    }
    runner = CommandRunner(sandbox_of(environ=secrets))

    result = await run(runner, "printenv -0 | tr '\\0' '\\n'", workspace, sandboxed=sandboxed)

    names = {line.partition("=")[0] for line in result.output.text().splitlines()}
    assert {"PATH", "HOME", "LANG"} - names <= {"LANG"}
    assert not names & secrets.keys()


@both_ways
async def test_the_variables_of_the_turn_reach_the_command_and_nobody_else(
    runner: CommandRunner, workspace: Path, sandboxed: bool
) -> None:
    result = await run(
        runner,
        'echo "$WEATHER_KEY"',
        workspace,
        sandboxed=sandboxed,
        environment={"WEATHER_KEY": "fake-key"},
    )

    assert result.output.text() == "fake-key\n"
    assert "WEATHER_KEY" not in os.environ


@both_ways
async def test_commands_speak_utf8_whatever_the_locale_of_the_daemon(
    workspace: Path, sandboxed: bool
) -> None:
    runner = CommandRunner(sandbox_of(environ={"LANG": "C", "LC_ALL": "POSIX"}))
    code = "import sys,os; print('grüße', sys.stdout.encoding, sys.getfilesystemencoding())"

    result = await run(
        runner,
        f'/usr/bin/env python3 -c "{code}"; printf "\\xff\\0z\\n"',
        workspace,
        sandboxed=sandboxed,
    )

    assert result.output.text() == "grüße utf-8 utf-8\n\ufffd\ufffdz\n"


@needs_sandbox
async def test_the_search_path_names_only_what_is_there_inside(workspace: Path) -> None:
    user_home = workspace.parent / "user"
    sandbox = Sandbox(
        SandboxPolicy(),
        environ={"PATH": f"{user_home}/.local/bin:{workspace}/bin:/usr/bin:relative"},
        user_home=user_home,
    )

    environment = sandbox.environment(DiskView((workspace,)), {})

    assert environment["PATH"].split(":")[:3] == [
        f"{workspace}/bin",
        "/usr/bin",
        "/usr/local/sbin",
    ]
    assert environment["HOME"] == str(workspace)


# --- what is seen of the disk and the machine ---------------------------------------------------


@needs_sandbox
async def test_the_workspace_is_written_and_the_system_is_not(
    runner: CommandRunner, workspace: Path
) -> None:
    assert await printed(runner, "echo x > a && cat a && pwd", workspace) == f"x\n{workspace}"
    assert (workspace / "a").read_text() == "x\n"
    for place in ("/usr/x", "/etc/x", "/x", "/opt/x"):
        result = await run(runner, f"touch {place}", workspace, sandboxed=True)
        assert result.exit_code == 1, place
        assert not Path(place).exists()


@needs_sandbox
async def test_homes_and_other_peoples_files_are_not_there(
    runner: CommandRunner, workspace: Path
) -> None:
    secret = workspace.parent / "secret.txt"
    secret.write_text("secret")
    sibling = workspace.parent / "workspace_evil"
    sibling.mkdir()

    assert await printed(runner, f"ls -A {workspace.parent}", workspace) == "workspace"
    assert await printed(runner, f"ls -A {Path.home()} /home /root 2>/dev/null", workspace) == ""


@needs_sandbox
async def test_a_link_out_of_the_workspace_leads_nowhere(
    runner: CommandRunner, workspace: Path
) -> None:
    (workspace.parent / "secret.txt").write_text("secret")
    (workspace / "link").symlink_to(workspace.parent / "secret.txt")

    result = await run(runner, "cat link", workspace, sandboxed=True)

    assert result.exit_code == 1
    assert "secret\n" not in result.output.text()


@needs_sandbox
async def test_other_processes_and_their_environments_are_out_of_sight(
    runner: CommandRunner, workspace: Path
) -> None:
    pid = os.getpid()
    processes = await printed(runner, "ls -d /proc/[0-9]* | wc -l; ls /proc/$PPID/cwd", workspace)
    environments = await printed(
        runner, f"cat /proc/{pid}/environ; cat /proc/*/environ | tr '\\0' '\\n'", workspace
    )

    assert int(processes.split()[0]) < 8
    assert "PYTEST_CURRENT_TEST" not in environments
    assert "TERM=dumb" in environments


@needs_sandbox
async def test_keys_in_etc_are_hidden_even_from_root(
    runner: CommandRunner, workspace: Path
) -> None:
    assert await printed(runner, "cat /etc/shadow 2>/dev/null; echo $?", workspace) == "1"


@needs_sandbox
async def test_the_temporary_directory_is_the_commands_own(
    runner: CommandRunner, workspace: Path
) -> None:
    name = f"nanobot-test-{uuid4().hex}"

    await run(runner, f"touch /tmp/{name} /var/tmp/{name}", workspace, sandboxed=True)

    assert not Path("/tmp", name).exists()
    assert await printed(runner, f"ls /tmp/{name} 2>/dev/null", workspace) == ""


@needs_sandbox
async def test_readable_places_are_read_only(runner: CommandRunner, workspace: Path) -> None:
    skill = workspace.parent / "skills" / "weather"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("# Weather\n")
    history = workspace / "HISTORY.md"
    history.write_text("then\n")
    view = DiskView((workspace,), (skill, history))

    assert await printed(runner, f"cat {skill}/SKILL.md HISTORY.md", workspace, view=view) == (
        "# Weather\nthen"
    )
    for place in (skill / "SKILL.md", history):
        result = await run(runner, f"echo x >> {place}", workspace, sandboxed=True, view=view)
        assert result.exit_code == 1
    assert history.read_text() == "then\n"


@needs_sandbox
async def test_a_workspace_round_the_home_hides_it_but_what_is_shown_of_it(
    runner: CommandRunner, workspace: Path
) -> None:
    home = workspace / ".nanobot"
    spill = home / "spill" / "cli%3Adirect"
    spill.mkdir(parents=True)
    (home / "config.json").write_text("secret")
    (spill / "r.txt").write_text("result")
    view = DiskView((workspace,), (spill,), (home,))

    shown = await printed(
        runner,
        "find .nanobot -type f; touch beside; cat .nanobot/config.json",
        workspace,
        view=view,
    )

    assert shown.splitlines()[0] == ".nanobot/spill/cli%3Adirect/r.txt"
    assert "secret" not in shown
    assert (workspace / "beside").exists()


@needs_sandbox
async def test_a_workspace_inside_the_hidden_home_is_still_there(
    runner: CommandRunner, workspace: Path
) -> None:
    home = workspace
    inner = home / "workspace"
    inner.mkdir()
    (home / "config.json").write_text("secret")

    shown = await printed(
        runner, f"touch here; ls {home}", inner, view=DiskView((inner,), (), (home,))
    )

    assert shown == "workspace"
    assert (inner / "here").exists()


@needs_sandbox
async def test_hidden_single_files_are_empty(runner: CommandRunner, workspace: Path) -> None:
    config = workspace / "config.json"
    config.write_text("secret")
    view = DiskView((workspace,), (), (config, workspace / "not-there"))

    shown = await printed(runner, "cat config.json; touch a", workspace, view=view)

    assert "secret" not in shown
    assert (workspace / "a").exists()


@needs_sandbox
async def test_a_workspace_named_by_a_link_is_there_under_both_names(
    runner: CommandRunner, workspace: Path
) -> None:
    link = workspace.parent / "link"
    link.symlink_to(workspace)

    shown = await printed(
        runner, f"echo x > {link}/a; cat {workspace}/a", workspace, view=DiskView((workspace, link))
    )

    assert shown == "x"


@needs_sandbox
@pytest.mark.parametrize(("network", "reachable"), [("on", True), ("off", False)])
async def test_the_network_can_be_switched_off(
    workspace: Path, network: str, reachable: bool
) -> None:
    runner = CommandRunner(sandbox_of(SandboxPolicy(network=SandboxNetwork(network))))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await run(
            runner, f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo yes", workspace, sandboxed=True
        )

    assert (result.exit_code == 0) is reachable


@needs_sandbox
async def test_nobody_is_root_inside(runner: CommandRunner, workspace: Path) -> None:
    shown = await printed(runner, "grep CapEff /proc/self/status; ulimit -c", workspace)

    assert shown.split() == ["CapEff:", "0000000000000000", "0"]


@needs_sandbox
async def test_further_folders_of_programs_can_be_set(workspace: Path) -> None:
    tools = workspace.parent / "tools"
    tools.mkdir()
    (tools / "note").write_text("hello")
    runner = CommandRunner(sandbox_of(SandboxPolicy(path_append=(tools,))))

    assert await printed(runner, f"cat {tools}/note; touch {tools}/x 2>&1 | wc -l", workspace) == (
        "hello1"
    )


def test_a_directory_that_is_not_there_inside_is_refused(workspace: Path) -> None:
    sandbox = sandbox_of()
    for place in (workspace.parent, Path("/"), Path.home()):
        with pytest.raises(ToolError, match="cannot be seen"):
            sandbox.wrap(["true"], view=DiskView((workspace,)), cwd=place)
    with pytest.raises(ToolError, match="whole disk"):
        sandbox.wrap(["true"], view=DiskView((Path("/"),)), cwd=workspace)


# --- the probe ----------------------------------------------------------------------------------


def fake_bwrap(directory: Path, script: str) -> str:
    directory.mkdir()
    program = directory / "bwrap"
    program.write_text(f"#!/bin/sh\necho run >> {directory}/count\n{script}\n")
    program.chmod(0o755)
    return str(directory)


async def test_without_bubblewrap_the_probe_says_so(tmp_path: Path) -> None:
    sandbox = sandbox_of(environ={"PATH": str(tmp_path)})

    assert await sandbox.probe() == Probe(False, "bubblewrap (bwrap) is not installed")


async def test_a_bubblewrap_that_fails_is_not_taken_for_a_sandbox(tmp_path: Path) -> None:
    message = "bwrap: setting up uid map: Permission denied"
    sandbox = sandbox_of(
        environ={"PATH": fake_bwrap(tmp_path / "bin", f"echo '{message}' >&2; exit 1")}
    )

    assert await sandbox.probe() == Probe(False, message)


async def test_a_bubblewrap_that_does_nothing_is_not_taken_for_a_sandbox(tmp_path: Path) -> None:
    sandbox = sandbox_of(environ={"PATH": fake_bwrap(tmp_path / "bin", "exit 0")})

    assert await sandbox.probe() == Probe(False, "bubblewrap ended with code 0")


async def test_the_probe_is_made_once(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    sandbox = sandbox_of(environ={"PATH": fake_bwrap(directory, "exit 1")})

    await asyncio.gather(*(sandbox.probe() for _ in range(5)))

    assert (directory / "count").read_text() == "run\n"


async def test_a_probe_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanobot.shell.sandbox._PROBE_LIMIT_S", 0.2)
    sandbox = sandbox_of(environ={"PATH": fake_bwrap(tmp_path / "bin", "exec sleep 1000")})

    assert await sandbox.probe() == Probe(False, "bubblewrap did not answer within 0.2 s")


# --- keeping output -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 12))
def test_a_character_is_never_cut_in_two(size: int) -> None:
    text = "aé€😀" * 5
    buffer = OutputBuffer(size, size)
    for byte in text.encode():
        buffer.feed(bytes([byte]))

    captured = buffer.captured()

    assert "\ufffd" not in captured.head + captured.tail
    assert text.startswith(captured.head)
    assert text.endswith(captured.tail)
    kept = len((captured.head + captured.tail).encode())
    assert kept + captured.omitted == len(text.encode())


def test_what_fits_is_kept_whole_however_it_arrives() -> None:
    buffer = OutputBuffer(4, 4)
    for byte in "1234€8".encode():
        buffer.feed(bytes([byte]))

    assert buffer.captured().text() == "1234€8"
