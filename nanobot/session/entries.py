"""The entries of a session's log: as values, as stored JSON, and as messages for a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    LLMResponse,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from nanobot.core.messages import InboundMessage, Trust
from nanobot.core.tool import ToolOutput

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64


class EntryKind(StrEnum):
    """What an entry records; the values are the stored ones."""

    USER = "user"
    """Somebody's message, as rendered for the model."""
    SYSTEM_NOTE = "nudge"
    """A message that the program adds for the model: continue, assess, say where things stand."""
    ASSISTANT = "assistant"
    """The model's words and calls."""
    TOOL = "tool"
    """The result of a call."""
    SENT = "sent"
    """Words that a job, the heartbeat or another session's turn sent to this chat; ``note`` says
    which. It may stand in the middle of a turn, to which it does not belong."""
    COMPACTED = "compacted"
    """The model's view begins at the entry ``keeps_from``, with this message in front of it."""
    RESET = "reset"
    """A new conversation begins."""
    TRIMMED = "gave_way"
    """From here on the model sees the tool results in ``replaced`` as the notes given there."""
    DEAD_LETTER = "parked"
    """The message ``inbound_id`` became a dead letter; the model no longer sees what its turn
    wrote, since that could make the next turns fail, too."""
    UNANSWERED = "unanswered"
    """A system note that closes the request ``inbound_id``, which ended without an answer."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A trimmed tool result: its place in the log, its call, and the note in its place."""

    seq: int
    call_id: str
    name: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry that is not in the log yet.

    ``inbound_id`` names the message whose turn wrote it, ``principal`` on whose authority.
    ``ok`` is whether a tool call succeeded, ``delivered`` what it said to the turn's own chat.
    ``account`` is the session that pays for ``usage``, "" for the log's own; it is not stored.
    ``is_trimmed`` is set on a tool entry read back as the note in its place. ``note`` tells the
    model where the words of a ``sent`` entry came from.
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
    is_trimmed: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Draft):
    """An entry of the log; ``seq`` grows with time over all sessions."""

    seq: int
    at: datetime


def draft_of(
    inbound: InboundMessage,
    kind: EntryKind,
    message: ChatMessage | None,
    trust: Trust = Trust.TRUSTED,
) -> Draft:
    """An entry that the turn of ``inbound`` writes."""
    return Draft(
        kind=kind,
        message=message,
        inbound_id=inbound.id,
        principal=str(inbound.principal),
        trust=trust,
    )


def answer_draft(inbound: InboundMessage, response: LLMResponse, trust: Trust) -> Draft:
    """A model's response as an entry, with its usage and the session that pays for it."""
    message = AssistantMessage(
        response.content,
        response.tool_calls,
        response.reasoning_content,
        response.thinking_blocks,
    )
    return replace(
        draft_of(inbound, EntryKind.ASSISTANT, message, trust),
        model=response.model,
        provider=response.provider,
        usage=response.usage,
        account=inbound.account,
    )


def result_draft(
    inbound: InboundMessage, call: ToolCall, text: str, output: ToolOutput, *, ok: bool
) -> Draft:
    """The result of a call as an entry; ``text`` is what the model reads of ``output``."""
    message = ToolMessage(call.id, call.name, text, output.images)
    entry = draft_of(inbound, EntryKind.TOOL, message, output.trust)
    return replace(entry, ok=ok, delivered=output.delivered)


def closed_calls(inbound: InboundMessage, calls: Iterable[ToolCall], why: str) -> list[Draft]:
    """Results for calls that have none; ``why`` tells the model what became of them."""
    return [result_draft(inbound, call, why, ToolOutput(why), ok=False) for call in calls]


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
        case EntryKind.RESET | EntryKind.DEAD_LETTER | EntryKind.TRIMMED:
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


