"""Updates of the Bot API read into inbound messages."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from loguru import logger
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError

from nanobot.bus.inbox import Poison
from nanobot.channels.text import cleaned
from nanobot.core.messages import InboundMessage, Trust
from nanobot.core.ports import Clock
from nanobot.core.text import one_line
from nanobot.safety.gate import Gate

CHANNEL = "telegram"

ALLOWED_UPDATES = ("message",)
"""What the server is asked for; updates queued before it was asked may be of any kind."""

QUIET = timedelta(hours=1)
"""How long the log says nothing more of a sender who is not on the allow list."""
REMEMBERED = 1000
"""Unknown senders whose last line in the log is remembered."""

LONGEST_NAME = 64
LONGEST_QUOTE = 500


def _cleaned(value: object) -> object:
    # A lone surrogate could be stored nowhere.
    return cleaned(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_cleaned)]


class _Object(BaseModel):
    """A Bot API object, as far as it is read; the classes have the API's names."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class User(_Object):
    id: StrictInt
    first_name: Text = ""
    last_name: Text = ""
    username: Text = ""

    @property
    def name(self) -> str:
        return one_line(f"{self.first_name} {self.last_name}", LONGEST_NAME)


class Chat(_Object):
    id: StrictInt
    type: str
    title: Text = ""


class Update(_Object):
    """The message stays raw until its sender is let in."""

    update_id: StrictInt = Field(ge=0, lt=2**63)
    message: dict[str, Any] | None = None


class Address(_Object):
    """Of a ``Message``: where it was written."""

    chat: Chat


class Envelope(Address):
    """Of a ``Message``: where and by whom it was written."""

    sender: User = Field(alias="from")


class MessageOrigin(_Object):
    """Where a forwarded message comes from; one of the fields names its author."""

    sender_user: User | None = None
    sender_user_name: Text = ""
    sender_chat: Chat | None = None
    chat: Chat | None = None

    @property
    def name(self) -> str:
        user = self.sender_user.name if self.sender_user else self.sender_user_name
        chat = self.sender_chat or self.chat
        return one_line(user or (chat.title if chat else ""), LONGEST_NAME) or "somebody"


class Sticker(_Object):
    emoji: Text = ""


class Location(_Object):
    latitude: float
    longitude: float

    def __str__(self) -> str:
        return f"{self.latitude:.6f}, {self.longitude:.6f}"


class Venue(_Object):
    location: Location
    title: Text
    address: Text


class Contact(_Object):
    phone_number: Text
    first_name: Text = ""
    last_name: Text = ""


class TextQuote(_Object):
    """The part of a message that a reply is about."""

    text: Text


class Content(_Object):
    """Of a ``Message``: what it says. Its fields, also the unknown ones, tell its kind."""

    model_config = ConfigDict(extra="allow")

    text: Text = ""
    caption: Text = ""
    sticker: Sticker | None = None
    location: Location | None = None
    venue: Venue | None = None
    contact: Contact | None = None
    forward_origin: MessageOrigin | None = None
    via_bot: User | None = None

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether somebody other than the sender wrote the text."""
        return self.forward_origin is not None or self.via_bot is not None


class RepliedMessage(Content):
    """A ``Message`` that another one replies to."""

    message_id: StrictInt
    sender: User | None = Field(default=None, alias="from")


class Message(Envelope, Content):
    """A message in a private chat."""

    message_id: StrictInt
    date: StrictInt = Field(ge=0, lt=2**35)
    quote: TextQuote | None = None
    reply_to_message: RepliedMessage | None = None
    message_thread_id: StrictInt | None = None
    is_topic_message: bool = False


# The order matters: an animation carries a document, too.
_UNSUPPORTED = {
    "photo": "photo: pictures are not supported yet",
    "voice": "voice message: it cannot be listened to yet",
    "audio": "audio file: it cannot be listened to yet",
    "video_note": "video message: videos are not supported yet",
    "video": "video: videos are not supported yet",
    "animation": "animation: animations are not supported yet",
    "document": "file: files are not supported yet",
    "story": "story: stories are not supported",
    "paid_media": "paid media: they are not supported",
    "poll": "poll: polls are not supported",
    "checklist": "checklist: checklists are not supported",
    "dice": "dice: games are not supported",
    "game": "game: games are not supported",
    "invoice": "invoice: invoices are not supported",
}
_UNKNOWN = "a message of a kind that is not supported yet"

# Service messages of a private chat; nobody waits for an answer to one.
_SERVICE_KINDS = """
    boost_added chat_background_set chat_shared checklist_tasks_added checklist_tasks_done
    connected_website forum_topic_closed forum_topic_created forum_topic_edited
    forum_topic_reopened gift gift_upgrade_sent giveaway giveaway_completed giveaway_created
    giveaway_winners message_auto_delete_timer_changed passport_data pinned_message
    proximity_alert_triggered refunded_payment successful_payment suggested_post_approval_failed
    suggested_post_approved suggested_post_declined suggested_post_paid suggested_post_refunded
    unique_gift users_shared web_app_data write_access_allowed
