"""``nanobot onboard`` as a new owner meets it: by flags, and by questions in a real terminal."""

from __future__ import annotations

import http.server
import json
import shlex
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import NANOBOT, Nanobot
from tests.e2e.terminal import Terminal
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

KEY = "sk-fake-owner-key-0000"
TOKEN = "123456789:AAfake-token-of-a-test-bot-0000000"
SEEDED = ["AGENTS.md", "HEARTBEAT.md", "SOUL.md", "TOOLS.md", "USER.md", "memory/MEMORY.md"]
NOTHING_CHOSEN = {
    "agents": {"defaults": {"model": None}},
    "channels": {"telegram": {"enabled": False, "token": "", "allowFrom": []}},
}


@pytest.fixture(autouse=True)
def _no_ollama_of_this_machine(nanobot: Nanobot) -> None:
    nanobot.environ = {"OLLAMA_HOST": "127.0.0.1:9"}


@pytest.fixture
def terminal(nanobot: Nanobot, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, nanobot.variables, columns=120)
    yield opened
    opened.close()


@contextmanager
def ollama(*models: str) -> Iterator[str]:
    """Something that answers ``/api/tags`` as Ollama does; yields its host and port."""

    class Tags(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"models": [{"name": name} for name in models]}).encode()
            self.send_response(200 if self.path == "/api/tags" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tags) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def config_file(nanobot: Nanobot) -> Path:
    return nanobot.home / "config.json"


def config_of(nanobot: Nanobot) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(config_file(nanobot).read_text())
    return config


def workspace_of(nanobot: Nanobot) -> list[str]:
    return sorted(
        str(path.relative_to(nanobot.workspace))
        for path in nanobot.workspace.rglob("*")
        if path.is_file()
    )


def backups_of(nanobot: Nanobot) -> list[str]:
    return [path.read_text() for path in sorted(nanobot.home.glob("config.json.bak-*"))]


# ---------------------------------------------------------------------------------- by flags


def test_a_new_home_is_made_private_and_the_next_command_works(nanobot: Nanobot) -> None:
    done = nanobot.run("onboard", "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    assert config_of(nanobot) == NOTHING_CHOSEN
    assert workspace_of(nanobot) == SEEDED
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (nanobot.home, config_file(nanobot))]
    assert modes == [0o700, 0o600]
    (line,) = (line for line in done.stdout.splitlines() if line.endswith("one question"))
    _, *words = shlex.split(line.removesuffix("one question"))
    again = nanobot.run(*words)
    assert (again.returncode, "AGENTS.md" in again.stdout) == (0, True), again.stderr


def test_twice_is_once_and_says_so(nanobot: Nanobot, model: ModelServer) -> None:
    words = ["onboard", "--yes", "--api-base", model.url, "--api-key", KEY, "--allow-from", "42"]
    first = nanobot.run(*words)
    before = config_file(nanobot).read_bytes()

    second = nanobot.run(*words)

    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert "Nothing to change" in second.stdout
    assert config_file(nanobot).read_bytes() == before
    assert backups_of(nanobot) == []


def test_what_exists_is_kept_and_what_is_missing_is_added(nanobot: Nanobot) -> None:
    nanobot.workspace.mkdir(parents=True)
    (nanobot.workspace / "SOUL.md").write_text("mine")
    former = (
        "{\n  // my notes\n"
        '  "agents": {"defaults": {"model": "deepseek/deepseek-chat", "max_tokens": 5}},\n'
        '  "channels": {"telegram": {"allow_from": ["7"]},},\n}\n'
    )
    config = config_file(nanobot)
    config.write_text(former)
    config.chmod(0o600)

    done = nanobot.run(
        *("onboard", "--yes", "--no-check", "--provider", "openai", "--api-key", KEY),
        *("--model", "gpt-5", "--telegram-token", TOKEN, "--allow-from", "8"),
    )

    text = config.read_text()
    assert done.returncode == 0, done.stderr
    assert '"model": "deepseek/deepseek-chat", "max_tokens": 5' in text
    assert '"allow_from": ["7"]' in text
    assert ("// my notes" in text, text.count(KEY), text.count(TOKEN)) == (True, 1, 1)
    assert '"enabled": true' in text
    assert backups_of(nanobot) == [former]
    assert (nanobot.workspace / "SOUL.md").read_text() == "mine"
    assert workspace_of(nanobot) == SEEDED
    kept = [line.split()[0] for line in done.stdout.splitlines() if "keeps it" in line]
    assert kept == ["agents.defaults.model", "channels.telegram.allowFrom"]


