"""Sending of one message, and what the Bot API's refusals mean for its delivery."""

from __future__ import annotations

import re
from typing import Any

from loguru import logger

from nanobot.channels.telegram.connections import Connections
from nanobot.channels.telegram.failures import CallFailed, NoAnswer, NotSent, Refusal
from nanobot.channels.telegram.limits import Limits
from nanobot.channels.telegram.pacing import Pacer
from nanobot.channels.telegram.payload import Payload
from nanobot.channels.text import Entity
from nanobot.core.errors import ChannelError, ChannelRetryLater, Undeliverable
from nanobot.core.messages import OutboundMessage

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
