"""litellm costs seconds and 150 MB: who loads it, who never does, and where."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.conftest import Nanobot, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

# Notes for each import of litellm whether it happens on the thread of the event loop.
IMPORT_SEEN = """
import asyncio, sys

seen = []

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "litellm":
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                seen.append("beside the loop")
            else:
                seen.append("on the loop")

sys.meta_path.insert(0, Watch())
"""

RUN = """
import json, sys
sys.argv = ["nanobot", *json.loads(sys.argv[1])]
from nanobot.cli.main import main
try:
    main()
finally:
    sys.stdout.flush()
    print("LITELLM", "litellm" in sys.modules, file=sys.stderr)
"""

# A gateway's warm-up loads the package, then the first answer comes; says in which thread.
WARM_UP = (
    """
import asyncio, json, sys
from pydantic import SecretStr
from nanobot.config.schema import AgentDefaults, ProviderConfig, ProvidersConfig
from nanobot.core.chat import ModelRequest, UserMessage
from nanobot.providers.models import Models
from nanobot.providers.openai import TLS
"""
    + IMPORT_SEEN
    + """
async def main(url):
    models = Models(
        AgentDefaults(model="anthropic/claude-sonnet-4-5"),
        ProvidersConfig(anthropic=ProviderConfig(api_key=SecretStr("sk-fake-0123"), api_base=url)),
        {}, tls=TLS(), offline_allowed=False,
    )
    chosen = models.choose(None)
    await models.warm_up()
    answer = await chosen.provider.chat(
        ModelRequest((UserMessage("Hello?"),), (), chosen.model, 99, 0.5)
    )
    await models.aclose()
    print(json.dumps({"answer": answer.content, "imported": seen}))

asyncio.run(main(sys.argv[1]))
"""
)


def run(nanobot: Nanobot, *arguments: str) -> tuple[str, bool]:
    """What a command prints, and whether it has loaded litellm."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(arguments)],
        env=nanobot.variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    *_, line = done.stderr.splitlines()
    return done.stdout, line == "LITELLM True"


def anthropic(server: ModelServer, **defaults: Any) -> dict[str, Any]:
    """A config whose model needs litellm."""
    return {
        "agents": {"defaults": {"model": "anthropic/claude-sonnet-4-5", **defaults}},
        "providers": {"anthropic": {"apiKey": "sk-fake-owner-key-0000", "apiBase": server.root}},
    }


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("agent", "--help"), ("status",), ("config", "show")],
    ids=" ".join,
)
def test_no_command_loads_it_that_asks_no_model(
    nanobot: Nanobot, model: ModelServer, arguments: tuple[str, ...]
) -> None:
    nanobot.configure(anthropic(model))

    _, loaded = run(nanobot, *arguments)

    assert not loaded


def test_a_one_shot_with_an_openai_compatible_provider_never_loads_it(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.script(Reply.text("Hello."))
    config = model_config(model.url, fallbackModels=["anthropic/claude-sonnet-4-5"])
    config["providers"] |= anthropic(model)["providers"]
    nanobot.configure(config)

    assert run(nanobot, "agent", "-m", "hello") == ("Hello.\n", False)


def test_a_one_shot_with_anthropic_loads_it_and_prints_the_answer_alone(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.script(Reply.text("Hello."))
    nanobot.configure(anthropic(model))

    assert run(nanobot, "agent", "-m", "hello") == ("Hello.\n", True)
    assert [request.path for request in model.requests] == ["/v1/messages"]


def test_another_model_answers_when_anthropic_refuses_the_key(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.script(Reply.error(401, "no"), Reply.text("Hello."))
    config = anthropic(model, fallbackModels=["groq/llama-3"])
    config["providers"]["groq"] = {"apiKey": "sk-fake-groq-0000", "apiBase": model.url}
    nanobot.configure(config)

    done = nanobot.run("agent", "-m", "hello")

    assert (done.stdout, done.returncode) == ("Hello.\n", 0)
    assert "anthropic/claude-sonnet-4-5 does not answer" in done.stderr
    assert "asking groq/llama-3" in done.stderr


def test_it_is_loaded_beside_the_event_loop(nanobot: Nanobot, model: ModelServer) -> None:
    model.default = Reply.text("Hello.")

    done = subprocess.run(
        [sys.executable, "-c", WARM_UP, model.root],
        env=nanobot.variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert json.loads(done.stdout) == {"answer": "Hello.", "imported": ["beside the loop"]}
