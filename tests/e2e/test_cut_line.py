"""A library that holds the event loop: what reaches it, and what ends a loop that stands still."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from nanobot.runtime import EXIT_STALLED
from tests.e2e.conftest import NANOBOT, OWNER, Nanobot, Telegram
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


# Runs the program as it is, but the adapter spins on the first request as a library might, and the
# watchdog looks more often.
SPIN = """
import sys
from nanobot import runtime
from nanobot.cli.main import main
from nanobot.providers.openai import OpenAIChat

runtime._LOOK_S = 0.5

async def spin(*_):
    while True:
        pass

OpenAIChat._attempt = spin
del sys.argv[0]
main()
"""


def test_a_gateway_whose_loop_stands_still_ends_and_answers_after_its_restart(
    telegram: Telegram,
) -> None:
    telegram.model.answer_with(lambda request: Reply.text("here I am"))
    gateway = telegram.start(wrapped_in=(sys.executable, "-c", SPIN))
    telegram.api.inject("anybody?", chat_id=OWNER)

    assert gateway.ended() == EXIT_STALLED
    assert "the event loop has stood still" in gateway.log
    assert "in spin" in gateway.log
    telegram.start()
    telegram.api.wait_for_sent(1, OWNER)
    assert telegram.texts() == ["here I am"]


def test_a_one_shot_whose_loop_stands_still_ends_and_says_so(
    nanobot: Nanobot, model: ModelServer
) -> None:
    nanobot.use_model(model)

    done = subprocess.run(
        [sys.executable, "-c", SPIN, str(NANOBOT), "agent", "-m", "hello"],
        env=nanobot.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stdout) == (EXIT_STALLED, "")
    said = "nanobot: the event loop has stood still for 3 s: the process ends\n"
    assert done.stderr == said
