"""Server-sent events: bytes in any pieces become events (WHATWG HTML standard, section 9.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event is larger than the limit; the stream is of no use."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event; several ``data`` lines are joined by line feeds."""

    data: str
    name: str = "message"


class EventStream:
    """The parser of one response. Comments and the fields ``id`` and ``retry`` are dropped."""

    def __init__(self, *, limit: int = 16 * 1024 * 1024) -> None:
        """``limit``: the largest event, in bytes."""
        self._limit = limit
        self._partial: list[bytes] = []
        self._size = 0
        self._skip_line_feed = False
        self._at_start = True
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """The events that ``data`` completes; raises EventTooLarge."""
        if self._skip_line_feed and data:
            self._skip_line_feed = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        # A line feed after this carriage return belongs to the same line end.
        self._skip_line_feed = data.endswith(b"\r")
        *lines, rest = _LINE_END.split(data)
        events = []
        for line in lines:
            self._hold(line)
            if (event := self._take_line()) is not None:
                events.append(event)
        self._hold(rest)
        return events

    def end(self) -> list[ServerSentEvent]:
        """The last event of a server that does not send the blank line after it."""
        events = [self._take_line(), self._dispatch()]
        return [event for event in events if event is not None]

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
        self._partial.append(part)

    def _take_line(self) -> ServerSentEvent | None:
        line = b"".join(self._partial)
        self._partial.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = _decoded(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, name = self._data, self._name
        self._data, self._name, self._size = [], "", 0
        if not data:
            return None
        return ServerSentEvent(_decoded(b"\n".join(data)), name or "message")


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")
