"""Who asked, and how far content is to be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
