"""Has a model sum up older conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from loguru import logger

from nanobot.core.chat import (
    AssistantMessage,
    ModelRequest,
    SystemMessage,
    ToolMessage,
    Usage,
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
"""Seconds that a summary may take; somebody waits for the answer behind it."""
LONGEST = 0.2
"""The share of the room that a summary may take."""
_SHARE = 0.75
"""The share of the room that the transcript may take; it goes without the tools' schemas."""

_CAPS = ((8000, 2000, 1000), (4000, 600, 300), (1500, 200, 100))
"""Characters of a message, a result and a call's arguments in a transcript, tried in this order."""
_CUT = "[… {omitted} characters left out]"
_CHARACTERS = 3
"""Characters of a token, rather too few."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a model made of a conversation; ``text`` is "" when it could not.

    ``usage`` is what it took, to be counted with the entry that holds it.
    """

    text: str = ""
    model: str = ""
    provider: str = ""
    usage: Usage | None = None


class Compactor:
    """Asks the session's own model for summaries; it changes nothing."""

    def __init__(self, sessions: SessionLog, *, limit_s: float = LIMIT_S) -> None:
        self._sessions = sessions
        self._limit_s = limit_s

    async def sum_up(
        self,
        inbound: InboundMessage,
        chosen: ChosenModel,
        entries: Sequence[Entry],
        *,
        room: float,
        focus: str,
    ) -> Summary:
        """The summary of ``entries``; ``room`` is what it and they may take, in tokens.

        A model that refuses, hangs or says nothing gives an empty one. What an empty one took is
        counted here. ``inbound`` is what the summary is made for. Raises ProviderError where the
        model cannot be reached: what was said stays in view until it can.
        """
        task = render.compaction_task()
        tokens = int(_SHARE * room) - text_tokens(focus)
        messages = (
            SystemMessage(task),
            UserMessage(render.compaction_request(transcript(entries, tokens), focus)),
        )
        log = logger.bind(session=inbound.session_key)
        try:
            async with asyncio.timeout(self._limit_s):
                request = ModelRequest(
                    messages, (), chosen.model, chosen.max_tokens, chosen.temperature
                )
                response = await chosen.provider.chat(request)
        except ProviderError as error:
            if not error.reached:
                raise
            log.warning("the conversation could not be summed up: {}", error)
            return Summary()
        except TimeoutError:
            log.warning("the conversation was not summed up within {:g} s", self._limit_s)
            return Summary()
        text = without_header(response.content).strip()
        model = response.model or chosen.model
        if not text and response.usage is not None:
            log.warning("the model summed the conversation up as nothing")
            await self._sessions.spend(
                inbound.account, ModelCall(model, response.provider, response.usage)
            )
            return Summary()
        longest = max(int(LONGEST * room) * _CHARACTERS, 1000)
        return Summary(head_and_tail(text, longest, _CUT), model, response.provider, response.usage)


def transcript(entries: Sequence[Entry], tokens: int) -> str:
    """A conversation as text of about ``tokens`` at most, long results shortened first."""
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
