"""MessageBus: accepts, settles and queues messages, each in one durable transaction."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from loguru import logger

from nanobot.agent.turn import TurnResult
from nanobot.bus.dead_letters import DeadLetters, Rows, count_in
from nanobot.bus.inbox import (
    Inbox,
    Pending,
    Poison,
    is_known_in,
    last_chat_in,
    post_in,
    unused_id_in,
    waiting_in,
)
from nanobot.bus.outbox import Outbox, Undelivered, queue_in
from nanobot.core.messages import AnswerRule, InboundMessage, OutboundMessage
from nanobot.core.ports import Clock
from nanobot.session.log import append_in
from nanobot.store.database import Database

OUTBOUND_EXPIRY = timedelta(hours=48)
"""After this time an outbound that could not be delivered becomes a dead letter."""
MAX_QUEUED = 1000
"""Messages that may wait in a session, or answers for a chat, before intake is held back."""
DOUBLES = timedelta(hours=48)
"""How long a platform's id names the same message; idle bots' ids begin anew after a week."""
KEPT_ROWS = 1000
"""Settled rows that a purge keeps whatever their age, in case the clock jumps."""
_RECOUNT_S = 1.0
_PURGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of waiting messages and of dead letters in both boxes."""

    inbox: int
    outbox: int
    dead_inbox: int
    dead_outbox: int


