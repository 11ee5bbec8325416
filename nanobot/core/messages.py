"""Durable messages, the principal of a turn, and the trust of content."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar


class Role(StrEnum):
    """What a principal may do: an owner everything, a guest only converse."""

    OWNER = "owner"
    GUEST = "guest"


class Trust(StrEnum):
    """Whether content came from somebody let in or from outside."""

    TRUSTED = "trusted"
    UNTRUSTED = "untrusted"

    def joined(self, other: Trust) -> Trust:
        """The trust of content made from both: untrusted if either is."""
        return Trust.UNTRUSTED if Trust.UNTRUSTED in (self, other) else Trust.TRUSTED


class Origin(StrEnum):
    """What caused an inbound message."""

    USER = "user"
    CRON = "cron"
    HEARTBEAT = "heartbeat"
    SUBAGENT = "subagent"


@dataclass(frozen=True, slots=True)
class Principal:
    """The person on whose authority a turn runs; written ``role:channel:id`` in logs."""

    role: Role
    channel: str
    id: str

    def __str__(self) -> str:
        return f"{self.role}:{self.channel}:{self.id}"

    @property
    def is_owner(self) -> bool:
        return self.role is Role.OWNER

    @classmethod
    def parse(cls, text: str) -> Principal:
        """The inverse of ``str``; raises ValueError for any other text."""
        role, channel, identity = text.split(":", 2)
        return cls(Role(role), channel, identity)


def new_id(kind: str) -> str:
    """A random id for a message without a platform id, such as ``cli:9f1c…``."""
    return f"{kind}:{uuid.uuid4().hex}"


def session_key(channel: str, chat_id: str, thread_id: str | None = None) -> str:
    """The name of a conversation: ``channel:chat`` or ``channel:chat:thread``."""
    return f"{channel}:{chat_id}" if thread_id is None else f"{channel}:{chat_id}:{thread_id}"


def whole_key(name: str) -> str:
    """The key of the session that a person names; without a channel it is the terminal's."""
    return name if ":" in name else session_key("cli", name)


@dataclass(frozen=True, slots=True)
class Media:
    """One attachment. ``ref`` is a platform file id (``telegram:<file_id>``) or a local path."""

    kind: str
    ref: str
    name: str = ""
    mime: str = ""
    size: int | None = None


class AnswerKind(StrEnum):
    """What happens to the answer of a turn."""

    REPLY = "reply"
    REPLY_UNLESS_SILENT = "reply_unless_silent"
    REPORT = "report"
    NOTHING = "nothing"
    TERMINAL = "terminal"


class Unanswered(StrEnum):
    """Why a request got no answer: its user stopped it, its terminal closed, or it failed."""

    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AnswerRule:
    """What to do with the answer; stored with the inbound.

    ``reply`` sends it to ``channel``/``chat_id``/``thread_id`` (empty: the inbound's own);
    ``reply_unless_silent`` does so unless it is only the heartbeat's token; ``report`` posts it to
    the session that spawned the subagent; ``terminal`` hands it to the waiting client and closes
    the inbound as interrupted if that client is gone; ``nothing`` only records it. ``note``
    precedes the reply.
    """

    kind: AnswerKind = AnswerKind.REPLY
    channel: str = ""
    chat_id: str = ""
    thread_id: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ParentTurn:
    """The turn that spawned a subagent, as stored with the subagent's task and its report.

    ``inbound_id`` is the request of a person or service behind it; ``session``, ``profile``,
    ``answer`` and ``model`` are the parent turn's. ``generation`` is 1 for a subagent of such a
    request and grows by one with each report that led to another subagent.
    """

    label: str
    inbound_id: str
    session: str
    profile: str
    answer: AnswerRule
    model: str | None = None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """A message asking for the agent's attention, with a deterministic id.

    ``sender_id`` is the platform's stable id alone; ``sent_at`` is aware. ``session`` names the
    session where it is not ``channel:chat_id[:thread_id]`` (cron, subagents, ``agent -s``).
    ``profile`` names how the turn runs; ``model`` overrides the session's model for this turn.
    ``attended``: somebody sits at the terminal that asks and can see warnings. ``parent`` is
    set on a subagent's task and report.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = {
        "alias_generator": lambda name: "errand" if name == "parent" else name  # as stored
    }

    channel: str
    sender_id: str
    chat_id: str
    content: str
    media: tuple[Media, ...] = ()
    id: str = field(default_factory=lambda: new_id("inbound"), kw_only=True)
    thread_id: str | None = field(default=None, kw_only=True)
    message_id: str | None = field(default=None, kw_only=True)
    sender_name: str = field(default="", kw_only=True)
    username: str = field(default="", kw_only=True)
    is_group: bool = field(default=False, kw_only=True)
    sent_at: datetime | None = field(default=None, kw_only=True)
    origin: Origin = field(default=Origin.USER, kw_only=True)
    role: Role = field(default=Role.GUEST, kw_only=True)
    trust: Trust = field(default=Trust.TRUSTED, kw_only=True)
    profile: str = field(default="chat", kw_only=True)
    answer: AnswerRule = field(default=AnswerRule(), kw_only=True)
    session: str | None = field(default=None, kw_only=True)
    model: str | None = field(default=None, kw_only=True)
    attended: bool = field(default=False, kw_only=True)
    parent: ParentTurn | None = field(default=None, kw_only=True)

    @property
    def session_key(self) -> str:
        return self.session or session_key(self.channel, self.chat_id, self.thread_id)

    @property
    def account(self) -> str:
        """The session that pays for the turn."""
        return self.parent.session if self.parent else self.session_key

    @property
    def asked_by(self) -> str:
        """The id of the request that it helps to answer: its own, or a parent turn's."""
        return self.parent.inbound_id if self.parent else self.id

    @property
    def is_terminals(self) -> bool:
        """Whether only the terminal that asked can use the answer."""
        rule = self.parent.answer if self.parent else self.answer
        return rule.kind is AnswerKind.TERMINAL

    @property
    def principal(self) -> Principal:
        return Principal(self.role, self.channel, self.sender_id)


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A subagent's task that is waiting or running, and since when."""

    task: InboundMessage
    parent: ParentTurn
    since: datetime


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a message goes to a chat whose own turn did not write it.

    ``by`` names the cause for that chat's model (``the scheduled job “stars”``). ``words`` is the
    text without notes for the person; ``principal`` and ``trust`` are those of the words.
    """

    by: str
    principal: str
    words: str
    trust: Trust = Trust.TRUSTED


@dataclass(frozen=True, slots=True)
class OutboundMessage:
    """A message to be delivered to ``channel``/``chat_id``; ``content`` is Markdown.

    ``id`` is deterministic where recovery must know whether it exists already
    (``<inbound id>/answer``, ``<inbound id>/message/<call id>``). ``preview_id`` is the platform
    id of a streamed preview which the final text replaces. ``cause`` is set if no turn of the
    chat's own session wrote the message: queueing it also logs it in that session.
    """

    channel: str
    chat_id: str
    content: str
    reply_to: str | None = None
    media: tuple[Media, ...] = ()
    id: str = field(default_factory=lambda: new_id("outbound"), kw_only=True)
    thread_id: str | None = field(default=None, kw_only=True)
    session: str = field(default="", kw_only=True)
    inbound_id: str | None = field(default=None, kw_only=True)
    preview_id: str | None = field(default=None, kw_only=True)
    cause: Cause | None = field(default=None, kw_only=True)

    @property
    def chats_session(self) -> str:
        """The session of the destination chat."""
        return session_key(self.channel, self.chat_id, self.thread_id)
