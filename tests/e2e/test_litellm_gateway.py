"""A gateway and litellm: who loads it, when, and what the event loop feels of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Nanobot, eventually, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

LONGEST_STALL_S = 0.25
TICK_S = 0.01
ANTHROPIC = "anthropic/claude-sonnet-4-5"

# Runs the gateway as it is, and says at the end whether litellm was loaded when it became ready,
# and afterwards. ``blocking`` puts the import on the event loop, to see whether that is noticed.
RUN = """
import sys
from nanobot.cli import notify
from nanobot.cli.main import main
from nanobot.providers import litellm_package

at_ready = []
tell = notify.Notifier.tell

def told(self, state):
    if state == "READY=1":
        at_ready.append("litellm" in sys.modules)
    tell(self, state)

notify.Notifier.tell = told
if sys.argv[1] == "blocking":
    async def load(self):
        self._module = litellm_package._imported()
        return self._module
    litellm_package.LiteLLM.load = load
sys.argv = ["nanobot", "gateway"]
try:
    main()
finally:
    print(at_ready, "litellm" in sys.modules)
"""


@dataclass(slots=True)
class Supervised:
    """A gateway as systemd sees it: what it says on the notification socket, and when."""

    nanobot: Nanobot
    process: subprocess.Popen[str]
    notes: socket.socket
    said: list[tuple[float, str]] = field(default_factory=list)

    def wait_for(self, state: str, timeout: float = 30) -> None:
        """Read what it says until it says ``state``."""
        self.notes.settimeout(timeout)
        while not self.said or self.said[-1][1] != state:
            self.said.append((time.monotonic(), self.notes.recv(4096).decode()))

    def listen(self, command: subprocess.Popen[str]) -> str:
        """Read what it says until a command has ended; that command's output."""
        self.notes.settimeout(30)
        deadline = time.monotonic() + 60
        is_over = False
        while not is_over and time.monotonic() < deadline:
            is_over = command.poll() is not None
            state = self.notes.recv(4096).decode()  # one more after the end
            self.said.append((time.monotonic(), state))
        return command.communicate(timeout=1)[0]

    def longest_silence(self) -> float:
        """The longest time between two signs of life since it was ready, in seconds."""
        began = next(place for place, (_, state) in enumerate(self.said) if state == "READY=1")
        times = [at for at, _ in self.said[began:]]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def leave(self) -> str:
        """SIGTERM; what the process says of litellm: at READY, and at the end."""
        self.process.terminate()
        return self.process.communicate(timeout=20)[0].strip()


@contextlib.contextmanager
def supervised(nanobot: Nanobot, folder: Path, how: str = "as it is") -> Iterator[Supervised]:
    path = folder / "notify.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
        notes.bind(str(path))
        watchdog = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": f"{TICK_S * 2_000_000:.0f}"}
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, how],
            env=nanobot.variables | watchdog,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield Supervised(nanobot, process, notes)
        finally:
            process.kill()
            process.communicate()


def anthropic(server: ModelServer) -> dict[str, Any]:
    """A config whose model needs litellm."""
    return {
        "agents": {"defaults": {"model": ANTHROPIC}},
        "providers": {"anthropic": {"apiKey": "sk-fake-owner-key-0000", "apiBase": server.root}},
    }


def stall_of(nanobot: Nanobot, folder: Path, how: str = "as it is") -> tuple[float, str, str]:
    """The longest stall from READY to the first answer, that answer, and who loaded litellm."""
    with supervised(nanobot, folder, how) as gateway:
        gateway.wait_for("READY=1")
        answer = gateway.listen(nanobot.start("agent", "-m", "hello"))
        silence = gateway.longest_silence()
        return silence, answer, gateway.leave()


def test_with_anthropic_it_is_ready_before_litellm_is_loaded_and_never_stalls(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path
) -> None:
    """Measured from outside, by the signs of life the event loop gives every 10 ms.

    A busy machine only adds to the silences, so the best of three counts.
    """
    model.default = Reply.text("Hello.")
    nanobot.configure(anthropic(model))
    stalls = []
    for _ in range(3):
        stall, answer, loaded = stall_of(nanobot, tmp_path)
        assert (answer, loaded) == ("Hello.\n", "[False] True")
        stalls.append(stall)
        if stall < LONGEST_STALL_S:
            break

    assert min(stalls) < LONGEST_STALL_S, stalls


def test_an_import_on_the_event_loop_would_be_noticed(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path
) -> None:
    model.default = Reply.text("Hello.")
    nanobot.configure(anthropic(model))

    stall, _, loaded = stall_of(nanobot, tmp_path, "blocking")

    assert loaded == "[False] True"
    assert stall > 2 * LONGEST_STALL_S


@pytest.mark.parametrize("fallbacks", [[], [ANTHROPIC]], ids=["alone", "with a fallback"])
def test_with_an_openai_compatible_provider_it_never_loads_litellm(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path, fallbacks: list[str]
) -> None:
    model.default = Reply.text("Hello.")
    config = model_config(model.url, fallbackModels=fallbacks)
    config["providers"] |= anthropic(model)["providers"]
    nanobot.configure(config)

    with supervised(nanobot, tmp_path) as idle:
        idle.wait_for("READY=1")
        eventually(lambda: json.loads(nanobot.run("status", "--json").stdout) != {}, "its status")
        left_idle = idle.leave()
    _, answer, left_used = stall_of(nanobot, tmp_path)

    assert (left_idle, answer, left_used) == ("[False] False", "Hello.\n", "[False] False")
