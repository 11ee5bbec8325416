"""Tools of other packages, installed for real: found, checked, guarded, or left out with a word."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanobot.core.chat import ToolCall
from nanobot.core.messages import Role
from nanobot.core.tool import Effect
from nanobot.store.home import Home
from nanobot.tools.plugins import Plugins, load_plugins
from nanobot.tools.registry import ToolRegistry
from tests.fakes.tool_turns import tool_turn

GREET = """
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolOutput


class Greeting(ToolArguments):
    whom: str


class Greet(Tool[Greeting]):
    name = "{name}"
    description = "Greets somebody."
    effect = Effect.READ
    arguments = Greeting

    def __init__(self, host):
        self._host = host

    async def run(self, args, context):
        seen = self._host.data_dir() / "seen"
        seen.write_text(args.whom)
        return ToolOutput(f"{{self._host.environ['GREETING']}}, {{args.whom}}!")
"""

Install = Callable[..., None]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.private(home.root)
    return home


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution ``name`` with one module and its entry points."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    modules: list[str] = []

    def install(name: str, source: str, *points: str) -> None:
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = points or (f"tool = {name}:Greet",)
        (info / "entry_points.txt").write_text("[nanobot.tools]\n" + "\n".join(lines) + "\n")
        (site / f"{name}.py").write_text(source)
        modules.append(name)

    yield install
    for module in modules:
        sys.modules.pop(module, None)


def load(home: Home, *taken: str) -> Plugins:
    return load_plugins(home, {"GREETING": "Good morning"}, taken)


def names(plugins: Plugins) -> list[str]:
    return [tool.name for tool in plugins.tools]


def test_without_any_package_there_is_nothing(home: Home) -> None:
    assert load(home) == Plugins()


async def test_a_tool_of_an_installed_package_works_like_any_other(
    home: Home, install: Install
) -> None:
    install("nanobot_greet", GREET.format(name="greet"))

    plugins = await asyncio.to_thread(load, home, "exec")

    registry = ToolRegistry(plugins.tools)
    result = await registry.execute(
        ToolCall("1", "greet", '{"whom": "Ann"}'), tool_turn(home.default_workspace)
    )
    folder = home.root / "plugins" / "nanobot_greet"
    assert plugins.problems == ()
    assert (registry.names, registry.effect_of("greet")) == (("greet",), Effect.READ)
    assert registry.specs()[0].parameters["required"] == ["whom"]
    assert (result.output.text, result.ok) == ("Good morning, Ann!", True)
    assert (folder / "seen").read_text() == "Ann"
    assert [place.stat().st_mode & 0o777 for place in (folder, folder.parent)] == [0o700, 0o700]


async def test_a_guest_cannot_use_it(home: Home, install: Install) -> None:
    install("nanobot_greet", GREET.format(name="greet"))
    registry = ToolRegistry(load(home).tools)

    result = await registry.execute(
        ToolCall("1", "greet", '{"whom": "Ann"}'),
        tool_turn(home.default_workspace, role=Role.GUEST),
    )

    assert (result.output.text, result.ok) == ("Only the owner's turns may use greet.", False)
    assert not home.plugins.exists()


def test_the_order_is_always_the_same(home: Home, install: Install) -> None:
    install("zebra", GREET.format(name="a_tool"))
    install(
        "ant",
        GREET.format(name="z_tool") + GREET.format(name="b_tool").replace("Greet(", "Other("),
        "two = ant:Greet",
        "one = ant:Other",
    )

    assert names(load(home)) == ["b_tool", "z_tool", "a_tool"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise RuntimeError('no licence\\nhere')", "RuntimeError: no licence here"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_"),
        ("Great = None", "AttributeError: module 'broken' has no attribute 'Greet'"),
        ("Greet = 7", "TypeError: 'int' object is not callable"),
        ("def Greet(host): raise KeyError('GREET_KEY')", "KeyError: 'GREET_KEY'"),
        ("def Greet(host): return host", "broken:Greet makes no nanobot.core.tool.Tool"),
        ("def Greet(): pass", "TypeError: Greet() takes 0 positional arguments"),
        (GREET.format(name="exec"), "there is another tool of the name exec"),
        (GREET.format(name="two words"), "'two words' is no name that models can call"),
        (GREET.format(name="greet").replace("effect =", "no ="), "it does not say its effect"),
        (GREET.format(name="greet").replace("Effect.READ", "'read'"), "its effect is none"),
        (GREET.format(name="greet").replace("= Greeting", "= dict"), "its arguments are no Tool"),
        (
            GREET.format(name="greet").replace("async def run", "async def walk"),
            "TypeError: Can't instantiate abstract class Greet",
        ),
        (GREET.format(name="greet").replace("whom: str", "whom: 'Whom'"), "PydanticUserError: "),
    ],
)
def test_a_broken_tool_is_left_out_with_a_word_and_breaks_no_other(
    home: Home, install: Install, source: str, problem: str
) -> None:
    install("broken", source)
    install("sound", GREET.format(name="sound"))

    plugins = load(home, "exec", "read_file")

    (line,) = plugins.problems
    assert line.startswith(f"tool of broken: {problem}")
    assert "\n" not in line
    assert names(plugins) == ["sound"]


def test_of_two_tools_of_one_name_the_first_is_used(home: Home, install: Install) -> None:
    install("bee", GREET.format(name="greet"))
    install("ant", GREET.format(name="greet"))

    plugins = load(home)

    assert names(plugins) == ["greet"]
    assert plugins.problems == ("tool of bee: there is another tool of the name greet",)


@pytest.mark.parametrize("gives", ["'just text'", "None"])
async def test_a_tool_that_gives_no_output_is_a_defect_and_no_more(
    home: Home, install: Install, gives: str
) -> None:
    head, _, _ = GREET.format(name="greet").partition("        seen =")
    install("nanobot_greet", f"{head}        return {gives}\n")
    registry = ToolRegistry(load(home).tools)

    result = await registry.execute(
        ToolCall("1", "greet", '{"whom": "Ann"}'), tool_turn(home.default_workspace)
    )

    assert result.output.text.startswith("greet failed: TypeError: greet gave ")
    assert not result.ok
