"""The delivery worker of a channel: ordered within a chat, side by side between chats."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from loguru import logger

from nanobot.bus.backlog import Backlog
from nanobot.bus.bus import MessageBus
from nanobot.bus.outbox import Piece, PieceState, Undelivered
from nanobot.core.errors import ChannelRetryLater, StoreError, Undeliverable
from nanobot.core.messages import OutboundMessage
from nanobot.core.ports import Channel, Clock

BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0)
LONGEST_WAIT_S = 3600.0
"""No stored time is waited for longer: the clock may have been set back since."""
SEND_LIMIT_S = 60.0
"""Wall clock round one send; what passes it may have arrived."""
PARALLEL = 32
SHORT = 1000
"""Characters that are rendered within a millisecond."""
IDLE_S = 30.0


class DeliveryWorker:
    """Hands a channel's outbounds to it; the one owner of retries.

    A piece is noted as ``attempting`` before it is sent; when the process died in between, it is
    sent again and marked. A chat whose head cannot be delivered holds back only itself. Waits and
    expiry go by ``monotonic`` from the moment an outbound is taken up, so that a clock that jumps
    neither buries what could be delivered nor makes it wait for ever.
    """

    def __init__(
        self,
        bus: MessageBus,
        channel: Channel,
        clock: Clock,
        *,
        parallel: int = PARALLEL,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bus = bus
        self.channel = channel
        self.clock = clock
        self.monotonic = monotonic
        self.slots = asyncio.Semaphore(parallel)
        self.stopping = asyncio.Event()
        self._chats: dict[str, _Chat] = {}
        bus.on_outbound(self._queued)

    async def recover(self) -> None:
        """Take up what a former process left undelivered. Call once, before anything is queued."""
        chats = map(self._chat, await self.bus.outbox.chats_waiting(self.channel.name))
        await asyncio.gather(*(chat.backlog.recover() for chat in chats))

    def waiting(self) -> int:
        """How many outbounds are in memory: they wait or are being sent."""
        return sum(chat.held() for chat in self._chats.values())

    async def close(self, grace_s: float) -> None:
        """Finish sends under way within ``grace_s``; the rest stays in the outbox."""
        self.stopping.set()
        await asyncio.gather(*(chat.backlog.close() for chat in self._chats.values()))
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

    def _queued(self, undelivered: Undelivered) -> None:
        if undelivered.message.channel != self.channel.name or self.stopping.is_set():
            return
        chat = self._chat(undelivered.message.chat_id)
        if chat.backlog.admits(undelivered):
            chat.put(undelivered)

    def _chat(self, key: str) -> _Chat:
        chat = self._chats.get(key)
        if chat is None:
            chat = self._chats[key] = _Chat(self, key)
        return chat


class _Delivery:
    """One outbound on its way; the task of its chat is the only owner.

    ``pieces`` follows what the outbox knows, and what it could not be told: ``unnoted`` holds the
    platform's ids of pieces that were sent and not noted yet.
    """

    def __init__(self, undelivered: Undelivered, worker: DeliveryWorker) -> None:
        self.message = undelivered.message
        self.pieces = list(undelivered.pieces)
        self.unnoted: dict[int, str] = {}
        self.attempts = undelivered.attempts
        self.store_faults = 0
        now, wall = worker.monotonic(), worker.clock()
        self.not_before = now
        if undelivered.not_before is not None:
            wait_s = (undelivered.not_before - wall).total_seconds()
            self.not_before += min(max(wait_s, 0.0), LONGEST_WAIT_S)
        left = worker.bus.outbound_expiry
        if undelivered.expires_at is not None:
            left = min(undelivered.expires_at - wall, left)
        self.expires_at = now + left.total_seconds()


class _Chat:
    """The outbounds of one chat, delivered one after the other."""

    def __init__(self, worker: DeliveryWorker, key: str) -> None:
        self.queue: deque[_Delivery] = deque()
        self.busy = False
        self._worker = worker
        self._key = key
        self._mail = asyncio.Event()
        self.backlog: Backlog[Undelivered] = Backlog(
            lambda after, limit: worker.bus.outbox.undelivered(
                worker.channel.name, key, after=after, limit=limit
            ),
            self._recovered,
            self.held,
            limit=worker.bus.max_queued,
        )
        self.task = asyncio.create_task(self._run(), name=f"deliver {worker.channel.name} {key}")

    def held(self) -> int:
        """How many outbounds are in memory."""
        return len(self.queue) + self.busy

    def put(self, undelivered: Undelivered) -> None:
        self.queue.append(_Delivery(undelivered, self._worker))
        self._mail.set()

    async def _recovered(self, undelivered: Undelivered) -> None:
        self.put(undelivered)

    async def _run(self) -> None:
        stopping = self._worker.stopping
        while not stopping.is_set():
            if not self.queue:
                self._mail.clear()
                has_mail = await _either(self._mail, stopping, IDLE_S)
                if not has_mail and not self.queue and not self.backlog.is_behind:
                    self._worker.forget(self._key)
                    return
                continue
            head = self.queue.popleft()
            self.busy = True
            try:
                await self._deliver(head)
            except Exception:
                # A defect; the message stays in the outbox for the next start, the others go on.
                logger.bind(outbound=head.message.id).exception("delivering failed")
            finally:
                self.busy = False
            self.backlog.released()

    async def _deliver(self, delivery: _Delivery) -> None:
        """Deliver one outbound to its end: sent, dead, or left for the next start."""
        worker, message = self._worker, delivery.message
        while not worker.stopping.is_set():
            if not await self._wait(delivery.not_before):
                return
            try:
                if await self._has_ended(delivery):
                    return
            except StoreError as error:
                # Whatever could not be noted is noted, or done, at the next try.
                delay = BACKOFF_S[min(delivery.store_faults, 4)]
                delivery.store_faults += 1
                delivery.not_before = worker.monotonic() + delay
                logger.bind(outbound=message.id).warning(
                    "a delivery waits for the disk, next try in {:.0f} s: {}", delay, error
                )

    async def _has_ended(self, delivery: _Delivery) -> bool:
        """Try once; False when it is to be tried again. Raises StoreError."""
        worker, bus, message = self._worker, self._worker.bus, delivery.message
        if worker.monotonic() >= delivery.expires_at:
            await bus.outbox.dead_letter(message.id, "it could not be delivered in time")
            return True
        try:
            async with worker.slots:
                await self._send(delivery)
            return True
        except Undeliverable as error:
            logger.bind(outbound=message.id).error(
                "{} will not take a message, now a dead letter: {}", worker.channel.name, error
            )
            await bus.outbox.dead_letter(message.id, str(error))
            return True
        except ChannelRetryLater as error:
            reason, after = str(error), error.after or 0.0
        except StoreError:
            raise
        except Exception as error:
            logger.bind(outbound=message.id).exception("a delivery failed")
            reason, after = repr(error), 0.0
        delay = max(after, BACKOFF_S[min(delivery.attempts, len(BACKOFF_S) - 1)])
        delivery.attempts += 1
        delivery.not_before = worker.monotonic() + delay
        logger.bind(outbound=message.id).warning(
            "{} does not take a message, next try in {:.0f} s: {}",
            *(worker.channel.name, delay, reason),
        )
        until = worker.clock() + timedelta(seconds=delay)
        await self._note(bus.outbox.retry_at(message.id, until, reason))
        return False

    async def _note(self, write: Awaitable[None]) -> None:
        """Note what a restart does well to know; without a disk it is known here alone."""
        try:
            await write
        except StoreError as error:
            logger.error("a failed delivery could not be noted: {}", error)

    async def _rendered(self, message: OutboundMessage) -> Sequence[str]:
        """The pieces of a message; a long one in a thread, which costs more than a short one."""
        if len(message.content) <= SHORT:
            return self._worker.channel.pieces(message)
        return await asyncio.to_thread(self._worker.channel.pieces, message)

    async def _send(self, delivery: _Delivery) -> None:
        """Send what is not sent yet."""
        bus, message, pieces = self._worker.bus, delivery.message, delivery.pieces
        begun = False
        if not pieces:
            payloads = await self._rendered(message)
            if not payloads:
                await bus.outbox.nothing_to_send(message.id)
                return
            await bus.outbox.plan(message.id, payloads)
            pieces.extend(Piece(payload, PieceState.QUEUED) for payload in payloads)
            pieces[0] = Piece(payloads[0], PieceState.ATTEMPTING)
            begun = True
        elif all(piece.state is PieceState.SENT for piece in pieces) and not delivery.unnoted:
            await bus.outbox.nothing_to_send(message.id)
            return
        for number, piece in enumerate(pieces):
            if piece.state is not PieceState.SENT:
                fresh = begun and number == 0
                await self._send_piece(message, delivery, number, fresh=fresh)
            if number in delivery.unnoted:
                last = number == len(pieces) - 1
                await bus.outbox.sent(message.id, number, delivery.unnoted[number], last=last)
                del delivery.unnoted[number]

    async def _send_piece(
        self, message: OutboundMessage, delivery: _Delivery, number: int, *, fresh: bool
    ) -> None:
        """Send one piece, noted as being attempted; ``fresh``: it was noted so just now."""
        bus, channel, pieces = self._worker.bus, self._worker.channel, delivery.pieces
        payload = pieces[number].payload
        again = pieces[number].state is PieceState.ATTEMPTING and not fresh
        if pieces[number].state is PieceState.QUEUED:
            await bus.outbox.attempting(message.id, number)
            pieces[number] = Piece(payload, PieceState.ATTEMPTING)
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                platform_id = await channel.send(message, payload, again=again)
        except TimeoutError as error:
            raise ChannelRetryLater(
                f"no answer within {SEND_LIMIT_S:g} s", maybe_sent=True
            ) from error
        except (ChannelRetryLater, Undeliverable) as error:
            maybe_sent = isinstance(error, ChannelRetryLater) and error.maybe_sent
            if not maybe_sent and not again:
                pieces[number] = Piece(payload, PieceState.QUEUED)
                await self._note(bus.outbox.not_sent(message.id, number))
            raise
        pieces[number] = Piece(payload, PieceState.SENT)
        delivery.unnoted[number] = platform_id

    async def _wait(self, until: float) -> bool:
        """Wait for the time of a retry; False when the worker is stopping."""
        seconds = until - self._worker.monotonic()
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
