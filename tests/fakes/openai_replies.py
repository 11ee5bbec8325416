"""Replies of the fake model in the wire form of OpenAI's chat completions."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from tests.fakes.model_replies import Call, Framing, Ids, Index, Reply, Tokens

CREATED = 1_700_000_000


def completion(reply: Reply, model: str, number: int) -> bytes:
    """The reply to request ``number`` as one JSON document."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    if reply.reasoning:
        message[reply.reasoning_field] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            | _identity(call, position, reply.framing, first=True)
            for position, call in enumerate(identified(reply, number))
        ]
    document = {
        "id": f"chatcmpl-fake-{number}",
        "object": "chat.completion",
        "created": CREATED,
        "model": reply.model or model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}],
        "usage": None if reply.usage is None else _usage(reply.usage),
    }
    return json.dumps(document, ensure_ascii=reply.framing.ascii_only).encode()


def stream(reply: Reply, model: str, number: int, *, wants_usage: bool) -> list[bytes]:
    """The reply to request ``number`` as the writes of an event stream."""
    envelope = {
        "id": f"chatcmpl-fake-{number}",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": reply.model or model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    framing = reply.framing
    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({reply.reasoning_field: part}) for part in parts(reply.reasoning, framing)]
    chunks += [chunk({"content": part}) for part in parts(reply.content, framing)]
    chunks += [chunk({"tool_calls": [delta]}) for delta in _call_deltas(reply, number)]
    chunks.append(chunk({}, _finish(reply)))
    if reply.usage is not None and wants_usage:
        chunks.append(envelope | {"choices": [], "usage": _usage(reply.usage)})
    data = [json.dumps(one, ensure_ascii=framing.ascii_only) for one in chunks]
    if framing.done:
        data.append("[DONE]")
    return in_writes([event(one, framing) for one in data], framing)


def event(data: str, framing: Framing) -> bytes:
    """One server-sent event."""
    end = framing.newline
    comment = f": ping{end}{end}" if framing.comments else ""
    return f"{comment}data:{' ' if framing.space else ''}{data}{end}{end}".encode()


def models(names: tuple[str, ...]) -> bytes:
    """The answer to a request for the list of models."""
    listed = [{"id": name, "object": "model", "owned_by": "fake"} for name in names]
    return json.dumps({"object": "list", "data": listed}).encode()


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _usage(tokens: Tokens) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "total_tokens": tokens.prompt + tokens.completion,
    }
    if tokens.cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    return usage


def parts(text: str, framing: Framing) -> list[str]:
    """``text`` in deltas."""
    if framing.text_size:
        return slices(text, framing.text_size)
    return re.findall(r"\s*\S+|\s+$", text)


def slices(text: str, size: int) -> list[str]:
    """``text`` in pieces of ``size`` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def identified(reply: Reply, number: int) -> list[Call]:
    """The calls of the reply to request ``number``, each with an id."""
    return [
        Call(call.name, call.arguments, call.id or f"call_{number}_{position}")
        for position, call in enumerate(reply.calls)
    ]


def _identity(call: Call, position: int, framing: Framing, *, first: bool) -> dict[str, Any]:
    identity: dict[str, Any] = {}
    if framing.index is not Index.MISSING:
        identity["index"] = position if framing.index is Index.GOOD else 0
    if framing.ids is Ids.SAME:
        identity["id"] = "call_same"
    elif framing.ids is Ids.EVERY or (framing.ids is Ids.FIRST and first):
        identity["id"] = call.id
    return identity


def _call_deltas(reply: Reply, number: int) -> list[dict[str, Any]]:
    framing = reply.framing
    each = [
        _deltas_of(call, position, framing)
        for position, call in enumerate(identified(reply, number))
    ]
    if not framing.interleave:
        return [delta for deltas in each for delta in deltas]
    rounds = itertools.zip_longest(*each)
    return [delta for round_ in rounds for delta in round_ if delta is not None]


def _deltas_of(call: Call, position: int, framing: Framing) -> list[dict[str, Any]]:
    if framing.argument_size:
        fragments = ["", *slices(call.arguments, framing.argument_size)]
    else:
        fragments = [call.arguments]
    deltas = []
    for at, fragment in enumerate(fragments):
        delta = _identity(call, position, framing, first=at == 0)
        delta["function"] = {"arguments": fragment}
        if at == 0:
            delta |= {"type": "function", "function": {"name": call.name, "arguments": fragment}}
        deltas.append(delta)
    return deltas


def in_writes(events: list[bytes], framing: Framing) -> list[bytes]:
    """The events as the server writes them."""
    if framing.bom:
        events = [b"\xef\xbb\xbf" + events[0], *events[1:]]
    if not framing.sizes:
        return events
    data = b"".join(events)
    writes = []
    start = 0
    for size in itertools.cycle(framing.sizes):
        if start >= len(data):
            break
        writes.append(data[start : start + size])
        start += size
    return writes
