"""Jobs from outside: real gateway, fake Telegram, fake model."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request


def soon(seconds: float = 1.5) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def jobs(nanobot: Nanobot) -> list[str]:
    path = nanobot.home / "cron" / "jobs.json"
    return [job["id"] for job in json.loads(path.read_text())["jobs"]] if path.exists() else []


def test_a_reminder_set_in_telegram_arrives_as_written_without_a_model(
    telegram: Telegram,
) -> None:
    def answer(request: Request) -> Reply:
        if request.tool_results:
            return Reply.text("I will.")
        wish = {
            "action": "add",
            "mode": "reminder",
            "message": "Take it out!",
            "at": soon(3),
        }
        return Reply.tool_calls([("cron", wish)])

    telegram.model.answer_with(answer)
    telegram.start()
    telegram.api.inject("remind me", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)
    asked = len(telegram.model.requests)
    telegram.model.answer_with(lambda request: Reply.error(500))

    telegram.api.wait_for_sent(2, OWNER)

    assert telegram.texts() == ["I will.", "Take it out!"]
    assert len(telegram.model.requests) == asked
    eventually(lambda: jobs(telegram.nanobot) == [], "the end of the one-time job")


def test_a_task_set_while_the_gateway_runs_arrives_on_time_in_its_own_session(
    telegram: Telegram,
) -> None:
    telegram.model.answer_with(lambda request: Reply.text("I counted 7."))
    telegram.start()
    added = telegram.nanobot.run(
        "cron", "add", "-m", "count", "--at", soon(),
        "--deliver", "--channel", "telegram", "--to", str(OWNER),
    )  # fmt: skip

    telegram.api.wait_for_sent(1, OWNER)

    assert added.returncode == 0, added.stderr
    assert telegram.texts() == ["I counted 7."]
    (request,) = telegram.model.requests
    assert "cron" not in request.tools
    with sqlite3.connect(telegram.nanobot.home / "state.db") as log:
        sessions = {
            row[0].partition(":")[0]
            for row in log.execute("SELECT session FROM log WHERE kind <> 'sent'")
        }
    log.close()
    assert sessions == {"cron"}


def test_a_jobs_turn_that_tries_to_create_jobs_is_refused(telegram: Telegram) -> None:
    def answer(request: Request) -> Reply:
        if request.tool_results:
            return Reply.text(request.tool_results[-1])
        wish = {"action": "add", "message": "again", "every_seconds": 1}
        return Reply.tool_calls([("cron", wish)])

    telegram.model.answer_with(answer)
    telegram.start()
    telegram.nanobot.run(
        "cron", "add", "-m", "breed", "--at", soon(), "--deliver",
        "--channel", "telegram", "--to", str(OWNER),
    )  # fmt: skip

    (sent,) = telegram.api.wait_for_sent(1, OWNER)

    assert "There is no tool 'cron'" in sent.text
    eventually(lambda: jobs(telegram.nanobot) == [], "the end of the one-time job")


def test_a_corrupt_job_file_is_reported_left_alone_and_the_gateway_runs(
    telegram: Telegram,
) -> None:
    path = telegram.nanobot.home / "cron" / "jobs.json"
    path.parent.mkdir()
    path.write_text("{")
    telegram.model.answer_with(lambda request: Reply.text("here"))
    gateway = telegram.start()

    telegram.api.inject("hello", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)
    listed = telegram.nanobot.run("cron", "list")
    gateway.terminate()

    assert (listed.stdout, str(path) in listed.stderr) == ("There are no jobs.\n", True)
    assert (path.read_text(), "jobs.json cannot be read" in gateway.log) == ("{", True)


def test_run_really_runs_a_job_with_a_gateway_and_without(
    telegram: Telegram,
) -> None:
    telegram.model.answer_with(lambda request: Reply.text("done it"))
    nanobot = telegram.nanobot
    added = nanobot.run("cron", "add", "-m", "do it", "--every", "86400")
    job = added.stdout.partition(" ")[0]

    without = nanobot.run("cron", "run", job)
    telegram.start()
    beside = nanobot.run("cron", "run", job)

    assert "No gateway is running" in added.stderr
    assert (without.stdout, beside.stdout) == ("done it\n", "done it\n"), without.stderr
    (record,) = json.loads(nanobot.run("cron", "list", "--json").stdout)
    assert record["lastRun"]["status"] == "done"


def test_the_commands_list_switch_and_remove_jobs(nanobot: Nanobot, model: ModelServer) -> None:
    nanobot.use_model(model)
    added = nanobot.run("cron", "add", "-m", "x", "--cron", "0 9 * * *", "--tz", "Asia/Tokyo")
    job = added.stdout.partition(" ")[0]
    wrong = nanobot.run("cron", "add", "-m", "x", "--cron", "nine")
    off = nanobot.run("cron", "disable", job)
    on = nanobot.run("cron", "enable", job)
    listed = nanobot.run("agent", "-m", "/cron")
    gone = nanobot.run("cron", "remove", job)
    again = nanobot.run("cron", "remove", job)

    assert (wrong.returncode, "five fields" in wrong.stderr) == (2, True)
    assert (off.stdout.endswith("disabled\n"), "next runs" in on.stdout) == (True, True)
    assert (job in listed.stdout, model.requests) == (True, [])
    assert (gone.returncode, again.returncode, jobs(nanobot)) == (0, 1, [])


def test_a_change_by_the_command_is_honoured_while_the_gateway_runs(telegram: Telegram) -> None:
    telegram.start()
    place = ("--reminder", "--channel", "telegram", "--to", str(OWNER))

    def remind(words: str, at: str) -> None:
        added = telegram.nanobot.run("cron", "add", "-m", words, "--at", at, *place)
        assert added.returncode == 0, added.stderr
        eventually(lambda: words in telegram.texts(), words)

    remind("now", soon(0))
    often = telegram.nanobot.run("cron", "add", "-m", "tick", "--every", "1", *place)
    eventually(lambda: "tick" in telegram.texts(), "a tick")
    telegram.nanobot.run("cron", "disable", often.stdout.partition(" ")[0])
    remind("from here on", soon(0))
    remind("to here", soon(3))

    texts = telegram.texts()
    assert texts[texts.index("from here on") :] == ["from here on", "to here"]


KILLED_AT = [
    *[("fdatasync,fsync", number) for number in range(1, 10)],
    # Each commit writes pages to the log of the database; most are not synced.
    *[("pwrite64", number) for number in range(2, 88, 8)],
]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(("call", "number"), KILLED_AT)
def test_killed_at_any_commit_a_due_run_is_answered_once(
    telegram: Telegram, call: str, number: int
) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.last_user)
        return Reply.text("the result")

    telegram.model.answer_with(answer)
    nanobot = telegram.nanobot
    telegram.start().terminate()
    nanobot.run("cron", "add", "-m", "work", "--at", soon(0), "--deliver",
                "--channel", "telegram", "--to", str(OWNER))  # fmt: skip
    nanobot.run("cron", "add", "-m", "Tea!", "--at", soon(0), "--reminder",
                "--channel", "telegram", "--to", str(OWNER))  # fmt: skip
    database = nanobot.home / "state.db"
    only = ("-P", f"{database}-wal") if call == "pwrite64" else ()
    first = telegram.start(
        wrapped_in=("strace", "-f", "-qq", "-o", "/dev/null", *only, "-e", f"trace={call}",
                    "-e", f"inject={call}:signal=KILL:when={number}"), polling=False,
    )  # fmt: skip

    def is_over() -> bool:
        return first.process.poll() is not None or (
            len(telegram.texts()) == 2 and jobs(nanobot) == []
        )

    eventually(is_over, "the kill or the end of the work")
    killed = first.process.poll() is not None
    if not killed:
        subprocess.run(["pkill", "-KILL", "-P", str(first.process.pid)], check=False)
    telegram.start()
    eventually(lambda: len(telegram.texts()) >= 2, "both results")
    eventually(lambda: jobs(nanobot) == [], "the end of the jobs")
    # Nothing comes behind an answer to what is asked last.
    telegram.api.inject("/help", chat_id=OWNER)
    eventually(lambda: "/help" in telegram.texts()[-1], "an answer")

    plain = sorted(text.rpartition("\n")[2] for text in telegram.texts()[:-1])
    again = [text for text in telegram.texts() if text.startswith("↻ (may be a repetition)")]
    with sqlite3.connect(database) as log:
        runs = log.execute("SELECT state FROM inbox WHERE id LIKE 'cron:%'").fetchall()
    log.close()
    # What was being sent when the process died is sent again, and marked.
    assert len(again) <= 1
    assert {*plain} == {"Tea!", "the result"}
    assert 2 <= len(plain) <= 2 + len(again)
    assert runs == [("done",)]
    assert len(asked) <= 2
    if not killed:
        pytest.skip(f"everything is done in fewer than {number} of {call}")
