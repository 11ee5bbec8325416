"""MessageBus: the durable inbox and outbox, as plain functions over the state database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from loguru import logger
from pydantic import TypeAdapter, ValidationError

from nanobot.agent.turn import TurnResult
from nanobot.core.chat import AssistantMessage
from nanobot.core.messages import (
    AnswerKind,
    AnswerRule,
    InboundMessage,
    OpenErrand,
    Origin,
    OutboundMessage,
    Role,
)
from nanobot.core.ports import Clock
from nanobot.core.text import one_line
from nanobot.prompts import render
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import append_in
from nanobot.store.database import Database

T = TypeVar("T")

OUTBOUND_EXPIRY = timedelta(hours=48)
"""An outbound that could not be delivered for so long becomes a dead letter."""
MAX_QUEUED = 1000
"""Messages of a session, or answers for a chat, that may wait before no more are taken in."""
DOUBLES = timedelta(hours=48)
"""How long an id of a platform means the same message; idle bots' ids begin anew after a week."""
KEPT_ROWS = 1000
"""Settled rows that a purge leaves whatever their age: a clock that jumps must not take all."""
_RECOUNT_S = 1.0
_TEXT_LENGTH = 80
_PURGE_ROWS = 500


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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that will not be tried again unless the owner says so.

    ``box`` is ``in`` or ``out``; ``text`` the beginning of what it says, as far as it is readable.
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
        """What a command calls it by: ``in-12``."""
        return f"{self.box}-{self.seq}"


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
        self,
        database: Database,
        clock: Clock,
        *,
        outbound_expiry: timedelta = OUTBOUND_EXPIRY,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._database = database
        self._clock = clock
        self.outbound_expiry = outbound_expiry
        self.max_queued = max_queued
        self._inbound_listeners: list[Callable[[Pending], None]] = []
        self._outbound_listeners: list[Callable[[Undelivered], None]] = []
        self.is_urgent: Callable[[InboundMessage], bool] = lambda message: False
        """Whether a message is taken in however many wait; the dispatcher says."""
        self._settled = asyncio.Event()
        self._full: set[str] = set()
        self._committing: set[asyncio.Task[Any]] = set()

    def on_inbound(self, listener: Callable[[Pending], None]) -> None:
        """Call ``listener`` (on the event loop) with each inbound accepted, in order."""
        self._inbound_listeners.append(listener)

    def on_outbound(self, listener: Callable[[Undelivered], None]) -> None:
        """Call ``listener`` (on the event loop) with each outbound queued, in order."""
        self._outbound_listeners.append(listener)

    @property
    def delivers(self) -> bool:
        """Whether this process delivers what is queued: a gateway does, a one-shot does not."""
        return bool(self._outbound_listeners)

    # Inbox

    async def post(self, message: InboundMessage) -> bool:
        """Put a message into the inbox, durably; False when its id was there already.

        For what the assistant itself or its owner's terminal posts: it is never held back.
        """
        now = self._clock().timestamp()
        accepted = await self._commit(
            lambda connection: post_in(connection, [message], now), self._announce
        )
        return bool(accepted)

    async def post_all(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]:
        """As ``post_now``, and wait until all of them have room; returns those that were new."""
        accepted, left = await self._take_in(messages, poison)
        while left:
            self._settled.clear()
            # Counted again after a while all the same: what a rebuilt database lost is not told.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RECOUNT_S):
                    await self._settled.wait()
            more, left = await self._take_in(left, ())
            accepted += more
        return accepted

    async def post_now(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]:
        """Put messages and unreadable updates of a channel into the inbox in one transaction.

        Returns those for which there is no room, so that the platform may keep them: when
        ``max_queued`` messages of their session wait to be answered, or answers to be delivered
        to their chat. There is always room for what is urgent. The dispatcher hears of the others
        after the commit, which is synced. An id counts as new again when what it named before is
        older than ``DOUBLES`` and was something else.
        """
        _, left = await self._take_in(messages, poison)
        return left

    async def _take_in(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison]
    ) -> tuple[tuple[InboundMessage, ...], tuple[InboundMessage, ...]]:
        """Post what has room; the messages that were new, and those that have none."""
        now = self._clock()
        stamp = now.timestamp()
        stale = (now - DOUBLES).timestamp()

        def write(
            connection: sqlite3.Connection,
        ) -> tuple[tuple[Pending, ...], tuple[InboundMessage, ...]]:
            for update in poison:
                connection.execute(
                    "INSERT OR IGNORE INTO inbox (id, session, channel, payload, state, error, "
                    "received_at) VALUES (?, '', ?, ?, 'dead', ?, ?)",
                    (update.id, update.channel, update.raw, update.error, stamp),
                )
            accepted: list[Pending] = []
            left: list[InboundMessage] = []
            room: dict[str, int] = {}
            for message in messages:
                key = message.session_key
                if key not in room:
                    room[key] = self.max_queued - _waiting(connection, message)
                named = replace(message, id=_unused(connection, message, stale))
                if room[key] > 0 or self.is_urgent(message) or _is_known(connection, named.id):
                    posted = post_in(connection, [named], stamp)
                    room[key] -= len(posted)
                    accepted += posted
                else:
                    left.append(message)
            return tuple(accepted), tuple(left)

        accepted, left = await self._commit(write, lambda result: self._announce(result[0]))
        full = {message.session_key for message in left}
        for session in full - self._full:
            logger.warning("{}: {} messages wait, more are not read", session, self.max_queued)
        self._full = full
        return tuple(pending.message for pending in accepted), left

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
                    message = _inbound().validate_json(payload)
                except ValidationError as error:
                    logger.error("inbox row {} is damaged, now a dead letter: {}", seq, error)
                    await self._bury_row("inbox", seq)
                    continue
                page.append(Pending(message, attempts, _moment(not_before), bool(told), seq))
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
            return None if row is None else _inbound().validate_json(row[0])
        except ValidationError:
            return None

    async def errands(self, session: str | None = None) -> list[OpenErrand]:
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
                task = _inbound().validate_json(payload)
            except ValidationError:
                continue  # becomes a dead letter where the inbox is read
            if task.errand is not None and session in (None, task.errand.session):
                found.append(OpenErrand(task, task.errand, _when(at)))
        return found

    async def _bury_row(self, box: str, seq: int) -> None:
        """Make a row that cannot be read a dead letter."""
        now = self._clock().timestamp()
        await self._database.write(
            lambda connection: connection.execute(
                f"UPDATE {box} SET state = 'dead', error = 'it is damaged', settled_at = ? "
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

    async def settle(
        self,
        result: TurnResult,
        outbounds: Sequence[OutboundMessage] = (),
        posts: Sequence[InboundMessage] = (),
        *,
        state: str = "done",
        error: str | None = None,
    ) -> None:
        """Mark what a turn consumed as settled, with its last words and replies: one transaction.

        ``posts`` are inbounds that follow from it (a subagent's report). ``state`` is ``done``,
        ``dead`` or ``interrupted``. Doing it twice is doing it once, and nothing follows from what
        another has settled meanwhile.
        """
        now = self._clock()
        stamp = now.timestamp()
        expires = (now + self.outbound_expiry).timestamp()

        def write(
            connection: sqlite3.Connection,
        ) -> tuple[tuple[Pending, ...], tuple[Undelivered, ...]]:
            closed = 0
            for inbound_id in result.consumed:
                closed += connection.execute(
                    "UPDATE inbox SET state = ?, error = ?, settled_at = ?, not_before = NULL "
                    "WHERE id = ? AND state = 'pending'",
                    (state, error, stamp, inbound_id),
                ).rowcount
            if result.entries:
                append_in(connection, result.session, result.entries, now)
            queued = _queue_in(connection, outbounds, now, expires)
            follow = closed or not result.consumed
            return post_in(connection, posts if follow else (), stamp), queued

        def announce(
            committed: tuple[tuple[Pending, ...], tuple[Undelivered, ...]],
        ) -> None:
            self._settled.set()
            self._announce(committed[0])
            self._announce_outbound(committed[1])

        await self._commit(write, announce)

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

    # Outbox

    async def queue(self, *outbounds: OutboundMessage) -> tuple[OutboundMessage, ...]:
        """Put messages into the outbox, durably; returns those whose id was not there yet."""
        now = self._clock()
        expires = (now + self.outbound_expiry).timestamp()
        queued = await self._commit(
            lambda connection: _queue_in(connection, outbounds, now, expires),
            self._announce_outbound,
        )
        return tuple(undelivered.message for undelivered in queued)

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
        ) -> tuple[bool, tuple[Pending, ...], tuple[Undelivered, ...]]:
            if not when(connection):
                return False, (), ()
            queued = _queue_in(connection, outbounds, now, expires)
            return True, post_in(connection, posts, stamp), queued

        def announce(
            committed: tuple[bool, tuple[Pending, ...], tuple[Undelivered, ...]],
        ) -> None:
            self._announce(committed[1])
            self._announce_outbound(committed[2])

        done, _, _ = await self._commit(write, announce)
        return done

    async def last_chat(self, served: frozenset[str]) -> AnswerRule | None:
        """See ``last_chat_in``."""
        return await self._database.read(lambda connection: last_chat_in(connection, served))

    async def bury_unserved(self, served: frozenset[str]) -> int:
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

    async def holds(self, outbound_id: str) -> bool:
        """Whether an outbound with this id was ever queued."""

        def read(connection: sqlite3.Connection) -> bool:
            row = connection.execute("SELECT 1 FROM outbox WHERE id = ?", (outbound_id,))
            return row.fetchone() is not None

        return await self._database.read(read)

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
                    f"SELECT {_OUTBOX_COLUMNS} FROM outbox "
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
                            lambda connection, row=row: _undelivered(connection, row)  # type: ignore[misc]
                        )
                    )
                except ValidationError as error:
                    logger.error("outbox row {} is damaged, now a dead letter: {}", row[0], error)
                    await self._bury_row("outbox", row[0])
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
        self._settled.set()

    async def nothing_to_send(self, outbound_id: str) -> None:
        """Close an outbound that renders to nothing, or of which nothing is left."""
        now = self._clock().timestamp()
        await self._database.write(
            lambda connection: _close_outbound(connection, outbound_id, "sent", None, now)
        )
        self._settled.set()

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
        self._settled.set()

    # Dead letters

    async def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
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
                DeadLetter(box, seq, id_, session, channel, error or "", _when(at), _said(payload))
                for box, seq, id_, session, channel, error, at, payload in rows
            ]

        return await self._database.read(read)

    async def retry(self, letter: DeadLetter) -> bool:
        """Let a dead letter be tried again, with all its attempts; False when it cannot be read.

        False as well when it is no dead letter any more.
        """
        return await (self._retry_inbound if letter.box == "in" else self._retry_outbound)(letter)

    async def _retry_inbound(self, letter: DeadLetter) -> bool:
        def write(connection: sqlite3.Connection) -> tuple[Pending, ...]:
            row = connection.execute(
                "SELECT payload FROM inbox WHERE seq = ? AND state = 'dead'", (letter.seq,)
            ).fetchone()
            if row is None:
                return ()
            try:
                message = _inbound().validate_json(row[0])
            except ValidationError:
                return ()
            connection.execute(
                "UPDATE inbox SET state = 'pending', attempts = 0, not_before = NULL, told = 0, "
                "error = NULL, settled_at = NULL WHERE seq = ?",
                (letter.seq,),
            )
            return (Pending(message, seq=letter.seq, retried=True),)

        retried = await self._commit(write, self._announce)
        return bool(retried)

    async def _retry_outbound(self, letter: DeadLetter) -> bool:
        expires = (self._clock() + self.outbound_expiry).timestamp()

        def write(connection: sqlite3.Connection) -> tuple[Undelivered, ...]:
            row = connection.execute(
                f"SELECT {_OUTBOX_COLUMNS} FROM outbox WHERE seq = ? AND state = 'dead'",
                (letter.seq,),
            ).fetchone()
            if row is None:
                return ()
            try:
                undelivered = _undelivered(connection, row)
            except ValidationError:
                return ()
            connection.execute(
                "UPDATE outbox SET state = 'pending', attempts = 0, not_before = NULL, "
                "error = NULL, settled_at = NULL, expires_at = ? WHERE seq = ?",
                (expires, letter.seq),
            )
            afresh = replace(
                undelivered,
                attempts=0,
                not_before=None,
                expires_at=_when(expires),
                retried=True,
            )
            return (afresh,)

        retried = await self._commit(write, self._announce_outbound)
        return bool(retried)

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

    # Retention

    async def purge(self, keep: timedelta) -> int:
        """Remove what was settled longer ago than ``keep``; returns how many messages.

        Never what is younger than ``DOUBLES``, nor the newest ``KEPT_ROWS`` of a box, nor a dead
        letter. A few rows a transaction, so that nobody waits for it.
        """
        before = (self._clock() - max(keep, DOUBLES)).timestamp()
        removed = 0
        for box in ("inbox", "outbox"):
            while count := await self._database.write(
                lambda connection, box=box: _purge_in(connection, box, before)  # type: ignore[misc]
            ):
                removed += count
        return removed

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

    async def _commit(
        self,
        write: Callable[[sqlite3.Connection], T],
        announce: Callable[[T], None],
    ) -> T:
        """Write durably, then announce it, even if whoever waits for it is cancelled meanwhile.

        What is committed and not announced would lie there until the next start.
        """

        async def work() -> T:
            committed = await self._database.write(write, durable=True)
            announce(committed)
            return committed

        task = asyncio.create_task(work(), name="bus commit")
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)
        return await asyncio.shield(task)

    def _announce(self, accepted: Iterable[Pending]) -> None:
        for pending in accepted:
            for listener in self._inbound_listeners:
                listener(pending)

    def _announce_outbound(self, queued: Iterable[Undelivered]) -> None:
        for undelivered in queued:
            for listener in self._outbound_listeners:
                listener(undelivered)


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


