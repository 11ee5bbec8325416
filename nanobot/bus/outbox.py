"""The outbox: messages that wait for delivery, and their pieces."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

from loguru import logger
from pydantic import TypeAdapter, ValidationError

from nanobot.bus.inbox import moment
from nanobot.core.chat import AssistantMessage
from nanobot.core.messages import OutboundMessage
from nanobot.core.ports import Clock
from nanobot.prompts import render
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import append_in
from nanobot.store.database import Database


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
    """An outbound that waits in the outbox; no ``pieces`` when it was never begun.

    ``retried``: it was a dead letter, so that its place ``seq`` is an old one.
    """

    message: OutboundMessage
    pieces: tuple[Piece, ...] = ()
    attempts: int = 0
    not_before: datetime | None = None
    expires_at: datetime | None = None
    seq: int = 0
    retried: bool = False


class Outbox:
    """Reads the outbox and records how far the delivery of each message is."""

    def __init__(self, database: Database, clock: Clock, freed: asyncio.Event) -> None:
        """``freed`` is set whenever an outbound leaves the outbox."""
        self._database = database
        self._clock = clock
        self._freed = freed

    async def chats_waiting(self, channel: str) -> list[str]:
        """The chats of a channel for which something waits in the outbox."""
        return await self._database.read(
            lambda connection: [
                row[0]
                for row in connection.execute(
                    "SELECT target FROM outbox WHERE channel = ? AND state = 'pending' "
                    "GROUP BY target ORDER BY min(seq)",
                    (channel,),
                )
            ]
        )

    async def undelivered(
        self, channel: str, chat_id: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> list[Undelivered]:
        """A page of what waits in the outbox for a channel, or one chat of it, in order.

        Each comes with its pieces so far. Empty when nothing follows. Rows that cannot be read
        become dead letters.
        """
        while True:
            rows = await self._database.read(
                lambda connection, after=after: connection.execute(  # type: ignore[misc]
                    f"SELECT {COLUMNS} FROM outbox "
                    "WHERE channel = ? AND state = 'pending' AND seq > ? "
                    "AND target = coalesce(?, target) ORDER BY seq LIMIT ?",
                    (channel, after, chat_id, limit),
                ).fetchall()
            )
            page = []
            for row in rows:
                after = row[0]
                try:
                    page.append(
                        await self._database.read(
                            lambda connection, row=row: undelivered_in(connection, row)  # type: ignore[misc]
                        )
                    )
                except ValidationError as error:
                    logger.error("outbox row {} is damaged, now a dead letter: {}", row[0], error)
                    await self.dead_letter(row[1], "it is damaged")
            if page or not rows:
                return page

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
        self._freed.set()

    async def nothing_to_send(self, outbound_id: str) -> None:
        """Close an outbound that renders to nothing, or of which nothing is left."""
        now = self._clock().timestamp()
        await self._database.write(
            lambda connection: _close_outbound(connection, outbound_id, "sent", None, now)
        )
        self._freed.set()

    async def retry_at(self, outbound_id: str, until: datetime, error: str) -> None:
        """Note a failed delivery that is tried again at ``until``."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE outbox SET attempts = attempts + 1, not_before = ?, error = ? WHERE id = ?",
                (until.timestamp(), error, outbound_id),
            )

        await self._database.write(write)

    async def dead_letter(self, outbound_id: str, error: str) -> None:
        """Make an outbound a dead letter, durably."""
        now = self._clock().timestamp()
        await self._database.write(
            lambda connection: _close_outbound(connection, outbound_id, "dead", error, now),
            durable=True,
        )
        self._freed.set()

    async def dead_letter_unserved(self, served: frozenset[str]) -> int:
        """Make what waits for a channel that nobody serves a dead letter; how much it was."""
        now = self._clock().timestamp()
        marks = ", ".join("?" * len(served))
        return await self._database.write(
            lambda connection: (
                connection.execute(
                    "UPDATE outbox SET state = 'dead', settled_at = ?, "
                    "error = 'the channel ' || channel || ' is not served here' "
                    f"WHERE state = 'pending' AND channel NOT IN ({marks})",
                    (now, *served),
                ).rowcount
            ),
            durable=True,
        )

    async def _set_piece(
        self, outbound_id: str, number: int, state: PieceState, *, durable: bool
    ) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE piece SET state = ? WHERE outbound_id = ? AND number = ?",
                (state.value, outbound_id, number),
            )

        await self._database.write(write, durable=durable)


def queue_in(
    connection: sqlite3.Connection,
    outbounds: Sequence[OutboundMessage],
    now: datetime,
    expires: datetime,
) -> tuple[Undelivered, ...]:
    """Put messages into the outbox within the caller's transaction; returns the new ones.

    A message that another session wrote is logged into the session of its chat as well.
    """
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
                now.timestamp(),
                expires.timestamp(),
            ),
        )
        if cursor.rowcount:
            if outbound.cause is not None:
                append_in(connection, outbound.chats_session, [_logged(outbound, now)], now)
            queued.append(Undelivered(outbound, expires_at=expires, seq=cursor.lastrowid or 0))
    return tuple(queued)


def _logged(outbound: OutboundMessage, now: datetime) -> Draft:
    """A message as the log of its chat's session holds it."""
    cause = outbound.cause
    assert cause is not None, "a session's own words are in its log by themselves"
    return Draft(
        kind=EntryKind.SENT,
        message=AssistantMessage(cause.words),
        note=render.sent(now=now.astimezone(), by=cause.by),
        inbound_id=outbound.inbound_id or outbound.id,
        principal=cause.principal,
        trust=cause.trust,
    )


COLUMNS = "seq, id, payload, attempts, not_before, expires_at"


def undelivered_in(connection: sqlite3.Connection, row: Sequence[Any]) -> Undelivered:
    """A row of ``COLUMNS`` with its pieces; raises ValidationError when damaged."""
    seq, outbound_id, payload, attempts, not_before, expires_at = row
    message = _outbound().validate_json(payload)
    pieces = connection.execute(
        "SELECT payload, state FROM piece WHERE outbound_id = ? ORDER BY number", (outbound_id,)
    ).fetchall()
    return Undelivered(
        message,
        tuple(Piece(text, PieceState(state)) for text, state in pieces),
        attempts,
        None if not_before is None else moment(not_before),
        None if expires_at is None else moment(expires_at),
        seq,
    )


def _close_outbound(
    connection: sqlite3.Connection, outbound_id: str, state: str, error: str | None, stamp: float
) -> None:
    connection.execute(
        "UPDATE outbox SET state = ?, error = ?, settled_at = ? WHERE id = ?",
        (state, error, stamp, outbound_id),
    )


@cache
def _outbound() -> TypeAdapter[OutboundMessage]:
    return TypeAdapter(OutboundMessage)
