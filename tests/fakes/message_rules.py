"""What servers demand of the order of messages, each with the refusal that it really gives.

A rule reads a request and returns the refusal, or None for a request that obeys. Imports nothing of
nanobot.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from tests.fakes.model_replies import Reply
from tests.fakes.model_server import Request

Rule = Callable[[Request], Reply | None]
Message = dict[str, Any]


# -- Mistral's API, and its own tokenizer in vLLM -------------------------------------------------


_MAY_FOLLOW = {
    "system": {"system", "user", "assistant"},
    "user": {"system", "user", "assistant"},
    "assistant": {"user", "assistant", "tool"},
    "tool": {"assistant", "tool"},
}


def mistral(request: Request) -> Reply | None:
    """No user after a tool, nine-character ids, the last message a user's or a tool's."""
    messages = _after_system(request)
    for before, message in zip(["system", *_roles(messages)], messages, strict=False):
        role = message["role"]
        if role not in _MAY_FOLLOW[before]:
            return _mistral(f"Unexpected role '{role}' after role '{before}'")
        for identity in _ids(message):
            if not re.fullmatch(r"[A-Za-z0-9]{9}", identity):
                return _mistral(
                    f"Tool call id was {identity} but must be a-z, A-Z, 0-9, with a length of 9.",
                    "invalid_function_call",
                    "3280",
                )
        if role == "assistant" and not message.get("content") and not message.get("tool_calls"):
            return _mistral("Assistant message must have either content or tool_calls, not none.")
    if messages[-1]["role"] not in {"user", "tool"}:
        return _mistral(
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got "
            "assistant"
        )
    if _unanswered(messages):
        return _mistral("Not the same number of function calls and responses")
    return None


def _mistral(
    message: str, kind: str = "invalid_request_message_order", code: str = "3230"
) -> Reply:
    return _refusal(
        400, {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    )


# -- chat templates -------------------------------------------------------------------------------

_GEMMA = "Conversation roles must alternate user/assistant/user/assistant/..."
_DEVSTRAL = (
    "After the optional system message, conversation roles must alternate user and assistant "
    "roles except for tool calls and results."
)


def gemma(request: Request) -> Reply | None:
    """Gemma's own template in vLLM: every second message is a user's, and tools have no role."""
    roles = _roles(_after_system(request))
    if any((role == "user") != (at % 2 == 0) for at, role in enumerate(roles)):
        return _vllm(_GEMMA)
    return None


def gemma_2(request: Request) -> Reply | None:
    """As ``gemma``, without a system role."""
    if request.messages[0]["role"] == "system":
        return _vllm("System role not supported")
    return gemma(request)


def gemma_in_llama_cpp(request: Request) -> Reply | None:
    """The same template behind llama.cpp, which turns a tool's message into a user's."""
    roles = [role.replace("tool", "user") for role in _roles(_after_system(request))]
    if any((role == "user") != (at % 2 == 0) for at, role in enumerate(roles)):
        return _llama_cpp(_GEMMA)
    return None


def devstral_in_llama_cpp(request: Request) -> Reply | None:
    """Users and the assistant's words take turns; calls and results are not counted."""
    counted = [
        message["role"]
        for message in _after_system(request)
        if message["role"] == "user"
        or (message["role"] == "assistant" and not message.get("tool_calls"))
    ]
    if any((role == "user") != (at % 2 == 0) for at, role in enumerate(counted)):
        return _llama_cpp(_DEVSTRAL)
    return None


def zephyr(request: Request) -> Reply | None:
    """A template that knows two roles."""
    if {*_roles(request.messages)} - {"user", "assistant"}:
        return _vllm("Only user and assistant roles are supported!")
    return gemma(request)


