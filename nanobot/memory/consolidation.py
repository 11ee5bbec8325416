"""Consolidation: older parts of sessions become paragraphs of HISTORY.md, edits of MEMORY.md."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from loguru import logger

from nanobot.core.chat import ModelRequest, SystemMessage, UserMessage
from nanobot.core.errors import ProviderError, RetryLater, StoreError
from nanobot.core.messages import Trust
from nanobot.core.ports import ChosenModel, Clock, ModelSource
from nanobot.memory.batch import (
    Answer,
    Part,
    Unusable,
    cut_place,
    is_message,
    read_answer,
    size_of,
    tool_spec,
)
from nanobot.memory.edits import edits_from_json, edits_to_json
from nanobot.memory.progress import Backlog, Batch, MemoryProgress, SessionProgress, is_service
from nanobot.memory.store import MemoryStore
from nanobot.prompts import render
from nanobot.session.entries import Entry, EntryKind
from nanobot.session.log import LiveSession, SessionLog
from nanobot.session.usage import ModelCall

KEEP = 10
"""The fewest messages that stay in the model's view."""
BACKOFF_S = (60.0, 900.0)
"""Waits after the first unusable answers; one more archives the raw words."""
OUTAGE_S = (60.0, 300.0, 900.0, 3600.0)
"""Waits while the model cannot be reached; the last one repeats."""
DISK_RETRY_S = 600.0
AT_ONCE = 2
"""Sessions consolidated at the same time."""
PART_CHARS = 40_000
"""Characters of a conversation in one batch."""
MARK_CHARS = 1500
"""Characters of the paragraphs that stay in the model's view in place of what they sum up."""
CHARS_PER_TOKEN = 3
"""A cautious ratio; the database counts characters."""
WORTH = 4
"""A batch made because half the window is full takes at least this fraction of that half."""
_CHUNK = 200


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """How to consolidate: ``model`` None is the session's own; ``window`` counts messages."""

    window: int
    model: str | None = None
    timeout_s: float = 180.0
    backoff_s: tuple[float, ...] = BACKOFF_S


@dataclass(frozen=True, slots=True)
class ConsolidationResult:
    """What a run did: the batches written, and the error that ended it ("" for none)."""

    session: str
    steps: int
    error: str = ""


