"""The daemon, from outside: Telegram and the terminal beside it, real processes, real HTTP."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import NANOBOT, OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request


def words_of(request: Request) -> str:
    """What the person wrote, without the turn's header."""
    return request.last_user.partition("\n")[2]


def test_an_allowed_sender_is_answered(telegram: Telegram) -> None:
    telegram.model.answer_with(lambda request: Reply.text(f"You said **{words_of(request)}**"))
    telegram.start()

    telegram.api.inject("hello", chat_id=OWNER)

    (sent,) = telegram.api.wait_for_sent(1, OWNER)
    assert (sent.text, [entity["type"] for entity in sent.entities]) == (
        "You said hello",
        ["bold"],
    )


def test_a_stranger_gets_nothing_done(telegram: Telegram) -> None:
    telegram.model.answer_with(lambda request: Reply.text("yes"))
    telegram.start()

    telegram.api.inject("let me in", chat_id=666)
    telegram.api.inject("hello", chat_id=OWNER)

    telegram.api.wait_for_sent(1, OWNER)
    assert telegram.api.sent_to(666) == []
    assert len(telegram.model.requests) == 1
    assert not any(call.params.get("chat_id") == "666" for call in telegram.api.calls)


def test_ten_chats_at_once_wait_for_the_model_and_not_for_each_other(telegram: Telegram) -> None:
    chats = range(100, 110)
    telegram.configure(allowFrom=[str(chat) for chat in chats])
    gate = telegram.model.gate()
    telegram.model.answer_with(lambda request: Reply.text(f"echo {words_of(request)}", gate=gate))
    telegram.start()

    for chat in chats:
        telegram.api.inject("one", chat_id=chat)
    gate.wait_reached(times=10, timeout_s=30)  # all ten at once, before any has an answer
    gate.release()
    telegram.api.wait_for_sent(10)
    for chat in chats:
        telegram.api.inject("two", chat_id=chat)
        telegram.api.inject("/help", chat_id=chat)

    telegram.api.wait_for_sent(30, timeout=20)
    for chat in chats:
        answers = [text for text in telegram.texts(chat) if text.startswith("echo")]
        assert answers[-2:] == ["echo one", "echo two"]


LONG = "\n\n".join(
    f"## Part {n} 🎉\n\nSome *words* of part {n}, and `code`.\n\n```python\nprint({n})\n"
    + "# padding\n" * 25
    + "```\n\n| a | b |\n|---|---|\n| 1 | 👩‍👩‍👧 |"
    for n in range(30)
)


