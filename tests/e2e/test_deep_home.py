"""A home whose path is longer than the system allows for the path of a socket."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import Nanobot, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer


def test_a_home_in_a_deep_directory_is_served_over_its_socket(
    tmp_path: Path, model: ModelServer
) -> None:
    nanobot = Nanobot(tmp_path / ("deep" * 30) / ".nanobot")
    nanobot.use_model(model)
    model.answer_with(lambda request: Reply.text("from the depths"))
    gateway = nanobot.start("gateway")
    eventually(lambda: "running: gateway" in nanobot.run("status").stdout, "the gateway")

    done = nanobot.run("agent", "-m", "hello")

    gateway.terminate()
    gateway.communicate(timeout=10)
    assert (done.stdout, done.returncode, gateway.returncode) == ("from the depths\n", 0, 0)
