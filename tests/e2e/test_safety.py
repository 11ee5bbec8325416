"""What the assistant's commands and files can reach, tried from outside."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.e2e.conftest import Nanobot, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

ESCAPE = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(300)
        time.sleep(300)
time.sleep(300)
# {mark}
"""


def _alive(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(line.decode(errors="replace"))
    return found


@pytest.mark.parametrize("sandbox", ["require", "off"])
def test_a_command_that_forks_and_ignores_signals_leaves_nothing_alive(
    nanobot: Nanobot, model: ModelServer, sandbox: str
) -> None:
    mark = f"escape-{secrets.token_hex(8)}"
    config = model_config(model.url)
    config["tools"] = {"exec": {"sandbox": sandbox}}
    nanobot.configure(config)
    script = ESCAPE.format(mark=mark)
    model.script(
        Reply.tool_calls(
            [("exec", {"command": f"echo begun; python3 -c '{script}'", "timeout": 1})]
        ),
        Reply.text("It did not end."),
    )

    done = nanobot.run("agent", "-m", "run it")

    assert (done.returncode, done.stdout) == (0, "It did not end.\n"), done.stderr
    assert "begun" in model.requests[1].tool_results[-1]
    assert _alive(mark) == []


@pytest.mark.parametrize("sandbox", ["require", "off"])
def test_a_command_sees_none_of_the_keys(
    nanobot: Nanobot, model: ModelServer, sandbox: str
) -> None:
    config = model_config(model.url)
    config["tools"] = {"exec": {"sandbox": sandbox}}
    nanobot.configure(config)
    nanobot.environ = {
        "OPENAI_API_KEY": "sk-fake-from-the-environment-1",
        "SOME_TOKEN": "fake-token-value-2",
        "AWS_SECRET_ACCESS_KEY": "fake-aws-secret-3",
    }
    model.script(Reply.tool_calls([("exec", {"command": "printenv; echo end"})]), Reply.text("ok"))

    nanobot.run("agent", "-m", "look")

    (seen,) = model.requests[1].tool_results
    assert "end" in seen
    assert [value for value in nanobot.environ.values() if value in seen] == []
    assert "sk-fake-owner-key" not in seen


def test_the_sandbox_hides_the_home_and_keeps_the_system_read_only(
    nanobot: Nanobot, model: ModelServer
) -> None:
    config = model_config(model.url)
    config["tools"] = {"exec": {"sandbox": "require"}}
    nanobot.configure(config)
    (nanobot.home.parent / "diary.txt").write_text("dear diary")
    command = (
        f"cat {nanobot.home.parent}/diary.txt; cat {nanobot.home}/config.json; "
        "touch /usr/evil; echo kept > mine.txt; cat mine.txt"
    )
    model.script(Reply.tool_calls([("exec", {"command": command})]), Reply.text("ok"))

    nanobot.run("agent", "-m", "try")

    (seen,) = model.requests[1].tool_results
    assert "dear diary" not in seen
    assert "sk-fake-owner-key" not in seen
    assert not Path("/usr/evil").exists()
    assert "kept" in seen
    assert (nanobot.workspace / "mine.txt").read_text() == "kept\n"


def test_a_restricted_workspace_holds(nanobot: Nanobot, model: ModelServer) -> None:
    config = model_config(model.url)
    config["tools"] = {"restrictToWorkspace": True}
    nanobot.configure(config)
    nanobot.workspace.mkdir()
    outside = nanobot.home / "workspace_evil"
    outside.mkdir()
    (outside / "secret.txt").write_text("the secret")
    (nanobot.workspace / "link").symlink_to(outside)
    paths = ["../workspace_evil/secret.txt", str(outside / "secret.txt"), "link/secret.txt"]
    model.script(
        Reply.tool_calls([("read_file", {"path": path}) for path in paths]),
        Reply.tool_calls([("write_file", {"path": "link/new.txt", "content": "x"})]),
        Reply.text("ok"),
    )

    nanobot.run("agent", "-m", "try")

    results = model.requests[2].tool_results
    assert len(results) == 4
    assert not any("the secret" in result for result in results)
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]


def test_the_config_is_no_tools_business(nanobot: Nanobot, model: ModelServer) -> None:
    nanobot.use_model(model)
    config = nanobot.home / "config.json"
    before = config.read_text()
    model.script(
        Reply.tool_calls([("read_file", {"path": str(config)})]),
        Reply.tool_calls([("write_file", {"path": str(config), "content": "{}"})]),
        Reply.text("ok"),
    )

    nanobot.run("agent", "-m", "try")

    assert config.read_text() == before
    assert not any("sk-fake-owner-key" in text for text in model.requests[2].tool_results)