class MessageBus:
    """Accepts, settles and queues messages; each method returns once its change is on disk."""

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
        self._freed = asyncio.Event()
        self.inbox = Inbox(database, clock)
        self.outbox = Outbox(database, clock, self._freed)
        self.dead_letters = DeadLetters(database, clock, self._commit, outbound_expiry)
        self._inbound_listeners: list[Callable[[Pending], None]] = []
        self._outbound_listeners: list[Callable[[Undelivered], None]] = []
        self.is_urgent: Callable[[InboundMessage], bool] = lambda message: False
        """Whether a message is accepted however many wait; the dispatcher sets it."""
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
        """Whether this process delivers queued messages: a gateway does, a one-shot does not."""
        return bool(self._outbound_listeners)

    async def post(self, message: InboundMessage) -> bool:
        """Put a message into the inbox, durably; False when its id was there already.

        For messages of the assistant itself and of its owner's terminal: never held back.
        """
        now = self._clock().timestamp()
        return bool(await self._commit(lambda connection: post_in(connection, [message], now)))

    async def post_all(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]:
        """As ``post_now``, but wait until all of them have room; returns those that were new."""
        accepted, left = await self._take_in(messages, poison)
        while left:
            self._freed.clear()
            # Nothing sets the event for rows that were lost with a damaged database.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RECOUNT_S):
                    await self._freed.wait()
            more, left = await self._take_in(left, ())
            accepted += more
        return accepted

    async def post_now(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]:
        """Put messages and unreadable updates of a channel into the inbox in one transaction.

        Returns the messages without room, so that the platform may keep them: those of a session
        where ``max_queued`` messages wait to be answered, or of a chat where so many answers wait
        to be delivered. Urgent messages always have room. The dispatcher is told of the others
        after the commit, which is synced. An id counts as new again when it named something else
        more than ``DOUBLES`` ago.
        """
        _, left = await self._take_in(messages, poison)
        return left

    async def _take_in(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison]
    ) -> tuple[tuple[InboundMessage, ...], tuple[InboundMessage, ...]]:
        """Post what has room; returns the messages that were new, and those without room."""
        now = self._clock()
        stamp = now.timestamp()
        stale = (now - DOUBLES).timestamp()
        left: list[InboundMessage] = []

        def write(connection: sqlite3.Connection) -> tuple[Pending, ...]:
            left.clear()
            for update in poison:
                connection.execute(
                    "INSERT OR IGNORE INTO inbox (id, session, channel, payload, state, error, "
                    "received_at) VALUES (?, '', ?, ?, 'dead', ?, ?)",
                    (update.id, update.channel, update.raw, update.error, stamp),
                )
            accepted: list[Pending] = []
            room: dict[str, int] = {}
            for message in messages:
                key = message.session_key
                if key not in room:
                    room[key] = self.max_queued - waiting_in(connection, message)
                named = replace(message, id=unused_id_in(connection, message, stale))
                if room[key] > 0 or self.is_urgent(message) or is_known_in(connection, named.id):
                    posted = post_in(connection, [named], stamp)
                    room[key] -= len(posted)
                    accepted += posted
                else:
                    left.append(message)
            return tuple(accepted)

        accepted = await self._commit(write)
        full = {message.session_key for message in left}
        for session in full - self._full:
            logger.warning("{}: intake held back, {} messages wait", session, self.max_queued)
        self._full = full
        return tuple(one.message for one in accepted if isinstance(one, Pending)), tuple(left)

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
        ``dead`` or ``interrupted``. Settling twice has no further effect, and nothing is posted
        when all inbounds were settled before.
        """
        now = self._clock()
        stamp = now.timestamp()
        expires = now + self.outbound_expiry

        def write(connection: sqlite3.Connection) -> Rows:
            closed = 0
            for inbound_id in result.consumed:
                closed += connection.execute(
                    "UPDATE inbox SET state = ?, error = ?, settled_at = ?, not_before = NULL "
                    "WHERE id = ? AND state = 'pending'",
                    (state, error, stamp, inbound_id),
                ).rowcount
            if result.entries:
                append_in(connection, result.session, result.entries, now)
            queued = queue_in(connection, outbounds, now, expires)
            follow = closed or not result.consumed
            return (*post_in(connection, posts if follow else (), stamp), *queued)

        await self._commit(write, frees=True)

    async def queue(self, *outbounds: OutboundMessage) -> tuple[OutboundMessage, ...]:
        """Put messages into the outbox, durably; returns those whose id was not there yet."""
        now = self._clock()
        expires = now + self.outbound_expiry
        queued = await self._commit(
            lambda connection: queue_in(connection, outbounds, now, expires)
        )
        return tuple(one.message for one in queued if isinstance(one, Undelivered))

    async def holds(self, outbound_id: str) -> bool:
        """Whether an outbound with this id was ever queued."""

        def read(connection: sqlite3.Connection) -> bool:
            row = connection.execute("SELECT 1 FROM outbox WHERE id = ?", (outbound_id,))
            return row.fetchone() is not None

        return await self._database.read(read)

    async def put(
        self,
        posts: Sequence[InboundMessage],
        outbounds: Sequence[OutboundMessage],
        *,
        when: Callable[[sqlite3.Connection], bool],
    ) -> bool:
        """Post and queue in one synced transaction with what ``when`` writes, if that is True."""
        now = self._clock()
        expires = now + self.outbound_expiry
        done = False

        def write(connection: sqlite3.Connection) -> Rows:
            nonlocal done
            done = when(connection)
            if not done:
                return ()
            queued = queue_in(connection, outbounds, now, expires)
            return (*post_in(connection, posts, now.timestamp()), *queued)

        await self._commit(write)
        return done

    async def last_chat(self, served: frozenset[str]) -> AnswerRule | None:
        """See ``last_chat_in``."""
        return await self._database.read(lambda connection: last_chat_in(connection, served))

    async def purge(self, keep: timedelta) -> int:
        """Remove what was settled longer ago than ``keep``; returns how many messages.

        Rows younger than ``DOUBLES``, the newest ``KEPT_ROWS`` of a box and dead letters stay. A
        few rows a transaction, so that no other write waits long.
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
        """The numbers of waiting messages and of dead letters, for ``status``."""
        return await self._database.read(
            lambda connection: Counts(
                *(
                    count_in(connection, box, state)
                    for state in ("pending", "dead")
                    for box in ("inbox", "outbox")
                )
            )
        )

    async def _commit(
        self, write: Callable[[sqlite3.Connection], Rows], *, frees: bool = False
    ) -> Rows:
        """Write durably, then announce the rows that ``write`` returns, also if cancelled.

        A row that is committed and not announced would wait until the next start. ``frees``: the
        write may have made room for others.
        """

        async def work() -> Rows:
            rows = await self._database.write(write, durable=True)
            if frees:
                self._freed.set()
            for row in rows:
                if isinstance(row, Pending):
                    for accepted in self._inbound_listeners:
                        accepted(row)
                else:
                    for queued in self._outbound_listeners:
                        queued(row)
            return rows

        task = asyncio.create_task(work(), name="bus commit")
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)
        return await asyncio.shield(task)


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
