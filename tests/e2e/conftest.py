"""Runs the installed ``nanobot`` as a process, against fakes on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.bot_api import FAKE_TOKEN, BlockingBotApi, BotApi
from tests.fakes.model_server import ModelServer

NANOBOT = Path(sys.executable).with_name("nanobot")


@dataclass(slots=True)
class Nanobot:
    """One owner's nanobot: a home of its own and a clean environment."""

    home: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.home / "workspace"

    @property
    def variables(self) -> dict[str, str]:
        passed = {
            name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ
        }
        return {
            **passed,
            "HOME": str(self.home.parent),
            "NANOBOT_HOME": str(self.home),
            **self.environ,
        }

    def configure(self, config: dict[str, Any]) -> None:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.home / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        path.chmod(0o600)

    def use_model(self, server: ModelServer, **more: Any) -> None:
        """Configure the fake model server as the custom provider."""
        self.configure(model_config(server.url, **more))

    def start(
        self, *arguments: str, interruptible: bool = False, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command; ``interruptible`` as at a terminal, also where the suite is not."""
        # A shell's background job ignores SIGINT, and so does all that it starts.
        signals = ["env", "--default-signal=INT"] if interruptible else []
        return subprocess.Popen(
            [*signals, str(NANOBOT), *arguments],
            env=self.variables,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            **options,
        )

    def run(
        self, *arguments: str, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(NANOBOT), *arguments],
            env=self.variables,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )


def model_config(url: str, **defaults: Any) -> dict[str, Any]:
    """A config that sends everything to an endpoint of the OpenAI kind."""
    return {
        "agents": {"defaults": {"model": "fake-model", "provider": "custom", **defaults}},
        "providers": {"custom": {"apiKey": "sk-fake-owner-key-0000", "apiBase": url}},
    }


@pytest.fixture
def nanobot(tmp_path: Path) -> Nanobot:
    return Nanobot(tmp_path / "home" / ".nanobot")


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer.in_thread() as server:
        yield server


OWNER = 42


@dataclass(slots=True)
class Gateway:
    """A running ``nanobot gateway``; ``log`` is what it said on stderr once it has ended."""

    process: subprocess.Popen[str]
    log: str = ""

    def terminate(self, timeout: float = 10) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.ended(timeout)

    def kill(self) -> None:
        """SIGKILL, the whole process group with it."""
        self.process.kill()
        self.ended(10)

    def ended(self, timeout: float = 30) -> int:
        """Wait for its end; the exit code."""
        _, log = self.process.communicate(timeout=timeout)
        self.log += log
        return self.process.returncode


@dataclass(slots=True)
class Telegram:
    """A nanobot with Telegram and a model, both fake, and the gateways started for it."""

    nanobot: Nanobot
    model: ModelServer
    api: BlockingBotApi
    started: list[Gateway] = field(default_factory=list)

    def configure(self, **telegram: Any) -> None:
        self.nanobot.configure(self.config(**telegram))

    def config(self, **telegram: Any) -> dict[str, Any]:
        config = model_config(self.model.url)
        channel = {
            "enabled": True,
            "token": FAKE_TOKEN,
            "allowFrom": [str(OWNER)],
            "apiBase": self.api.root,
        }
        config["channels"] = {"telegram": {**channel, **telegram}}
        return config

    def start(self, *, wrapped_in: tuple[str, ...] = (), polling: bool = True) -> Gateway:
        """Start the gateway and, with ``polling``, wait until it listens to Telegram."""
        before = len(self.api.polls)
        process = subprocess.Popen(
            [*wrapped_in, str(NANOBOT), "gateway"],
            env=self.nanobot.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        gateway = Gateway(process)
        self.started.append(gateway)
        if polling:
            self.api.wait_for_poll(after=before, timeout=30)
        return gateway

    def texts(self, chat_id: int = OWNER) -> list[str]:
        return [message.text for message in self.api.sent_to(chat_id)]

    def close(self) -> None:
        """End the gateways that still run, and let go of what the others said."""
        for gateway in self.started:
            if gateway.process.poll() is None:
                gateway.kill()
            elif gateway.process.stderr is not None:
                gateway.process.stderr.close()


@pytest.fixture
def telegram(nanobot: Nanobot, model: ModelServer) -> Iterator[Telegram]:
    with BotApi.in_thread() as api:
        made = Telegram(nanobot, model, api)
        made.configure()
        yield made
        made.close()


def eventually(condition: Callable[[], bool], what: str, timeout: float = 20) -> None:
    """Ask until ``condition`` holds; fails after ``timeout`` seconds with ``what`` was awaited."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {timeout} s"
        time.sleep(0.02)
