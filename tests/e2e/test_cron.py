"""Jobs from outside: real gateway, fake Telegram, fake model."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
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
    due = time.time() + 2.5
    added = telegram.nanobot.run(
        "cron", "add", "-m", "count", "--at", datetime.fromtimestamp(due, UTC).isoformat(),
        "--deliver", "--channel", "telegram", "--to", str(OWNER),
    )  # fmt: skip

    telegram.api.wait_for_sent(1, OWNER)

    assert (added.returncode, time.time() - due < 2.0) == (0, True), added.stderr
    assert telegram.texts() == ["I counted 7."]
    (request,) = telegram.model.requests
    assert "cron" not in request.tools
    with sqlite3.connect(telegram.nanobot.home / "state.db") as log:
        sessions = {row[0].partition(":")[0] for row in log.execute("SELECT session FROM log")}
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


def test_a_corrupt_job_file_is_put_aside_reported_and_the_gateway_runs(
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

    (aside,) = path.parent.glob("jobs.json.corrupt-*")
    assert (listed.stdout, str(aside) in listed.stderr) == ("There are no jobs.\n", True)
    assert "jobs.json is damaged" in gateway.log


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


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("commit", range(1, 9))
def test_killed_at_any_sync_a_due_run_is_answered_once(telegram: Telegram, commit: int) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.last_user)
        return Reply.text("the result")

    telegram.model.answer_with(answer)
    nanobot = telegram.nanobot
    nanobot.run("cron", "add", "-m", "work", "--at", soon(0), "--deliver",
                "--channel", "telegram", "--to", str(OWNER))  # fmt: skip
    nanobot.run("cron", "add", "-m", "Tea!", "--at", soon(0), "--reminder",
                "--channel", "telegram", "--to", str(OWNER))  # fmt: skip
    inject = f"inject=fdatasync,fsync:signal=KILL:when={commit}"
    first = telegram.start(
        wrapped_in=("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync",
                    "-e", inject), polling=False,
    )  # fmt: skip

    def settled() -> bool:
        return first.process.poll() is not None or (
            len(telegram.texts()) == 2 and jobs(nanobot) == []
        )

    eventually(settled, "the kill or the end of the work")
    if first.process.poll() is None:
        subprocess.run(["pkill", "-KILL", "-P", str(first.process.pid)], check=True)
        pytest.skip(f"everything is done in fewer than {commit} syncs")
    telegram.start()
    eventually(lambda: len(telegram.texts()) >= 2, "both results")
    eventually(lambda: jobs(nanobot) == [], "the end of the jobs")

    plain = sorted(text.rpartition("\n")[2] for text in telegram.texts())
    assert plain == ["Tea!", "the result"]
    assert len(asked) <= 2
