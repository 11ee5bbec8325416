"""A strict reading of a Chat Completions request: what the least forgiving provider would refuse.

It reads the JSON that went over the wire and shares no code with what wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = ("system", "user", "assistant", "tool")


def refusals(body: Mapping[str, Any]) -> list[str]:
    """Every reason to refuse the request with a 400; empty when there is none."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["messages: a list with at least one message is required"]
    tools = [tool.get("function", {}).get("name") for tool in body.get("tools", ())]
    found = [f"tools: two are named {name}" for name in {*tools} if tools.count(name) > 1]
    if body.get("tool_choice") not in (None, "auto") and not tools:
        found.append("tool_choice: there are no tools")
    for place, message in enumerate(messages):
        found += [f"messages.{place}: {reason}" for reason in _shape(message)]
    return found or _order(messages)


def _shape(message: Any) -> list[str]:
    """What is wrong with a message by itself."""
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        return [f"role: one of {', '.join(_ROLES)}"]
    found = []
    role, content, calls = message["role"], message.get("content"), message.get("tool_calls")
    if role == "assistant":
        if not (isinstance(content, str) and content.strip()) and not calls:
            found.append("an assistant message without words or calls")
        if calls is not None:
            found += _calls(calls)
    elif calls is not None:
        found.append(f"tool_calls in a {role} message")
    if role in ("system", "tool") and not isinstance(content, str):
        found.append(f"content of a {role} message: a string is required")
    if role == "user" and not _says_something(content):
        found.append("an empty user message")
    if (role == "tool") != ("tool_call_id" in message):
        found.append("tool_call_id: required in tool messages, and only there")
    try:
        json.dumps(message, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        found.append("half a surrogate pair")
    return found


def _says_something(content: Any) -> bool:
    if isinstance(content, str):
        return bool(content.strip())
    return isinstance(content, list) and bool(content)


def _calls(calls: Any) -> list[str]:
    if not isinstance(calls, list) or not calls:
        return ["tool_calls: at least one is required"]
    found = []
    ids = [call.get("id") for call in calls]
    found += [f"two calls have the id {one}" for one in {*ids} if ids.count(one) > 1]
    for call in calls:
        function = call.get("function", {})
        if not isinstance(call.get("id"), str) or not call["id"]:
            found.append("a call without an id")
        if call.get("type") != "function":
            found.append("a call that is no function")
        if not _NAME.fullmatch(str(function.get("name", ""))):
            found.append(f"no name for a function: {function.get('name')!r}")
        try:
            arguments = json.loads(function.get("arguments", ""))
        except (TypeError, ValueError):
            arguments = None
        if not isinstance(arguments, dict):
            found.append("arguments that are no JSON object")
    return found


def _order(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with the order of well-formed messages."""
    found: list[str] = []
    open_ids: list[str] = []
    previous = ""
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] in open_ids:
                open_ids.remove(message["tool_call_id"])
            else:
                found.append(f"messages.{place}: a result without its call")
        elif open_ids:
            found.append(f"messages.{place}: no result yet for {', '.join(open_ids)}")
            open_ids = []
        if role == "system" and place:
            found.append(f"messages.{place}: a system message after the first")
        if role == "assistant":
            if previous in ("", "system"):
                found.append(f"messages.{place}: the first to speak is the user")
            if previous == "assistant":
                found.append(f"messages.{place}: two assistant messages in a row")
            open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        previous = role
    if open_ids:
        found.append(f"at the end: no result yet for {', '.join(open_ids)}")
    if previous not in ("user", "tool"):
        found.append("at the end: the assistant has spoken already, there is nothing to answer")
    return found
