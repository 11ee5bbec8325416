"""Replies of the fake model in the wire form of Gemini's ``streamGenerateContent``."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.model_replies import Reply
from tests.fakes.openai_replies import event, in_writes, parts

SIGNATURE = "c2lnbmVkIGJ5IHRoZSBmYWtl"
"""What the fake signs its calls with."""

_STATES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}
_FINISHES = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}


def stream(reply: Reply, model: str) -> list[bytes]:
    """The reply as the writes of an event stream; a call's arguments must be a JSON object."""
    framing = reply.framing
    chunks = [_chunk(reply, model)]
    chunks += [
        _chunk(reply, model, {"text": part, "thought": True})
        for part in parts(reply.reasoning, framing)
    ]
    chunks += [_chunk(reply, model, {"text": part}) for part in parts(reply.content, framing)]
    for place, call in enumerate(reply.calls):
        part = {"functionCall": {"name": call.name, "args": json.loads(call.arguments)}}
        signed = {"thoughtSignature": SIGNATURE} if place == 0 else {}
        chunks.append(_chunk(reply, model, {**part, **signed}))
    finish = _FINISHES.get(reply.finish or "", "STOP")
    chunks.append(_chunk(reply, model, {"text": ""}, finish=finish))
    data = [json.dumps(one, ensure_ascii=framing.ascii_only) for one in chunks]
    return in_writes([event(one, framing) for one in data], framing)


def retry_info(delay: str) -> Reply:
    """The refusal of a model whose quota is used up: the time to wait stands in its details."""
    kinds = {"google.rpc.Help": {}, "google.rpc.RetryInfo": {"retryDelay": delay}}
    details = [{"@type": f"type.googleapis.com/{kind}", **more} for kind, more in kinds.items()]
    error = {"message": "You exceeded your current quota.", "details": details}
    return Reply.raw(json.dumps({"error": error}).encode(), "application/json", 429)


def refusal(reply: Reply) -> Reply:
    """An error reply with its body in Gemini's shape; one that is no JSON stays as it is."""
    try:
        error = json.loads(reply.body or b"")["error"]
    except (ValueError, KeyError):
        return reply
    status = _STATES.get(reply.status, "UNKNOWN")
    document = {"error": {**error, "code": reply.status, "status": status}}
    return reply.but(body=json.dumps(document).encode())


def _chunk(
    reply: Reply, model: str, *content: dict[str, Any], finish: str | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(content)}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    chunk: dict[str, Any] = {"candidates": [candidate], "modelVersion": reply.model or model}
    if reply.usage is not None:
        usage = reply.usage
        output = usage.completion if finish is not None else 1
        chunk["usageMetadata"] = {
            "promptTokenCount": usage.prompt,
            "candidatesTokenCount": output,
            "totalTokenCount": usage.prompt + output,
            "cachedContentTokenCount": usage.cached or 0,
        }
    return chunk