def _waiting(connection: sqlite3.Connection, message: InboundMessage) -> int:
    """How many messages of people wait in the session, or answers to people for the chat."""
    inbox, outbox = connection.execute(
        "SELECT (SELECT count(*) FROM inbox WHERE state = 'pending' AND session = ? "
        "AND id NOT GLOB 'subagent:*'), (SELECT count(*) FROM outbox WHERE state = 'pending' "
        "AND channel = ? AND target = ? AND session NOT GLOB 'cron:*')",
        (message.session_key, message.channel, message.chat_id),
    ).fetchone()
    return max(int(inbox), int(outbox))


def _is_known(connection: sqlite3.Connection, inbound_id: str) -> bool:
    row = connection.execute("SELECT 1 FROM inbox WHERE id = ?", (inbound_id,)).fetchone()
    return row is not None


def _unused(connection: sqlite3.Connection, message: InboundMessage, stale: float) -> str:
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
    return _inbound().dump_json(message).decode()


def _queue_in(
    connection: sqlite3.Connection,
    outbounds: Sequence[OutboundMessage],
    now: datetime,
    expires: float,
) -> tuple[Undelivered, ...]:
    """Put messages into the outbox within the caller's transaction; returns the new ones.

    What a chat's own session did not write goes into the log of that session as well.
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
                expires,
            ),
        )
        if cursor.rowcount:
            if outbound.cause is not None:
                append_in(connection, outbound.chats_session, [_logged(outbound, now)], now)
            queued.append(
                Undelivered(outbound, expires_at=_when(expires), seq=cursor.lastrowid or 0)
            )
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


_OUTBOX_COLUMNS = "seq, id, payload, attempts, not_before, expires_at"


def _undelivered(connection: sqlite3.Connection, row: Sequence[Any]) -> Undelivered:
    """A row of ``_OUTBOX_COLUMNS`` with its pieces; raises ValidationError when damaged."""
    seq, outbound_id, payload, attempts, not_before, expires_at = row
    message = _outbound().validate_json(payload)
    pieces = connection.execute(
        "SELECT payload, state FROM piece WHERE outbound_id = ? ORDER BY number", (outbound_id,)
    ).fetchall()
    return Undelivered(
        message,
        tuple(Piece(text, PieceState(state)) for text, state in pieces),
        attempts,
        _moment(not_before),
        _moment(expires_at),
        seq,
    )


def _purge_in(connection: sqlite3.Connection, box: str, before: float) -> int:
    found = connection.execute(
        f"SELECT seq, id FROM {box} WHERE settled_at < ? AND state NOT IN ('pending', 'dead') "
        f"AND seq <= (SELECT max(seq) FROM {box}) - ? LIMIT ?",
        (before, KEPT_ROWS, _PURGE_ROWS),
    ).fetchall()
    connection.executemany(f"DELETE FROM {box} WHERE seq = ?", [(seq,) for seq, _ in found])
    if box == "outbox":
        connection.executemany(
            "DELETE FROM piece WHERE outbound_id = ?", [(id_,) for _, id_ in found]
        )
    return len(found)


def _said(payload: str) -> str:
    """What a stored message says, in a line; "" when that cannot be read."""
    try:
        content = json.loads(payload)["content"]
    except (ValueError, KeyError, TypeError):
        return ""
    return one_line(content, _TEXT_LENGTH) if isinstance(content, str) else ""


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
