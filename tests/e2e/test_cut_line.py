"""A library that holds the event loop: what reaches it, and what ends a loop that stands still."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Nanobot
from tests.fakes.model_server import Framing, ModelServer, Reply


def gemini(server: ModelServer) -> dict[str, Any]:
    return {
        "agents": {"defaults": {"model": "gemini/gemini-2.5-flash"}},
        "providers": {"gemini": {"apiKey": "fake-owner-key-0000", "apiBase": server.root}},
    }


@pytest.mark.timeout(120)
def test_a_line_of_geminis_stream_that_is_cut_off_is_asked_for_again(
    nanobot: Nanobot, model: ModelServer
) -> None:
    cut = Reply.truncated("Once upon a time", after_chunks=6, framing=Framing(sizes=(50,)))
    model.script(cut, Reply.text("Here I am."))
    nanobot.configure(gemini(model))

    done = nanobot.run("agent", "-m", "hello", timeout=40)

    assert (done.returncode, done.stdout) == (0, "Here I am.\n")
    assert len(model.requests) == 2
