"""A gateway and litellm: who loads it, when, and on which thread."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Nanobot, eventually, model_config
from tests.e2e.test_litellm_imports import IMPORT_SEEN
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

ANTHROPIC = "anthropic/claude-sonnet-4-5"

# Runs the gateway as it is, and says at the end whether litellm was loaded when it became ready,
# and where it was imported. ``blocking`` puts that on the event loop, to see whether it is noticed.
RUN = (
    IMPORT_SEEN
    + """
from nanobot.cli import gateway_run
from nanobot.cli.main import main
from nanobot.providers import litellm as litellm_package

at_ready = []
tell = gateway_run.Notifier.tell

def told(self, state):
    if state == "READY=1":
        at_ready.append("litellm" in sys.modules)
    tell(self, state)

gateway_run.Notifier.tell = told
if sys.argv[1] == "blocking":
    async def load(self):
        self._module = litellm_package._imported()
        return self._module
    litellm_package.LiteLLM.load = load
sys.argv = ["nanobot", "gateway"]
try:
    main()
finally:
    print(at_ready, seen)
"""
)


@dataclass(slots=True)
class Supervised:
    """A gateway as systemd sees it: what it says on the notification socket."""

    nanobot: Nanobot
    process: subprocess.Popen[str]
    notes: socket.socket

    def wait_for(self, state: str, timeout: float = 30) -> None:
        """Read what it says until it says ``state``."""
        self.notes.settimeout(timeout)
        while self.notes.recv(4096).decode() != state:
            pass

    def leave(self) -> str:
        """SIGTERM; what the process says of litellm: loaded at READY, and imported where."""
        self.process.terminate()
        return self.process.communicate(timeout=20)[0].strip()


@contextlib.contextmanager
def supervised(nanobot: Nanobot, folder: Path, how: str = "as it is") -> Iterator[Supervised]:
    path = folder / "notify.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
        notes.bind(str(path))
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, how],
            env=nanobot.variables | {"NOTIFY_SOCKET": str(path)},
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


def answered(nanobot: Nanobot, folder: Path, how: str = "as it is") -> tuple[str, str]:
    """The first answer after READY, and what the gateway says of litellm."""
    with supervised(nanobot, folder, how) as gateway:
        gateway.wait_for("READY=1")
        return nanobot.run("agent", "-m", "hello").stdout, gateway.leave()


@pytest.mark.parametrize(
    ("how", "where"), [("as it is", "beside the loop"), ("blocking", "on the loop")]
)
def test_with_anthropic_it_is_ready_first_and_then_loads_litellm_beside_its_loop(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path, how: str, where: str
) -> None:
    """The second case puts the import on the loop, to show that it would be noticed."""
    model.default = Reply.text("Hello.")
    nanobot.configure(anthropic(model))

    assert answered(nanobot, tmp_path, how) == ("Hello.\n", f"[False] ['{where}']")


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
    answer, left_used = answered(nanobot, tmp_path)

    assert (left_idle, answer, left_used) == ("[False] []", "Hello.\n", "[False] []")
