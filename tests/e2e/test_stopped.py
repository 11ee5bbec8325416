"""What is stopped, or fails, is closed in the history: no later turn carries it out unasked."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

DELETE = "Delete the folder old"
STOPPED = "[The user stopped this request"


def said(request: Request) -> list[str]:
    """What follows the system prompt, without the headers of turns."""
    return [
        str(message["content"]).rpartition("/>\n")[2]
        for message in request.messages
        if message["role"] != "system"
    ]


def waits(nanobot: Nanobot, question: str) -> bool:
    with closing(sqlite3.connect(nanobot.home / "state.db", timeout=5)) as state:
        rows = state.execute("SELECT payload FROM inbox WHERE state = 'pending'").fetchall()
    return any(question in payload for (payload,) in rows)


def test_what_was_stopped_in_the_model_call_is_closed_in_the_history(telegram: Telegram) -> None:
    gate = telegram.model.gate()
    telegram.model.script(Reply.text("too late", gate=gate), Reply.text("It is noon."))
    telegram.start()
    telegram.api.inject(DELETE, chat_id=OWNER)
    gate.wait_reached()
    telegram.api.inject("/stop", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)

    telegram.api.inject("What time is it?", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)
    gate.release()

    instruction, note, question = said(telegram.model.requests[-1])
    assert (instruction, question) == (DELETE, "What time is it?")
    assert note.startswith(STOPPED)
    assert telegram.texts() == ["Stopped.", "It is noon."]


def test_what_was_stopped_before_its_turn_began_is_not_run_and_said_to_be_stopped(
    telegram: Telegram,
) -> None:
    config = telegram.config(allowFrom=[str(OWNER), "43"])
    config["agents"]["defaults"]["maxConcurrentTurns"] = 1
    telegram.nanobot.configure(config)
    gate = telegram.model.gate()
    telegram.model.script(Reply.text("the other's answer", gate=gate), Reply.text("It is noon."))
    telegram.start()
    telegram.api.inject("take your time", chat_id=43)
    gate.wait_reached()
    telegram.api.inject(DELETE, chat_id=OWNER)
    eventually(lambda: waits(telegram.nanobot, DELETE), "the instruction in the inbox")

    telegram.api.inject("/stop", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)
    gate.release()
    telegram.api.inject("What time is it?", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)

    instruction, note, _ = said(telegram.model.requests[-1])
    assert instruction == DELETE
    assert note.startswith(STOPPED)
    assert telegram.texts() == ["Stopped.", "It is noon."]


def test_an_interrupted_one_shot_is_closed_in_the_history(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    gate = model.gate()
    model.script(Reply.text("too late", gate=gate), Reply.text("It is noon."))
    asking = nanobot.start("agent", "-m", DELETE, interruptible=True)
    gate.wait_reached()
    asking.send_signal(signal.SIGINT)
    asking.communicate(timeout=20)

    nanobot.run("agent", "-m", "What time is it?")
    gate.release()

    instruction, note, _ = said(model.requests[-1])
    assert instruction == DELETE
    assert note.startswith(STOPPED)


def test_a_one_shot_that_was_killed_is_closed_in_the_history(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    gate = model.gate()
    model.script(
        Reply.tool_calls([("list_dir", {"path": "."})]),
        Reply.text("too late", gate=gate),
        Reply.text("It is noon."),
    )
    asking = nanobot.start("agent", "-m", DELETE)
    gate.wait_reached()
    asking.kill()
    asking.communicate(timeout=20)

    nanobot.run("agent", "-m", "What time is it?")
    gate.release()

    *_, note, question = said(model.requests[-1])
    assert note.startswith("[This request was interrupted")
    assert question == "What time is it?"


def test_what_no_model_would_answer_is_closed_in_the_history(telegram: Telegram) -> None:
    telegram.model.script(Reply.error(400, "no such model"), Reply.text("It is noon."))
    telegram.start()
    telegram.api.inject(DELETE, chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)

    telegram.api.inject("What time is it?", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)

    instruction, note, _ = said(telegram.model.requests[-1])
    assert instruction == DELETE
    assert note.startswith("[This request failed")


def test_ctrl_c_while_a_one_shot_waits_for_a_slot_withdraws_it(telegram: Telegram) -> None:
    config = telegram.config()
    config["agents"]["defaults"]["maxConcurrentTurns"] = 1
    telegram.nanobot.configure(config)
    gate = telegram.model.gate()
    telegram.model.script(Reply.text("done", gate=gate), Reply.text("again"), Reply.text("no"))
    telegram.start()
    telegram.api.inject("take your time", chat_id=OWNER)
    gate.wait_reached()
    asking = telegram.nanobot.start("agent", "-m", DELETE, interruptible=True)
    eventually(lambda: waits(telegram.nanobot, DELETE), "the question in the inbox")

    asking.send_signal(signal.SIGINT)
    asking.communicate(timeout=20)
    gate.release()
    telegram.api.wait_for_sent(1, OWNER)
    telegram.api.inject("and now?", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)

    assert not waits(telegram.nanobot, DELETE)
    assert [DELETE in request.last_user for request in telegram.model.requests] == [False, False]
