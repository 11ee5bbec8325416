"""The long poll: updates are committed to the inbox and acknowledged only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from loguru import logger
from pydantic import ValidationError

from nanobot.bus.inbox import Poison
from nanobot.channels.registry import Intake
from nanobot.channels.telegram.connections import CallFailed, Connections, Limits, NoAnswer, Refusal
from nanobot.channels.telegram.sending import Sleep
from nanobot.channels.telegram.updates import ALLOWED_UPDATES, Me, Reader, User, update_id
from nanobot.core.errors import StoreError
from nanobot.core.messages import InboundMessage
from nanobot.core.ports import ChannelState, Clock
from nanobot.core.text import one_line

REPEAT = timedelta(minutes=10)
"""A fault that comes and goes is logged again after this time at the earliest."""


class Health:
    """Owned by the polling.

    ``reported`` is set with the first success or failure, ``was_up`` with the first success.
    """

    def __init__(self, clock: Clock) -> None:
        self.reported = asyncio.Event()
        self.was_up = asyncio.Event()
        self._clock = clock
        self._state = ChannelState(connected=False, detail="not connected yet")
        self._is_down = False
        self._told: set[str] = set()
        self._logged_at: dict[str, datetime] = {}

    def state(self) -> ChannelState:
        """The state now; the last error is kept after recovery, with its time."""
        return self._state

    def up(self, detail: str) -> None:
        """The server answers as it should."""
        before = self._state
        self._state = ChannelState(True, detail, before.last_error, before.error_at)
        if self._is_down:
            if self._told:
                logger.info("telegram works again: {}", detail)
        elif not self.was_up.is_set():
            logger.info("telegram is connected: {}", detail)
        self._is_down = False
        self._told.clear()
        self.was_up.set()
        self.reported.set()

    def down(self, kind: str, text: str) -> None:
        """Nothing can be received; ``kind`` tells faults apart whatever their texts."""
        self._is_down = True
        self._state = ChannelState(False, text, text, self._clock())
        self._log(kind, text)
        self.reported.set()

    def noted(self, kind: str, text: str) -> None:
        """Something failed without which the channel still serves."""
        self._state = ChannelState(self._state.connected, self._state.detail, text, self._clock())
        self._log(kind, text)

    def _log(self, kind: str, text: str) -> None:
        now = self._clock()
        before = self._logged_at.get(kind)
        if kind not in self._told and (before is None or now - before >= REPEAT):
            self._told.add(kind)
            self._logged_at[kind] = now
            logger.warning("telegram: {}", text)


QUIET = timedelta(hours=1)
REMEMBERED = 1000
"""Strangers whose last line in the log is remembered."""


class Strangers:
    """Counts messages of strangers and logs each of them at most once an hour."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[datetime, int]] = {}

    def turned_away(self, sender_id: str, username: str) -> None:
        """Note a message that was ignored."""
        now = self._clock()
        since, count = self._seen.pop(sender_id, (None, 0))
        count += 1
        if since is None or now - since >= QUIET:
            logger.info(
                "telegram: ignored a stranger, id {}{} ({} message{}); "
                "to let them in, add the id to channels.telegram.allowFrom",
                sender_id,
                f" @{one_line(username, 32)}" if username else "",
                count,
                "" if count == 1 else "s",
            )
            since, count = now, 0
        self._seen[sender_id] = (since, count)
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]


class Polling:
    """Polls for ever; a fault is noted in the health and waited out.

    The server forgets updates below the offset of a poll. The offset is the last id + 1 and is
    given until a poll comes back empty, when there is nothing left to acknowledge: update ids
    start again at random after an idle week, below an offset that was kept.
    """

    def __init__(
        self,
        connections: Connections,
        intake: Intake,
        reader: Callable[[Me], Reader],
        health: Health,
        limits: Limits,
        *,
        polled: Callable[[], None],
        sleep: Sleep,
        jitter: Callable[[], float],
    ) -> None:
        """``polled`` is called after each poll; ``jitter``: a random number in [0, 1)."""
        self._connections = connections
        self._intake = intake
        self._make_reader = reader
        self._health = health
        self._limits = limits
        self._polled = polled
        self._sleep = sleep
        self._jitter = jitter
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
            await self._sleep(wait_s)

    async def _round(self) -> None:
        if self._reader is None:
            self._reader = await self._introduced()
            self._health.up(self._detail)
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
        self._health.up(self._detail)
        self._polled()

    async def _introduced(self) -> Reader:
        result = await self._connections.poll("getMe", {}, limit_s=self._limits.call_s)
        try:
            user = User.model_validate(result)
        except ValidationError as error:
            raise NoAnswer("what the server says about the bot cannot be read") from error
        self._detail = f"@{user.username}"
        return self._make_reader(Me(user.id, user.username))

    async def _take(self, entries: Sequence[object], reader: Reader) -> None:
        """Commit a batch, then move the offset.

        It stays at the first message that has no room, so that Telegram keeps that; the next poll
        brings what came since as well, which may be a command or of another chat.
        """
        read = [reader.read(entry) for entry in entries]
        messages = [one for one in read if isinstance(one, InboundMessage)]
        poison = [one for one in read if isinstance(one, Poison)]
        if messages or poison:
            left = await self._intake.post_now(messages, poison)
            if left:
                self._offset = update_id(entries[read.index(left[0])])
                await self._sleep(self._limits.backoff_s)
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
        limits = self._limits
        if not isinstance(error, Refusal):
            # Its connection may be half dead, so that the next poll would be deaf, too.
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
            return limits.refused_s
        if error.code == 409:
            # Either another poller, whose polls end ours, or a webhook.
            self._health.down(
                "conflict", f"somebody else takes this bot's messages, so none come here: {error}"
            )
            return self._backoff(failures)
        self._probe = error.is_of_server
        self._health.down(f"HTTP {error.code}", f"the server refuses to give updates: {error}")
        return self._backoff(failures) if error.after is None else error.after

    def _backoff(self, failures: int) -> float:
        """Exponential up to the longest wait, the later half of it random."""
        limits = self._limits
        most = min(limits.backoff_s * 2.0 ** min(failures, 30), limits.backoff_most_s)
        return most * (1 + self._jitter()) / 2
