"""The Bot API's objects, as far as they are used (Bot API 10.0; unknown fields are ignored)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt

from nanobot.channels.text import cleaned
from nanobot.core.text import one_line

LONGEST_NAME = 64


def _cleaned(value: object) -> object:
    # A lone surrogate could be stored nowhere.
    return cleaned(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_cleaned)]


class _Object(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class User(_Object):
    """``User``."""

    id: StrictInt
    first_name: Text = ""
    last_name: Text = ""
    username: Text = ""

    @property
    def name(self) -> str:
        return one_line(f"{self.first_name} {self.last_name}", LONGEST_NAME)


class Chat(_Object):
    """``Chat``."""

    id: StrictInt
    type: str
    title: Text = ""


class Update(_Object):
    """``Update``; the message stays raw until its sender is let in."""

    update_id: StrictInt = Field(ge=0, lt=2**63)
    message: dict[str, Any] | None = None


class Address(_Object):
    """Of a ``Message``: where it was written."""

    chat: Chat


class Envelope(Address):
    """Of a ``Message``: where and by whom it was written."""

    sender: User = Field(alias="from")


class Origin(_Object):
    """``MessageOrigin``; one of the fields names whoever wrote the original."""

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
    """``Sticker``."""

    emoji: Text = ""


class Location(_Object):
    """``Location``."""

    latitude: float
    longitude: float

    def __str__(self) -> str:
        return f"{self.latitude:.6f}, {self.longitude:.6f}"


class Venue(_Object):
    """``Venue``."""

    location: Location
    title: Text
    address: Text


class Contact(_Object):
    """``Contact``."""

    phone_number: Text
    first_name: Text = ""
    last_name: Text = ""


class TextQuote(_Object):
    """``TextQuote``: the part of a message that a reply is about."""

    text: Text


class Content(_Object):
    """Of a ``Message``: what it says."""

    model_config = ConfigDict(extra="allow")

    text: Text = ""
    caption: Text = ""
    sticker: Sticker | None = None
    location: Location | None = None
    venue: Venue | None = None
    contact: Contact | None = None
    forward_origin: Origin | None = None
    via_bot: User | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """The names of all fields the message has; its kind of content is one of them."""
        return frozenset(self.model_fields_set | (self.model_extra or {}).keys())

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether the words are not those of whoever sent the message."""
        return self.forward_origin is not None or self.via_bot is not None


class Replied(Content):
    """A ``Message`` that another one replies to."""

    message_id: StrictInt
    sender: User | None = Field(default=None, alias="from")


class Message(Content):
    """A ``Message`` in a private chat."""

    message_id: StrictInt
    chat: Chat
    sender: User = Field(alias="from")
    date: StrictInt = Field(ge=0, lt=2**35)
    quote: TextQuote | None = None
    reply_to_message: Replied | None = None
    message_thread_id: StrictInt | None = None
    is_topic_message: bool = False

    @property
    def topic(self) -> int | None:
        """The topic of the chat that the message is in."""
        return self.message_thread_id if self.is_topic_message else None
