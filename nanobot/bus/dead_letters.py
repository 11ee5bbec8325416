"""Dead letters: messages set aside after their attempts, kept for their owner."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from pydantic import ValidationError

from nanobot.bus.inbox import Pending, inbound_json, moment
from nanobot.bus.outbox import COLUMNS, Undelivered, undelivered_in
from nanobot.core.ports import Clock
from nanobot.core.text import one_line
from nanobot.store.database import Database

ALL = "all"
"""In a request, the name of all dead letters."""
_MOST_SHOWN = 1000
_TEXT_LENGTH = 80

Rows: TypeAlias = tuple[Pending | Undelivered, ...]
"""Rows of the inbox or the outbox that are new to whoever works on them."""
Commit: TypeAlias = Callable[[Callable[[sqlite3.Connection], Rows]], Awaitable[Rows]]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is not tried again unless the owner says so.

    ``box`` is ``in`` or ``out``; ``text`` is the beginning of its content, if readable.
    """

    box: str
    seq: int
    id: str
    session: str
    channel: str
    error: str
    at: datetime
    text: str = ""

    @property
    def handle(self) -> str:
        """Its name on the command line: ``in-12``."""
        return f"{self.box}-{self.seq}"


class DeadLetters:
    """Lists, retries and drops the dead letters of both boxes."""

    def __init__(
        self, database: Database, clock: Clock, commit: Commit, outbound_expiry: timedelta
    ) -> None:
        """``commit`` writes durably and announces the rows that the write returns."""
        self._database = database
        self._clock = clock
        self._commit = commit
        self._outbound_expiry = outbound_expiry

    async def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``{"do": "list" | "retry" | "drop", "names": [...]}``, as ``nanobot bus`` asks.

        A name is a dead letter's handle (``in-12``), its id, or ``all``. ``list`` returns the
        numbers of waiting messages and the dead letters; the others return the changed handles and
        the names that were refused, with the reason. Raises ValueError for anything else.
        """
        match request:
            case {"do": "list"}:
                return await self._listed()
            case {"do": "retry", "names": list(names)}:
                return await self._changed(self.retry, names, "it cannot be read; drop it")
            case {"do": "drop", "names": list(names)}:
                return await self._changed(self.drop, names, "it is no dead letter any more")
        raise ValueError(f"no request about dead letters: {request!r}")

    async def _listed(self) -> dict[str, Any]:
        def waiting(connection: sqlite3.Connection) -> dict[str, int]:
            return {box: count_in(connection, box, "pending") for box in ("inbox", "outbox")}

        return {
            "waiting": await self._database.read(waiting),
            "dead": [
                {
                    "name": letter.handle,
                    "id": letter.id,
                    "channel": letter.channel,
                    "session": letter.session,
                    "error": letter.error,
                    "at": letter.at.isoformat(),
                    "text": letter.text,
                }
                for letter in await self.newest(limit=_MOST_SHOWN)
            ],
        }

    async def _changed(
        self,
        change: Callable[[DeadLetter], Awaitable[bool]],
        names: Sequence[object],
        otherwise: str,
    ) -> dict[str, Any]:
        letters = await self.newest(limit=_MOST_SHOWN)
        known = {name: letter for letter in letters for name in (letter.id, letter.handle)}
        wanted: list[DeadLetter] = letters[::-1] if ALL in names else []
        refused: dict[str, str] = {}
        for name in map(str, names):
            if name in known:
                wanted.append(known[name])
            elif name != ALL:
                refused[name] = "there is no such dead letter"
        changed = []
        for letter in dict.fromkeys(wanted):  # in order, each once
            if await change(letter):
                changed.append(letter.handle)
            else:
                refused[letter.handle] = otherwise
        return {"changed": changed, "refused": refused}

    async def newest(self, *, limit: int = 100) -> list[DeadLetter]:
        """The newest dead letters of both boxes, the newest first."""

        def read(connection: sqlite3.Connection) -> list[DeadLetter]:
            rows = connection.execute(
                "SELECT 'in', seq, id, session, channel, error, "
                "coalesce(settled_at, received_at) AS at, payload FROM inbox "
                "WHERE state = 'dead' "
                "UNION ALL SELECT 'out', seq, id, session, channel, error, "
                "coalesce(settled_at, created_at) AS at, payload FROM outbox "
                "WHERE state = 'dead' ORDER BY at DESC LIMIT ?",
                (limit,),
            )
            return [
                DeadLetter(box, seq, id_, session, channel, error or "", moment(at), _text(payload))
                for box, seq, id_, session, channel, error, at, payload in rows
            ]

        return await self._database.read(read)

    async def retry(self, letter: DeadLetter) -> bool:
        """Make a dead letter wait again, with all its attempts.

        Returns False when it cannot be read, or is no dead letter any more.
        """
        revive = self._revived_inbound if letter.box == "in" else self._revived_outbound

        def write(connection: sqlite3.Connection) -> Rows:
            try:
                return revive(connection, letter.seq)
            except ValidationError:
                return ()

        return bool(await self._commit(write))

    def _revived_inbound(self, connection: sqlite3.Connection, seq: int) -> Rows:
        row = connection.execute(
            "SELECT payload FROM inbox WHERE seq = ? AND state = 'dead'", (seq,)
        ).fetchone()
        if row is None:
            return ()
        message = inbound_json().validate_json(row[0])
        connection.execute(
            "UPDATE inbox SET state = 'pending', attempts = 0, not_before = NULL, told = 0, "
            "error = NULL, settled_at = NULL WHERE seq = ?",
            (seq,),
        )
        return (Pending(message, seq=seq, retried=True),)

    def _revived_outbound(self, connection: sqlite3.Connection, seq: int) -> Rows:
        row = connection.execute(
            f"SELECT {COLUMNS} FROM outbox WHERE seq = ? AND state = 'dead'", (seq,)
        ).fetchone()
        if row is None:
            return ()
        found = undelivered_in(connection, row)
        expires = self._clock() + self._outbound_expiry
        connection.execute(
            "UPDATE outbox SET state = 'pending', attempts = 0, not_before = NULL, "
            "error = NULL, settled_at = NULL, expires_at = ? WHERE seq = ?",
            (expires.timestamp(), seq),
        )
        return (replace(found, attempts=0, not_before=None, expires_at=expires, retried=True),)

    async def drop(self, letter: DeadLetter) -> bool:
        """Forget a dead letter; False when it is none any more. Its id stays known."""
        now = self._clock().timestamp()
        box = "inbox" if letter.box == "in" else "outbox"
        return await self._database.write(
            lambda connection: (
                connection.execute(
                    f"UPDATE {box} SET state = 'dropped', settled_at = ? "
                    "WHERE seq = ? AND state = 'dead'",
                    (now, letter.seq),
                ).rowcount
                > 0
            ),
            durable=True,
        )


def count_in(connection: sqlite3.Connection, box: str, state: str) -> int:
    """How many rows of ``box`` (``inbox`` or ``outbox``) are in a state."""
    row = connection.execute(f"SELECT count(*) FROM {box} WHERE state = ?", (state,)).fetchone()
    return int(row[0])


def _text(payload: str) -> str:
    """The beginning of a stored message's content, in a line; "" when it cannot be read."""
    try:
        content = json.loads(payload)["content"]
    except (ValueError, KeyError, TypeError):
        return ""
    return one_line(content, _TEXT_LENGTH) if isinstance(content, str) else ""
