"""Subagents from outside: real gateway and terminal, fake Telegram, fake model."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import subprocess
from collections import Counter
from typing import Any

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.e2e.test_background import alive, family, marker
from tests.fakes.model_replies import Gate, Reply
from tests.fakes.model_server import ModelServer, Request

__all__ = ["marker"]

CHATS = range(OWNER, OWNER + 5)


def is_subagents(request: Request) -> bool:
    return "You are a subagent" in str(request.messages[0]["content"])


def reports(request: Request) -> str:
    """What the user messages behind the assistant's last words say."""
    texts: list[str] = []
    for message in reversed(request.messages):
        if message["role"] == "assistant" and not message.get("tool_calls"):
            break
        if message["role"] == "user":
            texts.append(str(message["content"]))
    return "\n".join(texts)


def spawn(*tasks: str) -> Reply:
    return Reply.tool_calls([("spawn", {"task": task, "label": f"l-{task}"}) for task in tasks])


class Assistant:
    """Sends a subagent for each ``do …`` of a message, and tells the results that are reported."""

    def __init__(self, subagent: Reply | None = None) -> None:
        self.subagent = subagent
        self.gate: Gate | None = None
        self.sent: Counter[str] = Counter()

    def __call__(self, request: Request) -> Reply:
        if is_subagents(request):
            task = re.findall(r"do-\w+", str(request.messages[1]["content"]))[0]
            self.sent[task] += 1
            return self.subagent or Reply.text(f"result of {task}", gate=self.gate)
        if "Report of the subagent" in reports(request):
            told = re.findall(
                r"result of do-\w+|failed: [^.]+|stopped, since [^.]+", reports(request)
            )
            return Reply.text(f"Told: {', '.join(told)}")
        if request.messages[-1]["role"] == "tool":
            return Reply.text("Begun.")
        if "do-" not in request.last_user:
            return Reply.text("Nothing.")
        return spawn(*re.findall(r"do-\w+", request.last_user))


def configure(telegram: Telegram, **subagents: Any) -> None:
    config = telegram.config(allowFrom=[str(chat) for chat in CHATS])
    config["agents"]["subagents"] = subagents
    config["tools"] = {"exec": {"sandbox": "off"}}
    telegram.nanobot.configure(config)


def told(telegram: Telegram, chat: int = OWNER) -> list[str]:
    """The results that a chat was told, in order of their names."""
    return sorted(re.findall(r"result of do-\w+", "\n".join(telegram.texts(chat))))


def test_ten_subagents_at_once_report_to_the_right_chats(telegram: Telegram) -> None:
    assistant = Assistant()
    assistant.gate = telegram.model.gate()
    telegram.model.answer_with(assistant)
    configure(telegram, maxConcurrent=10)
    telegram.start()
    for chat in CHATS:
        telegram.api.inject(f"do-a{chat} and do-b{chat}", chat_id=chat)

    assistant.gate.wait_reached(times=10)
    assistant.gate.release()

    expected = {chat: [f"result of do-a{chat}", f"result of do-b{chat}"] for chat in CHATS}
    eventually(lambda: {chat: told(telegram, chat) for chat in CHATS} == expected, "all results")
    assert [telegram.texts(chat)[0] for chat in CHATS] == ["Begun."] * 5
    (request, *_) = (r for r in telegram.model.requests if is_subagents(r))
    assert {"message", "spawn", "cron"} & set(request.tools) == set()


def test_no_more_run_at_once_than_may(telegram: Telegram) -> None:
    assistant = Assistant()
    assistant.gate = telegram.model.gate()
    telegram.model.answer_with(assistant)
    configure(telegram, maxConcurrent=2)
    telegram.start()
    telegram.api.inject("do-a do-b do-c", chat_id=OWNER)
    assistant.gate.wait_reached(times=2)

    telegram.api.inject("/status", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)
    running = sum(assistant.sent.values())
    assistant.gate.release()

    eventually(lambda: len(told(telegram)) == 3, "all results")
    (status,) = (text for text in telegram.texts() if "Model:" in text)
    status = re.sub(r"since \d+ s", "since 0 s", status)
    assert running == 2
    assert (
        "Subagents: 3\n"
        "• “l-do-a”, since 0 s: thinks, after 0 tool calls\n"
        "• “l-do-b”, since 0 s: thinks, after 0 tool calls\n"
        "• “l-do-c”, since 0 s: waits\n"
    ) in status
    assert any(line.startswith("Context: ") for line in status.splitlines())


