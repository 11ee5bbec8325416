"""Jobs and the heartbeat over weeks: files edited by hand, channels that are gone, slow models."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from nanobot.channels.telegram.sending import REPETITION
from tests.crash.wire import refusals
from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

HERE = ("--channel", "telegram", "--to", str(OWNER))
FORTNIGHT_MS = 14 * 24 * 3600 * 1000
HOUR_MS = 3600 * 1000


def now_ms() -> int:
    return round(time.time() * 1000)


def family_job(name: str, schedule: dict[str, Any], **payload: Any) -> dict[str, Any]:
    """A job as the family writes it."""
    times = {"atMs": None, "everyMs": None, "expr": None, "tz": None}
    return {
        "id": name,
        "name": name,
        "enabled": True,
        "schedule": {**times, **schedule},
        "payload": {
            "kind": "agent_turn",
            "message": f"do {name}",
            "deliver": True,
            "channel": "telegram",
            "to": str(OWNER),
            **payload,
        },
        "state": {"nextRunAtMs": None, "lastRunAtMs": None, "lastStatus": None, "lastError": None},
        "createdAtMs": now_ms() - FORTNIGHT_MS,
        "updatedAtMs": now_ms() - FORTNIGHT_MS,
        "deleteAfterRun": False,
    }


def write_jobs(nanobot: Nanobot, jobs: Iterable[dict[str, Any]]) -> str:
    """Write jobs.json as an editor would; returns the text."""
    path = nanobot.home / "cron" / "jobs.json"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    text = json.dumps({"version": 1, "jobs": [*jobs]}, indent=2)
    path.write_text(text, encoding="utf-8")
    return text


def rows(nanobot: Nanobot, question: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(nanobot.home / "state.db")) as state:
        return state.execute(question).fetchall()


def said(request: Request) -> list[tuple[str, str]]:
    """Role and text of all messages behind the system prompt, without the turn's header."""
    return [
        (message["role"], (message["content"] or "").rpartition("/>\n")[2])
        for message in request.messages[1:]
    ]


def at(ms: int) -> dict[str, Any]:
    return {"kind": "at", "atMs": ms}


def every(ms: int) -> dict[str, Any]:
    return {"kind": "every", "everyMs": ms}


def test_jobs_for_channels_nobody_serves_are_shown_until_they_reach_the_last_chat(
    telegram: Telegram,
) -> None:
    telegram.model.answer_with(lambda request: Reply.text(f"done: {request.last_user.split()[-1]}"))
    write_jobs(
        telegram.nanobot,
        [
            family_job("terminal", at(now_ms()), channel="cli", to="direct"),
            family_job("whatsapp", at(now_ms()), channel="whatsapp", to="4915"),
        ],
    )
    telegram.start()

    listed = telegram.nanobot.run("cron", "list").stdout
    telegram.api.inject("hello", chat_id=OWNER)
    telegram.api.wait_for_sent(3, OWNER, timeout=20)

    waits = "waits: the channel whatsapp is not served here and there is no chat to fall back to"
    assert waits in listed
    assert {*telegram.texts()} == {"done: hello", "done: terminal", "done: whatsapp"}
    assert rows(telegram.nanobot, "SELECT DISTINCT channel FROM outbox") == [("telegram",)]


def test_an_answer_for_a_channel_that_is_gone_becomes_a_dead_letter(telegram: Telegram) -> None:
    added = telegram.nanobot.run("cron", "add", "-m", "x", "--every", "60", "--reminder", *HERE)
    telegram.nanobot.run("cron", "run", added.stdout.partition(" ")[0])
    telegram.configure(enabled=False)
    gateway = telegram.start(polling=False)

    def is_said() -> bool:
        return "telegram is not served" in telegram.nanobot.run("status").stdout

    eventually(is_said, "a dead letter")
    gateway.terminate()


def test_a_task_without_delivery_survives_a_model_outage(telegram: Telegram) -> None:
    telegram.model.default = Reply.error(503, "overloaded", retry_after="3600")
    write_jobs(telegram.nanobot, [family_job("quiet", at(now_ms()), deliver=False)])
    telegram.start()
    states = "SELECT state, not_before IS NOT NULL FROM inbox WHERE session = 'cron:quiet'"

    eventually(
        lambda: rows(telegram.nanobot, states) not in ([], [("pending", 0)]), "the first failure"
    )

    assert rows(telegram.nanobot, states) == [("pending", 1)]


