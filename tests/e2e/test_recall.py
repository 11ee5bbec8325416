"""What was said is found again: by the model, in the terminal, after `/new` and a crash."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

SAID = "The spare key of the garden shed hangs behind the ivy, on the third nail."


def said(nanobot: Nanobot, model: ModelServer, session: str) -> None:
    model.script(Reply.text("Noted."))
    done = nanobot.run("agent", "-s", session, "-m", SAID)
    assert done.returncode == 0, done.stderr


def asked(nanobot: Nanobot, model: ModelServer, **arguments: Any) -> str:
    """What the recall tool gives to the model in a session of its own."""
    model.script(Reply.tool_calls([("recall", arguments)]), Reply.text("Behind the ivy."))
    done = nanobot.run("agent", "-s", "cli:later", "-m", "where is the key of the shed?")
    assert (done.returncode, done.stdout) == (0, "Behind the ivy.\n"), done.stderr
    return model.requests[-1].tool_results[-1]


def test_what_was_said_in_one_session_is_found_in_another(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    said(nanobot, model, "cli:first")

    shown = asked(nanobot, model, query="spare key shed")

    assert "cli:first] user: " + SAID + "\nassistant: Noted." in shown
    assert "where is the key of the shed?" not in shown


def test_it_is_found_by_a_search_in_the_terminal_also_beside_a_gateway(
    telegram: Telegram,
) -> None:
    nanobot, model = telegram.nanobot, telegram.model
    said(nanobot, model, "cli:first")
    history = nanobot.workspace / "memory" / "HISTORY.md"
    history.parent.mkdir(exist_ok=True)
    history.write_text("[2026-02-03 10:00] Bought ivy for the shed.\n", encoding="utf-8")

    alone = nanobot.run("memory", "search", "key of the shed")
    gateway = telegram.start()
    beside = nanobot.run("memory", "search", "key of the shed", "--json")
    remade = nanobot.run("memory", "reindex")
    nothing = nanobot.run("memory", "search", "giraffe")
    assert gateway.terminate() == 0

    assert (alone.returncode, SAID in alone.stdout) == (0, True), alone.stderr
    assert "2026-02-03 10:00 HISTORY.md\n  Bought ivy for the shed.\n" in alone.stdout
    found = json.loads(beside.stdout)
    assert [(one["source"], one["trust"], one["messages"][0]["text"]) for one in found] == [
        ("cli:first", "trusted", SAID),
        ("HISTORY.md", "trusted", "Bought ivy for the shed."),
    ]
    assert remade.stdout == (
        "the search index holds 3 passages of 1 sessions and 1 paragraphs of HISTORY.md\n"
    )
    assert (nothing.returncode, nothing.stdout) == (0, "nothing found\n")


def test_after_new_and_a_crash_it_is_found_still(telegram: Telegram) -> None:
    telegram.model.answer_with(_remembering)
    first = telegram.start()
    telegram.api.inject(SAID, chat_id=OWNER)
    eventually(lambda: telegram.texts() == ["Noted."], "the answer")
    telegram.api.inject("/new", chat_id=OWNER)
    eventually(lambda: len(telegram.texts()) == 2, "the answer to /new")
    first.kill()

    telegram.start()
    telegram.api.inject("where is the key?", chat_id=OWNER)
    # The kill may have come before the answer to /new was noted as sent: then it comes again.
    found = "telegram:42] Ada: " + SAID
    eventually(lambda: any(found in text for text in telegram.texts()), "what was said")

    assert sum(found in text for text in telegram.texts()) == 1


def test_after_new_while_the_model_is_down_everything_is_kept_and_found(
    telegram: Telegram,
) -> None:
    telegram.model.answer_with(lambda request: Reply.text("Noted."))
    telegram.start()
    telegram.api.inject(SAID, chat_id=OWNER)
    eventually(lambda: telegram.texts() == ["Noted."], "the answer")
    gate = telegram.model.gate()
    telegram.model.answer_with(lambda request: Reply.error(500, "down", gate=gate))

    telegram.api.inject("/new", chat_id=OWNER)
    eventually(lambda: len(telegram.texts()) == 2, "the answer to /new")
    gate.release()  # no answer of the model was needed
    found = telegram.nanobot.run("memory", "search", "spare key", "--json")
    shown = telegram.nanobot.run("sessions", "show", "telegram:42")

    (one,) = json.loads(found.stdout)
    assert (one["source"], one["messages"][0]["text"]) == ("telegram:42", SAID)
    assert SAID in shown.stdout


def _remembering(request: Request) -> Reply:
    """A model that recalls when asked and answers with what it was shown; it digests nothing."""
    if "where is the key?" not in request.last_user:
        return Reply.text("Noted.")
    if request.tool_results:
        return Reply.text(request.tool_results[-1])
    return Reply.tool_calls([("recall", {"query": "spare key"})])


def test_a_deleted_session_is_found_no_more(nanobot: Nanobot, model: ModelServer) -> None:
    nanobot.use_model(model)
    said(nanobot, model, "cli:first")
    before = nanobot.run("memory", "search", "spare key")

    deleted = nanobot.run("sessions", "delete", "cli:first", "--yes")
    after = nanobot.run("memory", "search", "spare key")

    assert (deleted.returncode, SAID in before.stdout) == (0, True), deleted.stderr
    assert after.stdout == "nothing found\n"
    assert b"ivy" not in (nanobot.home / "recall.db").read_bytes()
