"""Durable messages, who asked, and how far content is to be trusted."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar


class Role(StrEnum):
    """What a principal may do: the owner everything, a guest conversation only."""

    OWNER = "owner"
    GUEST = "guest"


class Trust(StrEnum):
    """Whether content came from someone let in, or from the world outside."""

    TRUSTED = "trusted"
    UNTRUSTED = "untrusted"

    def joined(self, other: Trust) -> Trust:
        """The trust of something made from both: untrusted wins."""
        return Trust.UNTRUSTED if Trust.UNTRUSTED in (self, other) else Trust.TRUSTED


class Origin(StrEnum):
    """What made an inbound message come about."""

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
        """Read what ``str`` wrote; raises ValueError on anything else."""
        role, channel, identity = text.split(":", 2)
        return cls(Role(role), channel, identity)


def new_id(kind: str) -> str:
    """A random id for a message that no platform has named yet, such as ``cli:9f1c…``."""
    return f"{kind}:{uuid.uuid4().hex}"


def session_key(channel: str, chat_id: str, thread_id: str | None = None) -> str:
    """The name of a conversation: ``channel:chat`` or ``channel:chat:thread``."""
    return f"{channel}:{chat_id}" if thread_id is None else f"{channel}:{chat_id}:{thread_id}"


def whole_key(name: str) -> str:
    """The session that a person names; without a channel it is one of the terminal."""
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
    """What becomes of the answer of a turn."""

    REPLY = "reply"
    REPLY_UNLESS_SILENT = "reply_unless_silent"
    REPORT = "report"
    NOTHING = "nothing"
    TERMINAL = "terminal"


class Unanswered(StrEnum):
    """How a request ended that got no answer: by its user, with its terminal, or by a failure."""

    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AnswerRule:
    """What to do with the answer, as data that is stored with the inbound.

    ``reply`` goes to ``channel``/``chat_id``/``thread_id`` (the inbound's own when empty);
    ``reply_unless_silent`` the same, unless the answer is only the heartbeat's token; ``report``
    posts it to the session that sent the subagent; ``terminal`` hands it to the waiting client,
    and an inbound whose client is gone is closed as interrupted; ``nothing`` only records it.
    ``note`` stands before what is replied.
    """

    kind: AnswerKind = AnswerKind.REPLY
    channel: str = ""
    chat_id: str = ""
    thread_id: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ParentTurn:
    """The turn that spawned a subagent, as stored with the subagent's task and its report.

    ``inbound_id`` is what somebody, or a service, had asked for by it; ``session``, ``profile``,
    ``answer`` and ``model`` are that turn's. ``generation`` is 1 for a subagent sent in a turn
    that no report began, and one more for each report between.
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
    set on a subagent's task and on the report about it.
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
        """The session that the turn's cost is counted to."""
        return self.parent.session if self.parent else self.session_key

    @property
    def asked_by(self) -> str:
        """The id of the inbound that it is part of the answer to: mostly its own."""
        return self.parent.inbound_id if self.parent else self.id

    @property
    def is_terminals(self) -> bool:
        """Whether it is of no use once the terminal that asked is gone."""
        rule = self.parent.answer if self.parent else self.answer
        return rule.kind is AnswerKind.TERMINAL

    @property
    def principal(self) -> Principal:
        return Principal(self.role, self.channel, self.sender_id)


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A subagent's task that has waited or been worked on since ``since``."""

    task: InboundMessage
    parent: ParentTurn
    since: datetime


@dataclass(frozen=True, slots=True)
class Cause:
    """What sent a message to a chat in which nobody had asked for it just then.

    ``by`` names it for the model of that chat (``the scheduled job “stars”``); ``principal`` and
    ``trust`` are those of the words. ``words`` is the text without what is for the person alone.
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
    id of a streamed preview which the final text replaces. ``cause`` stands on what no turn of
    the chat's own session wrote: it goes into the log of that session when it is queued.
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
        """The session of the chat that it goes to."""
        return session_key(self.channel, self.chat_id, self.thread_id)
