"""The owner is in command of a running turn, and nothing outside can hold a chat for ever."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.e2e.conftest import OWNER, Telegram, eventually
from tests.e2e.test_safety import ESCAPE, _alive
from tests.fakes.model_replies import Reply


@pytest.fixture
def fifo(telegram: Telegram) -> Path:
    """A pipe in the workspace on which a command of the model can wait."""
    telegram.nanobot.workspace.mkdir(parents=True)
    path = telegram.nanobot.workspace / "gate"
    os.mkfifo(path)
    return path


def test_a_second_message_during_a_tool_is_in_the_next_request(
    telegram: Telegram, fifo: Path
) -> None:
    telegram.model.script(
        Reply.tool_calls(
            [("exec", {"command": "cat gate"}), ("write_file", {"path": "b", "content": "x"})]
        ),
        Reply.text("As you wish."),
    )
    telegram.start()
    telegram.api.inject("do it", chat_id=OWNER)
    with fifo.open("w") as gate:  # opens once the command reads
        update = telegram.api.inject("rather not", chat_id=OWNER)
        telegram.api.wait_for_poll(update + 1)
        gate.write("go on\n")

    telegram.api.wait_for_sent(1, OWNER)
    request = telegram.model.requests[1]
    assert request.last_user.endswith("rather not")
    assert "go on" in request.tool_results[0]
    assert request.tool_results[1].startswith("Not run")
    assert telegram.texts() == ["As you wish."]
    assert not (telegram.nanobot.workspace / "b").exists()


@pytest.mark.parametrize("sandbox", ["require", "off"])
def test_stop_kills_a_tree_that_ignores_signals(telegram: Telegram, sandbox: str) -> None:
    mark = f"escape-{secrets.token_hex(8)}"
    config = telegram.config()
    config["tools"] = {"exec": {"sandbox": sandbox}}
    telegram.nanobot.configure(config)
    script = ESCAPE.format(mark=mark)
    telegram.model.script(
        Reply.tool_calls([("exec", {"command": f"python3 -c '{script}'", "timeout": 60})]),
        Reply.text("next, please"),
    )
    telegram.start()
    telegram.api.inject("run it", chat_id=OWNER)
    eventually(lambda: len(_alive(mark)) >= 5, "the tree")
    waiting = telegram.api.inject("and then?", chat_id=OWNER)
    telegram.api.wait_for_poll(waiting + 1)

    telegram.api.inject("/stop", chat_id=OWNER)

    telegram.api.wait_for_sent(1, OWNER)
    assert telegram.texts()[0] == "Stopped."
    assert _alive(mark) == []
    telegram.api.wait_for_sent(2, OWNER)
    assert telegram.texts()[1] == "next, please"


def test_a_hanging_model_frees_the_chat_at_its_limit_and_the_user_is_told(
    telegram: Telegram,
) -> None:
    config = telegram.config()
    config["agents"]["defaults"] |= {"modelTimeoutS": 1, "modelIdleTimeoutS": 1}
    telegram.nanobot.configure(config)
    telegram.model.answer_with(lambda request: Reply.hang())
    telegram.start()

    telegram.api.inject("hello?", chat_id=OWNER)

    (told,) = telegram.api.wait_for_sent(1, OWNER, timeout=30)
    assert "Your message is kept" in told.text
    telegram.model.answer_with(lambda request: Reply.text("here I am"))
    telegram.api.inject("anybody?", chat_id=OWNER)
    telegram.api.wait_for_sent(3, OWNER, timeout=30)
    assert telegram.texts()[1:] == ["here I am", "here I am"]


def test_a_hanging_tool_ends_at_its_limit_and_the_model_is_told(telegram: Telegram) -> None:
    telegram.model.script(
        Reply.tool_calls([("exec", {"command": "sleep 300", "timeout": 1})]),
        Reply.text("It hung."),
    )
    telegram.start()

    telegram.api.inject("run it", chat_id=OWNER)

    telegram.api.wait_for_sent(1, OWNER)
    assert "1 s" in telegram.model.requests[1].tool_results[0]


def test_a_hanging_send_to_one_chat_holds_back_no_other(telegram: Telegram) -> None:
    telegram.configure(allowFrom=["42", "43"])
    telegram.model.answer_with(lambda request: Reply.text("answer"))
    telegram.start()
    gate = telegram.api.hang("sendMessage", chat_id=42, times=1)
    telegram.api.inject("one", chat_id=42)
    gate.wait_reached()

    telegram.api.inject("two", chat_id=43)

    telegram.api.wait_for_sent(1, 43)
    gate.release()
    telegram.api.wait_for_sent(1, 42)
    assert (telegram.texts(42), telegram.texts(43)) == (["answer"], ["answer"])


def test_a_message_to_another_chat_and_the_answer_go_where_they_belong(
    telegram: Telegram,
) -> None:
    telegram.model.script(
        Reply.tool_calls(
            [("message", {"content": "to you", "channel": "telegram", "chat_id": "77"})]
        ),
        Reply.tool_calls([("message", {"content": "half way"})]),
        Reply.text("half way"),
    )
    telegram.start()

    telegram.api.inject("tell 77", chat_id=OWNER)

    telegram.api.wait_for_sent(1, 77)
    eventually(lambda: len(telegram.model.requests) == 3, "the third request")
    telegram.api.inject("/status", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)
    assert telegram.texts(77) == ["to you"]
    assert telegram.texts()[0] == "half way"
    assert telegram.texts()[1].startswith("Model:")
