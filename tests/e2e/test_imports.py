"""The import budget: which modules a command may load."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import Nanobot
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

HEAVY = {
    "PIL",
    "asyncio",
    "httpx",
    "jinja2",
    "litellm",
    "lxml",
    "openai",
    "pathspec",
    "prompt_toolkit",
    "pydantic",
    "pypdf",
    "readability",
    "rich",
    "sqlite3",
    "ssl",
    "telegram",
    "yaml",
}
RUN = """
import json, sys
sys.argv = ["nanobot", *json.loads(sys.argv[1])]
from nanobot.cli.main import main
try:
    main()
finally:
    sys.stdout.flush()
    print("LOADED", json.dumps(sorted(m for m in sys.modules if "." not in m)), file=sys.stderr)
"""


def _loaded(nanobot: Nanobot, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(arguments)],
        env=nanobot.variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    *_, line = done.stderr.splitlines()
    return HEAVY & set(json.loads(line.removeprefix("LOADED ")))


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("--version",), set()),
        (("--help",), set()),
        (("agent", "--help"), set()),
        (("config", "path"), set()),
        (("status",), {"pydantic", "sqlite3"}),
        (("config", "show"), {"pydantic"}),
    ],
)
def test_light_commands_load_nothing_heavy(
    nanobot: Nanobot, arguments: tuple[str, ...], allowed: set[str]
) -> None:
    assert _loaded(nanobot, *arguments) - allowed == set()


def test_a_one_shot_loads_what_it_needs_and_no_more(nanobot: Nanobot, model: ModelServer) -> None:
    model.script(Reply.text("Hello."))
    nanobot.use_model(model)

    loaded = _loaded(nanobot, "agent", "-m", "hello")

    assert loaded <= {"asyncio", "httpx", "jinja2", "pydantic", "sqlite3", "ssl"}
