"""MessageBus: the durable inbox and outbox, as plain functions over the state database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache

from loguru import logger
from pydantic import TypeAdapter, ValidationError

from nanobot.agent.turn import Settlement
from nanobot.core.identity import Origin, Role
from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage, OutboundMessage
from nanobot.core.ports import Clock
from nanobot.session.log import append_in
from nanobot.store.database import Database

OUTBOUND_EXPIRY = timedelta(hours=48)
"""An outbound that could not be delivered for so long becomes a dead letter."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An inbound that waits in the inbox; ``attempts`` counts the turns begun for it."""

    message: InboundMessage
    attempts: int = 0
    not_before: datetime | None = None
    told: bool = False


@dataclass(frozen=True, slots=True)
class Poison:
    """An update that no message could be made of, kept raw as a dead letter."""

    id: str
    channel: str
    raw: str
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that will not be tried again unless the owner says so."""

    box: str
    seq: int
    id: str
    session: str
    channel: str
    error: str
    at: datetime


class PieceState(StrEnum):
    """How far one piece of an outbound is; ``attempting`` is committed before it is sent."""

    QUEUED = "queued"
    ATTEMPTING = "attempting"
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class Piece:
    """One message piece as the channel rendered it."""

    payload: str
    state: PieceState


@dataclass(frozen=True, slots=True)
class Undelivered:
    """An outbound that waits in the outbox; no ``pieces`` when it was never begun."""

    message: OutboundMessage
    pieces: tuple[Piece, ...] = ()
    attempts: int = 0
    not_before: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What waits and what is dead in both boxes."""

    inbox: int
    outbox: int
    dead_inbox: int
    dead_outbox: int


