"""Summaries of older conversation, made by the session's own model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from loguru import logger

from nanobot.core.chat import (
    AssistantMessage,
    LLMResponse,
    ModelRequest,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from nanobot.core.errors import ProviderError
from nanobot.core.messages import InboundMessage
from nanobot.core.ports import ChosenModel
from nanobot.core.text import head_and_tail, text_tokens
from nanobot.core.turn_header import without_header
from nanobot.prompts import render
from nanobot.session.entries import Entry, EntryKind
from nanobot.session.log import SessionLog
from nanobot.session.usage import ModelCall

LIMIT_S = 120.0
"""Seconds that a summary may take; somebody is waiting for an answer."""
LONGEST = 0.2
"""Share of the room that a summary may take."""
_SHARE = 0.75
"""Share of the room for the transcript, which is sent without the tools' schemas."""

_CAPS = ((8000, 2000, 1000), (4000, 600, 300), (1500, 200, 100))
"""Characters of a message, a result and a call's arguments in a transcript, tried in this order."""
_CUT = "[… {omitted} characters left out]"
_CHARACTERS = 3
"""Characters per token, a low estimate."""


async def sum_up(
    sessions: SessionLog,
    inbound: InboundMessage,
    chosen: ChosenModel,
    entries: Sequence[Entry],
    *,
    room: float,
    focus: str,
) -> LLMResponse | None:
    """Ask the session's model for a summary; None if it refuses, hangs or says nothing.

    ``room`` is what the summary and ``entries`` may take, in tokens; the summary is made in the
    turn of ``inbound``, and its usage is counted with the entry that holds it. Raises
    ProviderError if the model cannot be reached: the conversation stays in view until it can.
    """
    tokens = int(_SHARE * room) - text_tokens(focus)
    messages = (
        SystemMessage(render.compaction_task()),
        UserMessage(render.compaction_request(transcript(entries, tokens), focus)),
    )
    request = ModelRequest(messages, (), chosen.model, chosen.max_tokens, chosen.temperature)
    log = logger.bind(session=inbound.session_key)
    try:
        async with asyncio.timeout(LIMIT_S):
            response = await chosen.provider.chat(request)
    except ProviderError as error:
        if not error.reached:
            raise
        log.warning("cannot sum up the conversation: {}", error)
        return None
    except TimeoutError:
        log.warning("no summary of the conversation within {:g} s", LIMIT_S)
        return None
    text = without_header(response.content).strip()
    model = response.model or chosen.model
    if not text:
        log.warning("the model's summary of the conversation is empty")
        if response.usage is not None:
            call = ModelCall(model, response.provider, response.usage)
            await sessions.spend(inbound.account, call)
        return None
    longest = max(int(LONGEST * room) * _CHARACTERS, 1000)
    return replace(response, content=head_and_tail(text, longest, _CUT), model=model)


def transcript(entries: Sequence[Entry], tokens: int) -> str:
    """A conversation as text of at most about ``tokens``; long results are shortened first."""
    for caps in _CAPS:
        text = "\n\n".join(filter(None, (_told(entry, *caps) for entry in entries)))
        if text_tokens(text) <= tokens:
            return text
    density = len(text) / text_tokens(text)
    return head_and_tail(text, int(0.9 * max(tokens, 100) * density), _CUT)


def _told(entry: Entry, message_cap: int, result_cap: int, call_cap: int) -> str:
    match entry.message:
        case ToolMessage(name=name, content=content):
            return f"[result of {name}]\n{_short(content, result_cap)}"
        case AssistantMessage(content=content, tool_calls=calls):
            lines = [f"[assistant]\n{_short(content, message_cap)}"] if content.strip() else []
            lines += [f"[calls {c.name}] {_short(c.arguments, call_cap)}" for c in calls]
            return "\n".join(lines)
        case UserMessage(content=content) if entry.kind is EntryKind.COMPACTED:
            return f"[earlier summary]\n{_short(content, 2 * message_cap)}"
        case UserMessage(content=content) if entry.kind is EntryKind.USER:
            return f"[person]\n{_short(content, message_cap)}"
        case UserMessage(content=content) if entry.kind is EntryKind.UNANSWERED:
            return content
    return ""


def _short(text: str, cap: int) -> str:
    return head_and_tail(text, cap, _CUT)