def test_a_job_slower_than_its_interval_has_one_run_open(telegram: Telegram) -> None:
    gate = telegram.model.gate()

    def answer(request: Request) -> Reply:
        is_slow = "do slow" in request.last_user
        return Reply.text("worked" if is_slow else "here", gate=gate if is_slow else None)

    telegram.model.answer_with(answer)
    write_jobs(
        telegram.nanobot,
        [
            family_job("slow", every(1000)),
            family_job("ticking", every(1000), kind="reminder", message="tick"),
        ],
    )
    telegram.start()
    gate.wait_reached()
    ticks = len(telegram.texts())

    telegram.api.wait_for_sent(ticks + 4, OWNER)

    posted = "SELECT count(*) FROM inbox WHERE session = 'cron:slow'"
    assert rows(telegram.nanobot, posted) == [(1,)]
    gate.release()
    eventually(lambda: telegram.texts().count("worked") >= 2, "the next run")


def test_a_reminder_that_cannot_be_delivered_is_queued_once(telegram: Telegram) -> None:
    telegram.model.default = Reply.text("here")
    held = telegram.api.gate("sendMessage", chat_id=OWNER)
    write_jobs(
        telegram.nanobot,
        [
            family_job("held", every(1000), kind="reminder", message="tea"),
            family_job("ticking", every(1000), deliver=False),
        ],
    )
    telegram.start()
    held.wait_reached()
    runs = len(telegram.model.requests)

    telegram.model.wait_arrived(runs + 4)

    assert rows(telegram.nanobot, "SELECT count(*) FROM outbox") == [(1,)]
    held.release()


def test_what_services_said_in_a_chat_is_in_its_history(telegram: Telegram) -> None:
    def answer(request: Request) -> Reply:
        if "tell the owner" in request.last_user and not request.tool_results:
            told = {"content": "From the terminal.", "channel": "telegram", "chat_id": str(OWNER)}
            return Reply.tool_calls([("message", told)])
        return Reply.text("3 files can go. Delete them?" if "count" in request.last_user else "ok")

    telegram.model.answer_with(answer)
    telegram.start()
    telegram.nanobot.run("cron", "add", "-m", "Tea!", "--at", soon(), "--reminder", *HERE)
    telegram.api.wait_for_sent(1, OWNER)
    telegram.nanobot.run("cron", "add", "-m", "count", "--at", soon(), "--deliver", *HERE)
    telegram.api.wait_for_sent(2, OWNER)
    telegram.nanobot.run("agent", "-m", "tell the owner")
    telegram.api.wait_for_sent(3, OWNER)
    telegram.api.inject("Yes, do it", chat_id=OWNER)
    telegram.api.wait_for_sent(4, OWNER)

    request = telegram.model.requests[-1]
    notes = [text for role, text in said(request)[:-1] if role == "user"]
    assert [text for role, text in said(request) if role == "assistant"] == [
        "Tea!",
        "3 files can go. Delete them?",
        "From the terminal.",
    ]
    assert [cause in note for cause, note in zip(CAUSES, notes, strict=True)] == [True] * 3
    assert (said(request)[-1], refusals(request.body)) == (("user", "Yes, do it"), [])
    logged = rows(
        telegram.nanobot,
        "SELECT inbound_id, principal, trust FROM log "
        f"WHERE session = 'telegram:{OWNER}' AND kind = 'sent' ORDER BY seq",
    )
    assert [(inbound.partition(":")[0], trust) for inbound, _, trust in logged] == [
        ("cron", "trusted"),
        ("cron", "trusted"),
        ("cli", "trusted"),
    ]
    assert all(principal.startswith("owner:") for _, principal, _ in logged)


CAUSES = ("the reminder", "the scheduled job “count”", "another conversation")


def soon() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())


def test_what_arrives_while_a_turn_runs_stands_behind_that_turn(telegram: Telegram) -> None:
    gate = telegram.model.gate()

    def answer(request: Request) -> Reply:
        if "work" not in request.last_user:
            return Reply.text("It is on.")
        if request.tool_results:
            return Reply.text("worked", gate=gate)
        return Reply.tool_calls([("list_dir", {"path": "."})], text="I look.")

    telegram.model.answer_with(answer)
    telegram.start()
    telegram.api.inject("work", chat_id=OWNER)
    gate.wait_reached()
    telegram.nanobot.run("cron", "add", "-m", "Tea?", "--at", soon(), "--reminder", *HERE)
    telegram.api.wait_for_sent(1, OWNER)
    gate.release()
    telegram.api.wait_for_sent(2, OWNER)
    telegram.api.inject("yes", chat_id=OWNER)
    telegram.api.wait_for_sent(3, OWNER)

    during, after = telegram.model.requests[-2:]
    assert after.messages[: len(during.messages)] == during.messages
    new = said(after)[len(during.messages) - 1 :]
    assert [role for role, _ in new] == ["assistant", "user", "assistant", "user"]
    assert [new[0][1], new[2][1], new[3][1]] == ["worked", "Tea?", "yes"]
    assert refusals(after.body) == []


