"""How much a model reasons where no chat said it, and what it gets back of its thoughts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_server import ModelServer, Reply

THOUGHT = "<think>\nHm.\n</think>\n\n"


@pytest.mark.parametrize(
    ("name", "thought", "back"),
    [
        (
            "zhipu/glm-4.6",
            Reply.tool_calls([("list_dir", {"path": "."})], reasoning="Hm."),
            {"reasoning_content": "Hm.", "content": None},
        ),
        (
            "minimax/MiniMax-M2",
            Reply.tool_calls([("list_dir", {"path": "."})], text=f"{THOUGHT}Let me see."),
            {"content": f"{THOUGHT}Let me see."},
        ),
    ],
)  # fmt: skip
def test_a_model_that_thinks_between_its_calls_gets_its_thoughts_back(
    nanobot: Nanobot, model: ModelServer, name: str, thought: Reply, back: dict[str, Any]
) -> None:
    provider = name.partition("/")[0]
    nanobot.configure(
        {
            "agents": {"defaults": {"model": name}},
            "providers": {provider: {"apiKey": "sk-fake-owner-0000", "apiBase": model.url}},
        }
    )
    model.script(thought, Reply.text("Two files."))

    done = nanobot.run("agent", "-m", "what is here?")

    assert done.stdout == "Two files.\n"
    (said,) = [one for one in model.requests[1].messages if one["role"] == "assistant"]
    assert {key: said.get(key) for key in back} == back


def test_the_configured_effort_holds_for_chats_jobs_and_subagents_until_one_is_chosen(
    telegram: Telegram,
) -> None:
    config = telegram.config()
    config["agents"]["defaults"]["reasoningEffort"] = "high"
    telegram.nanobot.configure(config)
    spawn = Reply.tool_calls([("spawn", {"task": "count", "label": "count"})])
    telegram.model.answer_with(
        lambda request: (
            spawn
            if request.last_user.endswith("help") and not request.tool_results
            else Reply.text("done")
        )
    )
    add = ("cron", "add", "--name", "tidy", "--message", "tidy up", "--every", "3600")
    added = telegram.nanobot.run(*add)
    assert added.returncode == 0, added.stderr
    telegram.start()
    telegram.api.inject("/think", chat_id=OWNER)
    telegram.api.inject("help", chat_id=OWNER)
    eventually(lambda: len(telegram.model.requests) >= 3, "the subagent's turn")
    (job,) = telegram.nanobot.run("cron", "list").stdout.splitlines()[-1:]
    telegram.nanobot.run("cron", "run", job.split()[0])
    eventually(lambda: "tidy up" in telegram.model.requests[-1].last_user, "the job's turn")

    telegram.api.inject("/think low", chat_id=OWNER)
    telegram.api.inject("thanks", chat_id=OWNER)

    eventually(lambda: telegram.model.requests[-1].last_user.endswith("thanks"), "the last turn")
    *before, last = [request.body["reasoning_effort"] for request in telegram.model.requests]
    assert (set(before), last) == ({"high"}, "low")
    assert telegram.texts()[0] == "Reasoning: high"
