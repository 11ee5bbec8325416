"""Background processes from outside: they outlive a turn, and nothing outlives nanobot."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

FRIEND = 43


def obedient(request: Request) -> Reply:
    """Calls the tool that the person names (``tool {…}``), then says what it gave."""
    if request.messages[-1]["role"] == "tool":
        return Reply.text(request.tool_results[-1])
    name, _, arguments = request.last_user.partition("\n")[2].partition(" ")
    return Reply.tool_calls([(name, json.loads(arguments))])


def alive(marker: str) -> list[str]:
    """The command lines with ``marker`` in them."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(line.decode(errors="replace"))
    return found


@pytest.fixture
def marker() -> Iterator[str]:
    """A word for command lines; nothing that has it may be left alive."""
    word = f"background-{secrets.token_hex(8)}"
    yield word
    assert alive(word) == []


def family(marker: str) -> str:
    """A command with a child in a session of its own; says when it has begun."""
    return f"setsid bash -c 'sleep 300; : {marker}' & echo begun; sleep 300; : {marker}"


def use_sandbox(telegram: Telegram, sandbox: str) -> None:
    config = telegram.config(allowFrom=[str(OWNER), str(FRIEND)])
    config["tools"] = {"exec": {"sandbox": sandbox}}
    telegram.nanobot.configure(config)


def say(telegram: Telegram, tool: str, chat_id: int = OWNER, **arguments: Any) -> str:
    """Have the model call a tool; returns what the tool gave, as the chat reads it."""
    before = len(telegram.texts(chat_id))
    telegram.api.inject(f"{tool} {json.dumps(arguments)}", chat_id=chat_id)
    telegram.api.wait_for_sent(before + 1, chat_id, timeout=30)
    return telegram.texts(chat_id)[-1]


def started(text: str) -> str:
    """The id in the answer of a background command."""
    found = re.search(r"bg-[0-9a-f]{6}", text)
    assert found, text
    return found[0]


@pytest.mark.parametrize("sandbox", ["require", "off"])
def test_a_process_is_watched_and_steered_over_several_turns(
    telegram: Telegram, sandbox: str
) -> None:
    telegram.model.answer_with(obedient)
    use_sandbox(telegram, sandbox)
    telegram.start()

    name = started(say(telegram, "exec", command="bash", background=True))
    say(telegram, "process", action="write", id=name, input="WORD=kept", timeout_s=0)
    told = say(telegram, "process", action="write", id=name, input="echo $WORD", timeout_s=20)
    listed = say(telegram, "process", action="list")
    elsewhere = say(telegram, "process", FRIEND, action="list")
    foreign = say(telegram, "process", FRIEND, action="kill", id=name)
    ended = say(telegram, "process", action="kill", id=name)

    assert told == "kept\n[running]"
    assert listed.startswith(f"{name} (running for ")
    assert elsewhere == "No background process runs in this conversation."
    assert f"no background process '{name}' here" in foreign
    assert ended == "[stopped on request, with everything it started]"


def test_what_a_session_left_running_ends_when_the_session_is_deleted(
    telegram: Telegram, marker: str
) -> None:
    telegram.model.answer_with(obedient)
    use_sandbox(telegram, "require")
    telegram.start()
    started(say(telegram, "exec", command=family(marker), background=True))
    before = alive(marker)

    done = telegram.nanobot.run("sessions", "delete", f"telegram:{OWNER}", "--yes")

    assert (before != [], done.returncode, done.stderr) == (True, 0, "")
    eventually(lambda: alive(marker) == [], "the end of its processes")


@pytest.mark.parametrize("sandbox", ["require", "off"])
def test_stop_ends_what_its_turn_started_in_the_background(
    telegram: Telegram, sandbox: str, marker: str
) -> None:
    use_sandbox(telegram, sandbox)
    gate = telegram.model.gate()
    command = {"command": family(marker), "background": True}
    telegram.model.script(
        Reply.tool_calls([("exec", command)]),
        Reply.tool_calls([("process", {"action": "list"})], gate=gate),
    )
    telegram.start()
    telegram.api.inject("begin", chat_id=OWNER)
    gate.wait_reached()
    eventually(lambda: len(alive(marker)) >= 2, "the processes")

    telegram.api.inject("/stop", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)

    eventually(lambda: alive(marker) == [], "the end of the processes")
    assert telegram.texts() == ["Stopped."]


@pytest.mark.parametrize("sandbox", ["require", "off"])
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_no_process_outlives_the_gateway(
    telegram: Telegram, sandbox: str, end: str, marker: str
) -> None:
    telegram.model.answer_with(obedient)
    use_sandbox(telegram, sandbox)
    gateway = telegram.start()
    names = [
        started(say(telegram, "exec", chat, command=family(marker), background=True))
        for chat in (OWNER, FRIEND)
    ]
    assert say(telegram, "process", action="poll", id=names[0], timeout_s=20).startswith("begun")
    eventually(lambda: len(alive(marker)) >= 4, "the processes")

    if end == "SIGTERM":
        assert gateway.terminate(timeout=5) == 0
        assert alive(marker) == []
    else:
        gateway.kill()
        eventually(lambda: alive(marker) == [], "the end of the processes", timeout=5)


def test_after_a_restart_the_former_processes_are_said_to_have_ended(
    telegram: Telegram, marker: str
) -> None:
    telegram.model.answer_with(obedient)
    use_sandbox(telegram, "off")
    gateway = telegram.start()
    name = started(say(telegram, "exec", command=family(marker), background=True))
    gateway.terminate()

    telegram.start()
    text = say(telegram, "process", action="poll", id=name)

    assert text == (
        f"There is no background process '{name}' here (there is: none). "
        "They end when nanobot is restarted."
    )


def test_in_a_one_shot_they_end_with_the_answer_which_is_said(
    nanobot: Nanobot, model: ModelServer, marker: str
) -> None:
    model.answer_with(obedient)
    config = model_config(model.url)
    config["tools"] = {"exec": {"sandbox": "off"}}
    nanobot.configure(config)
    arguments = {"command": family(marker), "background": True}

    done = nanobot.run("agent", "-m", f"exec {json.dumps(arguments)}")

    assert done.returncode == 0, done.stderr
    assert "[No gateway is running: it ends as soon as you have given your final" in done.stdout
    assert alive(marker) == []