def test_a_long_markdown_answer_arrives_whole_in_valid_pieces(telegram: Telegram) -> None:
    assert len(LONG) > 10_000
    telegram.model.script(Reply.text(LONG))
    telegram.start()

    telegram.api.inject("long", chat_id=OWNER)

    telegram.api.wait_until(
        lambda: any("Part 29" in text for text in telegram.texts()), 20, "the last part"
    )
    texts = telegram.texts()
    assert all(len(text.encode("utf-16-le")) // 2 <= 4096 for text in texts)
    whole = "\n".join(texts)
    assert [f"Part {n} " in whole and f"print({n})" in whole for n in range(30)] == [True] * 30
    kinds = {entity["type"] for sent in telegram.api.sent_to(OWNER) for entity in sent.entities}
    assert kinds >= {"bold", "italic", "code", "pre"}


def test_what_was_sent_while_the_daemon_was_down_is_answered_once(telegram: Telegram) -> None:
    telegram.model.answer_with(lambda request: Reply.text(f"echo {words_of(request)}"))
    for number in range(3):
        telegram.api.inject(f"m{number}", chat_id=OWNER)

    telegram.start()
    telegram.api.wait_for_sent(3, OWNER)

    assert telegram.texts() == ["echo m0", "echo m1", "echo m2"]


def test_commands_answer_even_while_a_turn_runs(telegram: Telegram) -> None:
    gate = telegram.model.gate()
    telegram.model.script(Reply.text("done thinking", gate=gate))
    telegram.start()
    telegram.api.inject("think", chat_id=OWNER)
    gate.wait_reached()

    telegram.api.inject("/status", chat_id=OWNER)

    (status,) = telegram.api.wait_for_sent(1, OWNER)
    gate.release()
    telegram.api.wait_for_sent(2, OWNER)
    assert "Running: a turn" in status.text
    assert telegram.texts()[1] == "done thinking"
    assert {command["command"] for command in telegram.api.commands} >= {"stop", "new", "help"}


def test_stop_ends_the_turn_and_keeps_what_waits(telegram: Telegram) -> None:
    gate = telegram.model.gate()
    telegram.model.script(Reply.text("too late", gate=gate), Reply.text("next, please"))
    telegram.start()
    telegram.api.inject("think", chat_id=OWNER)
    gate.wait_reached()

    telegram.api.inject("/stop", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)
    telegram.api.inject("and now?", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)

    gate.release()
    assert telegram.texts() == ["Stopped.", "next, please"]


def test_new_begins_a_new_conversation(telegram: Telegram) -> None:
    telegram.model.answer_with(lambda request: Reply.text(str(len(request.messages))))
    telegram.start()

    for number, text in enumerate(["a", "b", "/new", "c"], start=1):
        telegram.api.inject(text, chat_id=OWNER)
        telegram.api.wait_for_sent(number, OWNER)

    assert [text for text in telegram.texts() if text.isdigit()] == ["2", "4", "2"]


def test_malformed_updates_become_dead_letters_and_deafen_nobody(telegram: Telegram) -> None:
    telegram.model.answer_with(lambda request: Reply.text("still here"))
    telegram.start()

    telegram.api.inject_raw({"message": {"nonsense": True, "chat": 7}})
    telegram.api.inject_raw({"message": []})
    telegram.api.inject("hello?", chat_id=OWNER)

    telegram.api.wait_for_sent(1, OWNER)
    status = telegram.nanobot.run("status", "--json")
    assert "2 dead letters" in json.loads(status.stdout)["messages"]


@pytest.mark.parametrize(
    ("status", "words"), [(409, "somebody else"), (401, "token is refused"), (502, ""), (429, "")]
)
def test_a_refused_poll_is_said_and_survived(telegram: Telegram, status: int, words: str) -> None:
    telegram.model.answer_with(lambda request: Reply.text("back again"))
    telegram.api.fail("getUpdates", status, times=None, retry_after=1 if status == 429 else None)
    gateway = telegram.start(polling=False)
    telegram.api.wait_for_calls("getUpdates", 1, timeout=20)

    def told() -> str:
        done = telegram.nanobot.run("status", "--json")
        (channel,) = json.loads(done.stdout).get("channels") or ({"lastError": ""},)
        return str(channel["lastError"])

    eventually(lambda: told() != "" and words in told().lower(), "the error in status")
    if status == 401:
        assert gateway.process.poll() is None
        return
    telegram.api.heal()
    telegram.api.inject("hello", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER, timeout=30)
    assert gateway.process.poll() is None


def _entries(home: Path) -> list[tuple[str, ...]]:
    """A log with ids, times and folders blanked."""
    with sqlite3.connect(home / "state.db") as log:
        rows = log.execute(
            "SELECT session, kind, principal, trust, inbound_id, payload FROM log ORDER BY seq"
        ).fetchall()
    log.close()
    blank = re.compile(r"cli:[0-9a-f]{32}|\w{3} \d{4}-\d\d-\d\d \d\d:\d\d [+-]\d{4}|call_\d+")
    return [tuple(blank.sub("…", column) for column in row) for row in rows]


def test_a_one_shot_beside_the_gateway_leaves_the_same_as_one_without(
    telegram: Telegram, tmp_path: Path
) -> None:
    def answer(request: Request) -> Reply:
        if len(request.messages) % 3 == 2:
            return Reply.tool_calls([("write_file", {"path": "a.txt", "content": "x"})])
        return Reply.text("Written.")

    telegram.model.answer_with(answer)
    alone = Nanobot(tmp_path / "alone" / ".nanobot")
    alone.configure(telegram.config(enabled=False))
    telegram.start()

    beside = telegram.nanobot.run("agent", "-m", "write it")
    without = alone.run("agent", "-m", "write it")

    assert (beside.stdout, without.stdout) == ("Written.\n", "Written.\n")
    assert _entries(telegram.nanobot.home) == _entries(alone.home)
    assert len(_entries(alone.home)) == 4


def test_a_one_shot_beside_the_gateway_streams_errors_with_their_exit_code(
    telegram: Telegram,
) -> None:
    telegram.model.answer_with(lambda request: Reply.error(401))
    telegram.start()

    done = telegram.nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (4, "")
    assert "providers.custom.apiKey" in done.stderr


def test_sigterm_in_a_turn_leaves_at_once_and_the_turn_is_finished_later(
    telegram: Telegram,
) -> None:
    gate = telegram.model.gate()
    telegram.model.script(Reply.text("never seen", gate=gate), Reply.text("finished"))
    gateway = telegram.start()
    telegram.api.inject("a long job", chat_id=OWNER)
    gate.wait_reached()

    code = gateway.terminate(timeout=5)

    assert code == 0, gateway.log
    gate.release()
    telegram.start()
    telegram.api.wait_for_sent(1, OWNER)
    assert telegram.texts() == ["finished"]
    assert len(telegram.model.requests) == 2


def test_a_turn_that_outlives_three_restarts_is_finished_after_the_fourth(
    telegram: Telegram,
) -> None:
    gate = telegram.model.gate()
    telegram.model.script(*[Reply.text("never seen", gate=gate)] * 3, Reply.text("finished"))
    telegram.api.inject("a long job", chat_id=OWNER)
    for times in (1, 2, 3):
        gateway = telegram.start()
        gate.wait_reached(times=times)
        assert gateway.terminate() == 0, gateway.log

    telegram.start()
    telegram.api.wait_for_sent(1, OWNER)

    gate.release()
    assert telegram.texts() == ["finished"]


def test_a_message_steers_the_turn_although_another_waited_when_that_began(
    telegram: Telegram,
) -> None:
    gate = telegram.model.gate()
    telegram.model.script(
        Reply.tool_calls([("list_dir", {"path": "."})], gate=gate),
        Reply.text("first and third"),
        Reply.text("second"),
    )
    for text in ("first", "second"):
        telegram.api.inject(text, chat_id=OWNER)
    telegram.start()
    gate.wait_reached()
    telegram.api.inject("third", chat_id=OWNER)
    eventually(lambda: not telegram.api.pending, "the third message in the inbox")

    gate.release()
    telegram.api.wait_for_sent(2, OWNER)

    assert telegram.texts() == ["first and third", "second"]
    assert [words_of(request) for request in telegram.model.requests] == [
        "first",
        "third",
        "second",
    ]


def test_a_turn_that_ends_within_the_grace_is_answered_before_leaving(
    telegram: Telegram,
) -> None:
    gate = telegram.model.gate()
    telegram.model.script(Reply.text("just in time", gate=gate))
    gateway = telegram.start()
    telegram.api.inject("a job", chat_id=OWNER)
    gate.wait_reached()

    gateway.process.terminate()
    telegram.api.wait_until(lambda: not telegram.api.is_polled, 5, "the end of intake")
    gate.release()

    assert gateway.terminate() == 0
    assert telegram.texts() == ["just in time"]


def test_a_second_gateway_refuses(telegram: Telegram) -> None:
    first = telegram.start()

    second = telegram.nanobot.run("gateway")

    assert second.returncode == 5
    assert f"gateway (pid {first.process.pid})" in second.stderr.splitlines()[-1]


def test_the_socket_refuses_other_versions_with_a_clear_line(telegram: Telegram) -> None:
    import socket

    telegram.start()
    path = telegram.nanobot.home / "run" / "gateway.sock"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b'{"hello": {"protocol": 1, "version": "0.0.1"}}\n')
        answer = client.makefile().readline()

    assert "restart the gateway after an upgrade" in json.loads(answer)["refused"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_socket_refuses_other_users_with_a_clear_line(telegram: Telegram) -> None:
    telegram.start()
    home = telegram.nanobot.home
    for folder in (home / "run", home, *home.parents):
        mode = folder.stat().st_mode & 0o7777
        if not mode & 0o001:  # pytest's own folders, closed to others; never one like /tmp
            folder.chmod(mode | 0o011)
    (home / "config.json").chmod(0o644)
    (home / "run" / "gateway.sock").chmod(0o666)
    runner = (
        "import os, sys, tempfile, encodings.idna; from pathlib import Path; "
        "from nanobot.cli.talk import SocketTalk; from nanobot.store.home import Home; "
        "os.setgid(65534); os.setuid(65534); SocketTalk.connect(Home(Path(sys.argv[1])))"
    )

    done = subprocess.run(
        [NANOBOT.with_name("python"), "-c", runner, str(home)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert "serves user 0 alone, you are user 65534" in done.stderr


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_an_idle_model_server_is_not_needed_to_start(nanobot: Nanobot, model: ModelServer) -> None:
    nanobot.use_model(model)
    process = nanobot.start("gateway")
    eventually(lambda: "running: gateway" in nanobot.run("status").stdout, "the gateway")

    process.terminate()
    process.communicate(timeout=10)

    assert (process.returncode, model.requests) == (0, [])
