"""``nanobot sessions`` and ``nanobot memory``, with a gateway and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually, model_config
from tests.fakes.memory import is_digest, saves, write_session
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

KEY = f"telegram:{OWNER}"
SAVED = "[2026-03-01 12:00] They spoke of masts."


@pytest.fixture(params=["alone", "beside a gateway"])
def home(telegram: Telegram, request: pytest.FixtureRequest) -> Telegram:
    """The same commands on a home that a gateway holds, and on one that nobody does."""

    def answer(asked: Request) -> Reply:
        edit = {"action": "add", "section": "Preferences", "line": "Likes masts"}
        return saves([SAVED], [edit]) if is_digest(asked) else Reply.text("reply")

    telegram.model.answer_with(answer)
    if request.param != "alone":
        telegram.start()
    return telegram


def run(home: Telegram, *arguments: str) -> str:
    done = home.nanobot.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def document(home: Telegram, *arguments: str) -> Any:
    return json.loads(run(home, *arguments, "--json"))


def test_a_session_of_the_family_is_imported_once(home: Telegram, tmp_path: Path) -> None:
    file = tmp_path / "telegram_42.jsonl"
    lines = [
        {"_type": "metadata", "created_at": "2026-01-01T08:00:00", "last_consolidated": 2},
        {"role": "user", "content": "hi", "timestamp": "2026-01-01T08:00:01"},
        {"role": "assistant", "content": "hello", "timestamp": "2026-01-01T08:00:02"},
        {"role": "user", "content": [{"type": "text", "text": "list"}, {"type": "image_url"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "ls", "content": "a b"},
        {"role": "assistant", "content": "a and b", "tools_used": ["ls"]},
        {"role": "user", "content": "hi", "timestamp": "2026-01-01T08:05:00"},
        {"role": "assistant", "content": "again", "timestamp": "2026-01-01T08:05:01"},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    file.write_text(text + "not JSON\n" + '{"role": "system", "content": "x"}\n')

    first = document(home, "sessions", "import", str(file))
    again = document(home, "sessions", "import", str(file))
    file.write_text(text + '{"role": "user", "content": "more"}\n')
    grown = document(home, "sessions", "import", str(file))
    listed = document(home, "sessions", "list")["sessions"]
    shown = document(home, "sessions", "show", KEY)["entries"]

    assert first == {"session": KEY, "added": 8, "present": 0, "skipped": 2}
    assert again == {"session": KEY, "added": 0, "present": 8, "skipped": 2}
    assert grown == {"session": KEY, "added": 1, "present": 8, "skipped": 0}
    assert [(one["key"], one["entries"], one["live"]) for one in listed] == [(KEY, 9, 7)]
    assert [(one["role"], one["content"], one["nanobot"]["trust"]) for one in shown] == [
        ("user", "hi", "trusted"),
        ("assistant", "hello", "trusted"),
        ("user", "list", "trusted"),
        ("assistant", "", "trusted"),
        ("tool", "a b", "untrusted"),
        ("assistant", "a and b", "untrusted"),
        ("user", "hi", "trusted"),
        ("assistant", "again", "trusted"),
        ("user", "more", "trusted"),
    ]
    assert shown[3]["tool_calls"][0]["function"]["name"] == "ls"


def test_an_export_is_imported_as_it_was(home: Telegram, tmp_path: Path) -> None:
    file = write_session(tmp_path / "boat.jsonl", 15)
    run(home, "sessions", "import", str(file))
    run(home, "memory", "consolidate", KEY)
    exported = run(home, "sessions", "export", KEY)
    copy = tmp_path / "copy.jsonl"
    run(home, "sessions", "export", KEY, str(copy))

    there = document(home, "sessions", "import", str(copy))
    made = document(home, "sessions", "import", str(copy), "--session", "cli:copy")
    back = run(home, "sessions", "export", "cli:copy")
    digested = document(home, "memory", "consolidate", "cli:copy")

    assert copy.read_text() == exported
    assert (there["added"], made["added"]) == (0, 31)
    assert words(back)[:-1] == words(exported)[:-1]
    assert digested == {"sessions": []}
    lives = {one["key"]: one["live"] for one in document(home, "sessions", "list")["sessions"]}
    assert lives == {KEY: 11, "cli:copy": 11}


def words(exported: str) -> list[tuple[object, ...]]:
    """An export's entries without the places they have in a log."""
    lines = [json.loads(line) for line in exported.splitlines()][1:]
    return [
        (one.get("role"), one.get("content"), one["timestamp"], one["nanobot"]["inbound_id"])
        for one in lines
    ]


def test_a_session_that_went_on_here_is_not_mixed_with_a_file(
    home: Telegram, tmp_path: Path
) -> None:
    file = write_session(tmp_path / "boat.jsonl", 3)
    run(home, "sessions", "import", str(file))
    run(home, "agent", "-s", KEY, "-m", "and here?")
    write_session(file, 4)

    refused = home.nanobot.run("sessions", "import", str(file))

    assert refused.returncode == 1
    assert "has messages of its own" in refused.stderr
    assert "--session" in refused.stderr


