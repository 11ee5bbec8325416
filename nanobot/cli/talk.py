"""Talking to the process that holds the home, over its socket; a blocking, light client."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Any, Protocol

from nanobot import __version__
from nanobot.channels import socket_protocol as protocol
from nanobot.channels.socket_protocol import Question, Reply
from nanobot.core.errors import GatewayError
from nanobot.core.events import Event
from nanobot.store.home import Home, short_name

CONNECT_S = 5.0

SILENCE_S = 30.0
"""After so long without a line the other side is given up; it says more often that it lives."""


class Talk(Protocol):
    """A way to ask the assistant, in this process or in the one that holds the home."""

    def ask(self, question: Question, show: Callable[[Event], None]) -> Reply:
        """Ask and wait. Ctrl-C once stops the turn; raises KeyboardInterrupt afterwards."""
        ...


class SocketTalk:
    """A connection to the gateway or REPL that holds the home."""

    def __init__(self, connection: socket.socket, holder: str) -> None:
        self.holder = holder
        self._connection = connection
        self._lines = connection.makefile("rb")

    @classmethod
    def connect(cls, home: Home) -> SocketTalk | None:
        """A connection, or None when nobody listens; raises GatewayError when refused."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_S)
        try:
            with short_name(home.socket) as name:
                connection.connect(name)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            connection.close()
            return None
        except PermissionError as error:
            connection.close()
            raise GatewayError(
                f"{home.root} belongs to another user; this nanobot serves that user alone"
            ) from error
        except OSError as error:
            connection.close()
            raise GatewayError(f"the socket {home.socket} cannot be used: {error}") from error
        talk = cls(connection, "")
        try:
            talk._send("hello", {"protocol": protocol.PROTOCOL, "version": __version__})
            name, content = talk._receive()
            if name != "hello":
                raise GatewayError(str(content))
        except BaseException:
            talk.close()
            raise
        talk.holder = f"{content['holder']} (pid {content['pid']})"
        connection.settimeout(SILENCE_S)
        return talk

    def ask(self, question: Question, show: Callable[[Event], None]) -> Reply:
        """Ask and wait; see ``Talk.ask``."""
        self._send("ask", asdict(question))
        try:
            return self._outcome(show)
        except KeyboardInterrupt:
            self._send("stop", True)
            self._outcome(lambda event: None)
            raise

    def status(self) -> dict[str, Any]:
        """What the holder of the home says of itself."""
        self._send("status", True)
        name, content = self._receive()
        if name != "status" or not isinstance(content, dict):
            raise GatewayError(f"the {self.holder} answered {name} instead of its status")
        return content

    def request(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        """What the holder of the home answers to a request of this name."""
        self._send(name, content)
        said = "alive"
        while said == "alive":
            said, answer = self._receive()
        if said != name or not isinstance(answer, dict):
            raise GatewayError(f"the {self.holder} answered {said} instead of {name}")
        return answer

    def close(self) -> None:
        """Hang up; twice is once."""
        self._lines.close()
        self._connection.close()

    def __enter__(self) -> SocketTalk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _outcome(self, show: Callable[[Event], None]) -> Reply:
        while True:
            name, content = self._receive()
            if name == "outcome":
                return protocol.reply_of(content)
            if name == "event":
                show(protocol.event_of(content))

    def _send(self, name: str, content: object) -> None:
        try:
            self._connection.sendall(protocol.line(name, content))
        except OSError as error:
            raise GatewayError(f"the connection to {self.holder} is lost: {error}") from error

    def _receive(self) -> tuple[str, Any]:
        try:
            raw = self._lines.readline(protocol.LINE_LIMIT)
        except OSError as error:
            raise GatewayError(
                f"the process that holds the home does not answer: {error}"
            ) from error
        if not raw:
            raise GatewayError(
                "the process that holds the home has ended; an unfinished turn is closed as "
                "interrupted"
            )
        try:
            return protocol.parse(raw)
        except ValueError as error:
            raise GatewayError(f"the process that holds the home sent nonsense: {error}") from error
