"""Reads a model's answer to a consolidation, or says why it is of no use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nanobot.core.chat import FinishReason, LLMResponse, ToolSpec
from nanobot.core.identity import Trust
from nanobot.core.text import one_line, read_json
from nanobot.memory.edits import Edit, EditAction

TOOL = "save_memory"
ENTRY_CHARS = 2000
"""The longest paragraph taken over."""
MOST_ENTRIES = 60
MOST_EDITS = 40
_FENCED = re.compile(r"```[\w-]*\s*\n(.*?)```", re.DOTALL)
_LISTED = re.compile(r"\s*\[\s*[{\"'\]]")
_STAMPED = re.compile(r"\A\s*\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d)\]\s*")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d))?")

_LISTS = {
    "history": ("history", "history_entries", "history_entry", "entries", "events"),
    "memory": ("memory", "memory_edits", "edits", "operations"),
}
_ACTIONS = {
    **dict.fromkeys(("add", "append", "insert", "create", "new"), EditAction.ADD),
    **dict.fromkeys(("replace", "update", "change", "edit", "modify"), EditAction.REPLACE),
    **dict.fromkeys(("remove", "delete", "drop"), EditAction.REMOVE),
}


class Unusable(Exception):
    """The answer cannot be used; the text says why, for the log and the owner."""


@dataclass(frozen=True, slots=True)
class Event:
    """One paragraph for HISTORY.md; ``at`` is the local time the model gave, if it gave one."""

    text: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Digest:
    """What a model made of a part of a conversation; at least one event."""

    events: tuple[Event, ...]
    edits: tuple[Edit, ...] = ()


def tool_spec(*, edits: bool) -> ToolSpec:
    """The tool by which a model answers; without ``edits`` it offers none."""
    text = {"type": "string"}
    properties: dict[str, Any] = {
        "history": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "time": {"type": "string", "description": "YYYY-MM-DD HH:MM"},
                    "text": {"type": "string", "description": "One paragraph."},
                },
                "required": ["time", "text"],
            },
        }
    }
    if edits:
        properties["memory"] = {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "action": {"type": "string", "enum": [action.value for action in EditAction]},
                    "section": text,
                    "line": {
                        "type": "string",
                        "description": "The line to add; or the present line, as it stands.",
                    },
                    "new_line": {"type": "string", "description": "For replace alone."},
                },
                "required": ["action", "section", "line"],
            },
        }
    parameters = {"type": "object", "properties": properties, "required": ["history"]}
    return ToolSpec(TOOL, "Save what is worth keeping of the conversation.", parameters)


def read_digest(response: LLMResponse, trust: Trust) -> Digest:
    """The digest in an answer, its edits of that trust. Raises Unusable."""
    if response.finish_reason is FinishReason.LENGTH:
        raise Unusable("the answer was cut off")
    texts = [call.arguments for call in response.tool_calls]
    if not texts and not response.content.strip():
        raise Unusable("the answer was empty")
    reason = "the answer was prose alone"
    for text in texts or _documents(response.content):
        try:
            document = _unwrapped(_loaded(text))
        except Unusable as error:
            reason = str(error)
            continue
        events = tuple(_events(_list_of(document, "history")))[:MOST_ENTRIES]
        if events:
            edits = tuple(_edits(_list_of(document, "memory"), trust))[:MOST_EDITS]
            return Digest(events, edits)
        reason = "the answer has nothing for HISTORY.md"
    raise Unusable(reason)


def _documents(content: str) -> Iterator[str]:
    """What may be JSON in a text: fenced blocks, else each object that stands in it."""
    yield from _FENCED.findall(content)
    start = content.find("{")
    while start >= 0:
        end = _end_of(content, start)
        if end is None:
            yield content[start:]
            return
        yield content[start:end]
        start = content.find("{", end)


def _end_of(text: str, start: int) -> int | None:
    """Behind the bracket that closes the one at ``start``; None when it is not closed."""
    depth = 0
    in_string = escaped = False
    for place in range(start, len(text)):
        character = text[place]
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return place + 1
    return None


def _loaded(text: str) -> Any:
    """The document in a text, None where it is none; raises Unusable when its end is missing."""
    try:
        return read_json(text)
    except EOFError:
        raise Unusable("the answer was cut off") from None
    except ValueError:
        return None


def _unwrapped(document: Any) -> Mapping[str, Any]:
    """The object with the lists: itself, or in what looks like a call, or alone in a list."""
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict):
        raise Unusable("the answer is no JSON object")
    for name in ("arguments", "parameters", "input", TOOL):
        inner = document.get(name)
        if isinstance(inner, str):
            inner = _loaded(inner)
        if isinstance(inner, dict):
            return inner
    return document


def _list_of(document: Mapping[str, Any], what: str) -> list[Any]:
    for name in _LISTS[what]:
        value = document.get(name)
        if isinstance(value, str) and _LISTED.match(value):
            value = _loaded(value)
        if isinstance(value, list):
            return value
        if isinstance(value, dict) or (what == "history" and isinstance(value, str)):
            return [value]
    return []


def _events(items: list[Any]) -> Iterator[Event]:
    for item in items:
        stamp = ""
        if isinstance(item, dict):
            stamp = _first(item, ("time", "timestamp", "at", "when", "date"))
            item = _first(item, ("text", "entry", "content", "summary", "event", "history_entry"))
        if not isinstance(item, str):
            continue
        if found := _STAMPED.match(item):
            stamp = stamp or found[1]
            item = item[found.end() :]
        text = one_line(item, ENTRY_CHARS)
        if any(character.isalnum() for character in text):
            yield Event(text, _time(stamp))


def _edits(items: list[Any], trust: Trust) -> Iterator[Edit]:
    for item in items:
        if not isinstance(item, dict):
            continue
        name = _first(item, ("action", "op", "operation", "type")).lower() or "add"
        action = _ACTIONS.get(name)
        section = _first(item, ("section", "heading", "category"))
        line = _first(item, ("line", "old_line", "old", "text", "content", "fact"))
        new = _first(item, ("new_line", "new", "with", "replacement"))
        if action is EditAction.ADD:
            line = line or new
        if action is None or not line or (action is EditAction.REPLACE and not new):
            continue
        yield Edit(action, section, line, new if action is EditAction.REPLACE else "", trust)


def _first(item: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = item.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _time(stamp: str) -> datetime | None:
    found = _STAMP.search(stamp)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]} {found[2] or '00:00'}").astimezone()
    except ValueError:
        return None
