"""Messages and tools in the wire form of OpenAI's chat completions, byte for byte repeatable."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from nanobot.providers.quirks import Quirks, ReasoningBack

Wire = dict[str, Any]

_NO_PICTURES: Mapping[Image, str] = {}
_PLAIN = Quirks()
_ID_LENGTH = 9
_LONGEST_ID = 64  # OpenAI's limit
_dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_MARK = {"type": "ephemeral"}


def wire_messages(
    messages: Sequence[ChatMessage],
    *,
    pictures: Mapping[Image, str] = _NO_PICTURES,
    quirks: Quirks = _PLAIN,
) -> list[Wire]:
    """The ``messages`` of a request; the same messages always give the same bytes.

    ``pictures``: data URLs by image, from ``read_pictures``; a text replaces a missing picture, or
    all of them if the model takes none. A tool message holds text only: pictures of tool results
    follow in a user message.
    """
    wire: list[Wire] = []
    waiting: list[Wire] = []
    for message in messages:
        if waiting and not isinstance(message, ToolMessage | UserMessage):
            wire.append({"role": "user", "content": waiting})
            waiting = []
        match message:
            case SystemMessage():
                wire.append({"role": "system", "content": message.content})
            case UserMessage():
                wire.append(_user(message, waiting, pictures, quirks))
                waiting = []
            case AssistantMessage():
                wire.append(_assistant(message, quirks))
            case ToolMessage():
                identity = _sent_id(message.call_id, quirks)
                wire.append({"role": "tool", "tool_call_id": identity, "content": message.content})
                if message.images:
                    waiting = [*waiting, _text(f"[{message.name}]")]
                    waiting += [_picture(image, pictures, quirks) for image in message.images]
    if waiting:
        wire.append({"role": "user", "content": waiting})
    return wire


def wire_tools(tools: Sequence[ToolSpec]) -> list[Wire]:
    """The ``tools`` of a request."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


def read_pictures(messages: Iterable[ChatMessage]) -> dict[Image, str]:
    """Each picture of ``messages`` as a data URL; unreadable files are left out. Blocks."""
    pictures = {}
    for message in messages:
        if isinstance(message, UserMessage | ToolMessage):
            for image in message.images:
                try:
                    data = Path(image.path).read_bytes()
                except OSError:
                    continue
                encoded = base64.b64encode(data).decode("ascii")
                pictures[image] = f"data:{image.mime};base64,{encoded}"
    return pictures


def encode_body(head: Wire, messages: Sequence[Wire], tail: Wire) -> bytes:
    """The request's JSON: the fields of ``head``, ``messages``, the fields of ``tail``.

    Messages are encoded one by one, so that a thread doing it lets others run in between.
    """
    parts = [_dumped(head)[:-1], ',"messages":[']
    parts.append(",".join([_dumped(message) for message in messages]))
    parts += ["],", _dumped(tail)[1:]]
    # A lone surrogate has no UTF-8 form; a question mark instead keeps the request possible.
    return "".join(parts).encode("utf-8", "replace")


def rough_size(messages: Iterable[Wire]) -> int:
    """About how many characters ``messages`` have, computed quickly."""
    size = 0
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            for part in content:
                size += len(part["text"] if "text" in part else part["image_url"]["url"])
        else:
            size += len(content or "")
        for call in message.get("tool_calls", ()):
            size += len(call["function"]["arguments"])
    return size


def call_ids(messages: Iterable[ChatMessage]) -> set[str]:
    """The ids of all tool calls so far."""
    return {
        call.id
        for message in messages
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
    }


