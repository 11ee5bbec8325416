"""Markers for providers that cache a request's beginning only up to where they are told."""

from __future__ import annotations

from collections.abc import Sequence, Set

from nanobot.providers.wire import Wire

_MARK = {"type": "ephemeral"}


def marked(messages: Sequence[Wire], roles: Set[str]) -> list[Wire]:
    """``messages`` with ``cache_control`` on up to three of those whose role is in ``roles``.

    The system prompt (before which the tools stand), the last message, and the last one of the
    request before, which is what the cache holds: all but the newest messages is read from it.
    Follows Anthropic's prompt caching, which allows four markers and none on empty text.
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
    """The text that a marker would be put on."""
    content = message["content"]
    if isinstance(content, list):
        content = content[-1].get("text", "the end is a picture")
    return (content or "").strip()


def _form(message: Wire, *, is_marked: bool) -> Wire:
    """A message that may carry a marker, in the same form whether or not it does."""
    mark: Wire = {"cache_control": _MARK} if is_marked else {}
    if message["role"] == "tool":
        return {**message, **mark}  # litellm moves it to the block that the result becomes
    content: list[Wire] | str = message["content"]
    parts: list[Wire] = [_text(content)] if isinstance(content, str) else list(content)
    return {**message, "content": [*parts[:-1], {**parts[-1], **mark}]}


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}