def fold(entries: Iterable[Draft], *, interrupted: str) -> list[ChatMessage]:
    """The messages of a log, legal whatever happened to it.

    Every call is followed by exactly one result (``interrupted`` stands for a missing one), results
    without a call are dropped, so are empty messages and whatever precedes the first user message.
    Assistant messages with nothing between them become one. Before words that were sent to the
    chat stands the note on where they came from.
    """
    messages: list[ChatMessage] = []
    waiting: dict[str, ToolCall] = {}
    results: dict[str, ToolMessage] = {}

    def close() -> None:
        for call in waiting.values():
            messages.append(results.get(call.id) or ToolMessage(call.id, call.name, interrupted))
        waiting.clear()
        results.clear()

    for entry in entries:
        message = entry.message
        match message:
            case ToolMessage():
                if message.call_id in waiting and message.call_id not in results:
                    results[message.call_id] = replace(message, name=legal_name(message.name))
            case AssistantMessage():
                close()
                if entry.note:
                    messages.append(UserMessage(entry.note))
                calls = {call.id: legal_call(call) for call in message.tool_calls if call.id}
                if not messages or not (message.content.strip() or calls):
                    continue
                if (*calls.values(),) != message.tool_calls:
                    message = replace(message, tool_calls=(*calls.values(),))
                before = messages[-1]
                if isinstance(before, AssistantMessage):
                    words = "\n\n".join(filter(str.strip, (before.content, message.content)))
                    message = replace(message, content=words)
                    messages.pop()
                messages.append(message)
                waiting.update(calls)
            case UserMessage():
                close()
                if message.content.strip() or message.images:
                    messages.append(message)
            case _:
                close()
    close()
    return messages


def legal_call(call: ToolCall) -> ToolCall:
    """The call under a name that every provider takes back: models invent others, too."""
    name = legal_name(call.name)
    return call if name == call.name else replace(call, name=name)


def legal_name(name: str) -> str:
    """At most 64 letters, digits, underscores and hyphens, at least one."""
    return _NOT_IN_A_NAME.sub("_", name)[:_NAME_LENGTH] or "unknown"


def open_calls(entries: Sequence[Draft]) -> tuple[ToolCall, ...]:
    """The calls at the end of a log that have no result yet, in order."""
    answered: set[str] = set()
    for entry in reversed(entries):
        match entry.message:
            case _ if entry.kind is EntryKind.SENT:
                continue
            case ToolMessage(call_id):
                answered.add(call_id)
            case AssistantMessage(_, calls):
                return tuple(call for call in calls if call.id not in answered)
            case _:
                return ()
    return ()


def violations(messages: Sequence[ChatMessage]) -> list[str]:
    """What a strict provider would refuse in a request; empty when it is legal."""
    found: list[str] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if waiting and not isinstance(message, ToolMessage):
            found.append(f"message {place}: calls without a result: {', '.join(waiting)}")
            waiting = []
        match message:
            case SystemMessage():
                if place != 0:
                    found.append(f"message {place}: a system message after the first")
            case UserMessage(content, images):
                if not content.strip() and not images:
                    found.append(f"message {place}: an empty user message")
            case AssistantMessage(content, calls):
                if not any(isinstance(earlier, UserMessage) for earlier in messages[:place][:2]):
                    found.append(f"message {place}: an assistant message before any user message")
                if place and isinstance(messages[place - 1], AssistantMessage):
                    found.append(f"message {place}: two assistant messages in a row")
                if not content.strip() and not calls:
                    found.append(f"message {place}: an empty assistant message")
                if any(legal_call(call) is not call for call in calls):
                    found.append(f"message {place}: a call of a name that is none")
                ids = [call.id for call in calls]
                if len(set(ids)) != len(ids):
                    found.append(f"message {place}: two calls with one id")
                waiting = ids
            case ToolMessage(call_id):
                if call_id in waiting:
                    waiting.remove(call_id)
                else:
                    found.append(f"message {place}: a result without a call: {call_id}")
    if waiting:
        found.append(f"at the end: calls without a result: {', '.join(waiting)}")
    return found