class MessageBus:
    """Accepts, settles and queues messages; what it returned from is on the disk."""

    def __init__(
        self, database: Database, clock: Clock, *, outbound_expiry: timedelta = OUTBOUND_EXPIRY
    ) -> None:
        self._database = database
        self._clock = clock
        self.outbound_expiry = outbound_expiry
        self._inbound_listeners: list[Callable[[Pending], None]] = []
        self._outbound_listeners: list[Callable[[OutboundMessage], None]] = []

    def on_inbound(self, listener: Callable[[Pending], None]) -> None:
        """Call ``listener`` (on the event loop) with each inbound newly accepted."""
        self._inbound_listeners.append(listener)

    def on_outbound(self, listener: Callable[[OutboundMessage], None]) -> None:
        """Call ``listener`` (on the event loop) with each outbound newly queued."""
        self._outbound_listeners.append(listener)

    # Inbox

    async def post(self, message: InboundMessage) -> bool:
        """Put a message into the inbox, durably; False when its id was there already."""
        return bool(await self.post_all([message]))

    async def post_all(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]:
        """Put messages and unreadable updates into the inbox in one synced transaction.

        Returns the messages that were new. The dispatcher hears of them after the commit.
        """
        now = self._clock().timestamp()

        def write(connection: sqlite3.Connection) -> tuple[InboundMessage, ...]:
            for update in poison:
                connection.execute(
                    "INSERT OR IGNORE INTO inbox (id, session, channel, payload, state, error, "
                    "received_at) VALUES (?, '', ?, ?, 'dead', ?, ?)",
                    (update.id, update.channel, update.raw, update.error, now),
                )
            return post_in(connection, messages, now)

        accepted = await self._database.write(write, durable=True)
        self._announce(accepted)
        return accepted

    async def pending(self, *, after: int = 0, limit: int = 1000) -> list[tuple[int, Pending]]:
        """A page of what waits in the inbox, in order of arrival, with each row's place."""

        def read(connection: sqlite3.Connection) -> list[tuple[int, str, int, float | None, int]]:
            return connection.execute(
                "SELECT seq, payload, attempts, not_before, told FROM inbox "
                "WHERE state = 'pending' AND seq > ? ORDER BY seq LIMIT ?",
                (after, limit),
            ).fetchall()

        rows = await self._database.read(read)
        page: list[tuple[int, Pending]] = []
        damaged: list[int] = []
        for seq, payload, attempts, not_before, told in rows:
            try:
                message = _inbound().validate_json(payload)
            except ValidationError as error:
                logger.error("inbox row {} is damaged and becomes a dead letter: {}", seq, error)
                damaged.append(seq)
                continue
            page.append((seq, Pending(message, attempts, _moment(not_before), bool(told))))
        for seq in damaged:
            await self._database.write(
                lambda connection, seq=seq: connection.execute(  # type: ignore[misc]
                    "UPDATE inbox SET state = 'dead', error = 'damaged' WHERE seq = ?", (seq,)
                ),
                durable=True,
            )
        return page

    async def claim(self, inbound_id: str) -> int | None:
        """Count an attempt at an inbound before its turn begins; returns the number of it.

        None when it is settled already.
        """

        def write(connection: sqlite3.Connection) -> int | None:
            row = connection.execute(
                "UPDATE inbox SET attempts = attempts + 1 WHERE id = ? AND state = 'pending' "
                "RETURNING attempts",
                (inbound_id,),
            ).fetchone()
            return None if row is None else int(row[0])

        return await self._database.write(write)

    async def settle(
        self,
        settlement: Settlement,
        outbounds: Sequence[OutboundMessage] = (),
        posts: Sequence[InboundMessage] = (),
        *,
        state: str = "done",
        error: str | None = None,
    ) -> None:
        """Mark what a turn consumed as settled, with its last words and replies: one transaction.

        ``posts`` are inbounds that follow from it (a subagent's report). ``state`` is ``done``,
        ``dead`` or ``interrupted``. Doing it twice is doing it once.
        """
        now = self._clock()
        stamp = now.timestamp()
        expires = (now + self.outbound_expiry).timestamp()

        def write(
            connection: sqlite3.Connection,
        ) -> tuple[tuple[InboundMessage, ...], tuple[OutboundMessage, ...]]:
            for inbound_id in settlement.consumed:
                connection.execute(
                    "UPDATE inbox SET state = ?, error = ?, settled_at = ?, not_before = NULL "
                    "WHERE id = ? AND state = 'pending'",
                    (state, error, stamp, inbound_id),
                )
            if settlement.entries:
                append_in(connection, settlement.session, settlement.entries, now)
            queued = _queue_in(connection, outbounds, stamp, expires)
            return post_in(connection, posts, stamp), queued

        accepted, queued = await self._database.write(write, durable=True)
        self._announce(accepted)
        self._announce_outbound(queued)

    async def defer(self, inbound_id: str, until: datetime, *, attempts_back: bool) -> None:
        """Try an inbound again at ``until``, also after a restart; its asker has been told.

        ``attempts_back``: the attempt does not count, since the fault was not the message's.
        """

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE inbox SET not_before = ?, told = 1, attempts = attempts - ? WHERE id = ?",
                (until.timestamp(), int(attempts_back), inbound_id),
            )

        await self._database.write(write)

    # Outbox

    async def queue(self, *outbounds: OutboundMessage) -> tuple[OutboundMessage, ...]:
        """Put messages into the outbox, durably; returns those whose id was not there yet."""
        now = self._clock()
        expires = (now + self.outbound_expiry).timestamp()
        queued = await self._database.write(
            lambda connection: _queue_in(connection, outbounds, now.timestamp(), expires),
            durable=True,
        )
        self._announce_outbound(queued)
        return queued

    async def put(
        self,
        posts: Sequence[InboundMessage],
        outbounds: Sequence[OutboundMessage],
        *,
        when: Callable[[sqlite3.Connection], bool],
    ) -> bool:
        """Post and queue in one synced transaction with what ``when`` writes, if it says True."""
        now = self._clock()
        stamp, expires = now.timestamp(), (now + self.outbound_expiry).timestamp()

        def write(
            connection: sqlite3.Connection,
        ) -> tuple[bool, tuple[InboundMessage, ...], tuple[OutboundMessage, ...]]:
            if not when(connection):
                return False, (), ()
            queued = _queue_in(connection, outbounds, stamp, expires)
            return True, post_in(connection, posts, stamp), queued

        done, accepted, queued = await self._database.write(write, durable=True)
        self._announce(accepted)
        self._announce_outbound(queued)
        return done

    async def last_chat(self) -> AnswerRule | None:
        """Where the owner wrote last (not in a group, not at the terminal), as a place to answer.

        None when they never did.
        """

        def read(connection: sqlite3.Connection) -> AnswerRule | None:
            row = connection.execute("SELECT channel, chat_id, thread_id FROM last_chat").fetchone()
            if row is None:
                return None
            return AnswerRule(channel=row[0], chat_id=row[1], thread_id=row[2])

        return await self._database.read(read)

    async def holds(self, outbound_id: str) -> bool:
        """Whether an outbound with this id was ever queued."""

        def read(connection: sqlite3.Connection) -> bool:
            row = connection.execute("SELECT 1 FROM outbox WHERE id = ?", (outbound_id,))
            return row.fetchone() is not None

        return await self._database.read(read)

    async def undelivered(self, channel: str) -> list[Undelivered]:
        """What waits in the outbox for a channel, in order, with the pieces planned so far."""

        def read(connection: sqlite3.Connection) -> list[Undelivered]:
            rows = connection.execute(
                "SELECT id, payload, attempts, not_before, expires_at FROM outbox "
                "WHERE channel = ? AND state = 'pending' ORDER BY seq",
                (channel,),
            ).fetchall()
            found = []
            for outbound_id, payload, attempts, not_before, expires_at in rows:
                try:
                    message = _outbound().validate_json(payload)
                except ValidationError as error:
                    logger.error("outbox row {} is damaged, left out: {}", outbound_id, error)
                    continue
                pieces = connection.execute(
                    "SELECT payload, state FROM piece WHERE outbound_id = ? ORDER BY number",
                    (outbound_id,),
                ).fetchall()
                found.append(
                    Undelivered(
                        message,
                        tuple(Piece(text, PieceState(state)) for text, state in pieces),
                        attempts,
                        _moment(not_before),
                        _moment(expires_at),
                    )
                )
            return found

        return await self._database.read(read)

    async def plan(self, outbound_id: str, payloads: Sequence[str]) -> None:
        """Store the pieces an outbound is sent in, the first as being attempted; synced."""

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT OR REPLACE INTO piece (outbound_id, number, payload, state) "
                "VALUES (?, ?, ?, ?)",
                [
                    (
                        outbound_id,
                        number,
                        payload,
                        (PieceState.QUEUED if number else PieceState.ATTEMPTING).value,
                    )
                    for number, payload in enumerate(payloads)
                ],
            )

        await self._database.write(write, durable=True)

    async def attempting(self, outbound_id: str, number: int) -> None:
        """Note, synced, that a piece is about to be sent."""
        await self._set_piece(outbound_id, number, PieceState.ATTEMPTING, durable=True)

    async def not_sent(self, outbound_id: str, number: int) -> None:
        """Note that the platform refused a piece, so that it was certainly not sent."""
        await self._set_piece(outbound_id, number, PieceState.QUEUED, durable=False)

    async def sent(self, outbound_id: str, number: int, platform_id: str, *, last: bool) -> None:
        """Note that the platform took a piece; with the last one the outbound is done."""
        now = self._clock().timestamp()

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE piece SET state = 'sent', platform_id = ? "
                "WHERE outbound_id = ? AND number = ?",
                (platform_id, outbound_id, number),
            )
            if last:
                _close_outbound(connection, outbound_id, "sent", None, now)

        await self._database.write(write)

    async def nothing_to_send(self, outbound_id: str) -> None:
        """Close an outbound that renders to nothing."""
        now = self._clock().timestamp()
        await self._database.write(
            lambda connection: _close_outbound(connection, outbound_id, "sent", None, now)
        )

    async def retry_at(self, outbound_id: str, until: datetime, error: str) -> None:
        """Note a failed delivery that is tried again at ``until``."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE outbox SET attempts = attempts + 1, not_before = ?, error = ? WHERE id = ?",
                (until.timestamp(), error, outbound_id),
            )

        await self._database.write(write)

    async def bury(self, outbound_id: str, error: str) -> None:
        """Make an outbound a dead letter, durably."""
        now = self._clock().timestamp()
        await self._database.write(
            lambda connection: _close_outbound(connection, outbound_id, "dead", error, now),
            durable=True,
        )

    # Dead letters

    async def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
        """The newest dead letters of both boxes."""

        def read(connection: sqlite3.Connection) -> list[DeadLetter]:
            rows = connection.execute(
                "SELECT 'inbox', seq, id, session, channel, error, "
                "coalesce(settled_at, received_at) AS at FROM inbox WHERE state = 'dead' "
                "UNION ALL SELECT 'outbox', seq, id, session, channel, error, "
                "coalesce(settled_at, created_at) AS at FROM outbox WHERE state = 'dead' "
                "ORDER BY at DESC LIMIT ?",
                (limit,),
            )
            return [
                DeadLetter(box, seq, id_, session, channel, error or "", _when(at))
                for box, seq, id_, session, channel, error, at in rows
            ]

        return await self._database.read(read)

    async def counts(self) -> Counts:
        """How much waits and how much is dead, for ``status``."""

        def read(connection: sqlite3.Connection) -> Counts:
            numbers = [
                connection.execute(
                    f"SELECT count(*) FROM {box} WHERE state = ?", (state,)
                ).fetchone()[0]
                for box, state in (
                    ("inbox", "pending"),
                    ("outbox", "pending"),
                    ("inbox", "dead"),
                    ("outbox", "dead"),
                )
            ]
            return Counts(*numbers)

        return await self._database.read(read)

    async def _set_piece(
        self, outbound_id: str, number: int, state: PieceState, *, durable: bool
    ) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE piece SET state = ? WHERE outbound_id = ? AND number = ?",
                (state.value, outbound_id, number),
            )

        await self._database.write(write, durable=durable)

    def _announce(self, accepted: Iterable[InboundMessage]) -> None:
        for message in accepted:
            for listener in self._inbound_listeners:
                listener(Pending(message))

    def _announce_outbound(self, queued: Iterable[OutboundMessage]) -> None:
        for message in queued:
            for listener in self._outbound_listeners:
                listener(message)


def post_in(
    connection: sqlite3.Connection, messages: Sequence[InboundMessage], stamp: float
) -> tuple[InboundMessage, ...]:
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
                _inbound().dump_json(message).decode(),
                stamp,
            ),
        )
        if cursor.rowcount:
            accepted.append(message)
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


def _queue_in(
    connection: sqlite3.Connection,
    outbounds: Sequence[OutboundMessage],
    stamp: float,
    expires: float,
) -> tuple[OutboundMessage, ...]:
    queued = []
    for outbound in outbounds:
        cursor = connection.execute(
            "INSERT OR IGNORE INTO outbox (id, session, channel, target, inbound_id, payload, "
            "created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                outbound.id,
                outbound.session,
                outbound.channel,
                outbound.chat_id,
                outbound.inbound_id,
                _outbound().dump_json(outbound).decode(),
                stamp,
                expires,
            ),
        )
        if cursor.rowcount:
            queued.append(outbound)
    return tuple(queued)


def _close_outbound(
    connection: sqlite3.Connection, outbound_id: str, state: str, error: str | None, stamp: float
) -> None:
    connection.execute(
        "UPDATE outbox SET state = ?, error = ?, settled_at = ? WHERE id = ?",
        (state, error, stamp, outbound_id),
    )


def _moment(stamp: float | None) -> datetime | None:
    return None if stamp is None else _when(stamp)


def _when(stamp: float) -> datetime:
    return datetime.fromtimestamp(stamp, UTC)


@cache
def _inbound() -> TypeAdapter[InboundMessage]:
    return TypeAdapter(InboundMessage)


@cache
def _outbound() -> TypeAdapter[OutboundMessage]:
    return TypeAdapter(OutboundMessage)
