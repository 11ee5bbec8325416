"""Models that are newer than litellm's table of models."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Nanobot
from tests.fakes.model_server import ModelServer, Reply, Request


def strict(request: Request) -> Reply:
    """Refuse what the API of these models refuses."""
    body = request.body
    if "temperature" in body:
        return Reply.error(400, "`temperature` is deprecated for this model.")
    if body.get("thinking", {}).get("type") == "enabled":
        return Reply.error(400, '"thinking.type.enabled" is not supported for this model.')
    return Reply.text("Hello.")


def anthropic(server: ModelServer, name: str) -> dict[str, Any]:
    return {
        "agents": {"defaults": {"model": f"anthropic/{name}"}},
        "providers": {"anthropic": {"apiKey": "sk-fake-owner-key-0000", "apiBase": server.root}},
    }


@pytest.mark.parametrize("name", ["claude-sonnet-5", "claude-opus-4-8"])
def test_a_newer_claude_gets_its_effort_and_no_temperature_at_the_first_attempt(
    nanobot: Nanobot, model: ModelServer, name: str
) -> None:
    model.answer_with(strict)
    nanobot.configure(anthropic(model, name))

    plain = nanobot.run("agent", "-m", "hello")
    nanobot.run("agent", "-m", "/think high")
    thinking = nanobot.run("agent", "-m", "hello")

    assert [(one.stdout, one.stderr) for one in (plain, thinking)] == [("Hello.\n", "")] * 2
    before, after = (request.body for request in model.requests)
    assert "thinking" not in before
    assert after["thinking"] == {"type": "adaptive"}
    assert after["output_config"] == {"effort": "high"}


def test_a_model_known_not_to_reason_is_sent_no_effort(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model, model="gpt-4o")
    nanobot.run("agent", "-m", "/think high")

    done = nanobot.run("agent", "-m", "hello")

    assert (done.returncode, done.stderr) == (0, "")
    (request,) = model.requests
    assert "reasoning_effort" not in request.body
