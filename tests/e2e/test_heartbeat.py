"""The heartbeat from outside: real gateway, fake Telegram, fake model."""

from __future__ import annotations

from typing import Any

from tests.e2e.conftest import OWNER, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import Request


def beating(telegram: Telegram) -> None:
    config: dict[str, Any] = telegram.config()
    config["gateway"] = {"heartbeat": {"intervalS": 1}}
    telegram.nanobot.configure(config)


def test_tasks_are_one_call_silence_is_silent_and_news_reach_the_last_chat(
    telegram: Telegram,
) -> None:
    beats = 0

    def answer(request: Request) -> Reply:
        nonlocal beats
        if "standing tasks" not in request.last_user:
            return Reply.text("hello")
        beats += 1
        return Reply.text("It will rain." if beats == 3 else "HEARTBEAT_OK")

    telegram.model.answer_with(answer)
    beating(telegram)
    telegram.start()
    telegram.api.inject("hi", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)
    telegram.nanobot.run("status")
    file = telegram.nanobot.workspace / "HEARTBEAT.md"
    before = beats
    file.write_text("# Tasks\n- [ ] weather\n- [ ] mail\n")

    eventually(lambda: beats >= 5, "five heartbeats")
    telegram.api.inject("when?", chat_id=OWNER)
    telegram.api.wait_for_sent(3, OWNER)

    assert (before, telegram.texts()) == (0, ["hello", "It will rain.", "hello"])
    asked = next(r for r in telegram.model.requests if r.last_user.endswith("when?"))
    note, words = (message["content"] for message in asked.messages[-3:-1])
    assert ("the heartbeat sent" in note, words) == (True, "It will rain.")
    beat = next(r for r in telegram.model.requests if "standing tasks" in r.last_user)
    assert "weather" in beat.last_user and "mail" in beat.last_user