class Consolidator:
    """Consolidates idle sessions in tasks of its own; the app starts and closes it.

    The dispatcher calls ``idle``. With ``active`` false (a one-shot), only ``now`` does anything.
    """

    def __init__(
        self,
        *,
        sessions: SessionLog,
        progress: MemoryProgress,
        memory: MemoryStore,
        models: ModelSource,
        clock: Clock,
        settings: MemorySettings,
        active: bool = True,
        offline: str = "",
    ) -> None:
        """``offline``: the name of a model that is never called."""
        self._sessions = sessions
        self._progress = progress
        self._memory = memory
        self._models = models
        self._clock = clock
        self._settings = settings
        self._active = active
        self._turned = False
        self._offline = offline
        self._idle: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._by_session: dict[str, asyncio.Lock] = {}
        self._outages: dict[str, int] = {}  # tries in a row that reached no model, by session

    # -- called by the dispatcher and the app ---------------------------------------------------

    async def turn_begins(self) -> None:
        """Keep the owner's own changes of MEMORY.md as a version before a turn may change it."""
        await self._memory.notice("owner")
        self._turned = True

    async def _after_turns(self) -> None:
        """Keep MEMORY.md as a version of the assistant, or of the owner if no turn ran since."""
        by, self._turned = "assistant" if self._turned else "owner", False
        await self._memory.after_turn(by)

    def idle(self, session_key: str) -> None:
        """Check in the background whether a session without mail needs consolidation."""
        if not self._active:
            return
        if session_key in self._tasks:
            self._again.add(session_key)
            return
        if timer := self._timers.pop(session_key, None):
            timer.cancel()
        self._idle.add(session_key)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_round(), name="memory")

    async def start(self) -> None:
        """Resume what former processes left: unfinished batches, ``/new``, failed tries."""
        await self._after_turns()
        for key in {*await self._progress.behind(), *await self._progress.put_off()}:
            self.idle(key)

    async def aclose(self) -> None:
        """Stop model calls; batches that are being written are finished."""
        self._active = False
        for timer in self._timers.values():
            timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
            self._looking = None
        self._idle.clear()
        for task in (tasks := set(self._tasks.values())):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._writes:
            await asyncio.wait(self._writes)
        await self._after_turns()

    async def forget(self, key: str) -> None:
        """Stop all work on a session that is about to be deleted."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._again.discard(key)
        self._idle.discard(key)
        if self._looking is not None:
            await asyncio.wait({self._looking})
        if task := self._tasks.get(key):
            task.cancel()
            await asyncio.wait({task})
        if self._writes:
            await asyncio.wait(self._writes)

    def is_looking_after(self, key: str) -> bool:
        """Whether a session is checked or consolidated now, or is next."""
        return key in self._idle or key in self._tasks or self._looking is not None

    async def now(self, key: str) -> ConsolidationResult:
        """Consolidate all of a session but its last messages, without waiting out a failure.

        Here, too, the third unusable answer in a row archives the raw words.
        """
        async with self._lock(key):
            return await self._consolidate(key, forced=True)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if key in self._again:
            self._again.discard(key)
            self.idle(key)

    async def _look_round(self) -> None:
        """Check all idle sessions with one query; most of them need nothing."""
        while self._idle:
            keys = tuple(self._idle)
            self._idle.clear()
            due: list[str] = []
            try:
                await self._after_turns()
                due = await self._perhaps_due(keys)
            except Exception as error:
                if isinstance(error, StoreError | OSError):
                    logger.error("memory write postponed: {}", error)
                else:
                    logger.exception("the search for sessions to consolidate failed")
                for key in keys:
                    self._later(key, DISK_RETRY_S)
            for key in due:
                if key in self._tasks:
                    self._again.add(key)
                    continue
                task = asyncio.create_task(self._look_after(key), name=f"memory {key}")
                self._tasks[key] = task
                task.add_done_callback(partial(self._ended, key))
        self._looking = None

    async def _look_after(self, key: str) -> None:
        """One run over a session; the supervision point of its task."""
        try:
            async with self._lock(key), self._slots:
                await self._consolidate(key)
        except (StoreError, OSError) as error:
            logger.bind(session=key).error("memory write postponed: {}", error)
            self._later(key, DISK_RETRY_S)
        except Exception:
            logger.bind(session=key).exception("consolidation failed")

    def _lock(self, key: str) -> asyncio.Lock:
        """The lock that allows one run at a time for a session; kept for the process's life."""
        return self._by_session.setdefault(key, asyncio.Lock())

    def _later(self, key: str, seconds: float) -> None:
        if self._active and key not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(max(seconds, 0.0), self._timed, key)

    def _timed(self, key: str) -> None:
        self._timers.pop(key, None)
        self.idle(key)

    # -- one session ----------------------------------------------------------------------------

    async def _consolidate(self, key: str, *, forced: bool = False) -> ConsolidationResult:
        """Write batch by batch what is due; ends at the first failure."""
        steps = 0
        fault: ProviderError | None = None
        if half := await self._progress.half_written(key):
            await self._carried_out(half)
            steps += 1
        cut: int | None = None
        while True:
            state = await self._progress.of(key)
            if not forced and state.not_before is not None and state.not_before > self._clock():
                self._later(key, (state.not_before - self._clock()).total_seconds())
                return ConsolidationResult(key, steps, state.error)
            live = await self._sessions.live(key)
            name = self._settings.model or live.settings.model
            await self._models.prepare(name)
            try:
                chosen = self._models.choose(name)
            except ProviderError as refusal:
                chosen, fault = None, refusal
            # The cut is made once: a conversation that goes on must not be cut shorter and shorter.
            cut = cut or self._cut(live, forced=forced)
            part = await self._next_part(key, state, cut, chosen)
            if part is None:
                if cut is not None and cut > state.live_from:
                    await self._progress.move_view(key, cut, render.digested(""))
                return ConsolidationResult(key, steps)
            if not part.said:
                await self._progress.skip(key, part.last)
                continue
            if chosen is not None and chosen.model == self._offline:
                return ConsolidationResult(key, steps, "the offline model does not consolidate")
            if chosen is not None:
                batch = await self._asked(part, state, chosen)
            else:
                assert fault is not None
                batch = await self._failed(part, state, fault)
            if batch is None:
                return ConsolidationResult(key, steps, (await self._progress.of(key)).error)
            await self._carried_out(batch)
            steps += 1

    async def _perhaps_due(self, keys: Sequence[str]) -> list[str]:
        """The sessions that may have something due, judged without reading a message."""
        window = self._settings.window

        def may_be_due(key: str, backlog: Backlog) -> bool:
            room = self._room(backlog.model)
            return (
                backlog.is_half_written
                or (backlog.behind > window if is_service(key) else backlog.is_behind)
                or backlog.messages > window
                or (room is not None and backlog.characters > room)
            )

        backlogs = await self._progress.backlogs(keys)
        return [key for key, backlog in backlogs.items() if may_be_due(key, backlog)]

    def _room(self, model: str | None) -> int | None:
        """Characters that half of a model's window holds; None if no model can be chosen."""
        try:
            chosen = self._models.choose(model)
        except ProviderError:
            return None
        return (chosen.context_window - chosen.max_tokens) * CHARS_PER_TOKEN // 2

    def _cut(self, live: LiveSession, *, forced: bool) -> int | None:
        """Where the model's view begins after this run, if the session has grown too long."""
        count = sum(map(is_message, live.entries))
        room = self._room(live.settings.model)
        cut = cut_place(live.entries, KEEP)
        if cut is None or forced or count > self._settings.window:
            return cut
        # Where the last messages alone are large, one more turn is not worth a batch.
        older = sum(_weight(entry) for entry in live.entries if entry.seq < cut)
        is_large = room is not None and sum(map(_weight, live.entries)) > room
        return cut if is_large and room is not None and older > room // WORTH else None

    async def _next_part(
        self, key: str, state: SessionProgress, cut: int | None, chosen: ChosenModel | None
    ) -> Part | None:
        """The next part: entries behind the cursor that have left, or are to leave, the view."""
        end = max(state.live_from, cut or 0)
        room = PART_CHARS
        if chosen is not None:
            room = min(room, max(4000, (chosen.context_window - chosen.max_tokens) * 3 // 2))
        entries: list[Entry] = []
        size, turn = 0, 0
        after, is_all = state.upto, False
        while not is_all:
            chunk = await self._sessions.entries(key, after=after, limit=_CHUNK)
            is_all = len(chunk) < _CHUNK
            for entry in chunk:
                after = entry.seq
                if entry.seq >= end:
                    is_all = True
                    break
                size += size_of(entry)
                if entry.kind is EntryKind.USER and entries:
                    turn = len(entries)
                if entries and size > room:
                    return Part(key, tuple(entries[: turn or len(entries)]))
                entries.append(entry)
        if not entries:
            return None
        return Part(key, tuple(entries), cut if cut is not None and cut > state.live_from else None)

    async def _asked(self, part: Part, state: SessionProgress, chosen: ChosenModel) -> Batch | None:
        """The batch that the model makes of a part; None if it failed and is tried again later."""
        calls: list[ModelCall] = []
        answers: list[tuple[Answer, Trust]] = []
        try:
            for trust in (Trust.TRUSTED, Trust.UNTRUSTED):
                if text := part.of_trust(trust):
                    answers.append((await self._ask(part, text, trust, chosen, calls), trust))
        except (ProviderError, Unusable) as error:
            for call in calls:
                await self._sessions.spend(part.session, call)
            return await self._failed(part, state, error)
        self._outages.pop(part.session, None)
        events = [(event, trust) for answer, trust in answers for event in answer.events]
        edits = edits_to_json(edit for answer, _ in answers for edit in answer.edits)
        return await self._prepared(part, part.paragraphs(events), edits, calls)

    async def _ask(
        self,
        part: Part,
        text: str,
        trust: Trust,
        chosen: ChosenModel,
        calls: list[ModelCall],
    ) -> Answer:
        edits = not part.has_guest
        system = render.consolidation(
            memory=await asyncio.to_thread(self._memory.shown) if edits else "",
            edits=edits,
            guest=part.has_guest,
            tainted=trust is Trust.UNTRUSTED,
        )
        asked = render.conversation(part.session, text, secrets.token_hex(4))
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                request = ModelRequest(
                    [SystemMessage(system), UserMessage(asked)],
                    [tool_spec(edits=edits)],
                    chosen.model,
                    chosen.max_tokens,
                    min(chosen.temperature, 0.3),
                )
                response = await chosen.provider.chat(request)
        except TimeoutError as error:
            limit = self._settings.timeout_s
            raise RetryLater(f"{chosen.model} did not answer within {limit:g} s") from error
        if response.usage is not None:
            name = response.model or chosen.model
            calls.append(ModelCall(name, response.provider, response.usage))
        answer = read_answer(response, trust)
        return answer if edits else replace(answer, edits=())

    async def _failed(self, part: Part, state: SessionProgress, error: Exception) -> Batch | None:
        """Postpone a part; after the last unusable answer, the batch of its raw words."""
        backoff = self._settings.backoff_s
        bound = logger.bind(session=part.session)
        if is_down := isinstance(error, ProviderError) and not error.reached:
            tries = self._outages.get(part.session, 0)
            self._outages[part.session] = tries + 1
            wait = OUTAGE_S[min(tries, len(OUTAGE_S) - 1)]
        elif state.failures < len(backoff):
            wait = backoff[state.failures]
        else:
            tries = state.failures + 1
            bound.error("consolidation failed {} times, archived raw: {}", tries, error)
            return await self._prepared(part, part.raw(), "[]", [])
        if isinstance(error, RetryLater):
            wait = max(wait, error.after or 0.0)
        bound.warning("consolidation failed, tried again in {:.0f} s: {}", wait, error)
        until = self._clock() + timedelta(seconds=wait)
        await self._progress.failed(part.session, str(error), until, counts=not is_down)
        self._later(part.session, wait)
        return None

    async def _prepared(
        self, part: Part, text: str, edits: str, calls: Sequence[ModelCall]
    ) -> Batch:
        """The batch, stored; from here on it is written, also by a later process."""
        is_tainted = any(entry.trust is Trust.UNTRUSTED for entry in part.entries)
        batch = Batch(
            id=part.name,
            session=part.session,
            last=part.last,
            text=text,
            edits=edits,
            trust=Trust.UNTRUSTED if is_tainted else Trust.TRUSTED,
            place=await self._memory.history_size(),
            keeps_from=part.keeps_from,
        )
        await self._progress.prepare(batch, calls)
        return batch

    async def _carried_out(self, batch: Batch) -> None:
        """Write a batch completely, even if the calling task is cancelled."""
        task = asyncio.create_task(self._write(batch), name=f"memory batch {batch.id}")
        self._writes.add(task)
        task.add_done_callback(self._wrote)
        await asyncio.shield(task)

    def _wrote(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        if error := task.exception():
            logger.error("{} is unfinished: {}", task.get_name(), error)

    async def _write(self, batch: Batch) -> None:
        async with self._writing:
            await self._memory.append_history(batch.text, batch.place)
            await self._memory.apply(edits_from_json(batch.edits))
            summary = batch.text
            if len(summary) > MARK_CHARS:  # the last paragraphs that fit whole
                summary = summary[-MARK_CHARS:].partition("\n\n")[2]
            await self._progress.finish(batch, render.digested(summary))
        logger.bind(session=batch.session).info("memory: {} is written", batch.id)


def _weight(entry: Entry) -> int:
    return 0 if entry.message is None else len(entry.message.content)
