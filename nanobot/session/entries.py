"""The entries of a session's log, as values and as the JSON they are stored in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from nanobot.core.messages import Trust


class EntryKind(StrEnum):
    """What an entry records.

    ``user``: somebody's message, as rendered for the model. ``nudge``: a system note, which the
    program wrote (continue, say where things stand, assess). ``assistant``, ``tool``: the
    model's words and calls, a call's result. ``sent``: words that a job, the heartbeat or another
    session's turn sent to this chat; the entry's ``note`` says which, and it may land in the middle
    of a turn, to which it does not belong. ``compacted``: from here on the model's view begins
    at the entry ``keeps_from``, with this entry's message in place of all before it. ``reset``: a
    new conversation begins. ``gave_way``: the tool results named in ``replaced`` are, from here on,
    seen by the model as the notes in it. ``parked``: the message that ``inbound_id`` names failed
    too often, and what its turn wrote is out of the model's view: it could make the next turns
    fail, too. ``unanswered``: a system note that closes the request of ``inbound_id``, which ended
    without an answer, and says why.
    """

    USER = "user"
    SYSTEM_NOTE = "nudge"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SENT = "sent"
    COMPACTED = "compacted"
    RESET = "reset"
    GAVE_WAY = "gave_way"
    PARKED = "parked"
    UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True)
class Replaced:
    """A tool result that gave way: its place in the log, its call, and the note in its place."""

    seq: int
    call_id: str
    name: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry that is not in the log yet.

    ``inbound_id`` names the message whose turn wrote it, ``principal`` on whose authority.
    ``ok`` tells of a tool entry whether the call succeeded; ``model``, ``provider`` and ``usage``
    belong to assistant entries; ``keeps_from`` to compacted ones. ``delivered`` is what a tool
    call has said to the turn's own chat. ``account`` is the session that ``usage`` is counted to,
    "" for the log's own; it is not stored. ``replaced`` belongs to ``gave_way``; on a tool entry
    that was read back, ``gave_way`` says that its message is such a note. ``note`` belongs to
    ``sent``: a user message that tells the model where the words after it came from.
    """

    kind: EntryKind
    message: ChatMessage | None
    inbound_id: str
    principal: str
    trust: Trust
    ok: bool = True
    delivered: str = ""
    model: str = ""
    provider: str = ""
    usage: Usage | None = None
    keeps_from: int | None = None
    account: str = ""
    replaced: tuple[Replaced, ...] = ()
    gave_way: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Draft):
    """An entry of the log; ``seq`` grows with time over all sessions."""

    seq: int
    at: datetime


def encode(draft: Draft) -> str:
    """The stored JSON of an entry's own part (kind, ids and trust are columns)."""
    record: dict[str, Any] = {}
    match draft.message:
        case UserMessage(content, images):
            record = {"content": content, "images": [[i.path, i.mime] for i in images]}
        case AssistantMessage(content, calls, reasoning, blocks):
            record = {
                "content": content,
                "tool_calls": [[call.id, call.name, call.arguments] for call in calls],
                "reasoning": reasoning,
                "thinking_blocks": [dict(block) for block in blocks],
                "model": draft.model,
                "provider": draft.provider,
            }
            if draft.usage is not None:
                usage = draft.usage
                record["usage"] = [usage.input_tokens, usage.output_tokens, usage.cached_tokens]
                if usage.cost_usd is not None:
                    record["usage"].append(usage.cost_usd)
        case ToolMessage(call_id, name, content, images):
            record = {
                "call_id": call_id,
                "name": name,
                "content": content,
                "images": [[i.path, i.mime] for i in images],
                "ok": draft.ok,
                "delivered": draft.delivered,
            }
        case _:
            record = {}
    if draft.keeps_from is not None:
        record["keeps_from"] = draft.keeps_from
    if draft.note:
        record["note"] = draft.note
    if draft.replaced:
        record["replaced"] = [[r.seq, r.call_id, r.name, r.note] for r in draft.replaced]
    compact = {key: value for key, value in record.items() if value not in ([], "", None)}
    return json.dumps(compact, ensure_ascii=False, separators=(",", ":"))


def decode(kind: str, payload: str) -> tuple[EntryKind, ChatMessage | None, Mapping[str, Any]]:
    """Kind, message and the raw record of a stored entry; raises ValueError when damaged."""
    known = EntryKind(kind)
    record = json.loads(payload)
    try:
        return known, _message(known, record), record
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a damaged {kind} entry: {error!r}") from error


def _message(kind: EntryKind, record: Mapping[str, Any]) -> ChatMessage | None:
    images = tuple(Image(_text(path), _text(mime)) for path, mime in record.get("images", ()))
    match kind:
        case EntryKind.ASSISTANT | EntryKind.SENT:
            return AssistantMessage(
                _text(record.get("content", "")),
                tuple(
                    ToolCall(_text(id_), _text(name), _text(arguments))
                    for id_, name, arguments in record.get("tool_calls", ())
                ),
                _text(record.get("reasoning", "")),
                tuple(dict(block) for block in record.get("thinking_blocks", ())),
            )
        case EntryKind.TOOL:
            return ToolMessage(
                _text(record["call_id"]),
                _text(record.get("name", "")),
                _text(record.get("content", "")),
                images,
            )
        case EntryKind.RESET | EntryKind.PARKED | EntryKind.GAVE_WAY:
            return None
        case _:
            return UserMessage(_text(record.get("content", "")), images)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, found {type(value).__name__}")
    return value


def replaced_of(record: Mapping[str, Any]) -> tuple[Replaced, ...]:
    """The results that a stored record says have given way; raises ValueError when damaged."""
    try:
        return tuple(
            Replaced(int(seq), _text(call_id), _text(name), _text(note))
            for seq, call_id, name, note in record.get("replaced", ())
        )
    except TypeError as error:
        raise ValueError(f"a damaged list of results: {error}") from error


def usage_of(record: Mapping[str, Any]) -> Usage | None:
    """The usage in a stored record, or None."""
    numbers = record.get("usage")
    if not isinstance(numbers, list) or len(numbers) not in (3, 4):
        return None
    cost = float(numbers[3]) if len(numbers) == 4 else None
    return Usage(int(numbers[0]), int(numbers[1]), int(numbers[2]), cost)
