"""The exec tool: who may run what, where, and what the model reads of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nanobot.core.errors import ToolError
from nanobot.core.events import Event, Notice
from nanobot.core.messages import Role, Trust
from nanobot.core.tool import ToolContext
from nanobot.safety.paths import PathResolver
from nanobot.shell.commands import BackgroundProcesses, CommandRunner, OutputLimits
from nanobot.shell.exec import Exec, ExecArguments
from nanobot.shell.sandbox import Sandbox, SandboxMode, SandboxPolicy
from nanobot.store.home import Home
from tests.fakes.tool_turns import tool_turn


class Bench:
    """An exec tool in a home of its own, by default unsandboxed."""

    def __init__(
        self,
        root: Path,
        *,
        mode: SandboxMode = SandboxMode.OFF,
        path: str = "/usr/bin:/bin",
        restrict: bool = False,
        lasting: bool = True,
    ) -> None:
        self.home = Home(root)
        self.workspace = self.home.default_workspace
        self.workspace.mkdir(parents=True)
        self.sandbox = Sandbox(
            SandboxPolicy(mode=mode), environ={"PATH": path}, user_home=Path.home()
        )
        self.runner = CommandRunner(self.sandbox, OutputLimits(20, 20))
        self.background = BackgroundProcesses(self.runner, lasting=lasting, new_id=lambda: "bg-1")
        self.tool = Exec(
            PathResolver(self.home, restrict=restrict),
            self.runner,
            self.background,
            default_timeout=20,
        )

    async def run(self, context: ToolContext | None = None, **arguments: object) -> str:
        output = await self.tool.run(
            ExecArguments.model_validate(arguments), context or tool_turn(self.workspace)
        )
        assert output.trust is Trust.TRUSTED
        return output.text

    async def aclose(self) -> None:
        await self.background.aclose()
        await self.runner.aclose()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path.resolve() / "home")
    yield bench
    await bench.aclose()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo hello", "hello"),
        ("true", "[no output]"),
        ("exit 3", "[exit code 3]"),
        ("echo no >&2; false", "no\n[exit code 1]"),
        ("pwd | xargs basename", "workspace"),
        ("echo $BASH_VERSION | cut -c 2", "."),
    ],
)
async def test_the_model_reads_output_and_what_went_wrong(
    bench: Bench, command: str, text: str
) -> None:
    assert await bench.run(command=command) == text


async def test_long_output_is_shown_head_and_tail(bench: Bench) -> None:
    text = await bench.run(command="printf '%020d' 1; head -c 1000 /dev/zero; printf '%020d' 2")

    assert text == f"{1:020d}\n[… 1,000 bytes left out …]\n{2:020d}"


async def test_a_command_over_its_time_says_so(bench: Bench) -> None:
    for timeout in (0.5, 2, 8, 32):  # how long a shell takes to begin depends on the machine
        text = await bench.run(command="echo begun; sleep 100", timeout=timeout)
        if text.startswith("begun"):
            break

    assert text == f"begun\n[stopped after {timeout:g} s, with everything it started]"


async def test_the_default_time_is_the_configured_one(bench: Bench) -> None:
    resolver = PathResolver(bench.home, restrict=False)
    tool = Exec(resolver, bench.runner, bench.background, default_timeout=0.2)

    output = await tool.run(ExecArguments(command="sleep 100"), tool_turn(bench.workspace))

    assert output.text == "[stopped after 0.2 s, with everything it started]"


async def test_the_working_directory_follows_the_rules_of_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path.resolve() / "home", restrict=True)
    (bench.workspace / "sub").mkdir()
    (bench.workspace / "file").touch()

    assert (await bench.run(command="pwd", working_dir="sub")).endswith("/workspace/sub")
    for place in ("/etc", "..", "~", str(bench.home.root), "missing", "file"):
        with pytest.raises(ToolError):
            await bench.run(command="pwd", working_dir=place)


async def test_variables_of_the_turn_reach_its_command_alone(bench: Bench) -> None:
    context = tool_turn(bench.workspace, environment={"CITY_KEY": "fake"})

    assert await bench.run(context, command="echo [$CITY_KEY]") == "[fake]"
    assert await bench.run(command="echo [$CITY_KEY]") == "[]"


async def test_a_guest_runs_nothing(bench: Bench) -> None:
    context = tool_turn(bench.workspace, role=Role.GUEST, attended=True)

    with pytest.raises(ToolError, match="owner"):
        await bench.run(context, command="touch ran")
    assert not (bench.workspace / "ran").exists()


async def test_a_plainly_destructive_command_is_refused_with_the_reason(bench: Bench) -> None:
    with pytest.raises(ToolError, match="Refused: the command deletes /home"):
        await bench.run(command="touch ran; rm -rf /home")
    assert not (bench.workspace / "ran").exists()


@pytest.mark.parametrize("mode", [SandboxMode.AUTO, SandboxMode.REQUIRE])
async def test_without_a_sandbox_an_unattended_command_is_refused(
    tmp_path: Path, mode: SandboxMode
) -> None:
    bench = Bench(tmp_path / "home", mode=mode, path="/nowhere")

    with pytest.raises(ToolError, match=r"no sandbox works .*not installed"):
        await bench.run(command="touch ran")
    assert not (bench.workspace / "ran").exists()


async def test_required_means_required_at_the_owners_terminal_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "home", mode=SandboxMode.REQUIRE, path="/nowhere")

    with pytest.raises(ToolError, match="no sandbox works"):
        await bench.run(tool_turn(bench.workspace, attended=True), command="true")


async def test_a_restricted_command_does_not_run_without_a_sandbox(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "home", mode=SandboxMode.AUTO, path="/nowhere", restrict=True)

    with pytest.raises(ToolError, match=r"with tools\.restrictToWorkspace nowhere"):
        await bench.run(tool_turn(bench.workspace, attended=True), command="touch ran")
    assert not (bench.workspace / "ran").exists()


async def test_at_the_owners_terminal_it_runs_with_one_warning_a_session(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "home", mode=SandboxMode.AUTO, path="/nowhere")
    events: list[Event] = []

    def turn(session: str) -> ToolContext:
        return tool_turn(bench.workspace, session=session, attended=True, emit=events.append)

    texts = [await bench.run(turn(session), command="echo hi") for session in ("a:1", "a:1", "a:2")]

    warning = (
        "No sandbox works on this machine (bubblewrap (bwrap) is not installed): "
        "commands run with your full rights."
    )
    assert texts == [f"hi\n[{warning}]", "hi", f"hi\n[{warning}]"]
    assert events == [Notice(warning), Notice(warning)]


async def test_with_a_sandbox_that_works_it_is_used(tmp_path: Path) -> None:
    bench = Bench(tmp_path.resolve() / "home", mode=SandboxMode.AUTO)
    if not (await bench.sandbox.probe()).works:
        pytest.skip("no sandbox works on this machine")
    bench.home.config_file.write_text("secret")

    assert await bench.run(command="ls ..") == "workspace"
    assert await bench.run(command="cat ../config.json 2>/dev/null") == "[exit code 1]"
    with pytest.raises(ToolError, match="belongs to nanobot"):
        await bench.run(command="ls", working_dir="..")
    with pytest.raises(ToolError, match="cannot be seen"):
        await bench.run(command="ls", working_dir="/var")


# --- background ---------------------------------------------------------------------------------


async def test_a_background_command_gives_its_id_and_goes_on(bench: Bench) -> None:
    (bench.workspace / "sub").mkdir()
    context = tool_turn(bench.workspace, environment={"CITY_KEY": "fake"})

    text = await bench.run(
        context, command="pwd; echo $CITY_KEY; cat", working_dir="sub", background=True
    )
    state, output = await bench.background.poll("cli:direct", "bg-1", 20)

    assert text == "Runs in the background as bg-1; see what it says with process."
    assert (state.exit_code, output.text()) == (None, f"{bench.workspace}/sub\nfake\n")


async def test_a_background_command_may_have_a_limit_too(bench: Bench) -> None:
    text = await bench.run(command="exec sleep 100", background=True, timeout=0.2)
    state, _ = await bench.background.poll("cli:direct", "bg-1", 20)

    assert text.startswith("Runs in the background as bg-1, for at most 0.2 s;")
    assert state.reason == "stopped after 0.2 s"


async def test_without_a_gateway_the_model_is_told_how_long_it_lasts(tmp_path: Path) -> None:
    bench = Bench(tmp_path.resolve() / "home", lasting=False)

    text = await bench.run(command="cat", background=True)
    await bench.aclose()

    assert text.splitlines()[1] == (
        "[No gateway is running: it ends as soon as you have given your final answer. "
        "`nanobot gateway` would keep it.]"
    )


@pytest.mark.parametrize("command", ["rm -rf /home", "touch ran"])
async def test_the_rules_hold_in_the_background_too(tmp_path: Path, command: str) -> None:
    bench = Bench(tmp_path / "home", mode=SandboxMode.AUTO, path="/nowhere")
    guest = tool_turn(bench.workspace, role=Role.GUEST, attended=True)

    for context in (None, guest):
        with pytest.raises(ToolError):
            await bench.run(context, command=command, background=True)

    assert bench.background.of_session("cli:direct") == ()
    assert not (bench.workspace / "ran").exists()
