"""``nanobot agent -m`` as a person or a script uses it."""

from __future__ import annotations

import json
import secrets
import sqlite3
from pathlib import Path

import pytest

from tests.e2e.conftest import Nanobot
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer


def test_without_any_account_a_file_is_read_and_quoted(nanobot: Nanobot, tmp_path: Path) -> None:
    secret = secrets.token_hex(16)
    note = tmp_path / "note.txt"
    note.write_text(f"The code is {secret}.\n")

    done = nanobot.run("agent", "-m", f"read {note}")

    assert (done.returncode, secret in done.stdout) == (0, True), done.stderr
    assert "offline model" in done.stderr
    with sqlite3.connect(nanobot.home / "state.db") as log:
        kinds = [kind for (kind,) in log.execute("SELECT kind FROM log ORDER BY seq")]
        (result,) = log.execute("SELECT payload FROM log WHERE kind = 'tool'").fetchone()
    assert kinds == ["user", "assistant", "tool", "assistant"]
    assert secret in result


def test_what_the_offline_model_does_not_understand_gets_its_grammar(nanobot: Nanobot) -> None:
    done = nanobot.run("agent", "-m", "compose a symphony")

    assert (done.returncode, done.stdout) == (4, "")
    assert "run COMMAND" in done.stderr


def test_a_three_step_job_is_done_and_only_the_answer_is_on_stdout(
    nanobot: Nanobot, model: ModelServer
) -> None:
    number = secrets.randbelow(10**9)
    script = f"echo result=$(({number} + 1))\n"
    model.script(
        Reply.tool_calls([("write_file", {"path": "job/add.sh", "content": script})]),
        Reply.tool_calls([("exec", {"command": "sh job/add.sh"})], text="Now I run it."),
        Reply.text("It printed the sum."),
    )
    nanobot.use_model(model)

    done = nanobot.run("agent", "-m", "add one to my number")

    assert (done.returncode, done.stdout) == (0, "It printed the sum.\n"), done.stderr
    assert (nanobot.workspace / "job" / "add.sh").read_text() == script
    assert f"result={number + 1}" in model.requests[2].tool_results[-1]
    assert len(model.requests) == 3


def test_json_tells_reply_tools_and_usage(nanobot: Nanobot, model: ModelServer) -> None:
    model.script(
        Reply.tool_calls([("list_dir", {"path": "."})]),
        Reply.text("Done."),
    )
    nanobot.use_model(model)

    done = nanobot.run("agent", "--json", "-m", "look around")

    told = json.loads(done.stdout)
    assert (told["reply"], told["tools"], told["model"]) == ("Done.", ["list_dir"], "fake-model")
    assert told["usage"]["inputTokens"] > 0


@pytest.mark.parametrize("arguments", [("-m", "-"), ()])
def test_the_message_may_come_from_stdin(
    nanobot: Nanobot, model: ModelServer, arguments: tuple[str, ...]
) -> None:
    model.script(Reply.text("Heard."))
    nanobot.use_model(model)

    done = nanobot.run("agent", *arguments, stdin="from the päipe\n")

    assert (done.returncode, done.stdout) == (0, "Heard.\n"), done.stderr
    assert "from the päipe" in model.requests[0].last_user


def test_sessions_are_kept_apart_and_continued(nanobot: Nanobot, model: ModelServer) -> None:
    model.answer_with(lambda request: Reply.text(f"turn {len(request.messages)}"))
    nanobot.use_model(model)

    first = nanobot.run("agent", "-s", "work", "-m", "one")
    again = nanobot.run("agent", "-s", "work", "-m", "two")
    other = nanobot.run("agent", "-m", "three", "--model", "other-model")

    assert [done.stdout for done in (first, again, other)] == ["turn 2\n", "turn 4\n", "turn 2\n"]
    assert [request.model for request in model.requests] == [
        "fake-model",
        "fake-model",
        "other-model",
    ]


def test_a_wrong_key_is_one_line_and_exit_code_4(nanobot: Nanobot, model: ModelServer) -> None:
    model.script(Reply.error(401))
    nanobot.use_model(model)

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (4, "", 1)
    assert "providers.custom.apiKey" in done.stderr
    assert "sk-fake-owner-key" not in done.stderr
    assert len(model.requests) == 1


def test_a_dead_port_is_retried_then_one_clear_line(nanobot: Nanobot) -> None:
    nanobot.configure(
        {
            "agents": {"defaults": {"model": "fake-model", "provider": "custom"}},
            "providers": {"custom": {"apiBase": "http://127.0.0.1:9/v1"}},
        }
    )

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (4, "")
    assert "127.0.0.1:9" in done.stderr.splitlines()[-1]
    assert "retrying" in done.stderr


def test_retry_after_is_honoured(nanobot: Nanobot, model: ModelServer) -> None:
    model.script(Reply.error(429, retry_after=1), Reply.text("At last."))
    nanobot.use_model(model)

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (0, "At last.\n"), done.stderr
    assert "retrying" in done.stderr
    waited = model.requests[1].arrived_at - model.requests[0].arrived_at
    assert waited >= 1.0


@pytest.mark.parametrize(
    "broken",
    [Reply.html(), Reply.invalid_json_chunk(), Reply.truncated("Half an ans"), Reply.reset()],
    ids=["garbage", "invalid chunk", "cut stream", "reset"],
)
def test_a_broken_answer_is_asked_for_again(
    nanobot: Nanobot, model: ModelServer, broken: Reply
) -> None:
    model.script(broken, Reply.text("Whole."))
    nanobot.use_model(model)

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (0, "Whole.\n"), done.stderr
    assert len(model.requests) == 2


def test_a_hang_ends_at_the_limit_and_is_said(nanobot: Nanobot, model: ModelServer) -> None:
    model.answer_with(lambda request: Reply.hang())
    nanobot.use_model(model, modelTimeoutS=2, modelIdleTimeoutS=1)

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines()[-1].startswith("nanobot: ")


def test_an_empty_message_is_a_usage_error(nanobot: Nanobot) -> None:
    done = nanobot.run("agent", "-m", "  ")

    assert (done.returncode, done.stdout) == (2, "")
    assert "no message" in done.stderr


def test_version_and_help(nanobot: Nanobot) -> None:
    version, help_ = nanobot.run("--version"), nanobot.run("--help")

    assert version.stdout.startswith("nanobot ")
    assert (version.returncode, help_.returncode) == (0, 0)
    assert "agent" in help_.stdout
