"""A call whose end is missing changes nothing, however its beginning is written."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Nanobot
from tests.fakes.model_server import ModelServer, Reply

COMMANDS = {
    "in JSON": '{"command": "rm -rf data/ol',
    "in single quotes": "{'command': 'rm -rf data/ol",
    "with a bare key": '{command: "rm -rf data/ol',
    "in a fence": '```json\n{"command": "rm -rf data/ol',
    "after a bad escape": '{"timeout": 5, "command": "echo \\d; rm -rf data/ol',
    "encoded twice": '"{\\"command\\": \\"rm -rf data/ol"',
}


@pytest.fixture
def data(nanobot: Nanobot) -> Nanobot:
    """A home whose workspace has a folder that a cut command would remove."""
    (nanobot.workspace / "data" / "ol").mkdir(parents=True)
    return nanobot


def test_a_cut_command_is_not_run_and_the_model_is_told(data: Nanobot, model: ModelServer) -> None:
    model.script(
        *(Reply.tool_calls([("exec", text)]) for text in COMMANDS.values()),
        Reply.text("I give up."),
    )
    data.use_model(model)

    done = data.run("agent", "-m", "remove data/old")

    assert (done.returncode, done.stdout) == (0, "I give up.\n"), done.stderr
    assert (data.workspace / "data" / "ol").is_dir()
    told = dict(zip(COMMANDS, model.requests[-1].tool_results, strict=True))
    assert [name for name, text in told.items() if "nothing was done" not in text] == []


def test_of_an_answer_cut_by_the_limit_the_last_call_is_not_run(
    data: Nanobot, model: ModelServer
) -> None:
    # Some servers close the brackets themselves where the limit cut an answer off.
    whole = [("exec", {"command": "touch data/first"}), ("exec", {"command": "rm -rf data/ol"})]
    model.script(
        Reply.tool_calls(whole).but(finish="length"),
        Reply.text("Only the first was done."),
    )
    data.use_model(model)

    done = data.run("agent", "-m", "remove data/old")

    assert (done.returncode, done.stdout) == (0, "Only the first was done.\n"), done.stderr
    assert (data.workspace / "data" / "ol").is_dir()
    assert (data.workspace / "data" / "first").exists()
    assert "nothing was done" in model.requests[-1].tool_results[-1]


def test_half_a_message_is_not_sent(nanobot: Nanobot, model: ModelServer) -> None:
    model.script(
        Reply.tool_calls([("message", "{'content': 'Pay 100")]),
        Reply.text("Nothing was sent."),
    )
    nanobot.use_model(model)

    done = nanobot.run("agent", "-m", "tell me what to pay")

    assert (done.returncode, done.stdout) == (0, "Nothing was sent.\n"), done.stderr
    assert "nothing was done" in model.requests[-1].tool_results[-1]