def nine_characters(text: str) -> str:
    """An id of nine letters or digits for ``text``, which every API accepts."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_ID_LENGTH]


def _user(
    message: UserMessage, before: list[Wire], pictures: Mapping[Image, str], quirks: Quirks
) -> Wire:
    if not message.images and not before:
        return {"role": "user", "content": message.content}
    words = [_text(message.content)] if message.content else []
    shown = [_picture(image, pictures, quirks) for image in message.images]
    return {"role": "user", "content": [*before, *words, *shown]}


def _assistant(message: AssistantMessage, quirks: Quirks) -> Wire:
    wire: Wire = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        wire["content"] = message.content or None
        wire["tool_calls"] = [_call(call, quirks) for call in message.tool_calls]
    match quirks.reasoning_back:
        case ReasoningBack.CONTENT:
            if message.reasoning or message.tool_calls:
                wire["reasoning_content"] = message.reasoning
        case ReasoningBack.DETAILS:
            if blocks := of_openrouter(message.thinking_blocks):
                wire["reasoning_details"] = blocks
        case ReasoningBack.BLOCKS:
            if blocks := of_anthropic(message.thinking_blocks):
                wire["thinking_blocks"] = blocks
        case ReasoningBack.TAGS:
            if message.reasoning:
                wire["content"] = f"<think>{message.reasoning}</think>\n\n{message.content}"
        case ReasoningBack.NONE:
            pass
    return wire


def _call(call: ToolCall, quirks: Quirks) -> Wire:
    return {
        "id": _sent_id(call.id, quirks),
        "type": "function",
        "function": {"name": call.name, "arguments": _object_text(call.arguments)},
    }


def _object_text(arguments: str) -> str:
    """The arguments as the text of a JSON object: many servers refuse a history with any other."""
    try:
        if isinstance(json.loads(arguments), dict):
            return arguments
    except (ValueError, RecursionError):
        pass
    return _dumped({"unreadable": arguments}) if arguments.strip() else "{}"


def _sent_id(identity: str, quirks: Quirks) -> str:
    if quirks.short_call_ids:
        fits = len(identity) == _ID_LENGTH and identity.isascii() and identity.isalnum()
    else:
        fits = quirks.long_call_ids or len(identity) <= _LONGEST_ID
    return identity if fits else nine_characters(identity)


def _picture(image: Image, pictures: Mapping[Image, str], quirks: Quirks) -> Wire:
    if not quirks.sees:
        return _text(f"[{Path(image.path).name}: not delivered, this model takes no pictures]")
    if image not in pictures:
        return _text(f"[{Path(image.path).name}: this picture could not be read]")
    return {"type": "image_url", "image_url": {"url": pictures[image]}}


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def of_openrouter(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The ``blocks`` in OpenRouter's form."""
    return [dict(one) for one in blocks if str(one.get("type", "")).startswith("reasoning.")]


def of_anthropic(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The ``blocks`` in the form of Anthropic's API, signed by it."""
    return [
        dict(one)
        for one in blocks
        if (one.get("type") == "thinking" and one.get("signature"))
        or (one.get("type") == "redacted_thinking" and one.get("data"))
    ]


def may_think(messages: Sequence[ChatMessage], quirks: Quirks) -> bool:
    """Whether a reasoning effort may accompany ``messages``.

    Anthropic's API refuses it if the last assistant message called tools without thinking blocks
    of that API (reasoning was switched on, or the model changed, after it).
    """
    if quirks.reasoning_back is not ReasoningBack.BLOCKS:
        return True
    last = next((one for one in reversed(messages) if isinstance(one, AssistantMessage)), None)
    return last is None or not last.tool_calls or bool(of_anthropic(last.thinking_blocks))


def marked(messages: Sequence[Wire], roles: Set[str]) -> list[Wire]:
    """``messages`` with ``cache_control`` on up to three of those whose role is in ``roles``.

    The markers go on the system prompt (the tools come before it), on the last message, and on
    the last message of the previous request, up to which the cache is read. Follows Anthropic's
    prompt caching: at most four markers, none on empty text.
    """
    places = [at for at, one in enumerate(messages) if one["role"] in roles and _last_text(one)]
    chosen = {at for at in places[:1] if messages[at]["role"] == "system"}
    talk = [at for at in places if messages[at]["role"] != "system"]
    chosen.update(talk[-1:])
    answers = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
    if answers:
        chosen.update([at for at in talk if at < answers[-1]][-1:])
    return [
        _form(one, is_marked=at in chosen) if at in places else one
        for at, one in enumerate(messages)
    ]


def _last_text(message: Wire) -> str:
    """The text that would carry a marker."""
    content = message["content"]
    if isinstance(content, list):
        content = content[-1].get("text", "the end is a picture")
    return (content or "").strip()


def _form(message: Wire, *, is_marked: bool) -> Wire:
    """The message in the form that can carry a marker, with or without one."""
    mark: Wire = {"cache_control": _MARK} if is_marked else {}
    if message["role"] == "tool":
        return {**message, **mark}  # litellm moves it to the block that the result becomes
    content: list[Wire] | str = message["content"]
    parts: list[Wire] = [_text(content)] if isinstance(content, str) else list(content)
    return {**message, "content": [*parts[:-1], {**parts[-1], **mark}]}
