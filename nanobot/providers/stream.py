"""Parsers of a response's body: server-sent events, or a single JSON document."""

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
    """An event exceeds the limit; the stream cannot be used."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event; several ``data`` lines are joined by line feeds."""

    data: str
    name: str = "message"


class EventStream:
    """The parser of one event stream; it ignores comments and the fields ``id`` and ``retry``."""

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
            events += self._take_line()
        self._hold(rest)
        return events

    def end(self) -> list[ServerSentEvent]:
        """The last event of a server that does not send the blank line after it."""
        return [*self._take_line(), *self._dispatch()]

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
        self._partial.append(part)

    def _take_line(self) -> list[ServerSentEvent]:
        """The event that the line held so far completes, if it is the blank one after it."""
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
            self._name = value.decode("utf-8", "replace")
        return []

    def _dispatch(self) -> list[ServerSentEvent]:
        data, name = self._data, self._name or "message"
        self._data, self._name, self._size = [], "", 0
        return [ServerSentEvent(b"\n".join(data).decode("utf-8", "replace"), name)] if data else []


_LARGEST_DOCUMENT = 64 * 1024 * 1024
_HEAD = 2048
_BLANK = b"\xef\xbb\xbf \t\r\n"


class BodyReader:
    """The parser of one response's body, given in any pieces.

    The first byte that is not blank decides between an event stream and a document: some endpoints
    send a document although a stream was requested, and content types are unreliable.
    """

    def __init__(self) -> None:
        self._head = b""
        self._unknown = b""
        self._document: bytearray | None = None
        self._events: EventStream | None = None
        self._has_events = False
        self.is_done = False
        """Whether a stream has ended with ``[DONE]``."""

    @property
    def is_document(self) -> bool:
        """Whether the response is one document rather than a stream."""
        return self._document is not None

    def feed(self, data: bytes) -> Iterator[Any]:
        """The JSON documents completed by ``data``; raises Garbled after the valid ones."""
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
        if self._document is not None:
            self._document += data
            if len(self._document) > _LARGEST_DOCUMENT:
                raise Garbled(f"more than {_LARGEST_DOCUMENT} bytes")
        elif self._events is not None:
            try:
                events = self._events.feed(data)
            except EventTooLarge as error:
                raise Garbled(str(error)) from error
            self._has_events = self._has_events or bool(events)
            yield from self._parsed(events)

    def end(self) -> list[Any]:
        """The documents completed by the end of the body; raises Garbled if there were none."""
        if self._document is not None:
            return [_loaded(self._document.decode("utf-8-sig", "replace"))]
        rest = self._events.end() if self._events is not None else []
        if not self._has_events and not rest:
            raise Garbled(described(self._head.decode("utf-8", "replace")))
        try:
            return list(self._parsed(rest))
        except Garbled:  # cut off: the missing finish reason makes the better error
            return []

    def _parsed(self, events: list[ServerSentEvent]) -> Iterator[Any]:
        for event in events:
            if self.is_done:
                break
            if event.data.strip() == "[DONE]":
                self.is_done = True
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