def test_a_turn_that_is_killed_goes_on_although_its_chat_was_told_something(
    telegram: Telegram,
) -> None:
    gate = telegram.model.gate()

    def answer(request: Request) -> Reply:
        if "work" not in request.last_user:
            return Reply.text("It is on.")
        if request.tool_results:
            return Reply.text("worked", gate=gate)
        return Reply.tool_calls([("list_dir", {"path": "."})])

    telegram.model.answer_with(answer)
    gateway = telegram.start()
    telegram.api.inject("work", chat_id=OWNER)
    gate.wait_reached()
    telegram.nanobot.run("cron", "add", "-m", "Tea?", "--at", soon(), "--reminder", *HERE)
    telegram.api.wait_for_sent(1, OWNER)
    gateway.kill()
    gate.release()
    telegram.start()
    eventually(lambda: "worked" in telegram.texts(), "the answer")
    telegram.api.inject("yes", chat_id=OWNER)
    eventually(lambda: telegram.texts()[-1] == "It is on.", "the next answer")

    before, again, after = telegram.model.requests[-3:]
    assert again.messages == before.messages
    assert [text for role, text in said(after) if role == "assistant"][-2:] == ["worked", "Tea?"]
    assert refusals(after.body) == []
    assert [text.removeprefix(REPETITION) for text in telegram.texts()].count("worked") == 1


def test_the_calls_of_the_original_documents_do_what_they_say(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)
    calls: list[dict[str, Any]] = [
        {"message": "Time to take a break!", "every_seconds": 1200},
        {"message": "Check HKUDS/nanobot GitHub stars and report", "every_seconds": 600},
        {"message": "Remind me about the meeting", "at": "2099-01-31T09:00"},
        {"message": "Time to take a break!", "every_seconds": 1200, "mode": "task"},
        {"message": "Check the stars", "every_seconds": 1200, "mode": "reminder"},
    ]
    model.script(
        Reply.tool_calls([("cron", {"action": "add", **call}) for call in calls]),
        Reply.text("done"),
    )

    nanobot.run("agent", "-m", "set these up")

    file = json.loads((nanobot.home / "cron" / "jobs.json").read_text(encoding="utf-8"))
    kinds = [job["payload"]["kind"] for job in file["jobs"]]
    assert kinds == ["reminder", "agent_turn", "reminder", "agent_turn", "reminder"]
    results = model.requests[-1].tool_results
    assert ["a reminder by its wording" in result for result in results[:3]] == [True, False, True]
    assert ["a task by its wording" in result for result in results[:3]] == [False, True, False]
    assert not any("wording" in result for result in results[3:])


