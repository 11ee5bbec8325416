"""Many chats at once: nanobot's gateway beside the floor bot, in the same run.

Fakes, bots and the measuring process are separate processes. Each round sends one message in each
of N chats at the same moment to a model that takes one second, and takes the time until the last
answer has been sent. Usage: ``python -m benchmarks.concurrency [--rounds 3] [--chats 50 200]``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Process, Queue
from pathlib import Path
from statistics import median
from typing import Any

from tests.fakes.bot_api import FAKE_TOKEN, BlockingBotApi, BotApi
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

LATENCY_S = 1.0
FIRST_CHAT = 1000


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds until the last answer, and the bot's CPU seconds a message."""

    seconds: float
    cpu_per_message: float


def measure(bot: str, chats: int, rounds: int) -> Round:
    """The medians over ``rounds`` rounds, after one that warms up; bot: ``nanobot``, ``floor``."""
    with tempfile.TemporaryDirectory() as folder, _model() as model_url:
        with BotApi.in_thread() as api, _bot(bot, Path(folder), api, model_url, chats) as pid:
            results = [_round(api, pid, chats) for _ in range(rounds + 1)][1:]
    return Round(
        median(result.seconds for result in results),
        median(result.cpu_per_message for result in results),
    )


def _round(api: BlockingBotApi, pid: int, chats: int) -> Round:
    before, cpu = len(api.sent), _cpu_seconds(pid)
    began = time.perf_counter()
    for chat in range(FIRST_CHAT, FIRST_CHAT + chats):
        api.inject("hello", chat_id=chat)
    api.wait_for_sent(before + chats, timeout=60)
    seconds = time.perf_counter() - began
    return Round(seconds, (_idle_cpu_seconds(pid) - cpu) / chats)


def _idle_cpu_seconds(pid: int) -> float:
    """The CPU time of a process once it has stopped growing."""
    while True:
        seen = _cpu_seconds(pid)
        time.sleep(0.3)
        if _cpu_seconds(pid) == seen:
            return seen


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _model() -> Iterator[str]:
    urls: Queue[str] = Queue()
    process = Process(target=_serve_model, args=(urls,), daemon=True)
    process.start()
    try:
        yield urls.get(timeout=20)
    finally:
        process.kill()
        process.join()


def _serve_model(urls: Queue[str]) -> None:
    with ModelServer.in_thread(record=False) as server:
        server.answer_with(lambda request: Reply.text("Hello to you.", latency_s=LATENCY_S))
        urls.put(server.url)
        while True:
            time.sleep(3600)


def owner_config(api_root: str, model_url: str, chats: int) -> dict[str, Any]:
    """A config with the fake Telegram and model, whose owners are ``chats`` chats."""
    owners = [str(chat) for chat in range(FIRST_CHAT, FIRST_CHAT + chats)]
    turns = {"model": "fake-model", "provider": "custom", "maxConcurrentTurns": max(64, chats)}
    telegram = {"enabled": True, "token": FAKE_TOKEN, "allowFrom": owners, "apiBase": api_root}
    return {
        "agents": {"defaults": turns},
        "providers": {"custom": {"apiBase": model_url}},
        "channels": {"telegram": telegram},
    }


@contextmanager
def _bot(kind: str, folder: Path, api: BlockingBotApi, model_url: str, chats: int) -> Iterator[int]:
    if kind == "floor":
        command = [sys.executable, "-m", "benchmarks.floor_bot", FAKE_TOKEN, api.root, model_url]
    else:
        config = owner_config(api.root, model_url, chats)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "config.json").chmod(0o600)
        command = [sys.executable, "-c", "from nanobot.cli.main import main; main()"]
        command += ["--home", str(folder), "gateway"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[1]
    )
    try:
        api.wait_for_poll(timeout=60)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def main() -> None:
    """Print a table of both bots, interleaved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chats", type=int, nargs="+", default=[50, 200])
    arguments = parser.parse_args()
    for chats in arguments.chats:
        floor = measure("floor", chats, arguments.rounds)
        ours = measure("nanobot", chats, arguments.rounds)
        print(
            f"{chats:4} chats: floor {floor.seconds:.2f} s, nanobot {ours.seconds:.2f} s, "
            f"ratio {ours.seconds / floor.seconds:.2f}; CPU a message: floor "
            f"{floor.cpu_per_message * 1000:.1f} ms, nanobot {ours.cpu_per_message * 1000:.1f} ms"
        )


if __name__ == "__main__":
    main()
