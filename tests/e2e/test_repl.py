"""The conversation in a real terminal, driven through tmux."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import NANOBOT, Nanobot
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer


class Terminal:
    """A terminal of 100 by 40 characters with a shell in it."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._base = ["tmux", "-S", str(folder / "tmux.sock")]
        environment = [f"{name}={value}" for name, value in variables.items()]
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "40",
            "env", "-i", *environment, "TERM=screen", "sh",
        )  # fmt: skip

    def type(self, text: str, *keys: str) -> None:
        if text:
            self._tmux("send-keys", "-l", text)
        if keys:
            self._tmux("send-keys", *keys)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-S", "-200")

    def wait_for(self, condition: str | Callable[[str], bool], timeout: float = 15) -> str:
        """The screen once it shows ``condition``; fails with what it shows instead."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            screen = self.screen()
            if condition in screen if isinstance(condition, str) else condition(screen):
                return screen
            time.sleep(0.05)
        raise AssertionError(f"never shown: {condition}\n{self.screen()}")

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._base, *arguments], capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout


@pytest.fixture
def terminal(nanobot: Nanobot, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, nanobot.variables)
    yield opened
    opened.close()


def test_a_conversation_goes_on_and_is_left_with_exit(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.answer_with(lambda request: Reply.text(f"I count {len(request.messages)} messages"))
    nanobot.use_model(model)

    terminal.type(f"{NANOBOT} agent; echo left=$?", "Enter")
    terminal.wait_for("you>")
    terminal.type("hello", "Enter")
    terminal.wait_for("I count 2 messages")
    terminal.type("and again", "Enter")
    terminal.wait_for("I count 4 messages")
    terminal.type("/help", "Enter")
    terminal.wait_for("/new")
    terminal.type("exit", "Enter")

    terminal.wait_for("left=0")


def test_ctrl_c_stops_the_turn_and_not_the_program(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    gate = model.gate()
    model.script(Reply.text("too late", gate=gate), Reply.text("still here"))
    nanobot.use_model(model)

    terminal.type(f"{NANOBOT} agent; echo left=$?", "Enter")
    terminal.wait_for("you>")
    terminal.type("think long", "Enter")
    gate.wait_reached()
    terminal.type("", "C-c")
    terminal.wait_for("Stopped")
    gate.release()
    terminal.type("hello?", "Enter")
    terminal.wait_for("still here")
    terminal.type("", "C-d")

    screen = terminal.wait_for("left=0")
    assert "too late" not in screen


def test_a_one_shot_beside_the_conversation_goes_through_it(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.answer_with(lambda request: Reply.text(f"I count {len(request.messages)} messages"))
    nanobot.use_model(model)
    terminal.type(f"{NANOBOT} agent; echo left=$?", "Enter")
    terminal.wait_for("you>")
    terminal.type("hello", "Enter")
    terminal.wait_for("I count 2 messages")

    beside = nanobot.run("agent", "-m", "from beside")

    assert (beside.returncode, beside.stdout) == (0, "I count 4 messages\n"), beside.stderr
    assert "running: REPL" in nanobot.run("status").stdout
