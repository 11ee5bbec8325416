"""Consolidation in a running gateway, with a model that answers well or badly, over HTTP."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from tests.e2e.conftest import OWNER, Telegram, eventually, model_config
from tests.fakes.memory import TOOL, is_digest, write_session
from tests.fakes.model_replies import Ending, Reply
from tests.fakes.model_server import Request

KEY = f"telegram:{OWNER}"
GOOD = {
    "history": [{"time": "2026-03-01 12:03", "text": "Chose mast3 for the boat; mast1 too short."}],
    "memory": [{"action": "add", "section": "Important Notes", "line": "Owns a boat"}],
}
PARAGRAPH = "[2026-03-01 12:03] Chose mast3 for the boat; mast1 too short."
TEMPLATE = "# Long-term memory\n\n## User Information\n\n## Preferences\n\n## Important Notes\n"
EDITED = f"{TEMPLATE}\n- Owns a boat\n"
TEXT = json.dumps(GOOD)

USABLE = {
    "well": Reply.tool_calls([(TOOL, GOOD)]),
    "fenced": Reply.text(f"Here it is:\n\n```json\n{TEXT}\n```\nDone."),
    "with prose around": Reply.text(f"I have thought about it. {TEXT} That is all."),
    "with other keys and types": Reply.tool_calls(
        [
            (
                TOOL,
                {
                    "history_entry": PARAGRAPH,
                    "memory": {"op": "append", "section": 7, "text": "Owns a boat"},
                },
            )
        ]
    ),
    "as JSON that can be mended": Reply.tool_calls([(TOOL, TEXT.replace('"history"', "history"))]),
}
UNREACHED = "cut by the network"
USELESS = {
    "truncated": Reply.tool_calls([(TOOL, TEXT[:60])]),
    "truncated by the limit": Reply.tool_calls([(TOOL, TEXT)]).but(finish="length"),
    UNREACHED: Reply.tool_calls([(TOOL, TEXT)]).but(ending=Ending.CUT, after_chunks=3),
    "empty": Reply.empty(),
    "with an empty list": Reply.tool_calls([(TOOL, {"history": []})]),
    "as prose": Reply.text("The owner talked about boats and chose a mast."),
    "with wrong types": Reply.tool_calls([(TOOL, {"history": 7, "memory": "- Owns a boat"})]),
    "with an error": Reply.error(400, "no such tool"),
}


BUSY = Reply.error(503, "overloaded", retry_after="3600")


@pytest.fixture
def boat(telegram: Telegram) -> Telegram:
    """A chat with 15 questions and answers, of which twelve messages may stay."""
    config = telegram.config()
    config["agents"] = model_config(telegram.model.url, memoryWindow=12)["agents"]
    telegram.nanobot.configure(config)
    file = write_session(telegram.nanobot.home.parent / "boat.jsonl", 15)
    done = telegram.nanobot.run("sessions", "import", str(file))
    assert (done.returncode, done.stdout) == (0, f"{KEY}: 30 entries added, 0 were there\n")
    return telegram


def answering(boat: Telegram, digest: Reply) -> None:
    def answer(request: Request) -> Reply:
        return digest if is_digest(request) else Reply.text("reply")

    boat.model.answer_with(answer)


def log_of(boat: Telegram) -> list[tuple[int, str, str]]:
    with closing(sqlite3.connect(boat.nanobot.home / "state.db")) as database:
        rows = database.execute(
            "SELECT seq, kind, payload FROM log WHERE session = ? ORDER BY seq", (KEY,)
        )
        return list(rows)


def memory_of(boat: Telegram) -> tuple[str, str]:
    folder = boat.nanobot.workspace / "memory"
    history = folder / "HISTORY.md"
    return (folder / "MEMORY.md").read_text(), history.read_text() if history.exists() else ""


def tried(boat: Telegram) -> tuple[int, str]:
    """How many answers in a row were of no use, and what is noted of the last try."""
    with closing(sqlite3.connect(boat.nanobot.home / "state.db")) as database:
        query = "SELECT failures, coalesce(error, '') FROM digest WHERE session = ?"
        row: tuple[int, str] | None = database.execute(query, (KEY,)).fetchone()
        return row or (0, "")


def failures_of(boat: Telegram) -> int:
    return tried(boat)[0]


def error_of(boat: Telegram) -> str:
    return tried(boat)[1]


@pytest.mark.parametrize("how", USABLE)
def test_a_long_chat_becomes_memory_when_the_model_answers(boat: Telegram, how: str) -> None:
    before = log_of(boat)
    answering(boat, USABLE[how])
    gateway = boat.start()

    boat.api.inject("and the sail?", chat_id=OWNER)
    eventually(lambda: memory_of(boat)[1] != "", "the history")
    eventually(lambda: log_of(boat)[-1][1] == "compacted", "the end of it")
    boat.api.inject("thanks", chat_id=OWNER)
    boat.api.wait_for_sent(2, OWNER)

    assert gateway.terminate() == 0
    memory, history = memory_of(boat)
    assert (memory, history) == (EDITED, f"{PARAGRAPH}\n")
    assert log_of(boat)[: len(before)] == before
    shown = [str(one["content"]) for one in boat.model.requests[-1].messages]
    assert not any("question 9" in text for text in shown)
    assert PARAGRAPH in shown[1]
    assert any("question 11" in text for text in shown)
    assert boat.texts() == ["reply", "reply"]


@pytest.mark.parametrize("how", USELESS)
def test_an_answer_of_no_use_changes_nothing(boat: Telegram, how: str) -> None:
    before = log_of(boat)
    answering(boat, USELESS[how])
    gateway = boat.start()

    boat.api.inject("and the sail?", chat_id=OWNER)
    eventually(lambda: error_of(boat) != "", "the failure", 30)
    boat.api.inject("thanks", chat_id=OWNER)
    boat.api.wait_for_sent(2, OWNER)

    assert gateway.terminate() == 0
    log = log_of(boat)
    assert memory_of(boat) == (TEMPLATE, "")
    assert failures_of(boat) == (0 if how == UNREACHED else 1)
    assert log[: len(before)] == before
    assert [kind for _, kind, _ in log[len(before) :]] == ["user", "assistant"] * 2
    assert boat.texts() == ["reply", "reply"]


def test_no_reply_waits_while_the_digest_hangs_and_stopping_does_no_harm(boat: Telegram) -> None:
    gate = boat.model.gate()
    answering(boat, USABLE["well"].but(gate=gate))
    gateway = boat.start()
    boat.api.inject("and the sail?", chat_id=OWNER)
    gate.wait_reached(20)

    boat.api.inject("quick one", chat_id=OWNER)
    boat.api.wait_for_sent(2, OWNER, timeout=5)
    boat.api.inject("/stop", chat_id=OWNER)
    boat.api.wait_for_sent(3, OWNER, timeout=5)

    assert gateway.terminate() == 0
    assert boat.texts() == ["reply", "reply", "Nothing is running here."]
    assert memory_of(boat) == (TEMPLATE, "")
    assert failures_of(boat) == 0
    assert len([one for one in boat.model.requests if is_digest(one)]) == 1


def test_a_digest_that_never_comes_ends_at_its_limit(boat: Telegram) -> None:
    config = boat.config()
    agents = model_config(boat.model.url, memoryWindow=12)["agents"]
    config["agents"] = {**agents, "memory": {"timeoutS": 1}}
    boat.nanobot.configure(config)
    answering(boat, Reply.text("", ending=Ending.HANG))
    gateway = boat.start()

    boat.api.inject("and the sail?", chat_id=OWNER)
    eventually(lambda: error_of(boat) != "", "the end of the digest")

    assert gateway.terminate() == 0
    assert "did not answer within 1 s" in gateway.log
    assert failures_of(boat) == 0
    assert memory_of(boat) == (TEMPLATE, "")


def test_after_three_failures_the_words_themselves_are_archived(boat: Telegram) -> None:
    answering(boat, Reply.error(400, "out of order"))

    first = boat.nanobot.run("memory", "consolidate", KEY)
    second = boat.nanobot.run("memory", "consolidate", KEY)
    untouched = memory_of(boat)
    third = boat.nanobot.run("memory", "consolidate", KEY)

    assert (first.returncode, second.returncode, third.returncode) == (1, 1, 0), third.stderr
    assert "out of order" in first.stderr
    assert untouched == (TEMPLATE, "")
    memory, history = memory_of(boat)
    assert memory == TEMPLATE
    paragraphs = history.rstrip("\n").split("\n\n")
    assert len(paragraphs) == 20
    assert paragraphs[0] == (
        f"[2026-03-01 12:00] Archived as it was, {KEY}, owner: question 0 about the boat"
    )


def test_a_new_conversation_begins_at_once_and_the_former_is_archived_later(
    boat: Telegram,
) -> None:
    gate = boat.model.gate()
    answering(boat, Reply.error(500, "down").but(gate=gate))
    gateway = boat.start()
    boat.api.inject("/new", chat_id=OWNER)
    boat.api.wait_for_sent(1, OWNER, timeout=5)
    gate.wait_reached(20)
    boat.api.inject("hello", chat_id=OWNER)
    boat.api.wait_for_sent(2, OWNER, timeout=5)
    gateway.kill()
    kept = log_of(boat)
    answering(boat, USABLE["well"])

    gateway = boat.start()
    eventually(lambda: memory_of(boat)[1] != "", "the archive", 30)
    boat.api.inject("/memory", chat_id=OWNER)
    eventually(lambda: any("HISTORY.md: 1 paragraph," in t for t in boat.texts()), "/memory")

    assert gateway.terminate() == 0
    assert "new conversation begins" in boat.texts()[0]
    fresh = next(one for one in boat.model.requests if not is_digest(one))
    assert not any("boat" in str(one["content"]) for one in fresh.messages[1:])
    assert memory_of(boat)[1] == f"{PARAGRAPH}\n"
    assert log_of(boat)[: len(kept)] == kept
    assert len([kind for _, kind, _ in kept if kind in ("user", "assistant")]) == 32


def test_what_it_cost_and_which_model_is_in_the_usage(boat: Telegram) -> None:
    config = boat.config()
    agents = model_config(boat.model.url, memoryWindow=12)["agents"]
    config["agents"] = {**agents, "memory": {"model": "cheap-model"}}
    boat.nanobot.configure(config)
    answering(boat, USABLE["well"])

    done = boat.nanobot.run("memory", "consolidate", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"sessions": [{"session": KEY, "steps": 1, "error": ""}]}
    (request,) = boat.model.requests
    assert request.model == "cheap-model"
    with closing(sqlite3.connect(boat.nanobot.home / "state.db")) as database:
        used = database.execute("SELECT session, model, calls, input FROM usage").fetchall()
    assert used == [(KEY, "cheap-model", 1, 10)]


def test_the_model_that_digests_a_chat_is_told_who_wrote(telegram: Telegram) -> None:
    answering(telegram, USABLE["well"])
    gateway = telegram.start()
    telegram.api.inject("I take the mast", chat_id=OWNER, first_name="Ann")
    telegram.api.wait_for_sent(1, OWNER)

    telegram.api.inject("/new", chat_id=OWNER, first_name="Ann")
    eventually(lambda: any(map(is_digest, telegram.model.requests)), "the digest")

    assert gateway.terminate() == 0
    (digest,) = filter(is_digest, telegram.model.requests)
    assert "] owner Ann: I take the mast\n" in digest.last_user


def test_a_model_that_is_down_costs_time_and_never_the_digest(boat: Telegram) -> None:
    for outage in (BUSY, Reply.error(401, "no such key"), Reply.error(404, "no such model")):
        answering(boat, outage)
        assert boat.nanobot.run("memory", "consolidate", KEY).returncode == 1
    kept = memory_of(boat), failures_of(boat)
    answering(boat, USABLE["well"])

    back = boat.nanobot.run("memory", "consolidate", KEY)

    assert kept == ((TEMPLATE, ""), 0)
    assert (back.returncode, back.stdout) == (0, f"{KEY}: 1 step written\n")
    assert memory_of(boat) == (EDITED, f"{PARAGRAPH}\n")


def test_what_an_outage_put_off_is_taken_up_after_a_restart(boat: Telegram) -> None:
    answering(boat, BUSY)
    first = boat.start()
    boat.api.inject("and the sail?", chat_id=OWNER)
    eventually(lambda: error_of(boat) != "", "the failure")
    boat.api.inject("/memory", chat_id=OWNER)
    eventually(lambda: any("overloaded" in text for text in boat.texts()), "/memory")
    first.kill()
    with closing(sqlite3.connect(boat.nanobot.home / "state.db")) as state, state:
        state.execute("UPDATE digest SET not_before = 0")  # as an hour would
    answering(boat, USABLE["well"])

    second = boat.start()
    eventually(lambda: memory_of(boat)[1] != "", "the history")

    assert second.terminate() == 0
    assert memory_of(boat) == (EDITED, f"{PARAGRAPH}\n")


def test_compact_in_an_outage_says_so_and_leaves_the_conversation_in_view(boat: Telegram) -> None:
    boat.model.default = BUSY
    before = log_of(boat)
    gateway = boat.start()

    boat.api.inject("/compact", chat_id=OWNER)
    (said,) = boat.api.wait_for_sent(1, OWNER)

    assert gateway.terminate() == 0
    assert "overloaded" in said.text
    assert log_of(boat) == before


VITAL = "- Allergic to peanuts"
HABITS = [f"- Habit {number}: {'tea ' * 20}" for number in range(400)]
HABITS[200] = "- IMPORTANT: never call before nine"
LONG = TEMPLATE.replace("## Preferences\n", "\n".join(["## Preferences\n", *HABITS, ""])) + VITAL


def test_a_memory_over_its_cap_gives_way_where_it_is_long_and_keeps_what_is_important(
    boat: Telegram,
) -> None:
    file = boat.nanobot.workspace / "memory" / "MEMORY.md"
    file.write_text(LONG)
    answering(boat, USABLE["well"])

    done = boat.nanobot.run("agent", "-m", "hello", "--logs")
    digested = boat.nanobot.run("memory", "consolidate", KEY)

    assert (done.stdout, digested.returncode) == ("reply\n", 0)
    chat, digest = (str(one.messages[0]["content"]) for one in boat.model.requests)
    for shown in (chat.partition("# Memory\n\n")[2], digest.partition("MEMORY.md now:\n\n")[2]):
        assert all(line in shown for line in (VITAL, HABITS[200], HABITS[0], HABITS[-1]))
        assert HABITS[150] not in shown
        assert "## User Information\n" in shown
    memory = chat.partition("# Memory\n\n")[2].partition("\n\n---\n\n")[0]
    assert 19_000 < len(memory) < 20_500
    assert f"of {len(LONG):,} characters shown" in memory
    assert str(file) in memory
    warning = f"MEMORY.md has {len(LONG):,} characters, of which conversations see 20,000"
    assert warning in done.stderr
    for command in (("status",), ("memory", "show")):
        said = boat.nanobot.run(*command)
        assert "MEMORY.md has" in said.stdout + said.stderr, command
