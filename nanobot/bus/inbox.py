"""The inbox: messages that wait for a turn."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache

from loguru import logger
from pydantic import TypeAdapter, ValidationError

from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage, OpenTask, Origin, Role
from nanobot.core.ports import Clock
from nanobot.store.database import Database


@dataclass(frozen=True, slots=True)
class Pending:
    """An inbound that waits in the inbox; ``attempts`` counts the turns that it made fail.

    It is not tried before ``not_before``. ``told``: no model could be reached, and its asker knows
    that it waits for one. ``retried``: it was a dead letter, so that its place ``seq`` is an old
    one. ``outages`` counts how often this process found no model for it. From ``mail_from`` on, a
    new message of its session is a reason to try earlier; None: never.
    """

    message: InboundMessage
    attempts: int = 0
    not_before: datetime | None = None
    told: bool = False
    seq: int = 0
    retried: bool = False
    outages: int = 0
    mail_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class Poison:
    """An update that no message could be made of, kept raw as a dead letter."""

    id: str
    channel: str
    raw: str
    error: str


class Inbox:
    """Reads the inbox and keeps the attempts at each message."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def sessions_waiting(self) -> list[str]:
        """The sessions for which something waits in the inbox."""
        return await self._database.read(
            lambda connection: [
                row[0]
                for row in connection.execute(
                    "SELECT session FROM inbox WHERE state = 'pending' "
                    "GROUP BY session ORDER BY min(seq)"
                )
            ]
        )

    async def pending(
        self, session: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[Pending]:
        """A page of what waits in the inbox, of one session or of all, in order of arrival.

        Empty when nothing follows. Rows that cannot be read become dead letters.
        """
        while True:
            rows = await self._database.read(
                lambda connection, after=after: connection.execute(  # type: ignore[misc]
                    "SELECT seq, payload, attempts, not_before, told FROM inbox "
                    "WHERE state = 'pending' AND seq > ? AND session = coalesce(?, session) "
                    "ORDER BY seq LIMIT ?",
                    (after, session, limit),
                ).fetchall()
            )
            page: list[Pending] = []
            for seq, payload, attempts, not_before, told in rows:
                after = seq
                try:
                    message = inbound_json().validate_json(payload)
                except ValidationError as error:
                    logger.error("inbox row {} is damaged, now a dead letter: {}", seq, error)
                    await self._dead_letter(seq)
                    continue
                due = None if not_before is None else moment(not_before)
                page.append(Pending(message, attempts, due, bool(told), seq))
            if page or not rows:
                return page

    async def find(self, inbound_id: str) -> InboundMessage | None:
        """An inbound by its id, settled or not; None when there is none that can be read."""
        row = await self._database.read(
            lambda connection: connection.execute(
                "SELECT payload FROM inbox WHERE id = ?", (inbound_id,)
            ).fetchone()
        )
        try:
            return None if row is None else inbound_json().validate_json(row[0])
        except ValidationError:
            return None

    async def open_tasks(self, session: str | None = None) -> list[OpenTask]:
        """The subagents' tasks that are not done, of one session or of all, the oldest first."""
        rows = await self._database.read(
            lambda connection: connection.execute(
                "SELECT payload, received_at FROM inbox "
                "WHERE state = 'pending' AND session GLOB 'subagent:*' ORDER BY seq"
            ).fetchall()
        )
        found = []
        for payload, at in rows:
            try:
                task = inbound_json().validate_json(payload)
            except ValidationError:
                continue  # becomes a dead letter where the inbox is read
            if task.parent is not None and session in (None, task.parent.session):
                found.append(OpenTask(task, task.parent, moment(at)))
        return found

    async def _dead_letter(self, seq: int) -> None:
        """Make a row that cannot be read a dead letter."""
        now = self._clock().timestamp()
        await self._database.write(
            lambda connection: connection.execute(
                "UPDATE inbox SET state = 'dead', error = 'it is damaged', settled_at = ? "
                "WHERE seq = ?",
                (now, seq),
            ),
            durable=True,
        )

    async def claim(self, inbound_id: str, *, again: bool = False) -> int | None:
        """Count an attempt at an inbound before its turn begins; returns the number of it.

        None when it is settled already. ``again``: the last attempt failed for a reason that was
        not the message's, and this one takes its place.
        """

        def write(connection: sqlite3.Connection) -> int | None:
            row = connection.execute(
                "UPDATE inbox SET attempts = max(1, attempts + ?) "
                "WHERE id = ? AND state = 'pending' RETURNING attempts",
                (int(not again), inbound_id),
            ).fetchone()
            return None if row is None else int(row[0])

        return await self._database.write(write)

    async def give_back(self, inbound_id: str) -> None:
        """Undo a ``claim``: the attempt was broken off, and not by its message."""
        await self._database.write(
            lambda connection: connection.execute(
                "UPDATE inbox SET attempts = max(0, attempts - 1) WHERE id = ?", (inbound_id,)
            )
        )

    async def defer(self, inbound_id: str, until: datetime) -> None:
        """Try an inbound again at ``until``, also after a restart; its asker has been told.

        The attempt does not count, since the fault was not the message's.
        """
        await self._database.write(
            lambda connection: connection.execute(
                "UPDATE inbox SET not_before = ?, told = 1, attempts = attempts - 1 WHERE id = ?",
                (until.timestamp(), inbound_id),
            )
        )


def last_chat_in(connection: sqlite3.Connection, served: frozenset[str]) -> AnswerRule | None:
    """Where the owner wrote last (not in a group, not at the terminal), as a place to answer.

    None when they never did, or on a channel that is not served any more.
    """
    row = connection.execute("SELECT channel, chat_id, thread_id FROM last_chat").fetchone()
    if row is None or row[0] not in served:
        return None
    return AnswerRule(channel=row[0], chat_id=row[1], thread_id=row[2])


def post_in(
    connection: sqlite3.Connection, messages: Sequence[InboundMessage], stamp: float
) -> tuple[Pending, ...]:
    """Put messages into the inbox within the caller's transaction; returns the new ones."""
    accepted = []
    for message in messages:
        cursor = connection.execute(
            "INSERT OR IGNORE INTO inbox (id, session, channel, payload, received_at) "
            "VALUES (?, ?, ?, ?, ?)",
            (
                message.id,
                message.session_key,
                message.channel,
                _stored(message),
                stamp,
            ),
        )
        if cursor.rowcount:
            accepted.append(Pending(message, seq=cursor.lastrowid or 0))
            if _is_owners_chat(message):
                connection.execute(
                    "INSERT OR REPLACE INTO last_chat (one, channel, chat_id, thread_id) "
                    "VALUES (1, ?, ?, ?)",
                    (message.channel, message.chat_id, message.thread_id),
                )
    return tuple(accepted)


def _is_owners_chat(message: InboundMessage) -> bool:
    return (
        message.origin is Origin.USER
        and message.role is Role.OWNER
        and not message.is_group
        and message.answer.kind is AnswerKind.REPLY
    )


def waiting_in(connection: sqlite3.Connection, message: InboundMessage) -> int:
    """How many messages of people wait in the session, or answers to people for the chat."""
    inbox, outbox = connection.execute(
        "SELECT (SELECT count(*) FROM inbox WHERE state = 'pending' AND session = ? "
        "AND id NOT GLOB 'subagent:*'), (SELECT count(*) FROM outbox WHERE state = 'pending' "
        "AND channel = ? AND target = ? AND session NOT GLOB 'cron:*')",
        (message.session_key, message.channel, message.chat_id),
    ).fetchone()
    return max(int(inbox), int(outbox))


def is_known_in(connection: sqlite3.Connection, inbound_id: str) -> bool:
    row = connection.execute("SELECT 1 FROM inbox WHERE id = ?", (inbound_id,)).fetchone()
    return row is not None


def unused_id_in(connection: sqlite3.Connection, message: InboundMessage, stale: float) -> str:
    """The message's id, or with a number where that named something else before ``stale``.

    The same message is known whatever the clock has done since.
    """
    candidate, number = message.id, 1
    while connection.execute(
        "SELECT 1 FROM inbox WHERE id = ? AND state <> 'pending' AND received_at < ? "
        "AND payload <> ?",
        (candidate, stale, _stored(replace(message, id=candidate))),
    ).fetchone():
        number += 1
        candidate = f"{message.id}~{number}"
    return candidate


def _stored(message: InboundMessage) -> str:
    return inbound_json().dump_json(message, by_alias=True).decode()


@cache
def inbound_json() -> TypeAdapter[InboundMessage]:
    return TypeAdapter(InboundMessage)


def moment(stamp: float) -> datetime:
    """A stored time (seconds since 1970)."""
    return datetime.fromtimestamp(stamp, UTC)
