"""Replies of the fake model in the wire form of Anthropic's messages API."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.model_replies import Call, Reply, Tokens
from tests.fakes.openai_replies import identified, in_writes, parts, slices

SIGNATURE = "c2lnbmVkIGJ5IHRoZSBmYWtl"
"""What the fake signs its thoughts with."""

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_STOPS = {"length": "max_tokens", "content_filter": "refusal"}


def stream(reply: Reply, model: str, number: int) -> list[bytes]:
    """The reply to request ``number`` as the writes of an event stream.

    Events without content of their own stand in the chunk of those they belong to.
    """
    message: dict[str, Any] = {
        "id": f"msg_fake_{number}",
        "type": "message",
        "role": "assistant",
        "model": reply.model or model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply.usage, output=1),
    }
    chunks: list[list[dict[str, Any]]] = [
        [{"type": "message_start", "message": message}, {"type": "ping"}]
    ]
    for index, (block, deltas) in enumerate(_blocks(reply, number)):
        each = [[{"type": "content_block_delta", "index": index, "delta": one}] for one in deltas]
        each[0].insert(0, {"type": "content_block_start", "index": index, "content_block": block})
        each[-1].append({"type": "content_block_stop", "index": index})
        chunks += each
    stop = {
        "type": "message_delta",
        "delta": {"stop_reason": _stop(reply), "stop_sequence": None},
        "usage": {"output_tokens": 0 if reply.usage is None else reply.usage.completion},
    }
    chunks.append([stop, {"type": "message_stop"}])
    events = [b"".join(_event(one, reply) for one in chunk) for chunk in chunks]
    return in_writes(events, reply.framing)


def failure_event(reply: Reply) -> bytes:
    """The error that a stream carries, as one event."""
    error = json.loads(reply.error_in_stream or "{}")["error"]
    return _event(_error("api_error", str(error["message"])), reply)


def refusal(reply: Reply) -> Reply:
    """An error reply with its body in Anthropic's shape; one that is no JSON stays as it is."""
    try:
        error = json.loads(reply.body or b"")["error"]
    except (ValueError, KeyError):
        return reply
    document = _error(_KINDS.get(reply.status, "api_error"), str(error["message"]))
    return reply.but(body=json.dumps(document).encode())


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _blocks(reply: Reply, number: int) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each content block as it starts, with its deltas."""
    framing = reply.framing
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if reply.reasoning:
        thoughts: list[dict[str, Any]] = [
            {"type": "thinking_delta", "thinking": part} for part in parts(reply.reasoning, framing)
        ]
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        start = {"type": "thinking", "thinking": "", "signature": ""}
        blocks.append((start, [*thoughts, signed]))
    if reply.content:
        deltas = [{"type": "text_delta", "text": part} for part in parts(reply.content, framing)]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for call in identified(reply, number):
        blocks.append((_start_of(call), _deltas_of(call, framing.argument_size)))
    return blocks


def _start_of(call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _deltas_of(call: Call, size: int) -> list[dict[str, Any]]:
    """An empty object has a single empty delta, as in Anthropic's own streams."""
    whole = "" if call.arguments == "{}" else call.arguments
    fragments = ["", *(slices(whole, size) if size else [whole])]
    return [{"type": "input_json_delta", "partial_json": fragment} for fragment in fragments]


def _stop(reply: Reply) -> str:
    if reply.finish is not None and reply.finish in _STOPS:
        return _STOPS[reply.finish]
    return "tool_use" if reply.calls and reply.finish is None else "end_turn"


def _usage(tokens: Tokens | None, *, output: int) -> dict[str, int]:
    """Anthropic counts what came from the cache apart from the rest of the input."""
    if tokens is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = tokens.cached or 0
    return {
        "input_tokens": tokens.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _event(document: dict[str, Any], reply: Reply) -> bytes:
    framing = reply.framing
    end, space = framing.newline, " " if framing.space else ""
    data = json.dumps(document, ensure_ascii=framing.ascii_only)
    comment = f": ping{end}{end}" if framing.comments else ""
    kind = document["type"]
    return f"{comment}event:{space}{kind}{end}data:{space}{data}{end}{end}".encode()
