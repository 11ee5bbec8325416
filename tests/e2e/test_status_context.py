"""Where the tokens go: ``nanobot status --context``, /status and /compact."""

from __future__ import annotations

import json
import re

from nanobot.cli.context import EXIT_PROVIDER
from tests.e2e.conftest import OWNER, Nanobot, Telegram
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer


def test_the_context_is_shown_part_by_part(nanobot: Nanobot, model: ModelServer) -> None:
    nanobot.use_model(model)
    model.script(
        Reply.tool_calls([("exec", {"command": "seq 1000"})]), Reply.text("A thousand numbers.")
    )
    nanobot.run("agent", "-m", "count")

    table = nanobot.run("status", "--context")
    document = json.loads(nanobot.run("status", "--context", "--json").stdout)

    rows = re.findall(r"^ +([0-9,]+)  (.+)$", table.stdout, re.MULTILINE)
    shown = {name: int(tokens.replace(",", "")) for tokens, name in rows}
    assert table.returncode == 0, table.stderr
    assert list(document["fixed"]) == [
        "identity",
        "AGENTS.md",
        "SOUL.md",
        "USER.md",
        "TOOLS.md",
        "memory",
        "active skills",
        "skills summary",
        "tool schemas",
    ]
    assert list(document["history"]) == ["messages", "answers", "tool calls", "tool results"]
    assert shown["all together"] == document["used"]
    assert document["history"]["tool results"] > 2000
    assert (document["window"], document["reserve"]) == (64_000, 8192)
    assert document["used"] == sum(document["fixed"].values()) + sum(document["history"].values())


def test_a_new_home_and_an_unknown_session_have_their_fixed_part(nanobot: Nanobot) -> None:
    done = nanobot.run("status", "--context", "--session", "nobody", "--json")

    document = json.loads(done.stdout)
    assert (document["session"], document["history"]) == ("cli:nobody", {})
    assert 1000 < document["used"] < 5000


def test_without_a_model_it_says_what_to_type(nanobot: Nanobot) -> None:
    nanobot.configure({"agents": {"defaults": {"model": "anthropic/claude-sonnet-4-5"}}})

    done = nanobot.run("status", "--context")

    assert done.returncode == EXIT_PROVIDER
    assert "providers.anthropic.apiKey" in done.stderr


def test_beside_the_gateway_it_asks_the_gateway(telegram: Telegram) -> None:
    telegram.model.script(Reply.text("Hello."))
    telegram.start()
    telegram.api.inject("hi", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)

    done = telegram.nanobot.run("status", "--context", "-s", f"telegram:{OWNER}", "--json")
    telegram.api.inject("/status", chat_id=OWNER)
    (_, status) = telegram.api.wait_for_sent(2, OWNER)

    document = json.loads(done.stdout)
    assert list(document["history"]) == ["messages", "answers"]
    assert f"{document['used']:,} of 55,808 tokens" in status.text
    assert "tool schemas" in status.text


def test_compact_in_a_chat_says_what_it_saved(telegram: Telegram) -> None:
    telegram.model.answer_with(
        lambda request: (
            Reply.text("## Facts\nThe first words.")
            if "You sum up" in str(request.messages[0]["content"])
            else Reply.text("word " * 300)
        )
    )
    telegram.start()
    for number in (1, 2):
        telegram.api.inject(f"first words {number}", chat_id=OWNER)
        telegram.api.wait_for_sent(number, OWNER)

    telegram.api.inject("/compact the words", chat_id=OWNER)

    *_, said = telegram.api.wait_for_sent(3, OWNER)
    assert said.text.startswith("Summed up: ")
    (asked,) = [one for one in telegram.model.requests if "tools" not in one.body]
    assert "Go into this above all: the words" in asked.messages[1]["content"]
