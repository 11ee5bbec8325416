"""Where providers' keys are while nanobot works: in the requests, and nowhere else."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Nanobot
from tests.fakes.asked import asked
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

MARK = secrets.token_hex(8)
ANTHROPIC_KEY = f"sk-ant-fake-0000-{MARK}"
GROQ_KEY = f"gsk_fake-0000-{MARK}"
# Counted, for what is printed is masked.
LOOK = f"env | grep -c {MARK}; grep -ls {MARK} /proc/[0-9]*/environ | wc -l"

# A command as it is; at its end, what its process's environment and litellm's globals hold.
RUN = """
import json, os, sys
command, known = json.loads(sys.argv[1]), json.loads(sys.argv[2])
sys.argv = ["nanobot", *command]
from nanobot.cli.main import main
try:
    main()
finally:
    sys.stdout.flush()
    import litellm
    held = [name for name, value in vars(litellm).items() if isinstance(value, str)
            and value in known]
    environ = sorted(name for name, value in os.environ.items() if value in known)
    print(json.dumps({"litellm": held, "environ": environ}), file=sys.stderr)
"""


@pytest.fixture
def other() -> Iterator[ModelServer]:
    with ModelServer.in_thread() as server:
        yield server


def run(nanobot: Nanobot, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What a command prints, and where the keys were found."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(arguments), json.dumps([ANTHROPIC_KEY, GROQ_KEY])],
        env=nanobot.variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    *_, line = done.stderr.splitlines()
    return done.stdout, json.loads(line)


@pytest.mark.parametrize("from_environment", [False, True], ids=["config", "environment"])
def test_two_keys_at_once_reach_their_own_providers_and_no_command(
    nanobot: Nanobot, model: ModelServer, other: ModelServer, *, from_environment: bool
) -> None:
    model.script(
        Reply.tool_calls([("exec", {"command": LOOK})]), Reply.error(401, "that key is no good")
    )
    other.script(Reply.text("Hello."))
    config: dict[str, Any] = {
        "agents": {
            "defaults": {"model": "anthropic/claude-sonnet-4-5", "fallbackModels": ["groq/llama"]}
        },
        "providers": {"anthropic": {"apiBase": model.root}, "groq": {"apiBase": other.url}},
        "tools": {"exec": {"sandbox": "off"}},
    }
    if from_environment:
        nanobot.environ = {"ANTHROPIC_API_KEY": ANTHROPIC_KEY, "GROQ_API_KEY": GROQ_KEY}
    else:
        config["providers"]["anthropic"]["apiKey"] = ANTHROPIC_KEY
        config["providers"]["groq"]["apiKey"] = GROQ_KEY
    nanobot.configure(config)

    answer, held = run(nanobot, "agent", "-m", "look around")

    (result,) = other.requests[0].tool_results
    assert answer == "Hello.\n"
    assert [asked(request).key for request in model.requests] == [ANTHROPIC_KEY] * 2
    assert [asked(request).key for request in other.requests] == [GROQ_KEY]
    # Where their owner has exported them they are in nanobot's own environment, as it began.
    assert result.splitlines() == ["0", "1" if from_environment else "0"]
    assert held == {
        "litellm": [],
        "environ": ["ANTHROPIC_API_KEY", "GROQ_API_KEY"] if from_environment else [],
    }
