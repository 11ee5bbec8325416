"""The delivery worker of a channel: ordered within a chat, side by side between chats."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import datetime, timedelta

from loguru import logger

from nanobot.bus.bus import MessageBus, Piece, PieceState, Undelivered
from nanobot.core.errors import ChannelRetryLater, StoreError, Undeliverable
from nanobot.core.messages import OutboundMessage
from nanobot.core.ports import Channel, Clock

BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0)
SEND_LIMIT_S = 60.0
"""Wall clock round one send; what passes it may have arrived."""
PARALLEL = 32
IDLE_S = 30.0


class DeliveryWorker:
    """Hands a channel's outbounds to it; the one owner of retries.

    A piece is noted as ``attempting`` before it is sent; when the process died in between, it is
    sent again and marked. A chat whose head cannot be delivered holds back only itself.
    """

    def __init__(
        self, bus: MessageBus, channel: Channel, clock: Clock, *, parallel: int = PARALLEL
    ) -> None:
        self.bus = bus
        self.channel = channel
        self.clock = clock
        self.slots = asyncio.Semaphore(parallel)
        self.stopping = asyncio.Event()
        self._chats: dict[str, _Chat] = {}
        bus.on_outbound(self._queued)

    async def recover(self) -> None:
        """Take up what a former process left undelivered. Call once, before anything is queued."""
        for undelivered in await self.bus.undelivered(self.channel.name):
            self._chat(undelivered.message).put(undelivered)

    def waiting(self) -> int:
        """How many outbounds wait or are being sent."""
        return sum(len(chat.queue) + chat.busy for chat in self._chats.values())

    async def close(self, grace_s: float) -> None:
        """Finish sends under way within ``grace_s``; the rest stays in the outbox."""
        self.stopping.set()
        tasks = {chat.task for chat in self._chats.values()}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def forget(self, key: str) -> None:
        """Drop an idle chat; called by it, with no await in between."""
        del self._chats[key]

    def _queued(self, message: OutboundMessage) -> None:
        if message.channel == self.channel.name and not self.stopping.is_set():
            expires_at = self.clock() + self.bus.outbound_expiry
            self._chat(message).put(Undelivered(message, expires_at=expires_at))

    def _chat(self, message: OutboundMessage) -> _Chat:
        chat = self._chats.get(message.chat_id)
        if chat is None:
            chat = self._chats[message.chat_id] = _Chat(self, message.chat_id)
        return chat


class _Chat:
    """The outbounds of one chat, delivered one after the other."""

    def __init__(self, worker: DeliveryWorker, key: str) -> None:
        self.queue: deque[Undelivered] = deque()
        self.busy = False
        self._worker = worker
        self._key = key
        self._mail = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"deliver {worker.channel.name} {key}")

    def put(self, undelivered: Undelivered) -> None:
        self.queue.append(undelivered)
        self._mail.set()

    async def _run(self) -> None:
        stopping = self._worker.stopping
        while not stopping.is_set():
            if not self.queue:
                self._mail.clear()
                if not await _either(self._mail, stopping, IDLE_S) and not self.queue:
                    self._worker.forget(self._key)
                    return
                continue
            head = self.queue.popleft()
            self.busy = True
            try:
                await self._deliver(head)
            finally:
                self.busy = False

    async def _deliver(self, undelivered: Undelivered) -> None:
        """Deliver one outbound to its end: sent, dead, or left for the next start."""
        worker, bus, message = self._worker, self._worker.bus, undelivered.message
        attempts = undelivered.attempts
        wait_until = undelivered.not_before
        pieces = list(undelivered.pieces)
        while not worker.stopping.is_set():
            if wait_until is not None and not await self._wait(wait_until):
                return
            if undelivered.expires_at is not None and worker.clock() >= undelivered.expires_at:
                await bus.bury(message.id, "it could not be delivered in time")
                return
            try:
                async with worker.slots:
                    await self._send(message, pieces)
                return
            except Undeliverable as error:
                logger.bind(outbound=message.id).error(
                    "{} will not take a message, now a dead letter: {}",
                    worker.channel.name,
                    error,
                )
                await bus.bury(message.id, str(error))
                return
            except ChannelRetryLater as error:
                reason, after = str(error), error.after or 0.0
            except Exception as error:
                logger.bind(outbound=message.id).exception("a delivery failed")
                reason, after = repr(error), 0.0
            delay = max(after, BACKOFF_S[min(attempts, len(BACKOFF_S) - 1)])
            wait_until = worker.clock() + timedelta(seconds=delay)
            attempts += 1
            logger.bind(outbound=message.id).warning(
                "{} does not take a message, next try in {:.0f} s: {}",
                worker.channel.name,
                delay,
                reason,
            )
            await self._note_retry(message.id, wait_until, reason)

    async def _note_retry(self, outbound_id: str, until: datetime, reason: str) -> None:
        """Remember the retry for ``status`` and a restart; without a disk, only here."""
        try:
            await self._worker.bus.retry_at(outbound_id, until, reason)
        except StoreError as error:
            logger.error("a failed delivery could not be noted: {}", error)

    async def _send(self, message: OutboundMessage, pieces: list[Piece]) -> None:
        """Send what is not sent yet; ``pieces`` follows what the outbox knows."""
        bus, channel = self._worker.bus, self._worker.channel
        again = False
        if not pieces:
            payloads = await asyncio.to_thread(channel.pieces, message)
            if not payloads:
                await bus.nothing_to_send(message.id)
                return
            await bus.plan(message.id, payloads)
            pieces.extend(Piece(payload, PieceState.QUEUED) for payload in payloads)
            pieces[0] = Piece(payloads[0], PieceState.ATTEMPTING)
            begun = True
        else:
            begun = False
        for number, piece in enumerate(pieces):
            if piece.state is PieceState.SENT:
                continue
            again = piece.state is PieceState.ATTEMPTING and not (begun and number == 0)
            if piece.state is PieceState.QUEUED:
                await bus.attempting(message.id, number)
                pieces[number] = Piece(piece.payload, PieceState.ATTEMPTING)
            try:
                async with asyncio.timeout(SEND_LIMIT_S):
                    platform_id = await channel.send(message, piece.payload, again=again)
            except TimeoutError as error:
                raise ChannelRetryLater(
                    f"no answer within {SEND_LIMIT_S:g} s", maybe_sent=True
                ) from error
            except ChannelRetryLater as error:
                if not error.maybe_sent and not again:
                    await bus.not_sent(message.id, number)
                    pieces[number] = Piece(piece.payload, PieceState.QUEUED)
                raise
            await bus.sent(message.id, number, platform_id, last=number == len(pieces) - 1)
            pieces[number] = Piece(piece.payload, PieceState.SENT)

    async def _wait(self, until: datetime) -> bool:
        """Wait for the time of a retry; False when the worker is stopping."""
        seconds = (until - self._worker.clock()).total_seconds()
        if seconds > 0:
            await _either(self._worker.stopping, self._worker.stopping, seconds)
        return not self._worker.stopping.is_set()


async def _either(first: asyncio.Event, second: asyncio.Event, seconds: float) -> bool:
    """Wait until one of the events is set; False when ``seconds`` pass first."""
    events = {first, second}
    waits = {asyncio.create_task(event.wait()) for event in events}
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
