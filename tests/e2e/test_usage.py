"""``nanobot usage``, with and without a gateway: what calls used, and what they cost."""

from __future__ import annotations

import json
from datetime import datetime

from tests.e2e.conftest import OWNER, Nanobot, Telegram
from tests.fakes.model_replies import Reply, Tokens
from tests.fakes.model_server import ModelServer

UNKNOWN = "for 1 of the calls, the others' cost unknown"


def test_of_a_new_home_says_that_nothing_was_asked(nanobot: Nanobot) -> None:
    done = nanobot.run("usage", "--days", "1")

    today = datetime.now().astimezone().date()
    assert (done.stdout, done.returncode) == (f"No model was asked since {today}.\n", 0)
    assert not nanobot.home.exists()


def test_models_are_listed_with_their_tokens_and_their_cost_where_it_is_known(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.script(
        Reply.text("Hello.", usage=Tokens(prompt=2000, completion=100, cached=1000)),
        Reply.text("Hello.", usage=Tokens(prompt=10, completion=5)),
    )
    nanobot.configure(
        {
            "agents": {"defaults": {"model": "anthropic/claude-sonnet-4-5"}},
            "providers": {
                "anthropic": {"apiKey": "sk-fake-owner-key-0000", "apiBase": model.root},
                "groq": {"apiKey": "sk-fake-owner-key-1111", "apiBase": model.url},
            },
        }
    )
    nanobot.run("agent", "-m", "hello")
    nanobot.run("agent", "-m", "hello", "-s", "other", "--model", "groq/llama")

    shown = nanobot.run("usage").stdout.splitlines()
    total = json.loads(nanobot.run("usage", "--json").stdout)["total"]
    other = json.loads(nanobot.run("usage", "--json", "-s", "cli:other").stdout)

    # 3 dollars a million tokens read, a tenth of that from the cache, 15 for those written
    cost = (1000 * 3 + 1000 * 0.3 + 100 * 15) / 1e6
    assert [line.split() for line in shown[1:4]] == [
        ["claude-sonnet-4-5", "anthropic", "1", "2,000", "1,000", "100", f"${cost:.4f}"],
        ["llama", "groq", "1", "10", "0", "5", "cost", "unknown"],
        ["together", "2", "2,010", "1,000", "105", f"${cost:.4f}", *UNKNOWN.split()],
    ]
    assert (total["calls"], total["pricedCalls"]) == (2, 1)
    assert abs(total["costUsd"] - cost) < 1e-9
    assert other["models"] == [
        {
            "model": "llama",
            "provider": "groq",
            "calls": 1,
            "pricedCalls": 0,
            "inputTokens": 10,
            "cachedTokens": 0,
            "outputTokens": 5,
            "costUsd": None,
        }
    ]


def test_it_is_read_beside_a_gateway(telegram: Telegram) -> None:
    telegram.model.default = Reply.text("Hello.")
    telegram.start()
    telegram.api.inject("hello", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)

    document = json.loads(telegram.nanobot.run("usage", "--json").stdout)

    assert [(one["model"], one["calls"]) for one in document["models"]] == [("fake-model", 1)]


def test_a_damaged_database_is_said(nanobot: Nanobot) -> None:
    nanobot.configure({})
    (nanobot.home / "state.db").write_bytes(b"this is no database" * 1000)

    done = nanobot.run("usage")

    assert (done.returncode, done.stdout) == (1, "")
    assert "state.db: cannot be read: file is not a database" in done.stderr
