"""Consolidation killed at each of its commits: nothing is lost, nothing is written twice."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.conftest import NANOBOT, Nanobot, model_config
from tests.fakes.memory import is_digest, write_session
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

KEY = "telegram:42"
SESSION_TURNS = 60
MOST_SYNCS = 60
KILLED = 137


def digest(request: Request) -> Reply:
    """A paragraph and a line about each question shown, by its number."""
    assert is_digest(request)
    text = str(request.messages[-1]["content"])
    numbers = re.findall(r"question (\d+) about", text)
    return Reply.tool_calls(
        [
            (
                "save_memory",
                {
                    "history": [
                        {"time": f"2026-03-01 12:{int(n):02d}", "text": f"Asked question {n}."}
                        for n in numbers
                    ],
                    "memory": [
                        {"action": "add", "section": "Important Notes", "line": f"knows {n}"}
                        for n in numbers[:2]
                    ],
                },
            )
        ]
    )


@pytest.fixture
def prepared(nanobot: Nanobot, model: ModelServer) -> Nanobot:
    """A home with one long session, digested in more than one step."""
    model.answer_with(digest)
    config = model_config(model.url, memoryWindow=12, contextWindow=2048, maxTokens=1000)
    nanobot.configure(config)
    file = write_session(nanobot.home.parent / "session.jsonl", SESSION_TURNS)
    assert nanobot.run("sessions", "import", str(file)).returncode == 0
    return nanobot


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.timeout(500)
@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_killed_before_each_sync_it_ends_as_if_it_never_was(
    prepared: Nanobot, tmp_path: Path, call: str
) -> None:
    pristine = tmp_path / "pristine"
    shutil.copytree(prepared.home, pristine)
    assert prepared.run("memory", "consolidate").returncode == 0
    expected = left_behind(prepared)
    kills = 0

    for number in range(1, MOST_SYNCS):
        shutil.rmtree(prepared.home)
        shutil.copytree(pristine, prepared.home)
        if consolidate_under_strace(prepared, call, number) == 0:
            break
        kills += 1
        again = prepared.run("memory", "consolidate")
        assert again.returncode == 0, again.stderr
        assert left_behind(prepared) == expected, f"killed at {call} {number}"

    assert kills >= 4
    history, _, log, view = expected
    asked = re.findall(r"Asked question (\d+)\.", history)
    assert asked == [str(number) for number in range(SESSION_TURNS - 5)]
    assert (log, view) == (2 * SESSION_TURNS, f"question {SESSION_TURNS - 5} about the boat")


def consolidate_under_strace(nanobot: Nanobot, call: str, number: int) -> int:
    """The exit code of a run that is killed when it is about to sync for that time."""
    done = subprocess.run(
        [
            *("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"),
            *("-e", f"inject={call}:signal=SIGKILL:when={number}"),
            *(str(NANOBOT), "memory", "consolidate"),
        ],
        env=nanobot.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, KILLED, -9), done.stderr
    return done.returncode


def left_behind(nanobot: Nanobot) -> tuple[str, str, int, str]:
    """HISTORY.md, MEMORY.md, how many messages the log has, and where the view begins."""
    folder = nanobot.workspace / "memory"
    with closing(sqlite3.connect(nanobot.home / "state.db")) as database:
        (messages,) = database.execute(
            "SELECT count(*) FROM log WHERE kind IN ('user', 'assistant')"
        ).fetchone()
        (first,) = database.execute(
            "SELECT payload ->> 'content' FROM log JOIN session ON key = session "
            "WHERE seq >= live_from AND kind = 'user' ORDER BY seq LIMIT 1"
        ).fetchone()
    return (
        (folder / "HISTORY.md").read_text(),
        (folder / "MEMORY.md").read_text(),
        messages,
        first,
    )
