"""A home that another nanobot of the family has used: nothing of it is lost at our first start.

``tests/family/home-*`` is what these versions of the family left behind after two questions at a
terminal, one of which set a job, and ``/new``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

FAMILY = Path(__file__).parents[1] / "family"
HOMES = ["home-0.2.0", "home-0.3.5"]


def move_in(nanobot: Nanobot, home: str) -> dict[Path, bytes]:
    """Put the family's files into a home; returns them with what they hold."""
    shutil.copytree(FAMILY / home, nanobot.home, dirs_exist_ok=True)
    return {file: file.read_bytes() for file in nanobot.home.rglob("*.json*") if file.is_file()}


@pytest.mark.parametrize("home", HOMES)
def test_jobs_conversations_and_history_are_there_at_the_first_question(
    nanobot: Nanobot, model: ModelServer, home: str
) -> None:
    nanobot.use_model(model)
    before = move_in(nanobot, home)
    model.script(Reply.text("In the harbour, as I said."))

    done = nanobot.run("agent", "-m", "Where was it?")
    jobs = json.loads(nanobot.run("cron", "list", "--json").stdout)
    found = nanobot.run("memory", "search", "harbour").stdout
    history = (nanobot.workspace / "memory" / "HISTORY.md").read_text("utf-8")

    assert (done.returncode, done.stdout) == (0, "In the harbour, as I said.\n")
    assert done.stderr == (
        "nanobot: taken over from another nanobot (jobs: 1, conversations: 1, paragraphs of "
        "history: 1); its files stay as they are\n"
    )
    asked = [str(message["content"]) for message in model.requests[0].messages]
    assert sum("Where is the mast?" in text for text in asked) == 1
    assert "Where was it?" in asked[-1]
    assert [job["name"] for job in jobs] == ["tea"]
    assert "The mast is in the harbour." in found
    assert history.startswith("[2026-11-21 22:2")
    assert {file: file.read_bytes() for file in before} == before


def test_what_is_taken_over_is_taken_over_once(nanobot: Nanobot, model: ModelServer) -> None:
    nanobot.use_model(model)
    move_in(nanobot, "home-0.2.0")

    first = nanobot.run("sessions", "list")
    nanobot.run("cron", "remove", "7bd4831d")
    second = nanobot.run("sessions", "list")
    jobs = json.loads(nanobot.run("cron", "list", "--json").stdout)

    assert "taken over from another nanobot" in first.stderr
    assert (second.stderr, second.stdout) == ("", first.stdout)
    assert jobs == []


def test_files_that_come_after_the_first_turn_are_not_taken_over(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    nanobot.run("agent", "-m", "hello")
    (nanobot.home / "taken-over.json").unlink()
    move_in(nanobot, "home-0.2.0")

    done = nanobot.run("sessions", "show", "cli:direct")
    jobs = json.loads(nanobot.run("cron", "list", "--json").stdout)

    assert "mast" not in done.stdout
    assert "taken over" not in done.stderr
    assert jobs == []


def test_a_gateway_answers_in_the_conversation_that_the_family_began(telegram: Telegram) -> None:
    move_in(telegram.nanobot, "home-0.2.0")
    session = telegram.nanobot.workspace / "sessions" / "cli_direct.jsonl"
    words = session.read_text("utf-8").replace("cli:direct", f"telegram:{OWNER}")
    session.with_name(f"telegram_{OWNER}.jsonl").write_text(words, "utf-8")
    telegram.model.answer_with(lambda asked: Reply.text("In the harbour."))
    telegram.start()

    telegram.api.inject("Where was it?", chat_id=OWNER)

    eventually(lambda: telegram.texts() == ["In the harbour."], "the answer")
    (asked, *_) = telegram.model.requests
    assert any("Where is the mast?" in str(message["content"]) for message in asked.messages)