def test_an_endpoint_by_flags_answers_the_first_question(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.script(Reply.text("Hello, owner."))

    done = nanobot.run("onboard", "--yes", "--api-base", model.url, "--api-key", KEY)
    asked = nanobot.run("agent", "-m", "hello")

    assert f"{model.url} answers and lists 1 model." in done.stdout
    assert (asked.returncode, asked.stdout) == (0, "Hello, owner.\n"), asked.stderr
    assert KEY not in done.stdout + done.stderr
    assert config_of(nanobot) == {
        "providers": {"custom": {"apiKey": KEY, "apiBase": model.url}},
        "agents": {"defaults": {"model": "fake-model", "provider": "custom"}},
        "channels": NOTHING_CHOSEN["channels"],
    }


def test_a_key_in_the_environment_stays_there(nanobot: Nanobot) -> None:
    nanobot.environ |= {"ANTHROPIC_API_KEY": "sk-ant-fake-of-the-environment"}

    done = nanobot.run("onboard", "--yes")

    assert "Its key stays in ANTHROPIC_API_KEY; the config needs none." in done.stdout
    config = config_of(nanobot)
    assert ("providers" in config, config["agents"]["defaults"]["model"].partition("/")[0]) == (
        False,
        "anthropic",
    )
    assert "through anthropic" in done.stdout
    assert "sk-ant-fake" not in config_file(nanobot).read_text() + done.stdout


def test_the_offline_model_says_where_an_ollama_runs_and_how_to_take_it(nanobot: Nanobot) -> None:
    with ollama("nomic-embed-text:latest", "qwen3:8b") as address:
        nanobot.environ = {"OLLAMA_HOST": address}
        asked = nanobot.run("agent", "-m", "time")
        took = nanobot.run("onboard", "--yes", "--no-check")

    assert f"`nanobot onboard --yes` (it takes qwen3:8b of the Ollama that runs at {address})" in (
        asked.stderr
    )
    assert took.returncode == 0
    assert config_of(nanobot)["agents"]["defaults"]["model"] == "ollama/qwen3:8b"


def test_a_running_ollama_comes_before_keys_and_chats(nanobot: Nanobot) -> None:
    with ollama("nomic-embed-text:latest", "qwen3:8b") as address:
        nanobot.environ = {"OLLAMA_HOST": address, "DASHSCOPE_API_KEY": "sk-fake-0000000000"}

        done = nanobot.run("onboard", "--yes")
        status = nanobot.run("status")

    config = config_of(nanobot)
    assert config["agents"]["defaults"]["model"] == "ollama/qwen3:8b", done.stderr
    assert config["providers"] == {"ollama": {"apiBase": f"http://{address}/v1"}}
    assert f"ollama, by the model's prefix ollama/, at http://{address}/v1" in status.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--provider", "opnai"), "--provider: “opnai” is no provider; did you mean openai?"),
        (("--api-key", "sk-fake"), "--provider is missing"),
        (("--provider", "groq", "--api-key", "sk-or-fake"), "looks like a key of openrouter"),
        (("--provider", "openai", "--api-key", "sk fake"), "--api-key: a key has no spaces"),
        (("--provider", "vllm"), "vllm needs its address"),
        (("--api-base", "127.0.0.1:8000"), "--api-base: an address begins with http://"),
        (("--api-base", "http://127.0.0.1:9/v1", "--no-check"), "--model is missing"),
        (("--telegram-token", "AAfake"), "--telegram-token: a bot token looks like"),
        (("--allow-from", "me"), "--allow-from: “me” is no Telegram id"),
        (("--api-key", "-", "--telegram-token", "-"), "only one of"),
    ],
)
def test_a_wrong_flag_is_named_and_changes_nothing(
    nanobot: Nanobot, words: tuple[str, ...], told: str
) -> None:
    done = nanobot.run("onboard", "--yes", *words)

    assert (done.returncode, done.stdout, told in done.stderr) == (2, "", True), done.stderr
    assert not nanobot.home.exists()