def test_the_last_good_jobs_go_on_while_the_file_is_damaged_and_the_owner_is_told(
    telegram: Telegram,
) -> None:
    tick = family_job("ticking", every(1000), kind="reminder", message="tick")
    text = write_jobs(telegram.nanobot, [tick])
    path = telegram.nanobot.home / "cron" / "jobs.json"
    gateway = telegram.start()
    telegram.api.wait_for_sent(1, OWNER)
    path.write_text(text[: len(text) // 2])
    eventually(lambda: len(told(telegram)) == 1, "a word to the owner")
    gateway.terminate()
    telegram.start()
    ticks = telegram.texts().count("tick")

    eventually(lambda: telegram.texts().count("tick") >= ticks + 2, "the jobs as they were")
    listed = telegram.nanobot.run("cron", "list")

    assert ("ticking" in listed.stdout, str(path) in listed.stderr) == (True, True)
    assert (len(told(telegram)), path.read_text()) == (1, text[: len(text) // 2])


def told(telegram: Telegram) -> list[str]:
    return [text for text in telegram.texts() if "jobs.json" in text]


def test_a_trailing_comma_is_no_damage(telegram: Telegram) -> None:
    text = write_jobs(
        telegram.nanobot, [family_job("tea", at(now_ms()), kind="reminder", message="Tea!")]
    )
    path = telegram.nanobot.home / "cron" / "jobs.json"
    path.write_text(text.replace("\n  ]", ",\n  ]"))
    telegram.start()

    telegram.api.wait_for_sent(1, OWNER)

    assert telegram.texts() == ["Tea!"]


def test_a_schedule_edited_by_hand_counts_from_the_edit(telegram: Telegram) -> None:
    hourly = family_job("hourly", every(HOUR_MS), kind="reminder", message="hour")
    hourly["schedule"]["anchorMs"] = now_ms() - FORTNIGHT_MS + HOUR_MS // 2
    hourly["updatedAtMs"] = now_ms()
    write_jobs(telegram.nanobot, [hourly])
    gateway = telegram.start()
    known = "SELECT count(*) FROM job_state"
    eventually(lambda: rows(telegram.nanobot, known) == [(1,)], "the job")
    hourly["updatedAtMs"] = hourly["createdAtMs"]
    hourly["schedule"]["everyMs"] = 2 * HOUR_MS
    copied = family_job("copied", every(HOUR_MS), kind="reminder", message="copy")
    copied["schedule"]["anchorMs"] = hourly["schedule"]["anchorMs"]
    past = family_job("past", at(now_ms() - HOUR_MS), kind="reminder", message="past")
    tea = family_job("tea", at(now_ms() + 1000), kind="reminder", message="Tea!")
    write_jobs(telegram.nanobot, [hourly, copied, past, tea])
    telegram.api.wait_for_sent(1, OWNER)
    gateway.terminate()
    hourly["schedule"]["everyMs"] = 3 * HOUR_MS
    more = family_job("more", at(now_ms()), kind="reminder", message="More?")
    write_jobs(telegram.nanobot, [hourly, copied, past, more])
    telegram.start()

    telegram.api.wait_for_sent(2, OWNER)

    assert telegram.texts() == ["Tea!", "More?"]


def test_jobs_that_cannot_be_are_named_in_a_line_and_stop_no_other(telegram: Telegram) -> None:
    absurd = [
        family_job("eternal", every(10**18)),
        family_job("constant", every(1)),
        family_job("astronomical", every(10**400)),
        family_job("never", {"kind": "cron", "expr": "0 0 31 2 *"}),
        family_job("nowhere", {"kind": "cron", "expr": "0 9 * * *", "tz": "Mars/Olympus"}),
        family_job("late", at(10**18)),
        family_job("half", at(now_ms()), kind="reminder", message="half \ud83d of a pair"),
        family_job("event", every(1000), kind="system_event"),
    ]
    tea = family_job("tea", at(now_ms() + 500), kind="reminder", message="Tea!")
    write_jobs(telegram.nanobot, [*absurd, tea])
    gateway = telegram.start()

    eventually(lambda: "Tea!" in telegram.texts(), "the sound job")
    assert "half ? of a pair" in telegram.texts()
    listed = telegram.nanobot.run("cron", "list")
    as_json = telegram.nanobot.run("cron", "list", "--json")
    gateway.terminate()

    assert (listed.returncode, as_json.returncode) == (0, 0), listed.stderr + as_json.stderr
    assert listed.stdout.count("does not run: ") == 6
    (event,) = [line for line in listed.stderr.splitlines() if "event" in line]
    assert "payload.kind" in event and "agent_turn" in event
    assert "pydantic" not in listed.stderr + gateway.log
    assert "the job 'event' does not run" in gateway.log
    assert "Traceback" not in listed.stderr


def test_a_heartbeat_calls_no_model_before_there_is_a_chat(telegram: Telegram) -> None:
    config = telegram.config()
    config["gateway"] = {"heartbeat": {"intervalS": 1}}
    telegram.nanobot.configure(config)
    telegram.model.default = Reply.text("done")
    telegram.nanobot.run("agent", "-m", "hello")
    (telegram.nanobot.workspace / "HEARTBEAT.md").write_text("- [ ] weather\n")
    write_jobs(telegram.nanobot, [family_job("ticking", every(1000), deliver=False)])
    telegram.start()

    telegram.model.wait_arrived(5)

    assert not any("standing tasks" in request.last_user for request in telegram.model.requests)


def test_a_job_for_a_channel_that_does_not_exist_is_refused(telegram: Telegram) -> None:
    added = telegram.nanobot.run(
        "cron", "add", "-m", "x", "--every", "60", "--deliver", "--channel", "foo", "--to", "1"
    )

    assert added.returncode == 2
    assert "no channel 'foo'" in added.stderr and "telegram" in added.stderr
    assert not (telegram.nanobot.home / "cron" / "jobs.json").exists()


def test_a_message_from_a_one_shot_without_a_gateway_is_said_to_be_queued(
    telegram: Telegram,
) -> None:
    wish = {"content": "hi", "channel": "telegram", "chat_id": str(OWNER)}
    telegram.model.script(Reply.tool_calls([("message", wish)]), Reply.text("ok"))
    telegram.nanobot.run("agent", "-m", "tell them")
    (alone,) = telegram.model.requests[-1].tool_results
    telegram.start()
    telegram.api.wait_for_sent(1, OWNER)
    telegram.model.script(Reply.tool_calls([("message", wish)]), Reply.text("ok"))

    telegram.nanobot.run("agent", "-s", "other", "-m", "tell them")

    (beside,) = telegram.model.requests[-1].tool_results
    assert alone.startswith("Queued") and "nanobot gateway" in alone
    assert beside == f"Sent to telegram {OWNER}."
