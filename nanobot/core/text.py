"""Text helpers: shortening, fences, JSON as models write it, and estimates of tokens."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterable

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    SystemMessage,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

UNTRUSTED_MARK = "(from untrusted content)"
"""The ending of MEMORY.md lines and HISTORY.md paragraphs that were learnt from outside."""

_FENCE = re.compile(r"\A\s*```\w*|```\s*\Z")
_ESCAPE = re.compile(r"\\(?:[\"'\\/bfnrtu\n]|(.))")
"""An escape sequence; group 1 is set if JSON lacks it and JSON5 reads it as the letter."""


def one_line(text: str, limit: int = 200) -> str:
    """``text`` on one line of at most ``limit`` characters, cut with an ellipsis."""
    return shortened(" ".join(text.split()), limit)


def shortened(text: str, limit: int) -> str:
    """``text`` of at most ``limit`` characters (of one at least), cut with an ellipsis."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def attribute(text: str) -> str:
    """Text as an attribute's value; it cannot end the attribute or the tag."""
    return one_line(text, 80).translate({34: "'", 38: "+", 60: "(", 62: ")"})


def head_and_tail(text: str, limit: int, note: str) -> str:
    """``text`` cut in its middle to about ``limit`` characters, with ``note`` at the cut.

    ``{omitted}`` in ``note`` becomes the number of characters left out. The head gets two thirds.
    """
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    omitted = len(text) - head - tail
    return (
        f"{text[:head]}\n{note.replace('{omitted}', str(omitted))}\n{text[-tail:] if tail else ''}"
    )


def fence(text: str, *, source: str, mark: str | None = None) -> str:
    """``text`` from outside between unguessable marks that name its source."""
    token = mark or secrets.token_hex(4)
    return f"<untrusted {token} source={json.dumps(source)}>\n{text}\n</untrusted {token}>"


def read_json(text: str) -> object:
    """Read JSON or JSON5 that a model wrote, in a Markdown fence or encoded twice.

    One closing brace too many is allowed; nothing else is guessed. Raises EOFError if the end is
    missing, ValueError for any other damage.
    """
    try:
        # Not strict: raw line breaks in strings are what models write when they forget.
        value = json.loads(text, strict=False)
    except ValueError:
        bare = _FENCE.sub("", text)
        value = _read_json5(text) if bare == text else read_json(bare)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        return read_json(value)
    return value


def _read_json5(text: str) -> object:
    import pyjson5  # 17 ms, for the texts that need it

    if bad := next(filter(None, _ESCAPE.findall(text)), ""):
        raise ValueError(f"\\{bad} is no escape sequence; a backslash is written \\\\")
    try:
        try:
            value: object = pyjson5.decode(text)
        except pyjson5.Json5ExtraData:
            value = pyjson5.decode(text.rstrip().removesuffix("}"))
    except pyjson5.Json5EOF as error:
        raise EOFError(str(error)) from error
    except pyjson5.Json5Exception as error:
        raise ValueError(error.args[0]) from error
    return value


def readable_size(size: int) -> str:
    """A number of bytes for people, such as ``1.2 KB``."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("KB", "MB", "GB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} TB"


PICTURE_TOKENS = 1600
"""Tokens of a picture within the limits, at most providers."""
MESSAGE_TOKENS = 4
"""Tokens of a message or a call besides its text: role and marks."""

_LETTER, _SIGN, _OTHER = 0.21, 0.62, 0.37
_WORDS = bytes(range(ord("A"), ord("Z") + 1)) + bytes(range(ord("a"), ord("z") + 1)) + b" "
_ASCII = bytes(range(128))


def text_tokens(text: str) -> int:
    """Estimated tokens of a text; 0 for an empty one."""
    data = text.encode("utf-8", "replace")
    unlike_words = len(data.translate(None, _WORDS))
    beyond_ascii = len(data.translate(None, _ASCII))
    return math.ceil(
        _LETTER * (len(data) - unlike_words)
        + _SIGN * (unlike_words - beyond_ascii)
        + _OTHER * beyond_ascii
    )


def message_tokens(message: ChatMessage) -> int:
    """Estimated tokens of a message as sent: text, calls, pictures, signed thoughts.

    Unsigned reasoning is left out: few providers want it back, and their reports correct that.
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
    """Estimated tokens of the tools' schemas as sent."""
    return sum(text_tokens(wire_form(tool)) for tool in tools)


def wire_form(tool: ToolSpec) -> str:
    """A tool in the format of Chat Completions, as compact JSON."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    document = {"type": "function", "function": function}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
