"""Neither side of the home's socket waits for ever for one that has gone silent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.waiters import AskResult
from nanobot.channels import console
from nanobot.channels import socket_protocol as protocol
from nanobot.channels.console import ConsoleServer
from nanobot.channels.socket_protocol import Question, Reply
from nanobot.cli import talk
from nanobot.cli.talk import SocketTalk
from nanobot.core.errors import GatewayError
from nanobot.core.events import Emit
from nanobot.core.messages import InboundMessage
from nanobot.store.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.private(home.run)
    return home


@pytest.fixture
def answered() -> asyncio.Event:
    """Lets the served question be answered."""
    return asyncio.Event()


@pytest.fixture
async def server(home: Home, answered: asyncio.Event) -> AsyncIterator[ConsoleServer]:
    async def ask(inbound: InboundMessage, emit: Emit) -> AskResult:
        await answered.wait()
        return AskResult(answer="done")

    async def nothing(*_: Any) -> Mapping[str, Any]:
        return {}

    server = ConsoleServer(
        home,
        holder="gateway",
        ask=ask,
        status=nothing,
        answers={},
    )
    await server.start()
    yield server
    await server.close()


def test_a_process_that_freezes_after_its_hello_is_given_up(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "SILENCE_S", 0.2)
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home.socket))
        listening.listen()

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(
                    protocol.line("hello", {"version": "0", "holder": "gateway", "pid": 1})
                )
                over.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        client = SocketTalk.connect(home)
        assert client is not None

        with client, pytest.raises(GatewayError, match="does not answer: timed out"):
            client.ask(Question("hello", "cli:direct"), lambda event: None)

        over.set()
        thread.join()


async def test_a_long_turn_is_waited_for_while_the_process_lives(
    home: Home,
    server: ConsoleServer,
    answered: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(talk, "SILENCE_S", 1.0)
    monkeypatch.setattr(console, "ALIVE_S", 0.05)
    lines = 0

    def ask() -> Reply:
        nonlocal lines
        client = SocketTalk.connect(home)
        assert client is not None
        receive = client._receive

        def counted() -> tuple[str, Any]:
            nonlocal lines
            name, content = receive()
            lines += name == "alive"
            if lines == 25:  # more than one silence long
                loop.call_soon_threadsafe(answered.set)
            return name, content

        client._receive = counted  # type: ignore[method-assign]
        with client:
            return client.ask(Question("hello", "cli:direct"), lambda event: None)

    loop = asyncio.get_running_loop()
    reply = await asyncio.to_thread(ask)

    assert (reply.answer, lines >= 25) == ("done", True)


async def test_a_client_that_says_nothing_is_hung_up_on(
    home: Home, server: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "HELLO_S", 0.05)

    reader, writer = await asyncio.open_unix_connection(str(home.socket))
    rest = await asyncio.wait_for(reader.read(), 10)

    assert rest == b""
    writer.close()
    await writer.wait_closed()
