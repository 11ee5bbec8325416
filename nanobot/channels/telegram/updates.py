"""One raw update of the Bot API, read into an inbound message.

The gate is asked as soon as the sender's id is known; of a stranger's message nothing else is
looked at. Only private chats are served.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from loguru import logger
from pydantic import ValidationError

from nanobot.bus.bus import Poison
from nanobot.channels.telegram.objects import Address, Envelope, Message, Update
from nanobot.channels.telegram.wording import wording
from nanobot.core.identity import Role, Trust
from nanobot.core.messages import InboundMessage
from nanobot.core.text import one_line
from nanobot.safety.gate import Gate

CHANNEL = "telegram"

ALLOWED_UPDATES = ("message",)
"""What the server is asked for; updates queued before it was asked may be of any kind."""

TurnedAway: TypeAlias = Callable[[str, str], None]
"""Hears the id and the username of a stranger who wrote in a private chat."""


@dataclass(frozen=True, slots=True)
class Me:
    """The bot itself, as ``getMe`` names it."""

    id: int
    username: str


class Reader:
    """Reads the updates of one bot."""

    def __init__(self, me: Me, gate: Gate, turned_away: TurnedAway) -> None:
        self._me = me
        self._gate = gate
        self._turned_away = turned_away

    def read(self, entry: object) -> InboundMessage | Poison | None:
        """An inbound, or the entry kept raw if it is malformed, or None for what is not served."""
        try:
            return self._read(entry)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'update'}: {problem['msg']}"
                for problem in error.errors(include_url=False, include_input=False)
            )
            poison = self._poison(entry, one_line(problems, 300))
            logger.warning("telegram: {} is malformed, now a dead letter: {}", poison.id, problems)
            return poison
        except Exception as error:
            # A defect of ours in one update must not keep the channel from all that follow.
            poison = self._poison(entry, one_line(repr(error), 300))
            logger.exception("telegram: {} failed, now a dead letter", poison.id)
            return poison

    def _read(self, entry: object) -> InboundMessage | None:
        update = Update.model_validate(entry)
        raw = update.message
        if raw is None or Address.model_validate(raw).chat.type != "private":
            return None
        sender = Envelope.model_validate(raw).sender
        role = self._gate.role_of(str(sender.id), sender.username)
        if role is None:
            self._turned_away(str(sender.id), sender.username)
            return None
        return self._inbound(update.update_id, raw, role)

    def _inbound(self, number: int, raw: Mapping[str, Any], role: Role) -> InboundMessage | None:
        message = Message.model_validate(raw)
        words = wording(message, self._me.id)
        if words is None:
            return None
        return InboundMessage(
            CHANNEL,
            str(message.sender.id),
            str(message.chat.id),
            words.text,
            id=f"{CHANNEL}:{self._me.id}:{number}",
            thread_id=None if message.topic is None else str(message.topic),
            message_id=str(message.message_id),
            sender_name=message.sender.name,
            username=message.sender.username,
            sent_at=datetime.fromtimestamp(message.date, UTC),
            role=role,
            trust=Trust.UNTRUSTED if words.is_from_elsewhere else Trust.TRUSTED,
        )

    def _poison(self, entry: object, error: str) -> Poison:
        raw = json.dumps(entry)
        number = update_id(entry)
        if number is None:
            name = f"unreadable:{hashlib.sha256(raw.encode()).hexdigest()[:16]}"
        else:
            name = str(number)
        return Poison(f"{CHANNEL}:{self._me.id}:{name}", CHANNEL, raw, error)


def update_id(entry: object) -> int | None:
    """An update's id, whatever the rest of it may be; None when it has none."""
    number = entry.get("update_id") if isinstance(entry, dict) else None
    return number if type(number) is int and 0 <= number < 2**63 else None
