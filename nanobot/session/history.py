"""Folding a log into the history a model is sent, which is always legal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from nanobot.session.entries import Draft


def fold(entries: Iterable[Draft], *, interrupted: str) -> list[ChatMessage]:
    """The messages of a log, legal whatever happened to it.

    Every call is followed by exactly one result (``interrupted`` stands for a missing one), results
    without a call are dropped, so are empty assistant messages and whatever precedes the first
    user message.
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
                    results[message.call_id] = message
            case AssistantMessage():
                close()
                if not messages or not (message.content.strip() or message.tool_calls):
                    continue
                unique = {call.id: call for call in message.tool_calls}
                if len(unique) != len(message.tool_calls):
                    message = AssistantMessage(
                        message.content,
                        tuple(unique.values()),
                        message.reasoning,
                        message.thinking_blocks,
                    )
                messages.append(message)
                waiting.update(unique)
            case UserMessage():
                close()
                messages.append(message)
            case _:
                close()
    close()
    return messages


def open_calls(entries: Sequence[Draft]) -> tuple[ToolCall, ...]:
    """The calls at the end of a log that have no result yet, in order."""
    answered: set[str] = set()
    for entry in reversed(entries):
        match entry.message:
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
            case UserMessage():
                pass
            case AssistantMessage(content, calls):
                if not any(isinstance(earlier, UserMessage) for earlier in messages[:place][:2]):
                    found.append(f"message {place}: an assistant message before any user message")
                if not content.strip() and not calls:
                    found.append(f"message {place}: an empty assistant message")
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
