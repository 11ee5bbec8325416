"""Death in the middle of making room: nothing is half-done, nothing is lost."""

from __future__ import annotations

import sqlite3
from collections import Counter
from functools import partial

from tests.e2e.conftest import OWNER, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import Request


def kinds(telegram: Telegram) -> Counter[str]:
    connection = sqlite3.connect(telegram.nanobot.home / "state.db")
    counted = Counter(kind for (kind,) in connection.execute("SELECT kind FROM log"))
    connection.close()
    return counted


def _reached(telegram: Telegram, summaries: list[Request], number: int) -> bool:
    return len(telegram.texts()) + len(summaries) >= number


def test_killed_while_the_model_sums_up_the_turn_begins_again_with_all_it_had(
    telegram: Telegram,
) -> None:
    gate = telegram.model.gate()
    summaries: list[Request] = []

    def answer(request: Request) -> Reply:
        if "tools" in request.body:
            return Reply.text("word " * 700)
        summaries.append(request)
        return Reply.text("## Facts\nAll was said.", gate=gate if len(summaries) == 1 else None)

    telegram.model.answer_with(answer)
    config = telegram.config()
    config["agents"]["defaults"] |= {"contextWindow": 8000, "maxTokens": 1000}
    telegram.nanobot.configure(config)
    gateway = telegram.start()
    number = 0
    while not summaries:
        number += 1
        telegram.api.inject(f"say {number}", chat_id=OWNER)
        expected = partial(_reached, telegram, summaries, number)
        eventually(expected, "an answer or a summary")
    before = kinds(telegram)

    gateway.kill()
    killed = kinds(telegram)
    telegram.start()
    telegram.api.wait_for_sent(number, OWNER)

    after = kinds(telegram)
    assert (killed, killed["compacted"]) == (before, 0)
    assert (after["user"], after["compacted"], after["assistant"]) == (number, 1, number)
