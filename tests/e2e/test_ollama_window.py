"""Ollama cuts a request to its own context without a word: it is asked for that before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Nanobot
from tests.fakes.model_server import ModelServer, Reply
from tests.fakes.ollama_replies import Ollama


def config(server: ModelServer, **defaults: Any) -> dict[str, Any]:
    return {
        "agents": {"defaults": {"model": "qwen3", "provider": "ollama", **defaults}},
        "providers": {"ollama": {"apiBase": server.url}},
    }


def asked(server: ModelServer) -> list[dict[str, Any]]:
    return [one.body for one in server.requests if one.path == "/v1/chat/completions"]


@pytest.mark.parametrize(
    ("ollama", "environ", "configured", "room"),
    [
        (Ollama(context=32_768), {}, {}, 32_768),
        (Ollama(context=32_768, num_ctx=16_384), {}, {}, 16_384),
        (Ollama(context=4096, num_ctx=65_536, trained=20_000), {}, {}, 20_000),
        (Ollama(context=32_768, is_loaded=True, num_ctx=16_384), {}, {}, 32_768),
        (Ollama(context=None), {"OLLAMA_CONTEXT_LENGTH": "24576"}, {}, 24_576),
        (Ollama(context=None), {}, {}, 4096),
        (Ollama(context=32_768), {}, {"contextWindow": 100_000}, 32_768),
        (Ollama(context=32_768), {}, {"contextWindow": 20_000}, 20_000),
    ],
)
def test_the_window_is_the_one_that_ollama_gives_the_model(
    nanobot: Nanobot,
    model: ModelServer,
    ollama: Ollama,
    environ: dict[str, str],
    configured: dict[str, int],
    room: int,
) -> None:
    model.ollama = ollama
    nanobot.configure(config(model, **{"maxTokens": 100_000, **configured}))
    nanobot.environ |= environ

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stdout) == (0, "OK\n")
    (body,) = asked(model)
    assert body["max_tokens"] == room // 2


def test_a_conversation_is_kept_within_what_ollama_reads_and_the_owner_is_told(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.ollama = Ollama(context=12_288)
    nanobot.configure(config(model))
    model.answer_with(lambda request: Reply.text("word " * 4000))
    for _ in range(4):
        done = nanobot.run("agent", "-m", "more")

    assert "Ollama gives qwen3 a context of 12288 tokens" in done.stderr
    assert "OLLAMA_CONTEXT_LENGTH" in done.stderr
    longest = max(len(str(body)) for body in asked(model))
    assert longest < 12_288 * 4


@pytest.mark.parametrize("ollama", [None, Ollama(model="another", context=8192)])
def test_a_server_that_says_nothing_of_the_model_is_taken_as_before(
    nanobot: Nanobot, model: ModelServer, ollama: Ollama | None
) -> None:
    model.ollama = ollama
    nanobot.configure(config(model, maxTokens=100_000))

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stderr) == (0, "")
    (body,) = asked(model)
    assert body["max_tokens"] == 128_000 // 2
