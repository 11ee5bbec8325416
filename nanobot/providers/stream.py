"""The body of a response as JSON documents: server-sent events, or a single one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nanobot.providers.failures import Garbled, described

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


_LARGEST_DOCUMENT = 64 * 1024 * 1024
_HEAD = 2048
_BLANK = b"\xef\xbb\xbf \t\r\n"


class BodyReader:
    """Reads one response, given in any pieces.

    Whether it is an event stream or one document is told by the first byte that is not blank:
    some endpoints send a document although a stream was asked for, and content types lie.
    """

    def __init__(self) -> None:
        self._head = b""
        self._unknown = b""
        self._document: bytearray | None = None
        self._events: EventStream | None = None
        self._has_events = False
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """Whether a stream has said ``[DONE]``."""
        return self._is_done

    @property
    def is_document(self) -> bool:
        """Whether the response is one document rather than a stream."""
        return self._document is not None

    def feed(self, data: bytes) -> Iterator[Any]:
        """The JSON documents that ``data`` completes; raises Garbled, after those before it."""
        if len(self._head) < _HEAD:
            self._head += data[: _HEAD - len(self._head)]
        if self._events is None and self._document is None:
            self._unknown += data
            if not (first := self._unknown.lstrip(_BLANK)[:1]):
                return
            data, self._unknown = self._unknown, b""
            if first in b"{[<":
                self._document = bytearray()
            else:
                self._events = EventStream()
        if self._events is not None:
            yield from self._parsed(self._new_events(data))
            return
        assert self._document is not None
        self._document += data
        if len(self._document) > _LARGEST_DOCUMENT:
            raise Garbled(f"more than {_LARGEST_DOCUMENT} bytes")

    def end(self) -> list[Any]:
        """What the end of the body completes; raises Garbled if there was nothing to read."""
        if self._document is not None:
            return [_loaded(self._document.decode("utf-8-sig", "replace"))]
        rest = self._events.end() if self._events is not None else []
        if not self._has_events and not rest:
            raise Garbled(described(self._head.decode("utf-8", "replace")))
        try:
            return list(self._parsed(rest))
        except Garbled:  # the end is missing, which the lack of a finish tells better
            return []

    def _new_events(self, data: bytes) -> list[ServerSentEvent]:
        assert self._events is not None
        try:
            events = self._events.feed(data)
        except EventTooLarge as error:
            raise Garbled(str(error)) from error
        self._has_events = self._has_events or bool(events)
        return events

    def _parsed(self, events: list[ServerSentEvent]) -> Iterator[Any]:
        for event in events:
            if self._is_done:
                break
            if event.data.strip() == "[DONE]":
                self._is_done = True
            elif event.data.strip():
                document = _loaded(event.data)
                if event.name == "error" and not (
                    isinstance(document, dict) and "error" in document
                ):
                    document = {"error": document}
                yield document


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Garbled(described(text)) from error
