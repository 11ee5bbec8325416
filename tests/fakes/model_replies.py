"""What the fake model server can be told to answer, well or badly behaved, independent of HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from threading import Lock
from typing import Any

WAIT_S = 10.0
"""How long a test waits for something that must happen, before it fails instead of hanging."""


class Flag:
    """A one-way switch, set and awaited from any thread and any event loop."""

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def set(self) -> None:
        with suppress(InvalidStateError):
            self._future.set_result(None)

    def is_set(self) -> bool:
        return self._future.done()

    async def wait(self, timeout_s: float | None = WAIT_S) -> None:
        """Return once it is set; raises TimeoutError after ``timeout_s``."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake(future: Future[None]) -> None:
            with suppress(RuntimeError):  # nobody waits any more, the loop is closed
                loop.call_soon_threadsafe(woken.set)

        self._future.add_done_callback(wake)
        async with asyncio.timeout(timeout_s):
            await woken.wait()

    def wait_sync(self, timeout_s: float | None = WAIT_S) -> None:
        """The same for a thread without an event loop."""
        self._future.result(timeout_s)


class Count:
    """A number that only grows and can be waited for, from any thread and any event loop."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._value = 0
        self._flags: dict[int, Flag] = {}

    @property
    def value(self) -> int:
        return self._value

    def add(self) -> int:
        """Count one more; returns the new number."""
        with self._lock:
            self._value += 1
            flag = self._flags.get(self._value)
        if flag is not None:
            flag.set()
        return self._value

    def reaching(self, number: int) -> Flag:
        """The flag that is set as soon as the count is ``number`` or more."""
        with self._lock:
            flag = self._flags.setdefault(number, Flag())
            if self._value >= number:
                flag.set()
        return flag


class Gate:
    """Holds each request (or stream) that comes to it until ``release``."""

    def __init__(self) -> None:
        self._arrivals = Count()
        self._released = Flag()

    def release(self) -> None:
        self._released.set()

    async def reached(self, times: int = 1, timeout_s: float = WAIT_S) -> None:
        """Return once ``times`` requests have come to the gate."""
        await self._arrivals.reaching(times).wait(timeout_s)

    def wait_reached(self, timeout_s: float = WAIT_S, times: int = 1) -> None:
        """The same for a thread without an event loop."""
        self._arrivals.reaching(times).wait_sync(timeout_s)

    async def pass_through(self) -> None:
        """The server's side: say that a request is here, then wait for the release."""
        self._arrivals.add()
        await self._released.wait(timeout_s=None)


class Ending(Enum):
    """How a reply ends; all but COMPLETE happen after ``Reply.after_chunks`` chunks."""

    COMPLETE = auto()
    CLOSED = auto()
    """The body ends properly, but without finish reason and [DONE]."""
    CUT = auto()
    """The connection is closed in the middle of the body."""
    RESET = auto()
    """The connection is reset."""
    HANG = auto()
    """Nothing more comes, the connection stays open."""


class Ids(Enum):
    """Which deltas of a tool call carry its id."""

    FIRST = auto()
    EVERY = auto()
    NONE = auto()
    SAME = auto()
    """Each call has the same id."""


class Index(Enum):
    """How tool call deltas are numbered."""

    GOOD = auto()
    MISSING = auto()
    ZERO = auto()
    """Every call is number 0."""


@dataclass(frozen=True)
class Framing:
    """How a stream is cut into deltas, events and writes.

    ``text_size`` and ``argument_size`` are characters a delta (0: words, and all at once).
    ``sizes`` are bytes a write, used in turn and over again; none: one event a write.
    """

    newline: str = "\n"
    space: bool = True
    comments: bool = False
    bom: bool = False
    done: bool = True
    text_size: int = 0
    argument_size: int = 12
    sizes: tuple[int, ...] = ()
    interleave: bool = False
    ids: Ids = Ids.FIRST
    index: Index = Index.GOOD
    ascii_only: bool = False
    """JSON escapes beyond ASCII, as Python's json writes by default."""


@dataclass(frozen=True)
class Tokens:
    """The usage a reply reports."""

    prompt: int = 10
    completion: int = 5
    cached: int | None = None


