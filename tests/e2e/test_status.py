"""``nanobot status`` and ``nanobot channels status``: what is so, and what mends it."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from tests.e2e.conftest import Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer


def rows_of(text: str) -> dict[str, list[str]]:
    """The lines of each name in the aligned output."""
    rows: dict[str, list[str]] = {}
    name = ""
    width = text.index(text.split()[1])
    for line in text.splitlines():
        name = line.split(" ", 1)[0] or name
        rows.setdefault(name, []).append(line[width:].strip())
    return rows


def status_of(nanobot: Nanobot) -> dict[str, Any]:
    done = nanobot.run("status", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def channel_of(nanobot: Nanobot) -> dict[str, Any]:
    (channel,) = json.loads(nanobot.run("channels", "status", "--json").stdout)["channels"]
    found: dict[str, Any] = channel
    return found


def test_of_a_new_home_says_what_makes_it_work(nanobot: Nanobot) -> None:
    done = nanobot.run("status")

    rows = rows_of(done.stdout)
    sandbox = rows.pop("sandbox")
    assert (done.returncode, done.stderr, len(sandbox)) == (0, "", 1)
    assert rows == {
        "home": [str(nanobot.home)],
        "config": [f"{nanobot.home}/config.json (none yet: `nanobot onboard` makes it)"],
        "workspace": [
            f"{nanobot.workspace} (none yet: `nanobot onboard` makes it, or the first question)"
        ],
        "model": ["offline (built in): `nanobot onboard` connects a real one"],
        "gateway": ["not running: `nanobot gateway` starts it"],
        "messages": ["none yet"],
        "channels": [
            "telegram: off: `nanobot config set channels.telegram.enabled true` switches it on"
        ],
    }
    assert not nanobot.home.exists()


def test_the_choice_of_the_model_is_explained(nanobot: Nanobot) -> None:
    nanobot.configure(
        {
            "agents": {"defaults": {"model": "claude-sonnet-4-5", "fallbackModels": ["gpt-5"]}},
            "providers": {"openai": {"apiKey": "sk-fake-1"}},
        }
    )
    nanobot.environ = {"ANTHROPIC_API_KEY": "sk-ant-fake-2"}

    rows = rows_of(nanobot.run("status").stdout)

    assert rows["model"] == ["claude-sonnet-4-5 (then gpt-5)"]
    assert rows["provider"][0].startswith("anthropic, by “claude” in the model's name")


def test_a_model_without_a_key_says_what_to_type(nanobot: Nanobot) -> None:
    nanobot.configure({"agents": {"defaults": {"model": "openai/gpt-5"}}})

    rows = rows_of(nanobot.run("status").stdout)

    assert "nanobot config set providers.openai.apiKey KEY" in rows["provider"][0]


@pytest.mark.parametrize(
    ("sandbox", "path", "told"),
    [
        ("off", None, "off: commands run as you"),
        ("require", "/nowhere", "none, commands are refused: install bubblewrap"),
        ("auto", "/nowhere", "none, commands are asked for at a terminal and refused elsewhere"),
    ],
)
def test_the_sandbox_is_tried_out(
    nanobot: Nanobot, sandbox: str, path: str | None, told: str
) -> None:
    nanobot.configure({"tools": {"exec": {"sandbox": sandbox}}})
    nanobot.environ = {} if path is None else {"PATH": path}

    assert status_of(nanobot)["sandbox"].startswith(told)


def test_hints_and_overrides_are_shown(nanobot: Nanobot) -> None:
    nanobot.configure({"channels": {"telegram": {"enabled": True, "token": "1:fake"}}})
    nanobot.environ = {"NANOBOT_GATEWAY__PORT": "9"}

    rows = rows_of(nanobot.run("status").stdout)

    assert rows["channels"] == ["telegram: enabled; `nanobot gateway` serves it"]
    assert rows["hints"] == [
        "channels.telegram.allowFrom is empty: nobody is let in; "
        """to let yourself in: nanobot config set channels.telegram.allowFrom '["<your id>"]'""",
        "NANOBOT_GATEWAY__PORT in the environment overrides gateway.port",
    ]


def test_dead_letters_are_shown_and_cannot_command_the_terminal(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.script(Reply.text("hello"))
    nanobot.use_model(model)
    nanobot.run("agent", "-m", "make the database")
    with sqlite3.connect(nanobot.home / "state.db") as state:
        state.execute(
            "INSERT INTO outbox (id, session, channel, target, payload, state, error, created_at) "
            "VALUES ('out-1', 'telegram:7', 'telegram', '7', '{}', 'dead', ?, 0)",
            ("blocked\nby \x1b[31m7",),
        )
    state.close()

    rows = rows_of(nanobot.run("status").stdout)

    assert rows["messages"][0] == "0 waiting, 1 dead letters"
    assert rows["messages"][1].endswith(" telegram out-1: blocked by ␛[31m7")
    assert "nanobot bus retry" in rows["messages"][2]


def test_a_damaged_database_is_said(nanobot: Nanobot) -> None:
    nanobot.configure({})
    (nanobot.home / "state.db").write_bytes(b"no database, but long enough to look at" * 100)

    assert "cannot be read" in status_of(nanobot)["messages"]


def test_channels_without_a_gateway_are_code_5(nanobot: Nanobot) -> None:
    nanobot.configure({"channels": {"telegram": {"enabled": True, "token": "1:fake"}}})

    done = nanobot.run("channels", "status")

    assert done.returncode == 5
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["CHANNEL", "ENABLED", "CONNECTED", "DETAIL", "LAST", "ERROR"],
        ["telegram", "yes", "-", "-", "-"],
    ]
    assert "no gateway is running" in done.stderr


def test_a_running_channel_is_connected(telegram: Telegram) -> None:
    telegram.start()
    nanobot = telegram.nanobot
    eventually(lambda: channel_of(nanobot)["connected"] is True, "the connection")

    done = nanobot.run("channels", "status")
    rows = rows_of(nanobot.run("status").stdout)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:3] == ["telegram", "yes", "yes"]
    assert rows["channels"][0].startswith("telegram: connected")
    assert rows["gateway"] == [
        f"running: gateway (pid {telegram.started[0].process.pid})",
    ]


def test_a_channel_that_fails_shows_its_last_error(telegram: Telegram) -> None:
    telegram.configure(apiBase="http://127.0.0.1:9")
    telegram.start(polling=False)
    nanobot = telegram.nanobot
    socket = nanobot.home / "run" / "gateway.sock"
    eventually(socket.exists, "the gateway's socket")
    eventually(lambda: bool(channel_of(nanobot)["lastError"]), "the failure")

    channel = channel_of(nanobot)
    done = nanobot.run("channels", "status")

    assert (channel["connected"], done.returncode) == (False, 0)
    assert channel["lastError"] in done.stdout
    assert "telegram: not connected" in nanobot.run("status").stdout
