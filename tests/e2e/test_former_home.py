"""A home that a former version wrote opens as it was: sessions, jobs, memory, messages.

``former_home.tar.xz`` was written by the version before the folders by feature (commit 5e83a0d):
``python -m tests.e2e.test_former_home TARGET``, run on that commit.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually, model_config
from tests.fakes.bot_api import BotApi
from tests.fakes.memory import TOOL, is_digest, write_session
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

ARCHIVE = Path(__file__).with_name("former_home.tar.xz")
KEY = f"telegram:{OWNER}"
FACT = "Owns a boat called Otter"
PARAGRAPH = "[2026-03-01 12:03] Chose mast3 for the boat; mast1 was too short."
CONSOLIDATED = {
    "history": [{"time": "2026-03-01 12:03", "text": PARAGRAPH.partition("] ")[2]}],
    "memory": [{"action": "add", "section": "Important Notes", "line": FACT}],
}


def write(telegram: Telegram) -> None:
    """Live through a day: a long chat, jobs, memory, dead letters, and a kill in a turn."""
    nanobot, api = telegram.nanobot, telegram.api
    config = telegram.config()
    config["agents"] = model_config(telegram.model.url, memoryWindow=12)["agents"]
    nanobot.configure(config)
    session = write_session(nanobot.home.parent / "boat.jsonl", 15)
    assert nanobot.run("sessions", "import", str(session)).returncode == 0
    gate = telegram.model.gate()

    def answer(request: Request) -> Reply:
        if is_digest(request):
            return Reply.tool_calls([(TOOL, CONSOLIDATED)])
        if "list it" in request.last_user and request.messages[-1]["role"] == "user":
            return Reply.tool_calls([("list_dir", {"path": "."})])
        if "are you there" in request.last_user:
            return Reply.text("too late", gate=gate)
        return Reply.text("The workspace holds AGENTS.md.")

    telegram.model.answer_with(answer)
    gateway = telegram.start()
    api.inject("please list it", chat_id=OWNER)
    api.wait_for_sent(1, OWNER)
    memory = nanobot.workspace / "memory"
    eventually(lambda: (memory / "HISTORY.md").exists(), "the consolidation")
    eventually(lambda: FACT in (memory / "MEMORY.md").read_text(), "the memory")
    for job in (
        ("--cron", "0 7 29 2 *", "-m", "Look at the weather"),
        ("--at", "2099-01-01T09:00:00", "--reminder", "-m", "A new century is near"),
    ):
        to = ("--deliver", "--channel", "telegram", "--to", str(OWNER))
        done = nanobot.run("cron", "add", *job, *to)
        assert done.returncode == 0, done.stderr
    api.inject_raw({"message": {"nonsense": True}})
    eventually(lambda: len(_bus(nanobot)["dead"]) == 1, "the dead letter")
    api.inject("are you there?", chat_id=OWNER)
    gate.wait_reached()
    gateway.kill()
    gate.release()


def _bus(nanobot: Nanobot) -> dict[str, list[dict[str, str]]]:
    listed: dict[str, list[dict[str, str]]] = json.loads(
        nanobot.run("bus", "list", "--json").stdout
    )
    return listed


def test_a_home_of_the_former_version_opens_unchanged(telegram: Telegram) -> None:
    nanobot = telegram.nanobot
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(nanobot.home.parent, filter="data")
    telegram.configure()
    telegram.model.answer_with(lambda request: Reply.text("Here I am again."))

    dead = _bus(nanobot)["dead"]
    jobs = json.loads(nanobot.run("cron", "list", "--json").stdout)
    memory = nanobot.run("memory", "show").stdout
    found = nanobot.run("memory", "search", "mast3").stdout
    telegram.start()
    telegram.api.wait_for_sent(1, OWNER)
    session = nanobot.run("sessions", "show", KEY).stdout

    assert [letter["name"] for letter in dead] == ["in-2"]
    assert "Look at the weather" in json.dumps(jobs)
    assert "A new century is near" in json.dumps(jobs)
    assert FACT in memory
    assert "too short" in found
    assert "Here I am again." in telegram.texts()[0]
    assert any("are you there" in request.last_user for request in telegram.model.requests)
    for words in ("please list it", "holds AGENTS.md", "are you there"):
        assert words in session


def main(target: str) -> None:
    """Write the archive ``target`` with the installed version."""
    with tempfile.TemporaryDirectory() as name, ModelServer.in_thread() as model:
        with BotApi.in_thread() as api:
            nanobot = Nanobot(Path(name) / "home" / ".nanobot")
            telegram = Telegram(nanobot, model, api)
            try:
                write(telegram)
            finally:
                telegram.close()
            with tarfile.open(target, "w:xz") as archive:
                for part in ("state.db", "state.db-wal", "cron", "workspace", "memory-versions"):
                    if (nanobot.home / part).exists():
                        archive.add(nanobot.home / part, f".nanobot/{part}")


if __name__ == "__main__":
    main(sys.argv[1])
