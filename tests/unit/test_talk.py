"""Tests of the light client, with a holder of the home that does not behave."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanobot import __version__
from nanobot.cli import talk
from nanobot.cli.talk import SocketTalk
from nanobot.core.errors import GatewayError
from nanobot.store.home import Home


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Home]:
    """A home whose holder says hello and nothing more."""
    home = Home(tmp_path)
    home.private(home.run)
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home.socket))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                hello = {"version": __version__, "holder": "gateway", "pid": 7}
                connection.sendall(json.dumps({"hello": hello}).encode() + b"\n")
                over.wait(20)

        serving = threading.Thread(target=serve)
        serving.start()
        yield home
        over.set()
        serving.join()


@pytest.mark.parametrize(
    "ask", [SocketTalk.status, lambda one: one.letters({"do": "list"})], ids=["status", "letters"]
)
def test_a_holder_that_says_nothing_of_itself_is_not_waited_for(
    silent: Home, ask: Callable[[SocketTalk], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "FACTS_S", 0.05)
    connected = SocketTalk.connect(silent)
    assert connected is not None

    with connected, pytest.raises(GatewayError, match="does not answer"):
        ask(connected)