"""
_SERVICE = frozenset(_SERVICE_KINDS.split())


@dataclass(frozen=True, slots=True)
class MessageText:
    """A message as text; ``is_from_elsewhere``: somebody else wrote part of it."""

    text: str
    is_from_elsewhere: bool


def message_text(message: Message, bot_id: int) -> MessageText | None:
    """The text for the model; None for a service message, which no person wrote."""
    body = _body(message)
    if body is None:
        return None
    if message.forward_origin is not None:
        return MessageText(f"[Forwarded from {message.forward_origin.name}]\n{body}", True)
    # A line before it would hide a command.
    quote = None if body.startswith("/") else _quote(message, bot_id)
    if quote is None:
        return MessageText(body, message.is_from_elsewhere)
    return MessageText(
        f"{quote.text}\n{body}", message.is_from_elsewhere or quote.is_from_elsewhere
    )


def _body(message: Content) -> str | None:
    if message.text:
        return message.text
    note = _note(message)
    if note is None:
        return None
    return f"[{note}]\n{message.caption}" if message.caption else f"[{note}]"


def _note(message: Content) -> str | None:
    """What a message holds that is not text; None for a service message."""
    if message.sticker is not None:
        return f"sticker: {message.sticker.emoji}" if message.sticker.emoji else "sticker"
    if message.venue is not None:
        venue = message.venue
        return f"location: {one_line(f'{venue.title}, {venue.address}')}, {venue.location}"
    if message.location is not None:
        return f"location: {message.location}"
    if message.contact is not None:
        contact = message.contact
        name = f"{contact.first_name} {contact.last_name}".strip()
        return f"contact: {one_line(f'{name}, {contact.phone_number}')}"
    kinds = message.model_fields_set | (message.model_extra or {}).keys()
    for kind, note in _UNSUPPORTED.items():
        if kind in kinds:
            return note
    return None if kinds & _SERVICE else _UNKNOWN


def _quote(message: Message, bot_id: int) -> MessageText | None:
    """A line with what a message replies to."""
    replied = message.reply_to_message
    if replied is None:
        if message.quote is None:
            return None
        text = one_line(message.quote.text, LONGEST_QUOTE)
        return MessageText(f'[Replying to a message from elsewhere: "{text}"]', True)
    words = message.quote.text if message.quote is not None else replied.text or replied.caption
    if not words:
        note = _note(replied)
        # Each message of a topic "replies" to the service message that opened it.
        if note is None:
            return None
        words = note.partition(":")[0]
    author, is_known = _author(replied, message, bot_id)
    return MessageText(
        f'[Replying to {author}: "{one_line(words, LONGEST_QUOTE)}"]',
        replied.is_from_elsewhere or not is_known,
    )


def _author(replied: RepliedMessage, message: Message, bot_id: int) -> tuple[str, bool]:
    """Whose message is replied to, and whether it is one of the two who talk."""
    if replied.forward_origin is not None:
        return f"a message forwarded from {replied.forward_origin.name}", False
    if replied.sender is None:
        return "a message", False
    if replied.sender.id == bot_id:
        return "your message", True
    if replied.sender.id == message.sender.id:
        return "their own message", True
    return f"a message of {replied.sender.name}", False


class Reader:
    """Reads the updates of one bot; logs each unknown sender at most once an hour."""

    def __init__(self, bot_id: int, gate: Gate, clock: Clock) -> None:
        self._bot_id = bot_id
        self._gate = gate
        self._clock = clock
        self._unknown: dict[int, tuple[datetime, int]] = {}

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
        if update.message is None or Address.model_validate(update.message).chat.type != "private":
            return None
        sender = Envelope.model_validate(update.message).sender
        role = self._gate.role_of(str(sender.id), sender.username)
        if role is None:
            self._log_unknown(sender)
            return None
        message = Message.model_validate(update.message)
        said = message_text(message, self._bot_id)
        if said is None:
            return None
        thread = message.message_thread_id if message.is_topic_message else None
        return InboundMessage(
            CHANNEL,
            str(sender.id),
            str(message.chat.id),
            said.text,
            id=f"{CHANNEL}:{self._bot_id}:{update.update_id}",
            thread_id=None if thread is None else str(thread),
            message_id=str(message.message_id),
            sender_name=sender.name,
            username=sender.username,
            sent_at=datetime.fromtimestamp(message.date, UTC),
            role=role,
            trust=Trust.UNTRUSTED if said.is_from_elsewhere else Trust.TRUSTED,
        )

    def _log_unknown(self, sender: User) -> None:
        now = self._clock()
        since, count = self._unknown.pop(sender.id, (None, 0))
        count += 1
        if since is None or now - since >= QUIET:
            logger.info(
                "telegram: ignored a stranger, id {}{} ({} message{}); "
                "to let them in, add the id to channels.telegram.allowFrom",
                sender.id,
                f" @{one_line(sender.username, 32)}" if sender.username else "",
                count,
                "" if count == 1 else "s",
            )
            since, count = now, 0
        self._unknown[sender.id] = (since, count)
        if len(self._unknown) > REMEMBERED:
            del self._unknown[next(iter(self._unknown))]

    def _poison(self, entry: object, error: str) -> Poison:
        raw = json.dumps(entry)
        number = update_id(entry)
        if number is None:
            name = f"unreadable:{hashlib.sha256(raw.encode()).hexdigest()[:16]}"
        else:
            name = str(number)
        return Poison(f"{CHANNEL}:{self._bot_id}:{name}", CHANNEL, raw, error)


def update_id(entry: object) -> int | None:
    """An update's id, whatever the rest of it may be; None when it has none."""
    number = entry.get("update_id") if isinstance(entry, dict) else None
    return number if type(number) is int and 0 <= number < 2**63 else None
