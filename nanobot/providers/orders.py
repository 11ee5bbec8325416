"""Orders and roles of messages that some servers refuse, and requests that do without them."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from nanobot.providers.failures import Failure

if TYPE_CHECKING:
    from nanobot.providers.wire import Wire

USER_AFTER_TOOL = "user after tool"
SAME_ROLE_TWICE = "same role twice"
SYSTEM_ROLE = "system role"
TOOL_ROLE = "tool role"
LONG_CALL_IDS = "long call ids"

# What servers say, and what they may mean by it, the likelier first.
_REFUSALS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"unexpected role '?user'? after role '?tool", re.IGNORECASE), (USER_AFTER_TOOL,)),
    (
        # Chat templates of Gemma, Llama 2 and Mistral; Anthropic, Gemini, Perplexity, DeepSeek
        re.compile(r"(roles must|should|requests) alternate|successive user or assistant"),
        (SAME_ROLE_TWICE, TOOL_ROLE),
    ),
    (
        re.compile(
            r"system (role|message)s? (is |are )?not supported|does not support 'system'"
            r"|developer instruction is not enabled",
            re.IGNORECASE,
        ),
        (SYSTEM_ROLE,),
    ),
    (re.compile(r"only user.{1,20}assistant roles are supported", re.I), (SYSTEM_ROLE, TOOL_ROLE)),
    (re.compile(r"must be a-z, A-Z, 0-9, with a length of 9"), (LONG_CALL_IDS,)),
)
_STATUS = {0, 400, 422, 500}
"""llama.cpp answers with 500 where a chat template raises."""

_BRIDGE: Wire = {"role": "assistant", "content": "I have read the results."}


def refused_order(failure: Failure, refused: Set[str]) -> str | None:
    """What of a request's order a server refuses, beyond what is known to be ``refused``."""
    if failure.status not in _STATUS:
        return None
    for pattern, meant in _REFUSALS:
        if pattern.search(failure.body):
            return next((name for name in meant if name not in refused), None)
    return None


def ordered(messages: Sequence[Wire], refused: Set[str]) -> list[Wire]:
    """``messages`` without the orders and roles that are ``refused``.

    A user message after a tool message gets an assistant's words before it, neighbouring user
    messages become one, calls of one step are told one after the other, a refused role is told
    by another.
    """
    if SYSTEM_ROLE in refused and messages[0]["role"] == "system":
        system = {**messages[0], "role": "user"}
        messages = [_joined(system, messages[1]), *messages[2:]]
    if TOOL_ROLE in refused:
        messages = _without_tool_role(messages)
    alternates = SAME_ROLE_TWICE in refused
    if alternates:
        messages = _one_call_each(messages)
    result: list[Wire] = []
    for message in messages:
        before = result[-1]["role"] if result else ""
        if message["role"] == "user":
            if before == "tool" and (alternates or USER_AFTER_TOOL in refused):
                result.append(_BRIDGE)
            elif before == "user" and alternates:
                message = _joined(result.pop(), message)
        result.append(message)
    return result


def _one_call_each(messages: Sequence[Wire]) -> list[Wire]:
    """Each call followed by its result: to some templates a result is a user's message."""
    split: list[Wire] = []
    for at, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        results = {one.get("tool_call_id"): one for one in messages[at + 1 : at + 1 + len(calls)]}
        for place, call in enumerate(calls):
            asks = message if place == 0 else {"role": "assistant", "content": None}
            split += [{**asks, "tool_calls": [call]}, results[call["id"]]]
        if not calls and message["role"] != "tool":
            split.append(message)
    return split


def _without_tool_role(messages: Sequence[Wire]) -> list[Wire]:
    """Calls and results in words, the results as a user's."""
    told: list[Wire] = []
    names: dict[str, str] = {}
    for message in messages:
        if message["role"] == "tool":
            name = names[message["tool_call_id"]]
            told.append({"role": "user", "content": f"[result of {name}]\n{message['content']}"})
        elif "tool_calls" in message:
            words = [message["content"]] if message["content"] else []
            for call in message["tool_calls"]:
                function = call["function"]
                names[call["id"]] = function["name"]
                words.append(f"[called {function['name']} with {function['arguments']}]")
            told.append({"role": "assistant", "content": "\n".join(words)})
        else:
            told.append(message)
    return told


def _joined(first: Wire, second: Wire) -> Wire:
    """Two user messages as one."""
    contents = first["content"], second["content"]
    if all(isinstance(content, str) for content in contents):
        return {"role": "user", "content": "\n\n".join(contents)}
    parts = [
        part
        for content in contents
        for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]
    return {"role": "user", "content": parts}
