"""Folding a log into the history a model is sent, which is always legal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from nanobot.session.entries import Draft, EntryKind

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64


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