def test_an_endless_subagent_is_stopped_by_its_steps_and_reported(telegram: Telegram) -> None:
    assistant = Assistant(Reply.tool_calls([("list_dir", {"path": "."})]))
    telegram.model.answer_with(assistant)
    configure(telegram, maxIterations=3)
    telegram.start()

    telegram.api.inject("do-it", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)

    assert telegram.texts() == [
        "Begun.",
        "Told: stopped, since it had taken 3 steps, as many as it may",
    ]
    assert assistant.sent == {"do-it": 4}


def test_an_endless_subagent_is_stopped_by_the_clock_with_its_processes(
    telegram: Telegram, marker: str
) -> None:
    assistant = Assistant(Reply.tool_calls([("exec", {"command": family(marker)})]))
    telegram.model.answer_with(assistant)
    configure(telegram, timeoutS=1)
    telegram.start()
    telegram.api.inject("do-it", chat_id=OWNER)
    eventually(lambda: len(alive(marker)) >= 2, "the processes")

    telegram.api.wait_for_sent(2, OWNER)

    assert telegram.texts()[1] == "Told: stopped, since it had worked for 1 s, as long as it may"
    eventually(lambda: alive(marker) == [], "the end of the processes")


def test_a_model_that_refuses_a_subagent_is_reported(telegram: Telegram) -> None:
    telegram.model.answer_with(Assistant(Reply.error(400)))
    configure(telegram)
    telegram.start()

    telegram.api.inject("do-it", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)

    assert telegram.texts()[1].startswith("Told: failed: ")


@pytest.mark.parametrize("background", [False, True])
def test_stop_ends_running_and_waiting_subagents_and_their_processes(
    telegram: Telegram, marker: str, background: bool
) -> None:
    gate = telegram.model.gate()
    command = {"command": family(marker), "background": background}

    def answer(request: Request) -> Reply:
        if is_subagents(request) and request.tool_results:
            return Reply.text("too late", gate=gate)
        return assistant(request)

    assistant = Assistant(Reply.tool_calls([("exec", command)]))
    telegram.model.answer_with(answer)
    configure(telegram, maxConcurrent=1)
    gateway = telegram.start()
    telegram.api.inject("do-a do-b", chat_id=OWNER)
    eventually(lambda: len(alive(marker)) >= 2, "the processes")
    if background:
        gate.wait_reached()
    eventually(lambda: telegram.texts() == ["Begun."], "the parent's answer")

    telegram.api.inject("/stop", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)

    eventually(lambda: alive(marker) == [], "the end of the processes")
    gateway.terminate()
    telegram.start()
    telegram.api.inject("and now?", chat_id=OWNER)
    telegram.api.wait_for_sent(3, OWNER)
    assert telegram.texts()[1] == "Stopped 2 subagents: “l-do-a”, “l-do-b”."
    assert "stopped the work of these subagents" in str(telegram.model.requests[-1].messages)
    assert assistant.sent["do-b"] == 0


def test_stop_ends_a_turn_together_with_its_subagents(telegram: Telegram, marker: str) -> None:
    command = {"command": family(marker)}

    def answer(request: Request) -> Reply:
        if is_subagents(request):
            return Reply.tool_calls([("exec", command)])
        return Reply.tool_calls([("spawn", {"task": "do-it", "label": "it"}), ("exec", command)])

    telegram.model.answer_with(answer)
    configure(telegram)
    telegram.start()
    telegram.api.inject("begin", chat_id=OWNER)
    eventually(lambda: len(alive(marker)) >= 4, "the processes of both")

    telegram.api.inject("/stop", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)

    eventually(lambda: alive(marker) == [], "the end of the processes")
    assert telegram.texts() == ["Stopped, with 1 subagent: “it”."]


