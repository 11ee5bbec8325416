"""What a message of the Bot API says, in words: its text, notes on the rest, what it quotes."""

from __future__ import annotations

from dataclasses import dataclass

from nanobot.channels.telegram.objects import Content, Message, Replied
from nanobot.core.text import one_line

LONGEST_QUOTE = 500

# In the order in which they are looked for: an animation carries a document, too.
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

# What the platform says in a private chat by itself; nobody waits for an answer to it.
_SERVICE = frozenset(
    {
        "boost_added",
        "chat_background_set",
        "chat_shared",
        "checklist_tasks_added",
        "checklist_tasks_done",
        "connected_website",
        "forum_topic_closed",
        "forum_topic_created",
        "forum_topic_edited",
        "forum_topic_reopened",
        "gift",
        "gift_upgrade_sent",
        "giveaway",
        "giveaway_completed",
        "giveaway_created",
        "giveaway_winners",
        "message_auto_delete_timer_changed",
        "passport_data",
        "pinned_message",
        "proximity_alert_triggered",
        "refunded_payment",
        "successful_payment",
        "suggested_post_approval_failed",
        "suggested_post_approved",
        "suggested_post_declined",
        "suggested_post_paid",
        "suggested_post_refunded",
        "unique_gift",
        "users_shared",
        "web_app_data",
        "write_access_allowed",
    }
)


@dataclass(frozen=True, slots=True)
class Wording:
    """A message in words; ``is_from_elsewhere``: some of them are not the sender's own."""

    text: str
    is_from_elsewhere: bool


def wording(message: Message, bot_id: int) -> Wording | None:
    """What a message says; None when the platform says it and not a person."""
    body = _body(message)
    if body is None:
        return None
    if message.forward_origin is not None:
        return Wording(f"[Forwarded from {message.forward_origin.name}]\n{body}", True)
    # A line before it would hide a command.
    quote = None if body.startswith("/") else _quote(message, bot_id)
    if quote is None:
        return Wording(body, message.is_from_elsewhere)
    return Wording(f"{quote.text}\n{body}", message.is_from_elsewhere or quote.is_from_elsewhere)


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
    kinds = message.kinds
    for kind, note in _UNSUPPORTED.items():
        if kind in kinds:
            return note
    return None if kinds & _SERVICE else _UNKNOWN


def _quote(message: Message, bot_id: int) -> Wording | None:
    """A line with what a message replies to."""
    replied = message.reply_to_message
    if replied is None:
        if message.quote is None:
            return None
        text = one_line(message.quote.text, LONGEST_QUOTE)
        return Wording(f'[Replying to a message from elsewhere: "{text}"]', True)
    words = message.quote.text if message.quote is not None else replied.text or replied.caption
    if not words:
        note = _note(replied)
        # Each message of a topic "replies" to the service message that opened it.
        if note is None:
            return None
        words = note.partition(":")[0]
    author, is_known = _author(replied, message, bot_id)
    return Wording(
        f'[Replying to {author}: "{one_line(words, LONGEST_QUOTE)}"]',
        replied.is_from_elsewhere or not is_known,
    )


def _author(replied: Replied, message: Message, bot_id: int) -> tuple[str, bool]:
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
