"""The gateway on a disk that is full, read-only or damaged: it says so, goes on, loses nothing."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.bot_api import BotApi
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

PATIENCE_S = 60.0


class SmallDisk:
    """A tmpfs of a few megabytes that a test fills and empties."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        self._filler = mount / "filler"

    def fill(self) -> None:
        """Leave not a page."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                while True:
                    try:
                        file.write(b"\0" * size)
                    except OSError:
                        break

    def empty(self) -> None:
        """Make room again."""
        self._filler.unlink()

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.mount)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(mount)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield SmallDisk(mount)
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.fixture
def small(disk: SmallDisk, model: ModelServer) -> Iterator[Telegram]:
    """Telegram with a home on the small disk."""
    with BotApi.in_thread() as api:
        made = Telegram(Nanobot(disk.mount / "home" / ".nanobot"), model, api)
        made.configure()
        yield made
        made.close()


def words_of(request: Request) -> str:
    return request.last_user.partition("\n")[2]


@pytest.mark.timeout(240)
def test_a_disk_that_fills_during_a_turn_is_said_and_waited_out(
    small: Telegram, disk: SmallDisk
) -> None:
    gate = small.model.gate()
    small.model.answer_with(
        lambda request: Reply.text(
            f"answer to {words_of(request)}", gate=gate if "first" in words_of(request) else None
        )
    )
    gateway = small.start()
    small.api.inject("warm up", chat_id=OWNER)
    small.api.wait_for_sent(1, OWNER, timeout=PATIENCE_S)
    small.api.inject("first", chat_id=OWNER)
    gate.wait_reached(PATIENCE_S)
    disk.fill()
    gate.release()
    eventually(lambda: "store" in status_of(small), "the full disk in the status", PATIENCE_S)
    late = small.api.inject("second", chat_id=OWNER)
    eventually(lambda: "written" in channel_error(small), "the full inbox", PATIENCE_S)
    still_pending = list(small.api.pending)
    said = status_of(small)["store"]
    runs = gateway.process.poll() is None

    disk.empty()
    small.api.wait_for_sent(3, OWNER, timeout=PATIENCE_S)

    small.api.wait_for_poll(late + 1, timeout=PATIENCE_S)
    assert gateway.terminate() == 0
    assert (runs, still_pending) == (True, [late])
    assert "full" in said
    assert "full" in gateway.log
    assert small.texts() == ["answer to warm up", "answer to first", "answer to second"]


@pytest.mark.timeout(240)
def test_a_tool_that_meets_a_full_disk_ran_once_and_is_told_truthfully(
    small: Telegram, disk: SmallDisk, tmp_path: Path
) -> None:
    ledger, go = tmp_path / "ledger", tmp_path / "go"
    os.mkfifo(go)
    small.nanobot.configure({**small.config(), "tools": {"exec": {"sandbox": "off"}}})
    command = f"echo ran >> {ledger}; cat {go} > /dev/null"

    def answer(request: Request) -> Reply:
        if not request.tool_results:
            return Reply.tool_calls([("exec", {"command": command})])
        return Reply.text(request.tool_results[-1])

    small.model.answer_with(answer)
    gateway = small.start()
    small.api.inject("count", chat_id=OWNER)
    eventually(ledger.exists, "the command", PATIENCE_S)
    disk.fill()
    go.write_text("on\n")
    eventually(lambda: "store" in status_of(small), "the full disk in the status", PATIENCE_S)

    disk.empty()
    small.api.wait_for_sent(1, OWNER, timeout=PATIENCE_S)

    assert gateway.terminate() == 0
    assert ledger.read_text() == "ran\n"
    assert "may or may not have taken effect" in small.texts()[0]


def test_a_gateway_on_a_read_only_disk_says_so_and_leaves(small: Telegram, disk: SmallDisk) -> None:
    small.model.answer_with(lambda request: Reply.text("hello"))
    gateway = small.start()
    gateway.terminate()
    disk.make_read_only()

    refused = small.nanobot.run("gateway")
    status = small.nanobot.run("status")

    assert refused.returncode == 1
    assert re.search(r"^nanobot: .*read-only", refused.stderr, re.MULTILINE | re.IGNORECASE)
    assert "Traceback" not in refused.stderr
    assert status.returncode == 0


def test_a_damaged_page_costs_what_stood_on_it_and_the_owner_is_told(telegram: Telegram) -> None:
    """The page is one of the log, which a turn reads."""
    telegram.model.answer_with(lambda request: Reply.text(str(len(request.messages))))
    telegram.nanobot.run("agent", "-m", "hello")
    fill_log(telegram.nanobot.home / "state.db", f"telegram:{OWNER}", 300)
    overwrite_page_of_log(telegram.nanobot.home / "state.db")

    telegram.start()
    telegram.api.inject("do you remember?", chat_id=OWNER)

    eventually(lambda: len(telegram.texts()) == 2, "the answer and the news", PATIENCE_S + 60)
    news, answer = sorted(telegram.texts(), key=str.isdigit)
    assert "state database was damaged" in news
    assert 250 < int(answer) < 302
    assert list(telegram.nanobot.home.glob("state.db.corrupt-*"))
    assert "quarantined" in status_of(telegram)


def test_a_state_that_is_no_database_is_put_aside_and_the_owner_is_told(
    telegram: Telegram,
) -> None:
    telegram.model.answer_with(lambda request: Reply.text("starting over"))
    (telegram.nanobot.home / "state.db").write_bytes(b"not a database at all " * 1000)

    telegram.start()
    telegram.api.inject("hello", chat_id=OWNER)

    eventually(lambda: len(telegram.texts()) == 2, "the answer and the news", PATIENCE_S)
    assert sorted(text[:20] for text in telegram.texts()) == [
        "My state database wa",
        "starting over",
    ]


def status_of(telegram: Telegram) -> dict[str, Any]:
    done = telegram.nanobot.run("status", "--json")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def channel_error(telegram: Telegram) -> str:
    (channel,) = status_of(telegram).get("channels", ({"lastError": ""},))

    return str(channel["lastError"])


def fill_log(path: Path, session: str, rows: int) -> None:
    """A conversation that takes many pages."""
    with closing(sqlite3.connect(path)) as state, state:
        now = time.time()
        state.execute(
            "INSERT INTO session (key, created_at, updated_at) VALUES (?, ?, ?)",
            (session, now, now),
        )
        state.executemany(
            "INSERT INTO log (session, kind, inbound_id, principal, trust, at, payload) "
            "VALUES (?, 'user', ?, 'owner:telegram:42', 'trusted', ?, ?)",
            [
                (session, f"old-{number}", now, json.dumps({"content": f"{number} " + "x" * 500}))
                for number in range(rows)
            ],
        )


def overwrite_page_of_log(path: Path) -> None:
    with closing(sqlite3.connect(path)) as state:
        (root,) = state.execute("SELECT rootpage FROM sqlite_master WHERE name = 'log'").fetchone()
        (size,) = state.execute("PRAGMA page_size").fetchone()
        (pages,) = state.execute("PRAGMA page_count").fetchone()
        state.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(size * ((root + pages) // 2))
        file.write(b"\xff" * size)