def test_a_deleted_session_leaves_nothing_but_what_the_owner_is_shown(
    home: Telegram, tmp_path: Path
) -> None:
    run(home, "sessions", "import", str(write_session(tmp_path / "boat.jsonl", 15)))
    run(home, "agent", "-s", KEY, "-m", "remember the secret word abracadabra")
    run(home, "memory", "consolidate", KEY)
    spilled = home.nanobot.home / "spill" / "telegram%3A42"
    spilled.mkdir(parents=True)
    (spilled / "1.txt").write_text("long")

    unsure = home.nanobot.run("sessions", "delete", KEY)
    deleted = home.nanobot.run("sessions", "delete", KEY, "--yes")
    gone = home.nanobot.run("sessions", "show", KEY)

    assert (unsure.returncode, "--yes" in unsure.stderr) == (2, True)
    assert (deleted.returncode, SAVED in deleted.stdout) == (0, True)
    assert "HISTORY.md still has" in deleted.stderr
    assert (gone.returncode, "there is no session" in gone.stderr) == (1, True)
    assert document(home, "sessions", "list") == {"sessions": []}
    assert not spilled.exists()
    assert SAVED in (home.nanobot.workspace / "memory" / "HISTORY.md").read_text()
    for gateway in home.started:
        gateway.terminate()
    run(home, "sessions", "list")  # opens the database once more, which writes its journal back
    left = [path for path in home.nanobot.home.rglob("*") if path.is_file()]
    assert len(left) > 5
    assert not any(b"abracadabra" in path.read_bytes() for path in left)


def test_memory_is_shown_and_a_version_put_back(home: Telegram, tmp_path: Path) -> None:
    run(home, "sessions", "import", str(write_session(tmp_path / "boat.jsonl", 15)))
    memory = home.nanobot.workspace / "memory" / "MEMORY.md"
    before = document(home, "memory", "show")
    run(home, "memory", "consolidate")
    memory.write_text(memory.read_text() + "- by hand\n")

    versions = document(home, "memory", "history")["versions"]
    after = document(home, "memory", "show")
    run(home, "memory", "restore", "1")
    refused = home.nanobot.run("memory", "restore", "99")
    text = home.nanobot.run("memory", "show")

    assert (before["consolidated"], before["history"]["paragraphs"]) == (None, 0)
    assert [one["by"] for one in versions] == ["owner", "consolidation", "owner"]
    assert "- Likes masts" in after["text"]
    assert after["text"].endswith("- by hand\n")
    assert (after["consolidated"] is None, after["history"]["paragraphs"]) == (False, 1)
    assert memory.read_text() == before["text"] == text.stdout
    assert "4 versions" in text.stderr
    assert (refused.returncode, "there is no version 99" in refused.stderr) == (1, True)
    assert document(home, "memory", "show", "--version", "2")["text"].count("Likes masts") == 1


def test_what_is_no_session_is_refused_in_a_line(home: Telegram, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("[]\nnothing\n")

    for arguments, reason in (
        (("sessions", "import", str(tmp_path / "empty.jsonl")), "no message in it"),
        (("sessions", "import", str(tmp_path / "missing.jsonl")), "No such file"),
        (("sessions", "export", "cli:nobody"), "there is no session"),
        (("sessions", "delete", "cli:nobody", "--yes"), "there is no session"),
        (("memory", "consolidate", "cli:nobody"), "there is no session"),
    ):
        done = home.nanobot.run(*arguments)
        assert (done.returncode, reason in done.stderr) == (1, True), done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_assistants_own_edits_become_versions(home: Telegram) -> None:
    memory = home.nanobot.workspace / "memory" / "MEMORY.md"
    template = run(home, "memory", "show")
    arguments = {
        "path": "memory/MEMORY.md",
        "old_text": "## Preferences",
        "new_text": "## Preferences\n\n- Tea",
    }
    home.model.answer_with(
        lambda asked: (
            Reply.text("done")
            if asked.tool_results
            else Reply.tool_calls([("edit_file", arguments)])
        )
    )

    run(home, "agent", "-m", "remember that I like tea")

    def versions() -> list[str]:
        return [one["by"] for one in document(home, "memory", "history")["versions"]]

    eventually(lambda: versions() == ["owner", "assistant"], "the version")
    assert memory.read_text() == template.replace("## Preferences", "## Preferences\n\n- Tea")


def test_a_conversation_at_the_terminal_without_a_gateway_is_digested_by_command(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.configure(model_config(model.url))
    model.answer_with(lambda asked: saves([SAVED]) if is_digest(asked) else Reply.text("reply"))
    nanobot.run("agent", "-m", "hello")
    new = nanobot.run("agent", "-m", "/new")
    asked = [is_digest(request) for request in model.requests]

    done = nanobot.run("memory", "consolidate", "--json")

    assert (new.returncode, "new conversation" in new.stdout) == (0, True)
    assert asked == [False]
    assert json.loads(done.stdout)["sessions"] == [
        {"session": "cli:direct", "steps": 1, "error": ""}
    ]


def test_a_session_is_found_by_the_name_it_was_given_at_the_terminal(home: Telegram) -> None:
    run(home, "agent", "-s", "work", "-m", "hello")

    assert "user: " in run(home, "sessions", "show", "work")
    assert run(home, "sessions", "export", "work").startswith('{"_type": "metadata"')
    assert document(home, "memory", "consolidate", "work") == {"sessions": []}
    assert [line["calls"] for line in document(home, "usage", "-s", "work")["models"]] == [1]
    assert document(home, "sessions", "delete", "work", "--yes")["deleted"] > 0
    refused = home.nanobot.run("sessions", "show", "work")
    assert (refused.returncode, refused.stderr) == (
        1,
        "nanobot: there is no session work; see `nanobot sessions list`\n",
    )