def _vllm(message: str) -> Reply:
    return _refusal(
        400,
        {
            "object": "error",
            "message": message,
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    )


def _llama_cpp(message: str) -> Reply:
    shown = (
        "\n------------\nWhile executing CallExpression at line 19, column 27 in source:\n"
        '...% 2 == 0) -%}↵        {{ raise_exception("Conversation ro...\nError: Jinja Exception: '
    )
    error = {"code": 500, "message": shown + message, "type": "server_error"}
    return _refusal(500, {"error": error})


# -- OpenAI's API and those like it ---------------------------------------------------------------


def strict_ids(request: Request) -> Reply | None:
    """OpenAI: each call is answered at once, each result belongs to a call, no id comes twice."""
    messages = request.messages
    if unanswered := _unanswered(messages):
        return _openai(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{', '.join(unanswered)}"
        )
    waiting: list[str] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return _openai(
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceeding message with 'tool_calls'."
                )
            waiting.remove(message["tool_call_id"])
        else:
            waiting = [call["id"] for call in message.get("tool_calls", ())]
        if any(len(one) > 64 for one in _ids(message)):
            return _openai(f"Invalid 'messages[{at}].tool_calls[0].id': string too long.")
    calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    if double := {one for one in calls if calls.count(one) > 1}:
        return _openai(f"Duplicate value for 'tool_call_id' of {', '.join(double)}")
    return None


def deepseek_reasoner(request: Request) -> Reply | None:
    """No two messages of a user, or of the assistant, in a row."""
    roles = _roles(request.messages)
    for at, (before, role) in enumerate(itertools.pairwise(roles)):
        if before == role in {"user", "assistant"}:
            return _openai(
                "deepseek-reasoner does not support successive user or assistant messages "
                f"(messages[{at}] and messages[{at + 1}] in your input). You should interleave "
                "the user/assistant messages in the message sequence."
            )
    return strict_ids(request)


def _openai(message: str) -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": "messages", "code": None}
    return _refusal(400, {"error": error})


# -- protocols of their own -----------------------------------------------------------------------


def anthropic(request: Request) -> Reply | None:
    """Roles take turns; a call's result begins the very next message; ids come once."""
    messages = request.messages
    roles = _roles(messages)
    if roles[0] != "user":
        return _anthropic('messages: first message must use the "user" role')
    used: set[str] = set()
    for at, message in enumerate(messages):
        if at and roles[at] == roles[at - 1]:
            return _anthropic(
                'messages: roles must alternate between "user" and "assistant", but found '
                f'multiple "{roles[at]}" roles in a row'
            )
        blocks = _blocks(message)
        if not blocks or any(one["type"] == "text" and not one["text"].strip() for one in blocks):
            return _anthropic(f"messages.{at}: text content blocks must be non-empty")
        calls = [one["id"] for one in blocks if one["type"] == "tool_use"]
        if used & {*calls} or len({*calls}) < len(calls):
            return _anthropic(f"messages.{at}: `tool_use` ids must be unique")
        used |= {*calls}
        after = _blocks(messages[at + 1]) if at + 1 < len(messages) else []
        answered = [one["tool_use_id"] for one in after[: len(calls)] if "tool_use_id" in one]
        if sorted(answered) != sorted(calls):
            return _anthropic(
                f"messages.{at}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {', '.join(calls)}. Each `tool_use` block must have a "
                "corresponding `tool_result` block in the next message."
            )
        asked = [one.get("id") for one in _blocks(messages[at - 1])] if at else []
        results = [one["tool_use_id"] for one in blocks if one["type"] == "tool_result"]
        if strays := [one for one in results if one not in asked]:
            return _anthropic(
                f"messages.{at}.content.0: unexpected `tool_use_id` found in `tool_result` "
                f"blocks: {', '.join(strays)}. Each `tool_result` block must have a corresponding "
                "`tool_use` block in the previous message."
            )
    return None


def _anthropic(message: str) -> Reply:
    error = {"type": "invalid_request_error", "message": message}
    return _refusal(400, {"type": "error", "error": error})


def gemini(request: Request) -> Reply | None:
    """A call comes after a user or a result, its results at once and all; roles take turns."""
    contents = request.body["contents"]
    roles = ["model" if one["role"] == "model" else "user" for one in contents]
    if any((role == "user") != (at % 2 == 0) for at, role in enumerate(roles)):
        return _gemini("Please ensure that multiturn requests alternate between user and model.")
    for at, content in enumerate(contents):
        calls = _parts(content, "functionCall", "function_call")
        after = contents[at + 1] if at + 1 < len(contents) else {"parts": []}
        results = _parts(after, "functionResponse", "function_response")
        if len(results) != len(calls):
            return _gemini(
                "Please ensure that the number of function response parts is equal to the number "
                "of function call parts of the function call turn."
            )
        if [one["name"] for one in results] != [one["name"] for one in calls]:
            return _gemini(
                "Please ensure that function response turn comes immediately after a function "
                "call turn."
            )
    return None


def gemini_by_openai(request: Request) -> Reply | None:
    """The same at Gemini's OpenAI-compatible endpoint."""
    messages = _after_system(request)
    for before, message in zip(["model", *_roles(messages)], messages, strict=False):
        if message.get("tool_calls") and before not in {"user", "tool"}:
            return _gemini(
                "Please ensure that function call turn comes immediately after a user turn or "
                "after a function response turn."
            )
    return strict_ids(request)


def _gemini(message: str) -> Reply:
    return _refusal(400, {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})


# -- common ---------------------------------------------------------------------------------------


def _refusal(status: int, document: dict[str, Any]) -> Reply:
    body = json.dumps(document).encode()
    return Reply.raw(body, "application/json", status)


def _after_system(request: Request) -> list[Message]:
    messages = request.messages
    return messages[1:] if messages[0]["role"] == "system" else messages


def _roles(messages: list[Message]) -> list[str]:
    return [message["role"] for message in messages]


def _ids(message: Message) -> list[str]:
    calls = [call["id"] for call in message.get("tool_calls", ())]
    return [*calls, message["tool_call_id"]] if "tool_call_id" in message else calls


def _unanswered(messages: list[Message]) -> list[str]:
    """The ids of calls whose results do not follow at once."""
    missing: list[str] = []
    for at, message in enumerate(messages):
        calls = [call["id"] for call in message.get("tool_calls", ())]
        after = messages[at + 1 : at + 1 + len(calls)]
        answered = [one.get("tool_call_id") for one in after]
        missing += [one for one in calls if one not in answered]
    return missing


def _blocks(message: Message) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _parts(content: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    return [part[name] for part in content["parts"] for name in names if name in part]