@dataclass(frozen=True)
class Call:
    """A tool call of a reply; ``arguments`` is the JSON text, right or wrong."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True)
class Reply:
    """One answer of the fake model. Make it with the class methods, vary it with ``but``."""

    content: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    usage: Tokens | None = field(default_factory=Tokens)
    finish: str | None = None
    model: str | None = None

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """The whole body as it is, instead of anything rendered."""
    content_type: str = "text/event-stream"
    error_in_stream: str | None = None
    """JSON sent as one event after ``after_chunks`` chunks, then the end."""
    as_json: bool = False
    """Answer with one JSON document although a stream was asked for."""

    latency_s: float = 0.0
    chunk_latency_s: float = 0.0
    gate: Gate | None = None
    stream_gate: Gate | None = None
    """Holds the stream after ``stream_gate_after`` chunks."""
    stream_gate_after: int = 1
    ending: Ending = Ending.COMPLETE
    after_chunks: int | None = None
    """None: before the headers."""
    framing: Framing = field(default_factory=Framing)

    def but(self, **changes: Any) -> Reply:
        """The same reply with some fields changed."""
        return replace(self, **changes)

    @classmethod
    def text(cls, content: str, **fields: Any) -> Reply:
        return cls(content=content, **fields)

    @classmethod
    def empty(cls, **fields: Any) -> Reply:
        """An answer without a word or a call."""
        return cls(**fields)

    @classmethod
    def tool_calls(
        cls,
        calls: Iterable[tuple[str, Mapping[str, Any] | str]],
        *,
        text: str = "",
        **fields: Any,
    ) -> Reply:
        """Calls by (name, arguments); arguments given as a string are sent as they are."""
        made = tuple(
            Call(
                name,
                arguments
                if isinstance(arguments, str)
                else json.dumps(arguments, ensure_ascii=False),
            )
            for name, arguments in calls
        )
        return cls(content=text, calls=made, **fields)

    @classmethod
    def cut_by_length(cls, content: str, **fields: Any) -> Reply:
        """An answer that ran into the token limit."""
        return cls(content=content, finish="length", **fields)

    @classmethod
    def filtered(cls, content: str = "", **fields: Any) -> Reply:
        """An answer that the provider's content filter stopped."""
        return cls(content=content, finish="content_filter", **fields)

    @classmethod
    def error(
        cls,
        status: int,
        message: str = "the fake model refuses",
        *,
        code: str | int | None = None,
        kind: str = "fake_error",
        retry_after: str | float | None = None,
        **fields: Any,
    ) -> Reply:
        """An HTTP error with a body in OpenAI's shape."""
        document = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
        return cls(
            status=status,
            body=json.dumps(document).encode(),
            content_type="application/json",
            headers=headers,
            **fields,
        )

    @classmethod
    def context_overflow(cls, limit: int = 8192, **fields: Any) -> Reply:
        """The refusal OpenAI gives to a request larger than the window."""
        return cls.error(
            400,
            f"This model's maximum context length is {limit} tokens. However, your messages "
            f"resulted in {limit * 2} tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
            kind="invalid_request_error",
            **fields,
        )

    @classmethod
    def raw(
        cls, body: bytes, content_type: str = "text/event-stream", status: int = 200, **fields: Any
    ) -> Reply:
        """Exactly these bytes."""
        return cls(body=body, content_type=content_type, status=status, **fields)

    @classmethod
    def html(cls, status: int = 200, **fields: Any) -> Reply:
        """The page of a proxy that is in the way."""
        page = (
            b"<!DOCTYPE html><html><head><title>Sign in to WiFi</title></head><body></body></html>"
        )
        return cls.raw(page, "text/html; charset=utf-8", status, **fields)

    @classmethod
    def invalid_json_chunk(cls, **fields: Any) -> Reply:
        """A stream whose first event is no JSON."""
        return cls.raw(b'data: {"choices": [{"delta"\n\n', **fields)

    @classmethod
    def stream_error(
        cls,
        message: str = "the fake model broke",
        *,
        code: str | int | None = "server_error",
        content: str = "",
        after_chunks: int = 1,
        **fields: Any,
    ) -> Reply:
        """A stream that begins well and then carries an error event."""
        document = {"error": {"message": message, "type": "fake_error", "code": code}}
        return cls(
            content=content,
            error_in_stream=json.dumps(document),
            after_chunks=after_chunks,
            **fields,
        )

    @classmethod
    def truncated(
        cls, content: str, *, after_chunks: int = 2, ending: Ending = Ending.CLOSED, **fields: Any
    ) -> Reply:
        """A stream that ends early, properly (CLOSED) or torn (CUT, RESET)."""
        return cls(content=content, after_chunks=after_chunks, ending=ending, **fields)

    @classmethod
    def hang(cls, content: str = "", *, after_chunks: int | None = None, **fields: Any) -> Reply:
        """Silence: before the headers, or after so many chunks."""
        return cls(content=content, after_chunks=after_chunks, ending=Ending.HANG, **fields)

    @classmethod
    def reset(cls, content: str = "", *, after_chunks: int | None = None, **fields: Any) -> Reply:
        """A reset connection: before the headers, or after so many chunks."""
        return cls(content=content, after_chunks=after_chunks, ending=Ending.RESET, **fields)
