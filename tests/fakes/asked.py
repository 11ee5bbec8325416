"""What a request to the fake model asks for, in whichever provider's wire form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.fakes.model_server import Request


@dataclass(frozen=True)
class Asked:
    """One request; the texts of a message's parts are joined, cache markers aside."""

    key: str
    model: str
    stream: bool
    max_tokens: int
    temperature: float | None
    tools: tuple[tuple[str, dict[str, Any]], ...]
    tool_choice: str | None
    talk: tuple[tuple[str, str], ...]
    """(role, text), the system prompt first; empty texts left out."""
    calls: tuple[tuple[str, str, dict[str, Any]], ...]
    """(id, name, arguments)"""
    results: tuple[tuple[str, str], ...]
    """(id of the call, text)"""
    pictures: tuple[tuple[str, str], ...]
    """(MIME, base64)"""
    marks: int
    """How many cache markers there are."""


def asked(request: Request) -> Asked:
    """Read a request to ``/v1/chat/completions`` or ``/v1/messages``."""
    return _anthropic(request) if request.path.startswith("/v1/messages") else _openai(request)


def _openai(request: Request) -> Asked:
    body = request.body
    said = [one for one in request.messages if one["role"] != "tool"]
    calls = [call for one in said for call in one.get("tool_calls", ())]
    parts = [part for one in request.messages for part in _parts(one.get("content"))]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return Asked(
        key=request.headers.get("authorization", "").removeprefix("Bearer "),
        model=request.model,
        stream=request.stream,
        max_tokens=body.get("max_tokens") or body["max_completion_tokens"],
        temperature=body.get("temperature"),
        tools=tuple(
            (tool["function"]["name"], tool["function"]["parameters"])
            for tool in body.get("tools", ())
        ),
        tool_choice=body.get("tool_choice"),
        talk=_talk((one["role"], _text(one.get("content"))) for one in said),
        calls=tuple(
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in calls
        ),
        results=tuple(
            (one["tool_call_id"], _text(one["content"]))
            for one in request.messages
            if one["role"] == "tool"
        ),
        pictures=tuple(_data(url) for url in urls),
        marks=request.raw.count(b"cache_control"),
    )


def _anthropic(request: Request) -> Asked:
    body = request.body
    parts = [part for one in request.messages for part in _parts(one["content"])]
    sources = [part["source"] for part in parts if part["type"] == "image"]
    system = [("system", _text(body.get("system")))]
    return Asked(
        key=request.headers.get("x-api-key", ""),
        model=request.model,
        stream=request.stream,
        max_tokens=body["max_tokens"],
        temperature=body.get("temperature"),
        tools=tuple((tool["name"], tool["input_schema"]) for tool in body.get("tools", ())),
        tool_choice=(body.get("tool_choice") or {}).get("type"),
        talk=_talk([*system, *((one["role"], _text(one["content"])) for one in request.messages)]),
        calls=tuple(
            (part["id"], part["name"], part["input"])
            for part in parts
            if part["type"] == "tool_use"
        ),
        results=tuple(
            (part["tool_use_id"], _text(part["content"]))
            for part in parts
            if part["type"] == "tool_result"
        ),
        pictures=tuple((source["media_type"], source["data"]) for source in sources),
        marks=request.raw.count(b"cache_control"),
    )


def _talk(said: Any) -> tuple[tuple[str, str], ...]:
    return tuple((role, text) for role, text in said if text)


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in _parts(content) if part["type"] == "text")


def _data(url: str) -> tuple[str, str]:
    head, _, data = url.partition(",")
    return head.removeprefix("data:").removesuffix(";base64"), data
