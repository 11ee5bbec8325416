"""A disk without room for a tool's long result: the turn goes on with what the log can hold."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing

import pytest

from tests.e2e.conftest import NANOBOT, Nanobot, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer


def test_a_result_that_cannot_be_spilled_keeps_its_head_and_tail(
    nanobot: Nanobot, model: ModelServer
) -> None:
    config = model_config(model.url)
    config["tools"] = {"exec": {"sandbox": "off"}}
    nanobot.configure(config)
    model.script(
        Reply.tool_calls([("exec", {"command": "seq 9000"})]), Reply.text("I have counted.")
    )
    (nanobot.home / "spill").mkdir()
    small = ("bwrap", "--dev-bind", "/", "/", "--size", "4096", "--tmpfs", nanobot.home / "spill")
    tried = subprocess.run([*small, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no small file system can be made here: {tried.stderr.strip()}")

    done = subprocess.run(
        [*small, NANOBOT, "agent", "-m", "count"],
        env=nanobot.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "I have counted.\n"), done.stderr
    first, second = model.requests
    (result,) = second.tool_results
    assert first.tool_results == []
    assert "\n100\n" in result
    assert "\n9000" in result
    assert "could not be kept (" in result
    assert "No space left on device" in result
    with closing(sqlite3.connect(nanobot.home / "state.db")) as state:
        logged = state.execute("SELECT payload FROM log WHERE kind = 'tool'").fetchall()
        attempts = state.execute("SELECT attempts FROM inbox").fetchall()
    assert (len(logged), "9000" in logged[0][0], attempts) == (1, True, [(1,)])
