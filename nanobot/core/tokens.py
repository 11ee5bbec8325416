"""Estimates of tokens without a tokenizer: bytes, weighed by what they are.

A token is about five letters or spaces, one and a half digits, signs or line ends, or three bytes
of anything else (a Chinese character is a little more than one). docs/context.md has the error of
it; what providers report of a model's own tokens corrects it (``Calibration``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    SystemMessage,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

PICTURE_TOKENS = 1600
"""What a picture within the limits costs, at most providers."""
MESSAGE_TOKENS = 4
"""What a message or a call costs beside its text: role and marks."""

_LETTER, _SIGN, _OTHER = 0.21, 0.62, 0.37
_WORDS = bytes(range(ord("A"), ord("Z") + 1)) + bytes(range(ord("a"), ord("z") + 1)) + b" "
_ASCII = bytes(range(128))


def text_tokens(text: str) -> int:
    """Tokens of a text, about; 0 for an empty one."""
    data = text.encode("utf-8", "replace")
    unlike_words = len(data.translate(None, _WORDS))
    beyond_ascii = len(data.translate(None, _ASCII))
    return math.ceil(
        _LETTER * (len(data) - unlike_words)
        + _SIGN * (unlike_words - beyond_ascii)
        + _OTHER * beyond_ascii
    )


def message_tokens(message: ChatMessage) -> int:
    """Tokens of a message as it is sent: text, calls, pictures, signed thoughts.

    Bare reasoning is left out: few providers want it back, and of those the reports tell.
    """
    total = MESSAGE_TOKENS + text_tokens(message.content)
    match message:
        case SystemMessage():
            pass
        case UserMessage(images=images) | ToolMessage(images=images):
            total += len(images) * PICTURE_TOKENS
        case AssistantMessage():
            for call in message.tool_calls:
                total += MESSAGE_TOKENS + text_tokens(call.name) + text_tokens(call.arguments)
            for block in message.thinking_blocks:
                total += text_tokens(json.dumps(dict(block)))
    return total


def tool_tokens(tools: Iterable[ToolSpec]) -> int:
    """Tokens of the tools' schemas as they are sent."""
    return sum(text_tokens(wire_form(tool)) for tool in tools)


def wire_form(tool: ToolSpec) -> str:
    """A tool as Chat Completions has it, in JSON without spaces."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    document = {"type": "function", "function": function}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
