"""The lines that a command and the process holding the home exchange over the Unix socket.

Each line is one JSON object with one key that names it. The client opens with ``hello``, the
server answers with ``hello`` or ``refused``. Then the client sends ``ask``, ``stop``, ``status``,
or a request (``dead_letters``, ``context``, ``admin``); the server sends any number of ``event``
and at last ``outcome``, or an answer of the same name. While the client waits for one it is sent
``alive`` every few seconds.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from nanobot.core import events
from nanobot.core.chat import Usage
from nanobot.core.messages import whole_key

PROTOCOL = 1
LINE_LIMIT = 16 * 1024 * 1024
"""Bytes of the longest line either side accepts."""

_EVENTS: dict[str, type[Any]] = {
    "text": events.TextDelta,
    "reasoning": events.ReasoningDelta,
    "discarded": events.TextDiscarded,
    "tool_started": events.ToolStarted,
    "tool_finished": events.ToolFinished,
    "usage": events.UsageReported,
    "notice": events.Notice,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks: the text, the session's key, the model if not the usual one.

    ``attended``: somebody sits at the client's terminal. ``pictures`` are files among the
    session's media, which both sides can read.
    """

    text: str
    session: str
    model: str | None = None
    attended: bool = False
    pictures: tuple[str, ...] = ()

    @property
    def session_key(self) -> str:
        """The session's whole key; without a channel it is one of the terminal."""
        return whole_key(self.session)


@dataclass(frozen=True, slots=True)
class Reply:
    """How the question ended.

    ``failure`` is "" or what kind of error ``answer`` describes: ``provider``, ``stopped``,
    ``failed``.
    """

    answer: str
    tools: tuple[str, ...] = ()
    model: str = ""
    usage: Usage = Usage()
    failure: str = ""


def line(name: str, content: object) -> bytes:
    """One line of the protocol."""
    return json.dumps({name: content}, ensure_ascii=False).encode() + b"\n"


def parse(raw: bytes) -> tuple[str, Any]:
    """Name and content of a line; raises ValueError for anything else."""
    record = json.loads(raw)
    if not isinstance(record, dict) or len(record) != 1:
        raise ValueError("a line must be an object with one key")
    ((name, content),) = record.items()
    return name, content


def event_line(event: events.Event) -> bytes:
    """An event as a line."""
    return line("event", [_NAMES[type(event)], asdict(event)])


def event_of(content: Any) -> events.Event:
    """The event in the content of an ``event`` line; raises ValueError."""
    try:
        name, fields = content
        if name == "usage":
            fields = {**fields, "usage": Usage(**fields["usage"])}
        event: events.Event = _EVENTS[name](**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no event: {error}") from error
    return event


def reply_line(reply: Reply) -> bytes:
    """A reply as a line."""
    return line("outcome", asdict(reply))


def reply_of(content: Any) -> Reply:
    """The reply in the content of an ``outcome`` line; raises ValueError."""
    try:
        fields = {**content, "tools": tuple(content["tools"]), "usage": Usage(**content["usage"])}
        return Reply(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no reply: {error}") from error


def question_of(content: Any) -> Question:
    """The question in the content of an ``ask`` line; raises ValueError."""
    try:
        question = Question(**{**content, "pictures": tuple(content["pictures"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"no question: {error}") from error
    texts = (question.text, question.session, *question.pictures)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("no question: text, session and pictures are strings")
    return question