def test_killed_while_they_work_each_subagent_reports_once_after_the_restart(
    telegram: Telegram,
) -> None:
    assistant = Assistant()
    assistant.gate = telegram.model.gate()
    telegram.model.answer_with(assistant)
    configure(telegram, maxConcurrent=2)
    first = telegram.start()
    telegram.api.inject("do-a do-b do-c", chat_id=OWNER)
    assistant.gate.wait_reached(times=2)
    eventually(lambda: telegram.texts() == ["Begun."], "the parent's answer")

    first.kill()
    assistant.gate = None
    telegram.start()

    expected = [f"result of do-{name}" for name in "abc"]
    eventually(lambda: told(telegram) == expected, "all results")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("sync", range(1, 11))
def test_killed_at_any_sync_a_subagent_is_sent_and_reports_once(
    telegram: Telegram, sync: int
) -> None:
    assistant = Assistant()
    telegram.model.answer_with(assistant)
    configure(telegram)
    telegram.api.inject("do-it", chat_id=OWNER)
    first = telegram.start(
        wrapped_in=("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync",
                    "-e", f"inject=fdatasync,fsync:signal=KILL:when={sync}"),
        polling=False,
    )  # fmt: skip
    told_it = ["result of do-it"]

    eventually(
        lambda: first.process.poll() is not None or told(telegram) == told_it, "a kill or the end"
    )
    killed = first.process.poll() is not None
    if not killed:
        subprocess.run(["pkill", "-KILL", "-P", str(first.process.pid)], check=False)
    telegram.start()
    eventually(lambda: told(telegram) == told_it, "the result")

    # Nothing comes behind an answer to what is asked last.
    telegram.api.inject("/help", chat_id=OWNER)
    eventually(lambda: "/help" in telegram.texts()[-1], "an answer")
    with sqlite3.connect(telegram.nanobot.home / "state.db") as database:
        rows = database.execute("SELECT id, state FROM inbox WHERE id LIKE 'subagent:%'").fetchall()
    database.close()
    assert told(telegram) == told_it
    assert [(id_.count(":done"), state) for id_, state in rows] == [(0, "done"), (1, "done")]
    if not killed:
        pytest.skip(f"everything is done in fewer than {sync} syncs")


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside the gateway"])
def test_a_one_shot_prints_what_its_subagents_found_and_pays_for_them(
    telegram: Telegram, beside: bool
) -> None:
    telegram.model.answer_with(Assistant())
    configure(telegram)
    if beside:
        telegram.start()

    done = telegram.nanobot.run("agent", "-m", "do-a do-b")
    usage = telegram.nanobot.run("agent", "-m", "/usage")

    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"result of do-\w+", done.stdout)) == [
        "result of do-a",
        "result of do-b",
    ]
    calls = len(telegram.model.requests)
    assert f"This session: {calls} calls" in usage.stdout


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside the gateway"])
def test_ctrl_c_at_the_terminal_stops_its_subagents(
    telegram: Telegram, marker: str, beside: bool
) -> None:
    telegram.model.answer_with(Assistant(Reply.tool_calls([("exec", {"command": family(marker)})])))
    configure(telegram)
    if beside:
        telegram.start()
    asking = telegram.nanobot.start("agent", "-m", "do-it", interruptible=True)
    eventually(lambda: len(alive(marker)) >= 2, "the processes")

    asking.send_signal(signal.SIGINT)
    asking.communicate(timeout=5)

    eventually(lambda: alive(marker) == [], "the end of the processes")
    telegram.nanobot.run("agent", "-m", "/help")
    with sqlite3.connect(telegram.nanobot.home / "state.db") as database:
        rows = database.execute("SELECT state FROM inbox WHERE id LIKE 'subagent:%'").fetchall()
    database.close()
    assert (asking.returncode, rows) == (130, [("interrupted",)])


def test_a_conversation_shows_what_its_subagents_found(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    model.answer_with(Assistant())

    done = nanobot.run("agent", stdin="do-a\n")

    assert done.stdout == "Begun.\n\nTold: result of do-a\n", done.stderr
