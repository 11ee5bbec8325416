"""``nanobot bus``: dead letters seen, retried and dropped, beside a gateway and without one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import OWNER, Gateway, Telegram, eventually
from tests.fakes.model_replies import Reply


def bus(telegram: Telegram, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a ``nanobot bus`` command."""
    done = telegram.nanobot.run("bus", *arguments)
    return done.returncode, done.stdout, done.stderr


def listed(telegram: Telegram) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(telegram.nanobot.run("bus", "list", "--json").stdout)
    return answer


def with_dead_letters(telegram: Telegram) -> Gateway:
    """A gateway that could deliver its answer to nobody, and read one update not at all."""
    telegram.model.answer_with(lambda request: Reply.text("the answer"))
    telegram.api.fail("sendMessage", 403, description="Forbidden: bot was blocked by the user")
    gateway = telegram.start()
    telegram.api.inject_raw({"message": {"nonsense": True}})
    telegram.api.inject("hello", chat_id=OWNER)
    eventually(lambda: len(listed(telegram)["dead"]) == 2, "two dead letters")
    return gateway


@pytest.mark.parametrize("runs", [True, False], ids=["beside a gateway", "without one"])
def test_dead_letters_are_listed_with_what_they_say_and_why(telegram: Telegram, runs: bool) -> None:
    gateway = with_dead_letters(telegram)
    if not runs:
        gateway.terminate()

    code, text, _ = bus(telegram, "list")
    letters = {letter["name"]: letter for letter in listed(telegram)["dead"]}
    status = json.loads(telegram.nanobot.run("status", "--json").stdout)

    assert (code, set(letters)) == (0, {"out-1", "in-1"})
    assert letters["out-1"]["text"] == "the answer"
    assert "blocked by the user" in letters["out-1"]["error"]
    assert text.splitlines()[-1].endswith("2 dead letters")
    assert "2 dead letters" in json.dumps(status)


def test_beside_a_gateway_a_retried_letter_is_delivered_at_once(telegram: Telegram) -> None:
    with_dead_letters(telegram)

    code, said, _ = bus(telegram, "retry", "out-1")

    telegram.api.wait_for_sent(1, OWNER)
    assert (code, said) == (0, "out-1 is tried again\n")
    assert telegram.texts() == ["the answer"]
    assert [letter["name"] for letter in listed(telegram)["dead"]] == ["in-1"]


def test_without_a_gateway_a_retried_letter_is_delivered_by_the_next(telegram: Telegram) -> None:
    with_dead_letters(telegram).terminate()

    code, said, _ = bus(telegram, "retry", "out-1")
    waiting = listed(telegram)["waiting"]
    telegram.start()

    telegram.api.wait_for_sent(1, OWNER)
    assert (code, said) == (0, "out-1 is tried again\n")
    assert waiting == {"inbox": 0, "outbox": 1}
    assert telegram.texts() == ["the answer"]


@pytest.mark.parametrize("runs", [True, False], ids=["beside a gateway", "without one"])
def test_dropped_letters_are_gone_and_what_cannot_be_done_is_said(
    telegram: Telegram, runs: bool
) -> None:
    gateway = with_dead_letters(telegram)
    if not runs:
        gateway.terminate()

    unreadable = bus(telegram, "retry", "in-1", "out-7")
    dropped = bus(telegram, "drop", "--all")

    assert unreadable == (
        1,
        "",
        "nanobot: out-7: there is no such dead letter\nnanobot: in-1: it cannot be read; drop it\n",
    )
    assert (dropped[0], sorted(dropped[1].splitlines())) == (
        0,
        ["in-1 is dropped", "out-1 is dropped"],
    )
    assert listed(telegram) == {"waiting": {"inbox": 0, "outbox": 0}, "dead": []}


def test_a_change_without_a_name_is_a_usage_error(telegram: Telegram) -> None:
    code, _, said = bus(telegram, "drop")

    assert code == 2
    assert "name the letters" in said
