"""Consolidation: older parts of sessions become HISTORY.md's paragraphs and MEMORY.md's edits."""

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
    Digest,
    Event,
    Part,
    Unusable,
    cut_place,
    is_message,
    read_digest,
    size_of,
    tool_spec,
)
from nanobot.memory.edits import edits_from_json, edits_to_json
from nanobot.memory.progress import Batch, Digests, DigestState, Standing, is_service
from nanobot.memory.store import MemoryStore
from nanobot.prompts import render
from nanobot.session.entries import Entry, EntryKind
from nanobot.session.log import LiveSession, SessionLog
from nanobot.session.usage import ModelCall

KEEP = 10
"""Messages that stay in the model's view at least."""
BACKOFF_S = (60.0, 900.0)
"""Waits after the first answers of no use; the one after the last archives the raw words."""
OUTAGE_S = (60.0, 300.0, 900.0, 3600.0)
"""Waits while the model cannot be reached, the last one again and again."""
DISK_RETRY_S = 600.0
AT_ONCE = 2
"""Sessions digested at the same time."""
PART_CHARS = 40_000
"""Characters of a conversation digested in one step."""
MARK_CHARS = 1500
"""Characters of the paragraphs that stay in the model's view in place of what they sum up."""
CHARS_PER_TOKEN = 3
"""A cautious guess: what is compared with it is counted by the database, in characters."""
WORTH = 4
"""A part that is digested for the window's sake takes at least such a fraction of its half."""
_PAGE = 200


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """How to digest: ``model`` None is the usual one; ``window`` counts messages."""

    window: int
    model: str | None = None
    timeout_s: float = 180.0
    backoff_s: tuple[float, ...] = BACKOFF_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a session: steps done, and the error that ended it ("" for none)."""

    session: str
    steps: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Due:
    """What is to be digested now: a part, and from where on the model's view begins afterwards."""

    part: Part
    keeps_from: int | None


