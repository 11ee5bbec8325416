"""Sending to Telegram: payloads, pace, refusals and the typing indicator."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath
from typing import Any, TypeAlias

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
)
from nanobot.channels.text import MESSAGE_LIMIT, Entity, utf16_length
from nanobot.core.errors import ChannelError, ChannelRetryLater, Undeliverable
from nanobot.core.messages import Media, OutboundMessage
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
    missing = [
        f"[a file was not sent, since files are not supported yet: {_name(media)}]"
        for media in outbound.media
    ]
    markdown = "\n\n".join([outbound.content, *missing])
    return tuple(
        Payload(piece.text, piece.entities, number == 0).to_json()
        for number, piece in enumerate(to_pieces(markdown, _LIMIT))
    )


def _name(media: Media) -> str:
    return one_line(media.name or PurePath(media.ref).name, 100)


@cache
def _payloads() -> TypeAdapter[Payload]:
    return TypeAdapter(Payload)


Sleep: TypeAlias = Callable[[float], Awaitable[None]]

REMEMBERED = 1000
"""Chats beyond which those that need no spacing any more are forgotten."""


class Pacer:
    """A leaky bucket a chat (the generic cell rate algorithm)."""

    def __init__(
        self, *, burst: int, every_s: float, monotonic: Callable[[], float], sleep: Sleep
    ) -> None:
        self._lead = (burst - 1) * every_s
        self._every_s = every_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._due: dict[str, float] = {}

    async def wait(self, chat_id: str) -> None:
        """Return when the next message of a chat may go."""
        now = self._monotonic()
        due = max(self._due.get(chat_id, -math.inf), now - self._lead)
        self._due[chat_id] = due + self._every_s
        if len(self._due) > REMEMBERED:
            self._due = {chat: due for chat, due in self._due.items() if due > now - self._lead}
        if due > now:
            await self._sleep(due - now)


@dataclass(frozen=True, slots=True)
class _Shown:
    """An indicator that is on: where, until when, and the task that renews it."""

    chat_id: str
    thread_id: str | None
    until: float
    task: asyncio.Task[None]


class TypingIndicator:
    """One task for each turn; what it fails to show is not worth a word."""

    def __init__(
        self,
        connections: Connections,
        limits: Limits,
        *,
        monotonic: Callable[[], float],
        sleep: Sleep,
    ) -> None:
        self._connections = connections
        self._limits = limits
        self._monotonic = monotonic
        self._sleep = sleep
        self._shown: dict[str, _Shown] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, turn: str, chat_id: str, thread_id: str | None) -> None:
        """Show it for a turn, until ``end`` or for the longest time allowed."""
        self.end(turn)
        until = self._monotonic() + self._limits.typing_most_s
        self._start(turn, chat_id, thread_id, until, delay_s=0.0)

    def end(self, turn: str) -> None:
        """Stop renewing it for a turn; doing so twice is doing it once."""
        shown = self._shown.pop(turn, None)
        if shown is not None:
            shown.task.cancel()

    def hold(self, chat_id: str) -> None:
        """Make way for a message, which ends the indicator on the platform.

        An action under way could arrive after the message and outlive the turn. If the turn goes
        on, the indicator comes back with the next renewal.
        """
        for turn, shown in list(self._shown.items()):
            if shown.chat_id == chat_id:
                self.end(turn)
                delay_s = self._limits.typing_every_s
                self._start(turn, chat_id, shown.thread_id, shown.until, delay_s=delay_s)

    async def aclose(self) -> None:
        """Stop all of them."""
        for turn in list(self._shown):
            self.end(turn)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(
        self, turn: str, chat_id: str, thread_id: str | None, until: float, *, delay_s: float
    ) -> None:
        task = asyncio.create_task(
            self._renew(chat_id, thread_id, until, delay_s), name=f"typing for {turn}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._over)
        self._shown[turn] = _Shown(chat_id, thread_id, until, task)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("telegram: the typing indicator failed")

    async def _renew(
        self, chat_id: str, thread_id: str | None, until: float, delay_s: float
    ) -> None:
        params = {"chat_id": chat_id, "message_thread_id": thread_id, "action": "typing"}
        every_s = self._limits.typing_every_s
        if delay_s:
            await self._sleep(delay_s)
        while self._monotonic() < until:
            wait_s = every_s
            try:
                await self._connections.call("sendChatAction", params, limit_s=every_s)
            except CallFailed as error:
                logger.debug("telegram: no typing indicator: {}", error)
                if isinstance(error, Refusal) and error.after is not None:
                    wait_s = max(error.after, every_s)
            await self._sleep(wait_s)


# Refusals that have nothing to do with the formatting; sending it plain could not help.
_HOPELESS = re.compile(
    r"chat not found|user not found|PEER_ID_INVALID|deactivated|blocked|kicked|not a member"
    r"|too long|TOO_LONG|is empty|rights|FORBIDDEN|TOPIC|thread not found|upgraded",
    re.IGNORECASE,
)


class Sender:
    """Sends payloads, once each: the delivery worker owns the retries."""

    def __init__(self, connections: Connections, limits: Limits, pacer: Pacer) -> None:
        self._connections = connections
        self._limits = limits
        self._pacer = pacer

    async def send(self, outbound: OutboundMessage, piece: str, *, again: bool) -> str:
        """Send a piece and return its message id; raises ChannelRetryLater or Undeliverable."""
        try:
            payload = Payload.from_json(piece)
        except ValueError as error:
            raise Undeliverable("what was to be sent cannot be read any more") from error
        if again:
            payload = payload.marked()
        await self._pacer.wait(outbound.chat_id)
        try:
            return await self._post(outbound, payload)
        except CallFailed as error:
            raise _meaning(error) from error

    async def _post(self, outbound: OutboundMessage, payload: Payload) -> str:
        params = _params(outbound, payload)
        try:
            result = await self._call(params)
        except Refusal as error:
            if error.code != 400 or not payload.entities or _HOPELESS.search(str(error)):
                raise
            logger.bind(outbound=outbound.id).warning(
                "telegram refuses the formatting of a message, which goes out plain: {}", error
            )
            result = await self._call(params | {"entities": None})
        try:
            return str(int(result["message_id"]))
        except (TypeError, KeyError, ValueError) as error:
            raise NoAnswer("the server's answer names no message") from error

    async def _call(self, params: dict[str, Any]) -> Any:
        return await self._connections.call("sendMessage", params, limit_s=self._limits.send_s)


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
    fields: dict[str, Any] = {
        "type": entity.kind.value,
        "offset": entity.offset,
        "length": entity.length,
    }
    if entity.url is not None:
        fields["url"] = entity.url
    if entity.language is not None:
        fields["language"] = entity.language
    return fields


def _meaning(error: CallFailed) -> ChannelError:
    """What a failed call means for the message."""
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
