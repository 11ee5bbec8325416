"""The long poll: updates are committed to the inbox and acknowledged only then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from loguru import logger
from pydantic import ValidationError

from nanobot.bus.inbox import Poison
from nanobot.channels.registry import Intake
from nanobot.channels.telegram.connections import (
    CallFailed,
    Connections,
    Limits,
    NoAnswer,
    Refusal,
    Time,
)
from nanobot.channels.telegram.updates import ALLOWED_UPDATES, Reader, User, update_id
from nanobot.core.errors import StoreError
from nanobot.core.messages import InboundMessage
from nanobot.core.ports import ChannelState, Clock
from nanobot.core.text import one_line
from nanobot.safety.gate import Gate

REPEAT = timedelta(minutes=10)
"""A fault that comes and goes is logged again after this time at the earliest."""


class Health:
    """The channel's state, and which of its faults the log still has to be told.

    ``reported`` is set with the first success or failure.
    """

    def __init__(self, clock: Clock) -> None:
        self.reported = asyncio.Event()
        self.state = ChannelState(connected=False, detail="not connected yet")
        self._clock = clock
        self._logged: set[str] = set()
        self._logged_at: dict[str, datetime] = {}

    def up(self, detail: str) -> None:
        """The server answers as it should; the last error is kept with its time."""
        before = self.state
        self.state = ChannelState(True, detail, before.last_error, before.error_at)
        if not before.connected and self._logged:
            logger.info("telegram works again: {}", detail)
        elif not before.connected and not before.last_error:
            logger.info("telegram is connected: {}", detail)
        self._logged.clear()
        self.reported.set()

    def down(self, kind: str, text: str) -> None:
        """Nothing can be received; ``kind`` tells faults apart whatever their texts."""
        self.state = ChannelState(False, text, text, self._clock())
        self._log(kind, text)
        self.reported.set()

    def noted(self, kind: str, text: str) -> None:
        """Something failed without which the channel still serves."""
        self.state = ChannelState(self.state.connected, self.state.detail, text, self._clock())
        self._log(kind, text)

    def _log(self, kind: str, text: str) -> None:
        now = self._clock()
        before = self._logged_at.get(kind)
        if kind not in self._logged and (before is None or now - before >= REPEAT):
            self._logged.add(kind)
            self._logged_at[kind] = now
            logger.warning("telegram: {}", text)


class Polling:
    """Polls for ever; after a fault it waits and tries again.

    The server forgets updates below the offset of a poll. The offset is the last id + 1 and is
    given until a poll comes back empty, when there is nothing left to acknowledge: update ids
    start again at random after an idle week, below an offset that was kept.

    ``polled`` is set once the bot is known and after each poll.
    """

    def __init__(
        self,
        connections: Connections,
        intake: Intake,
        gate: Gate,
        health: Health,
        limits: Limits,
        time: Time,
    ) -> None:
        self.polled = asyncio.Event()
        self._connections = connections
        self._intake = intake
        self._gate = gate
        self._health = health
        self._limits = limits
        self._time = time
        self._reader: Reader | None = None
        self._detail = ""
        self._offset: int | None = None
        self._probe = False

    async def run(self) -> None:
        """Take updates in until cancelled; what was not committed then comes again."""
        failures = 0
        while True:
            try:
                await self._round()
            except CallFailed as error:
                wait_s = await self._failed(error, failures)
            except StoreError as error:
                self._health.down("store", f"messages wait, the inbox cannot be written: {error}")
                wait_s = self._backoff(failures)
            except Exception as error:
                # Ours or the inbox's defect: a channel that died of it would be deaf for good.
                if not failures:
                    logger.exception("telegram: taking updates in failed")
                self._health.down("defect", f"taking updates in failed: {one_line(repr(error))}")
                wait_s = self._backoff(failures)
            else:
                failures = 0
                continue
            failures += 1
            await self._time.sleep(wait_s)

    async def _round(self) -> None:
        if self._reader is None:
            self._reader = await self._introduced()
            self._succeeded()
        # After a broken connection a short poll tells at once that it is mended.
        poll_s = 0 if self._probe else self._limits.poll_s
        self._probe = False
        entries = await self._connections.poll(
            "getUpdates",
            {
                "offset": self._offset,
                "timeout": poll_s,
                "allowed_updates": list(ALLOWED_UPDATES),
            },
            limit_s=poll_s + self._limits.poll_margin_s,
        )
        if not isinstance(entries, list):
            raise NoAnswer("what the server gave as updates is no list")
        await self._take(entries, self._reader)
        self._succeeded()

    def _succeeded(self) -> None:
        self._health.up(self._detail)
        self.polled.set()

    async def _introduced(self) -> Reader:
        result = await self._connections.poll("getMe", {}, limit_s=self._limits.call_s)
        try:
            user = User.model_validate(result)
        except ValidationError as error:
            raise NoAnswer("what the server says about the bot cannot be read") from error
        self._detail = f"@{user.username}"
        return Reader(user.id, self._gate, self._time.clock)

    async def _take(self, entries: Sequence[object], reader: Reader) -> None:
        """Commit a batch, then move the offset.

        The offset stays at the first message for which the inbox has no room, so that Telegram
        keeps it. The next poll brings newer updates, too: a command, or another chat's message.
        """
        read = [reader.read(entry) for entry in entries]
        messages = [one for one in read if isinstance(one, InboundMessage)]
        poison = [one for one in read if isinstance(one, Poison)]
        if messages or poison:
            left = await self._intake.post_now(messages, poison)
            if left:
                self._offset = update_id(entries[read.index(left[0])])
                await self._time.sleep(self._limits.backoff_s)
                return
        if not entries:
            self._offset = None
            return
        numbers = [number for number in map(update_id, entries) if number is not None]
        if not numbers:
            raise NoAnswer("the server gave updates without ids, which cannot be acknowledged")
        self._offset = numbers[-1] + 1

    async def _failed(self, error: CallFailed, failures: int) -> float:
        """Note a failed call; returns for how long to wait."""
        if not isinstance(error, Refusal):
            # Its connection may be half dead, and the next poll would get no answer, either.
            await self._connections.renew_poller()
            self._probe = True
            self._health.down(type(error).__name__, str(error))
            return self._backoff(failures)
        if error.is_of_token:
            self._health.down(
                "token",
                f"the token is refused: {error}; "
                "put the one that @BotFather shows into channels.telegram.token",
            )
            return self._limits.backoff_most_s
        if error.code == 409:
            # Another program polls for this bot, or it has a webhook.
            self._health.down(
                "conflict", f"somebody else takes this bot's messages, so none come here: {error}"
            )
            return self._backoff(failures)
        self._probe = error.is_of_server
        self._health.down(f"HTTP {error.code}", f"the server refuses to give updates: {error}")
        return self._backoff(failures) if error.after is None else error.after

    def _backoff(self, failures: int) -> float:
        """Exponential up to the longest wait, the later half of it random."""
        exponential_s = self._limits.backoff_s * 2.0 ** min(failures, 30)
        most_s = min(exponential_s, self._limits.backoff_most_s)
        return most_s * (1 + self._time.jitter()) / 2
