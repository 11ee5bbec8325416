"""Models that are down: who answers instead, what is kept, and what the chat is told of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

USUAL, OTHER = "deepseek/usual", "groq/other"
BUSY = Reply.error(503, "overloaded", retry_after="3600")


@pytest.fixture
def other() -> Iterator[ModelServer]:
    with ModelServer.in_thread() as server:
        yield server


@pytest.fixture
def two(telegram: Telegram, other: ModelServer) -> Telegram:
    """A gateway's config with a usual model (``telegram.model``) and one that stands in."""
    config = telegram.config()
    config["agents"]["defaults"] = {"model": USUAL, "fallbackModels": [OTHER]}
    config["providers"] = {
        "deepseek": {"apiKey": "sk-fake-usual-0000", "apiBase": telegram.model.url},
        "groq": {"apiKey": "sk-fake-other-0000", "apiBase": other.url},
    }
    telegram.nanobot.configure(config)
    return telegram


def echo(request: Request) -> Reply:
    return Reply.text(f"echo {request.last_user.partition(chr(10))[2]}")


def pass_the_time(nanobot: Nanobot) -> None:
    """Make everything that was put off due, as an hour would."""
    with closing(sqlite3.connect(nanobot.home / "state.db")) as state, state:
        state.execute("UPDATE inbox SET not_before = 0 WHERE not_before IS NOT NULL")


def test_another_model_answers_and_the_chat_and_the_terminal_are_told(
    two: Telegram, other: ModelServer
) -> None:
    two.model.default = Reply.reset()
    other.answer_with(echo)
    two.start()

    two.api.inject("hello", chat_id=OWNER)
    (sent,) = two.api.wait_for_sent(1, OWNER, timeout=40)
    beside = two.nanobot.run("agent", "-m", "hello")

    because = f"answered by {OTHER}, because {USUAL} cannot be reached"
    assert sent.text == f"echo hello\n\n({because})"
    assert (beside.stdout, beside.stderr) == ("echo hello\n", f"nanobot: {because}\n")


def test_what_nobody_can_answer_is_kept_told_once_and_answered_after_a_restart(
    two: Telegram, other: ModelServer
) -> None:
    two.model.default = other.default = BUSY
    gateway = two.start()
    two.api.inject("one", chat_id=OWNER)
    (kept,) = two.api.wait_for_sent(1, OWNER)
    two.api.inject("two", chat_id=OWNER)
    eventually(lambda: not two.api.pending, "the second message in the inbox")
    gateway.kill()
    pass_the_time(two.nanobot)
    second = two.start()
    eventually(lambda: len(other.requests) == 2, "the try after the restart")
    second.terminate()
    pass_the_time(two.nanobot)
    two.model.answer_with(echo)

    two.start()
    two.api.wait_for_sent(3, OWNER)

    assert kept.text.startswith(f"No model can be reached at the moment ({USUAL} does not answer: ")
    assert f"{OTHER} does not answer: " in kept.text
    assert "Your message is kept; I try again at " in kept.text
    assert two.texts() == [kept.text, "echo one", "echo two"]


def test_commands_pass_what_is_kept_and_new_mail_is_no_reason_to_ask_too_early(
    two: Telegram, other: ModelServer
) -> None:
    two.model.default = other.default = BUSY
    two.start()
    two.api.inject("one", chat_id=OWNER)
    two.api.wait_for_sent(1, OWNER)
    asked = len(two.model.requests), len(other.requests)

    two.api.inject("two", chat_id=OWNER)
    two.api.inject("/model", chat_id=OWNER)
    two.api.wait_for_sent(2, OWNER)
    two.api.inject("/new", chat_id=OWNER)
    two.api.wait_for_sent(3, OWNER)

    assert (len(two.model.requests), len(other.requests)) == asked
    assert [text.partition(" ")[0] for text in two.texts()[1:]] == ["Model:", "A"]


def test_a_kept_message_is_tried_at_once_with_another_model(
    two: Telegram, other: ModelServer
) -> None:
    two.model.default = other.default = BUSY
    two.start()
    two.api.inject("one", chat_id=OWNER)
    two.api.wait_for_sent(1, OWNER)
    other.answer_with(echo)

    two.api.inject(f"/model {OTHER}", chat_id=OWNER)
    two.api.wait_for_sent(3, OWNER)

    assert sorted(text.partition(":")[0] for text in two.texts()[1:]) == [
        "From the next message on",
        "echo one",
    ]


def test_a_kept_message_can_be_stopped(two: Telegram, other: ModelServer) -> None:
    two.model.default = other.default = BUSY
    gateway = two.start()
    two.api.inject("Delete the folder old", chat_id=OWNER)
    two.api.wait_for_sent(1, OWNER)

    two.api.inject("/stop", chat_id=OWNER)
    two.api.wait_for_sent(2, OWNER)
    gateway.terminate()
    pass_the_time(two.nanobot)
    two.model.answer_with(echo)
    two.start()
    two.api.inject("two", chat_id=OWNER)
    two.api.wait_for_sent(3, OWNER)

    assert two.texts()[1:] == ["Stopped.", "echo two"]
    roles = [(one["role"], str(one["content"])) for one in two.model.requests[-1].messages[-2:]]
    assert roles[0][1].startswith("[The user stopped this request")
