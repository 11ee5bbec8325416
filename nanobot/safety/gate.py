"""The gate of a channel: decides who is let in, before anything is built from their message."""

from __future__ import annotations

from collections.abc import Iterable

from nanobot.core.messages import Role

EVERYBODY = "*"


class Gate:
    """Decides by the platform's stable id; ``@name`` entries match a username, ``*`` everybody.

    Nobody is let in by default. Those listed are owners; those let in by ``*`` alone are guests.
    A bare name in the list matches nobody: usernames change hands and may look like an id.
    """

    def __init__(self, allow_from: Iterable[str]) -> None:
        entries = [entry.strip() for entry in allow_from]
        self._ids = frozenset(entry for entry in entries if not entry.startswith("@"))
        self._names = frozenset(
            entry[1:].lower() for entry in entries if entry.startswith("@") and len(entry) > 1
        )
        self._everybody = EVERYBODY in entries

    def role_of(self, sender_id: str, username: str = "") -> Role | None:
        """The role of a sender; None for an unknown one."""
        if sender_id != EVERYBODY and sender_id in self._ids:
            return Role.OWNER
        if username and username.lower() in self._names:
            return Role.OWNER
        return Role.GUEST if self._everybody else None
