"""Whatever hangs outside, the chat is free again within its limit and somebody is told."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer
from tests.fakes.names import SILENT, silent_names

KEPT = "Your message is kept"


@contextmanager
def half_a_page() -> Iterator[str]:
    """A web server that begins its page and never ends it; gives its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        with listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>It ra")
            over.wait(60)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/news"
    finally:
        over.set()
        listening.close()


def with_short_tools(config: dict[str, Any]) -> dict[str, Any]:
    config["agents"]["defaults"]["toolTimeoutS"] = 1
    config["tools"] = {"web": {"allowCidrs": ["127.0.0.0/8"]}}
    return config


def test_a_stream_that_stops_in_the_middle_frees_the_chat_and_the_user_is_told(
    telegram: Telegram,
) -> None:
    config = telegram.config()
    config["agents"]["defaults"] |= {"modelTimeoutS": 2, "modelIdleTimeoutS": 1}
    telegram.nanobot.configure(config)
    telegram.model.answer_with(lambda request: Reply.hang("Once upon a time", after_chunks=2))
    telegram.start()

    telegram.api.inject("a story", chat_id=OWNER)

    (told,) = telegram.api.wait_for_sent(1, OWNER, timeout=30)
    assert KEPT in told.text
    assert "Once" not in told.text
    telegram.model.answer_with(lambda request: Reply.text("here I am"))
    telegram.api.inject("anybody?", chat_id=OWNER)
    telegram.api.wait_for_sent(3, OWNER, timeout=30)
    assert telegram.texts()[1:] == ["here I am", "here I am"]


def test_a_stream_that_stops_in_the_middle_ends_a_one_shot_with_its_reason(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model, modelTimeoutS=2, modelIdleTimeoutS=1)
    model.answer_with(lambda request: Reply.hang("Once upon a time", after_chunks=2))

    done = nanobot.run("agent", "-m", "a story")

    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.endswith("/v1/chat/completions: nothing came for 1 s\n")


def test_a_page_that_never_ends_is_given_up_and_the_model_is_told(telegram: Telegram) -> None:
    telegram.nanobot.configure(with_short_tools(telegram.config()))
    with half_a_page() as url:
        telegram.model.script(
            Reply.tool_calls([("web_fetch", {"url": url})]), Reply.text("It hangs.")
        )
        telegram.start()

        telegram.api.inject("the news?", chat_id=OWNER)

        telegram.api.wait_for_sent(1, OWNER)
    assert telegram.texts() == ["It hangs."]
    assert telegram.model.requests[1].tool_results == ["web_fetch was stopped after 1 seconds."]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("web_search", {"query": "news"}), ("web_fetch", {"url": f"http://{SILENT}/"})],
)
@pytest.mark.parametrize("key", ["", "sk-fake-brave"])
def test_a_name_server_that_hangs_holds_up_neither_the_chat_nor_the_end(
    telegram: Telegram, tmp_path: Path, tool: str, arguments: dict[str, str], key: str
) -> None:
    config = with_short_tools(telegram.config())
    config["tools"]["web"]["search"] = {"apiKey": key}
    telegram.nanobot.configure(config)
    telegram.nanobot.environ |= silent_names(tmp_path / "site")
    telegram.model.script(Reply.tool_calls([(tool, arguments)]), Reply.text("It hangs."))
    gateway = telegram.start()

    telegram.api.inject("the news?", chat_id=OWNER)

    telegram.api.wait_for_sent(1, OWNER)
    assert telegram.texts() == ["It hangs."]
    assert telegram.model.requests[1].tool_results == [f"{tool} was stopped after 1 seconds."]
    assert gateway.terminate(timeout=5) == 0


def test_look_ups_that_hang_take_no_thread_from_the_file_tools(
    telegram: Telegram, tmp_path: Path
) -> None:
    config = telegram.config()
    telegram.nanobot.configure(config)
    telegram.nanobot.environ |= silent_names(tmp_path / "site")
    telegram.nanobot.workspace.mkdir(parents=True)
    (telegram.nanobot.workspace / "note").write_text("milk", encoding="utf-8")
    fetches = [("web_fetch", {"url": f"http://{SILENT}/{n}"}) for n in range(40)]
    telegram.configure(allowFrom=["42", "43"])
    telegram.model.answer_with(
        lambda request: (
            Reply.tool_calls(fetches)
            if request.last_user.endswith("fetch")
            else Reply.text("done")
            if request.tool_results
            else Reply.tool_calls([("read_file", {"path": "note"})])
        )
    )
    telegram.start()
    telegram.api.inject("fetch", chat_id=OWNER)
    eventually(lambda: len(telegram.model.requests) == 1, "the hanging turn")

    telegram.api.inject("read", chat_id=43)

    telegram.api.wait_for_sent(1, 43, timeout=10)
    assert telegram.texts(43) == ["done"]


def test_a_poll_that_hangs_is_replaced_and_turns_go_on_meanwhile(telegram: Telegram) -> None:
    telegram.configure(pollTimeoutS=1, timeoutS=1)
    telegram.model.answer_with(lambda request: Reply.text("here I am"))
    telegram.start()
    gate = telegram.api.hang("getUpdates", times=1)
    gate.wait_reached()
    telegram.api.inject("anybody?", chat_id=OWNER)

    beside = telegram.nanobot.run("agent", "-m", "hello")

    assert beside.stdout == "here I am\n"
    telegram.api.wait_for_sent(1, OWNER, timeout=20)
    assert telegram.texts() == ["here I am"]
    gate.release()


def test_a_send_that_hangs_is_tried_again_and_the_chat_goes_on(telegram: Telegram) -> None:
    telegram.configure(timeoutS=1)
    telegram.model.answer_with(lambda request: Reply.text(request.last_user[-3:]))
    telegram.start()
    gate = telegram.api.hang("sendMessage", times=1)
    telegram.api.inject("one", chat_id=OWNER)
    gate.wait_reached()

    telegram.api.inject("two", chat_id=OWNER)

    eventually(lambda: len(telegram.model.requests) == 2, "the second turn")
    telegram.api.wait_for_sent(2, OWNER, timeout=20)
    gate.release()
    assert [text[-3:] for text in telegram.texts()[:2]] == ["one", "two"]


def test_a_gateway_that_is_frozen_is_given_up_by_the_commands_beside_it(
    telegram: Telegram,
) -> None:
    gateway = telegram.start()
    os.kill(gateway.process.pid, signal.SIGSTOP)
    try:
        asked = telegram.nanobot.run("agent", "-m", "hello", timeout=30)
        status = telegram.nanobot.run("status", timeout=30)
    finally:
        os.kill(gateway.process.pid, signal.SIGCONT)

    reason = "the process that holds the home does not answer: timed out\n"
    assert (asked.returncode, asked.stdout, asked.stderr) == (5, "", f"nanobot: {reason}")
    assert (status.returncode, reason in status.stdout) == (0, True)