class Consolidator:
    """Digests sessions in tasks of its own; the app starts and closes it.

    ``idle`` is the one way in while the app runs. With ``active`` false (a one-shot) it does
    nothing of itself.
    """

    def __init__(
        self,
        *,
        sessions: SessionLog,
        digests: Digests,
        memory: MemoryStore,
        models: ModelSource,
        clock: Clock,
        settings: MemorySettings,
        active: bool = True,
        offline: str = "",
    ) -> None:
        """``offline``: the name of a model that is never asked."""
        self._sessions = sessions
        self._digests = digests
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

    # -- the life of a session, as the dispatcher tells it ----------------------------------------

    async def turn_begins(self) -> None:
        """Keep what the owner has made of MEMORY.md by hand, before a turn may change it."""
        await self._memory.notice("owner")
        self._turned = True

    async def _after_turns(self) -> None:
        """Keep what turns since the last time have made of it; without one it was the owner."""
        by, self._turned = "assistant" if self._turned else "owner", False
        await self._memory.after_turn(by)

    def idle(self, session_key: str) -> None:
        """A session has no mail: look after its memory in the background."""
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
        """Take up what former processes left: half a batch, ``/new``, what was put off."""
        await self._after_turns()
        for key in {*await self._digests.behind(), *await self._digests.put_off()}:
            self.idle(key)

    async def aclose(self) -> None:
        """Stop asking models; what is being written is finished."""
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
        """Leave a session alone that is about to be deleted."""
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
        """Whether anything is being done about a session, waits for a later time aside."""
        return key in self._idle or key in self._tasks or self._looking is not None

    async def now(self, key: str) -> Outcome:
        """Digest all of a session but its last messages, at once, whatever failed before.

        Three answers of no use archive the raw words here, too, counted from former tries on.
        """
        async with self._lock(key):
            return await self._digest(key, forced=True)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if key in self._again:
            self._again.discard(key)
            self.idle(key)

    async def _look_round(self) -> None:
        """Look at the idle sessions, all that are there at once: most need nothing."""
        while self._idle:
            keys = tuple(self._idle)
            self._idle.clear()
            try:
                await self._after_turns()
                due = await self._perhaps_due(keys)
            except (StoreError, OSError) as error:
                logger.error("memory waits for the disk: {}", error)
                due = self._all_later(keys)
            except Exception:
                logger.exception("looking for what to consolidate failed")
                due = self._all_later(keys)
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
                await self._digest(key)
        except (StoreError, OSError) as error:
            logger.bind(session=key).error("memory waits for the disk: {}", error)
            self._later(key, DISK_RETRY_S)
        except Exception:
            logger.bind(session=key).exception("consolidation failed")

    def _lock(self, key: str) -> asyncio.Lock:
        """One run at a time a session. Kept: a lock is small, and there are as many as sessions."""
        return self._by_session.setdefault(key, asyncio.Lock())

    def _later(self, key: str, seconds: float) -> None:
        if self._active and key not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(max(seconds, 0.0), self._timed, key)

    def _all_later(self, keys: Sequence[str]) -> list[str]:
        """None is due now."""
        for key in keys:
            self._later(key, DISK_RETRY_S)
        return []

    def _timed(self, key: str) -> None:
        self._timers.pop(key, None)
        self.idle(key)

    # -- one session ----------------------------------------------------------------------------

    async def _digest(self, key: str, *, forced: bool = False) -> Outcome:
        """Digest step by step what is due; ends at the first failure."""
        steps = 0
        fault: ProviderError | None = None
        if half := await self._digests.half_written(key):
            await self._carried_out(half)
            steps += 1
        cut: int | None = None
        while True:
            state = await self._digests.state(key)
            if not forced and state.not_before is not None and state.not_before > self._clock():
                self._later(key, (state.not_before - self._clock()).total_seconds())
                return Outcome(key, steps, state.error)
            live = await self._sessions.live(key)
            name = self._settings.model or live.settings.model
            await self._models.prepare(name)
            try:
                chosen = self._models.choose(name)
            except ProviderError as refusal:
                chosen, fault = None, refusal
            # The cut is made once: a conversation that goes on must not be cut shorter and shorter.
            cut = cut or self._cut(live, forced=forced)
            due = await self._due(key, state, cut, chosen)
            if due is None:
                if cut is not None and cut > state.live_from:
                    await self._digests.move_view(key, cut, render.digested(""))
                return Outcome(key, steps)
            if not due.part.said:
                await self._digests.skip(key, due.part.entries[-1].seq)
                continue
            if chosen is not None and chosen.model == self._offline:
                return Outcome(key, steps, "the offline model digests nothing")
            if chosen is not None:
                batch = await self._asked(due, state, chosen)
            else:
                assert fault is not None
                batch = await self._failed(due, state, fault)
            if batch is None:
                return Outcome(key, steps, (await self._digests.state(key)).error)
            await self._carried_out(batch)
            steps += 1

    async def _perhaps_due(self, keys: Sequence[str]) -> list[str]:
        """The sessions that are worth a closer look; this one reads no message."""
        standings = await self._digests.standings(keys)
        return [key for key, standing in standings.items() if self._may_be_due(key, standing)]

    def _may_be_due(self, key: str, standing: Standing) -> bool:
        room = self._room(standing.model)
        window = self._settings.window
        return (
            standing.is_half_written
            or (standing.behind > window if is_service(key) else standing.is_behind)
            or standing.messages > window
            or (room is not None and standing.characters > room)
        )

    def _room(self, model: str | None) -> int | None:
        """Characters of a conversation that half of its model's window holds; None: unknown."""
        try:
            chosen = self._models.choose(model)
        except ProviderError:
            return None
        return (chosen.context_window - chosen.max_tokens) * CHARS_PER_TOKEN // 2

    def _cut(self, live: LiveSession, *, forced: bool) -> int | None:
        """Where the model's view shall begin after this run, if the session has grown too long."""
        count = sum(map(is_message, live.entries))
        room = self._room(live.settings.model)
        cut = cut_place(live.entries, KEEP)
        if cut is None or forced or count > self._settings.window:
            return cut
        # Where the last messages alone are large, one turn more is not worth a step of its own.
        older = sum(_weight(entry) for entry in live.entries if entry.seq < cut)
        is_large = room is not None and sum(map(_weight, live.entries)) > room
        return cut if is_large and room is not None and older > room // WORTH else None

    async def _due(
        self, key: str, state: DigestState, cut: int | None, chosen: ChosenModel | None
    ) -> _Due | None:
        """The next part: entries behind the cursor that have left, or are to leave, the view."""
        end = max(state.live_from, cut or 0)
        room = PART_CHARS
        if chosen is not None:
            room = min(room, max(4000, (chosen.context_window - chosen.max_tokens) * 3 // 2))
        entries: list[Entry] = []
        size, turn = 0, 0
        after, is_all = state.upto, False
        while not is_all:
            page = await self._sessions.entries(key, after=after, limit=_PAGE)
            is_all = len(page) < _PAGE
            for entry in page:
                after = entry.seq
                if entry.seq >= end:
                    is_all = True
                    break
                size += size_of(entry)
                if entry.kind is EntryKind.USER and entries:
                    turn = len(entries)
                if entries and size > room:
                    entries = entries[: turn or len(entries)]
                    return _Due(Part(key, tuple(entries)), None)
                entries.append(entry)
        if not entries:
            return None
        keeps_from = cut if cut is not None and cut > state.live_from else None
        return _Due(Part(key, tuple(entries)), keeps_from)

    async def _asked(self, due: _Due, state: DigestState, chosen: ChosenModel) -> Batch | None:
        """Have the model digest a part; None when it failed and is tried again later."""
        part = due.part
        calls: list[ModelCall] = []
        digests: list[tuple[Digest, Trust]] = []
        try:
            for trust in (Trust.TRUSTED, Trust.UNTRUSTED):
                if text := part.of_trust(trust):
                    digests.append((await self._ask(part, text, trust, chosen, calls), trust))
        except (ProviderError, Unusable) as error:
            for call in calls:
                await self._sessions.spend(part.session, call)
            return await self._failed(due, state, error)
        self._outages.pop(part.session, None)
        events: list[tuple[Event, Trust]] = [
            (event, trust) for digest, trust in digests for event in digest.events
        ]
        edits = [edit for digest, _ in digests for edit in digest.edits]
        batch = _batch(due, part.paragraphs(events), edits_to_json(edits))
        return await self._prepared(batch, calls)

    async def _ask(
        self,
        part: Part,
        text: str,
        trust: Trust,
        chosen: ChosenModel,
        calls: list[ModelCall],
    ) -> Digest:
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
        digest = read_digest(response, trust)
        return digest if edits else replace(digest, edits=())

    async def _failed(self, due: _Due, state: DigestState, error: Exception) -> Batch | None:
        """Put a part off; after the last answer of no use the raw words are what is kept."""
        part, backoff = due.part, self._settings.backoff_s
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
            return await self._prepared(_batch(due, part.raw(), "[]"), [])
        if isinstance(error, RetryLater):
            wait = max(wait, error.after or 0.0)
        bound.warning("consolidation failed, tried again in {:.0f} s: {}", wait, error)
        until = self._clock() + timedelta(seconds=wait)
        await self._digests.failed(part.session, str(error), until, counts=not is_down)
        self._later(part.session, wait)
        return None

    async def _prepared(self, batch: Batch, calls: Sequence[ModelCall]) -> Batch:
        """The batch, committed to: from here on it is written, whatever happens."""
        batch = replace(batch, place=await self._memory.history_size())
        await self._digests.prepare(batch, calls)
        return batch

    async def _carried_out(self, batch: Batch) -> None:
        """Write a batch to its end, also when the task is cancelled meanwhile."""
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
            summary = batch.text if len(batch.text) <= MARK_CHARS else batch.text[-MARK_CHARS:]
            await self._digests.finish(batch, render.digested(_whole_paragraphs(summary, batch)))
        logger.bind(session=batch.session).info("memory: {} is written", batch.id)


def _batch(due: _Due, text: str, edits: str) -> Batch:
    part = due.part
    is_tainted = any(entry.trust is Trust.UNTRUSTED for entry in part.entries)
    return Batch(
        id=part.name,
        session=part.session,
        last=part.entries[-1].seq,
        text=text,
        edits=edits,
        trust=Trust.UNTRUSTED if is_tainted else Trust.TRUSTED,
        keeps_from=due.keeps_from,
    )


def _whole_paragraphs(tail: str, batch: Batch) -> str:
    """The last paragraphs that fit; of one that is too long, nothing."""
    return tail if tail == batch.text else tail.partition("\n\n")[2]


def _weight(entry: Entry) -> int:
    return 0 if entry.message is None else len(entry.message.content)