def test_a_broken_config_is_not_touched(nanobot: Nanobot) -> None:
    nanobot.configure({"agents": {"defaults": {"modle": "x"}}})
    before = config_file(nanobot).read_bytes()

    done = nanobot.run("onboard", "--yes", "--provider", "openai", "--api-key", KEY)

    assert (done.returncode, "agents.defaults.modle" in done.stderr) == (2, True)
    assert [path.name for path in nanobot.home.iterdir()] == ["config.json"]
    assert config_file(nanobot).read_bytes() == before


def test_secrets_come_from_stdin_and_are_not_printed(nanobot: Nanobot) -> None:
    done = nanobot.run(
        *("onboard", "-y", "--no-check", "--model", "gpt-5", "--api-key", "-"), stdin=f"{KEY}\n"
    )

    assert config_of(nanobot)["providers"] == {"openai": {"apiKey": KEY}}
    assert KEY not in done.stdout + done.stderr


def test_a_refused_key_is_said_and_does_not_fail(nanobot: Nanobot) -> None:
    with ModelServer.in_thread(require_key="sk-fake-another") as server:
        done = nanobot.run(
            *("onboard", "--yes", "--api-base", server.url, "--api-key", KEY, "--model", "m")
        )

    assert done.returncode == 0, done.stderr
    assert f"{server.url} does not accept this key (401)." in done.stdout


def test_a_dead_endpoint_is_said_and_does_not_fail(nanobot: Nanobot) -> None:
    done = nanobot.run("onboard", "--yes", "--api-base", "http://127.0.0.1:9/v1", "--model", "m")

    assert (done.returncode, done.stderr) == (0, "")
    assert "http://127.0.0.1:9/v1 cannot be reached" in done.stdout


def test_another_home_is_named_in_what_to_type(nanobot: Nanobot, tmp_path: Path) -> None:
    other = tmp_path / "other home"

    done = nanobot.run("--home", str(other), "onboard", "--yes")

    assert f"--home '{other}' agent" in done.stdout
    assert (other / "config.json").exists()


# ------------------------------------------------------------------------------ by questions


