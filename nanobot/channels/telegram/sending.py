"""Sending to Telegram: payloads, spacing, refusals and the typing indicator."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath
from typing import Any

from loguru import logger
from pydantic import TypeAdapter

from nanobot.channels.markdown import to_pieces
from nanobot.channels.telegram.connections import (
    CallFailed,
    Connections,
    Limits,
    NoAnswer,
    NotSent,
    Refusal,
    Time,
)
from nanobot.channels.text import MESSAGE_LIMIT, Entity, utf16_length
from nanobot.core.errors import ChannelError, ChannelRetryLater, Undeliverable
from nanobot.core.messages import InboundMessage, OutboundMessage
from nanobot.core.text import one_line

REPETITION = "↻ (may be a repetition)\n"
"""Before a message that may have arrived already; every message leaves room for it."""

_LIMIT = MESSAGE_LIMIT - utf16_length(REPETITION)


@dataclass(frozen=True, slots=True)
class Payload:
    """One message; ``first`` is the one that carries the reply to the asker's message."""

    text: str
    entities: tuple[Entity, ...] = ()
    first: bool = False

    def marked(self) -> Payload:
        """The same with the mark of a possible repetition at its start."""
        shift = utf16_length(REPETITION)
        entities = tuple(replace(entity, offset=entity.offset + shift) for entity in self.entities)
        return Payload(REPETITION + self.text, entities, self.first)

    def to_json(self) -> str:
        """The row in the outbox."""
        return _payloads().dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str) -> Payload:
        """Read what ``to_json`` wrote; raises ValueError on anything else."""
        return _payloads().validate_json(text)


def payloads(outbound: OutboundMessage) -> tuple[str, ...]:
    """The messages an outbound is sent in, as JSON; none when it shows nothing."""
    names = [one_line(media.name or PurePath(media.ref).name, 100) for media in outbound.media]
    missing = [
        f"[a file was not sent, since files are not supported yet: {name}]" for name in names
    ]
    markdown = "\n\n".join([outbound.content, *missing])
    return tuple(
        Payload(piece.text, piece.entities, number == 0).to_json()
        for number, piece in enumerate(to_pieces(markdown, _LIMIT))
    )


@cache
def _payloads() -> TypeAdapter[Payload]:
    return TypeAdapter(Payload)


REMEMBERED = 1000
"""Chats beyond which those that need no spacing any more are forgotten."""

# Refusals that have nothing to do with the formatting: plain text would be refused as well.
_HOPELESS = re.compile(
    r"chat not found|user not found|PEER_ID_INVALID|deactivated|blocked|kicked|not a member"
    r"|too long|TOO_LONG|is empty|rights|FORBIDDEN|TOPIC|thread not found|upgraded",
    re.IGNORECASE,
)


class Sender:
    """Sends each payload once, spaced per chat; the delivery worker owns the retries."""

    def __init__(self, connections: Connections, limits: Limits, time: Time) -> None:
        self._connections = connections
        self._limits = limits
        self._time = time
        self._due: dict[str, float] = {}

    async def send(self, outbound: OutboundMessage, piece: str, *, again: bool) -> str:
        """Send a piece and return its message id; raises ChannelRetryLater or Undeliverable."""
        try:
            payload = Payload.from_json(piece)
        except ValueError as error:
            raise Undeliverable("what was to be sent cannot be read any more") from error
        if again:
            payload = payload.marked()
        await self._spaced(outbound.chat_id)
        try:
            return await self._post(outbound, payload)
        except CallFailed as error:
            raise _meaning(error) from error

    async def _spaced(self, chat_id: str) -> None:
        """Wait for the chat's leaky bucket (the generic cell rate algorithm)."""
        now = self._time.monotonic()
        earliest = now - (self._limits.chat_burst - 1) * self._limits.chat_every_s
        due = max(self._due.get(chat_id, -math.inf), earliest)
        self._due[chat_id] = due + self._limits.chat_every_s
        if len(self._due) > REMEMBERED:
            self._due = {chat: due for chat, due in self._due.items() if due > earliest}
        if due > now:
            await self._time.sleep(due - now)

    async def _post(self, outbound: OutboundMessage, payload: Payload) -> str:
        params, limit_s = _params(outbound, payload), self._limits.call_s
        try:
            result = await self._connections.call("sendMessage", params, limit_s=limit_s)
        except Refusal as error:
            if error.code != 400 or not payload.entities or _HOPELESS.search(str(error)):
                raise
            logger.bind(outbound=outbound.id).warning(
                "telegram refuses the formatting of a message, which goes out plain: {}", error
            )
            plain = params | {"entities": None}
            result = await self._connections.call("sendMessage", plain, limit_s=limit_s)
        try:
            return str(int(result["message_id"]))
        except (TypeError, KeyError, ValueError) as error:
            raise NoAnswer("the server's answer names no message") from error