def test_a_new_owner_gets_from_nothing_to_an_answer(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.script(Reply.text("Hello, **owner**."))

    terminal.type(f"{NANOBOT} onboard; echo left=$?", "Enter")
    terminal.wait_for("Number or name [none]:")
    terminal.type("custm", "Enter")
    terminal.wait_for("“custm” is no provider; did you mean custom?")
    terminal.type("custom", "Enter")
    terminal.wait_for("Its address:")
    terminal.type("127.0.0.1", "Enter")
    terminal.wait_for("an address begins with http://")
    terminal.type(model.url, "Enter")
    terminal.wait_for("Key of custom")
    terminal.type(KEY, "Enter")
    terminal.wait_for("Model [fake-model]:")
    terminal.type("fake-modell", "Enter")
    terminal.wait_for("It does not list fake-modell; near: fake-model.")
    terminal.type("fake-model", "Enter")
    terminal.wait_for("Telegram bot token")
    terminal.type("no token", "Enter")
    terminal.wait_for("a bot token looks like")
    terminal.type(TOKEN, "Enter")
    terminal.wait_for("Your own Telegram id")
    terminal.type("me", "Enter")
    terminal.wait_for("“me” is no Telegram id")
    terminal.type("4242", "Enter")
    onboarded = terminal.wait_for("left=0")
    terminal.type(f"{NANOBOT} agent -m hello", "Enter")
    terminal.wait_for("Hello, owner.")

    assert (KEY in onboarded, TOKEN in onboarded) == (False, False)
    assert f"{NANOBOT} gateway" in onboarded
    assert config_of(nanobot) == {
        "providers": {"custom": {"apiKey": KEY, "apiBase": model.url}},
        "agents": {"defaults": {"model": "fake-model", "provider": "custom"}},
        "channels": {"telegram": {"token": TOKEN, "allowFrom": ["4242"], "enabled": True}},
    }


def test_enter_alone_takes_what_was_found(nanobot: Nanobot, tmp_path: Path) -> None:
    with ollama("qwen3:8b") as address:
        nanobot.environ = {"OLLAMA_HOST": address}
        terminal = Terminal(tmp_path, nanobot.variables, columns=120)
        try:
            terminal.type(f"{NANOBOT} onboard --no-check; echo left=$?", "Enter")
            asked = terminal.wait_for("Number or name [ollama]:")
            terminal.type("", "Enter")
            terminal.wait_for("Model [qwen3:8b]:")
            terminal.type("", "Enter")
            terminal.wait_for("Telegram bot token")
            terminal.type("", "Enter")
            terminal.wait_for("left=0")
        finally:
            terminal.close()

    assert f" 1  ollama      runs at {address}: qwen3:8b" in asked
    assert config_of(nanobot)["agents"]["defaults"]["model"] == "ollama/qwen3:8b"


def test_a_refused_key_is_asked_for_again(nanobot: Nanobot, terminal: Terminal) -> None:
    with ModelServer.in_thread(require_key=KEY) as server:
        terminal.type(f"{NANOBOT} onboard --api-base {server.url} --provider custom", "Enter")
        terminal.wait_for("Key of custom")
        terminal.type("sk-fake-wrong", "Enter")
        terminal.wait_for("does not accept this key (401)")
        terminal.wait_for("Another key")
        terminal.type(KEY, "Enter")
        terminal.wait_for("answers and lists 1 model.")
        terminal.type("", "Enter")
        terminal.wait_for("Telegram bot token")
        terminal.type("", "Enter")
        terminal.wait_for("Type next:")

    assert config_of(nanobot)["providers"]["custom"]["apiKey"] == KEY


def test_no_key_leads_back_to_the_choice(nanobot: Nanobot, terminal: Terminal) -> None:
    terminal.type(f"{NANOBOT} onboard; echo left=$?", "Enter")
    terminal.wait_for("Number or name [none]:")
    terminal.type("99", "Enter")
    terminal.wait_for("the numbers go to 16")
    terminal.type("openrouter", "Enter")
    terminal.wait_for("Key of openrouter")
    terminal.type("", "Enter")
    terminal.wait_for(lambda screen: screen.count("Who serves your model?") == 2)
    terminal.type("", "Enter")
    terminal.wait_for("Telegram bot token")
    terminal.type("", "Enter")
    terminal.wait_for("left=0")

    assert config_of(nanobot) == NOTHING_CHOSEN


@pytest.mark.parametrize("key", ["C-c", "C-d"])
def test_giving_up_leaves_everything_as_it_was(
    nanobot: Nanobot, terminal: Terminal, key: str
) -> None:
    terminal.type(f"{NANOBOT} onboard; echo left=$?", "Enter")
    terminal.wait_for("Number or name")
    terminal.type("", "Enter")
    terminal.wait_for("Telegram bot token")
    terminal.type("", key)
    screen = terminal.wait_for("left=130")

    assert "nothing was changed" in screen
    assert not nanobot.home.exists()


def test_a_second_time_asks_only_for_what_is_missing(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    nanobot.run("onboard", "--yes", "--api-base", model.url, "--api-key", KEY)
    before = config_file(nanobot).read_bytes()

    terminal.type(f"{NANOBOT} onboard; echo left=$?", "Enter")
    terminal.wait_for("Model: fake-model, through custom")
    terminal.wait_for("Telegram bot token")
    terminal.type("", "Enter")
    screen = terminal.wait_for("left=0")

    assert "Nothing to change" in screen
    assert config_file(nanobot).read_bytes() == before