def _params(outbound: OutboundMessage, payload: Payload) -> dict[str, Any]:
    """The parameters of ``sendMessage``; None is left out."""
    reply = None
    if payload.first and outbound.reply_to is not None and outbound.reply_to.isdecimal():
        reply = {"message_id": int(outbound.reply_to), "allow_sending_without_reply": True}
    return {
        "chat_id": outbound.chat_id,
        "message_thread_id": outbound.thread_id,
        "text": payload.text,
        "entities": [_entity(entity) for entity in payload.entities] or None,
        "link_preview_options": {"is_disabled": True},
        "reply_parameters": reply,
    }


def _entity(entity: Entity) -> dict[str, Any]:
    """An entity as the Bot API's ``MessageEntity``."""
    fields = {
        "type": entity.kind.value,
        "offset": entity.offset,
        "length": entity.length,
        "url": entity.url,
        "language": entity.language,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _meaning(error: CallFailed) -> ChannelError:
    """A failed call as what the delivery worker is to do about the message."""
    text = str(error)
    match error:
        case NotSent():
            return ChannelRetryLater(text)
        case Refusal() if error.code == 429:
            return ChannelRetryLater(text, after=error.after)
        case Refusal() if error.is_of_token:
            return ChannelRetryLater(f"the token is refused: {text}", after=60.0)
        case Refusal() if error.is_of_server:
            return ChannelRetryLater(text, after=error.after, maybe_sent=True)
        case Refusal() if error.code in (400, 403, 413):
            return Undeliverable(text)
        case Refusal():
            return ChannelRetryLater(text, after=error.after)
    return ChannelRetryLater(text, maybe_sent=True)


@dataclass(frozen=True, slots=True)
class _Typing:
    """A typing indicator that is on: for which message, until when, and its task."""

    inbound: InboundMessage
    until: float
    task: asyncio.Task[None]


class TypingIndicator:
    """Shows "typing" in the chat of each turn; failures are not reported."""

    def __init__(self, connections: Connections, limits: Limits, time: Time) -> None:
        self._connections = connections
        self._limits = limits
        self._time = time
        self._shown: dict[str, _Typing] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, inbound: InboundMessage) -> None:
        """Show it while a turn works on ``inbound``, at most for the longest time allowed."""
        self.end(inbound.id)
        until = self._time.monotonic() + self._limits.typing_most_s
        self._start(inbound, until, delay_s=0.0)

    def end(self, inbound_id: str) -> None:
        """Stop renewing it; harmless when it is not shown."""
        shown = self._shown.pop(inbound_id, None)
        if shown is not None:
            shown.task.cancel()

    def hold(self, chat_id: str) -> None:
        """Pause before a message to a chat, which ends the indicator on the platform.

        A call under way could arrive after the message and outlive the turn. If the turn goes on,
        the indicator comes back with the next renewal.
        """
        for shown in list(self._shown.values()):
            if shown.inbound.chat_id == chat_id:
                shown.task.cancel()
                self._start(shown.inbound, shown.until, delay_s=self._limits.typing_every_s)

    async def aclose(self) -> None:
        """Stop all of them."""
        for inbound_id in list(self._shown):
            self.end(inbound_id)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, inbound: InboundMessage, until: float, *, delay_s: float) -> None:
        renewing = self._renew(inbound, until, delay_s)
        task = asyncio.create_task(renewing, name=f"typing for {inbound.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._shown[inbound.id] = _Typing(inbound, until, task)

    async def _renew(self, inbound: InboundMessage, until: float, delay_s: float) -> None:
        params = {
            "chat_id": inbound.chat_id,
            "message_thread_id": inbound.thread_id,
            "action": "typing",
        }
        every_s = self._limits.typing_every_s
        if delay_s:
            await self._time.sleep(delay_s)
        while self._time.monotonic() < until:
            wait_s = every_s
            try:
                await self._connections.call("sendChatAction", params, limit_s=every_s)
            except CallFailed as error:
                logger.debug("telegram: no typing indicator: {}", error)
                if isinstance(error, Refusal) and error.after is not None:
                    wait_s = max(error.after, every_s)
            await self._time.sleep(wait_s)
