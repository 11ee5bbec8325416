"""Keeps requests within the model's window: spills, trims and sums up what is too large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loguru import logger

from nanobot.agent.compaction import sum_up
from nanobot.core.chat import ChatMessage, ToolCall, ToolMessage, UserMessage
from nanobot.core.errors import StoreUnavailable
from nanobot.core.events import Emit, Notice
from nanobot.core.messages import InboundMessage, Trust
from nanobot.core.ports import ChosenModel
from nanobot.core.text import head_and_tail, message_tokens
from nanobot.prompts import render
from nanobot.session.entries import Draft, Entry, EntryKind, Replaced, draft_of
from nanobot.session.log import LiveSession, SessionLog
from nanobot.store.files import disk_errors, write_atomic
from nanobot.store.home import Home, file_name


class Spill:
    """Writes results longer than ``cap`` characters into files of the session's spill folder."""

    def __init__(self, home: Home, *, cap: int) -> None:
        self._home = home
        self._cap = cap

    async def shorten(self, inbound: InboundMessage, call: ToolCall, text: str) -> str:
        """``text``, or its head and tail, with the name of the file that holds all of it."""
        if len(text) <= self._cap:
            return text
        name = file_name(f"{inbound.id}-{call.id}")[-200:]
        path = self._home.spill_of(inbound.session_key) / f"{name}.txt"
        try:
            await asyncio.to_thread(self._write, path, text)
            note = render.spilled(path)
        except StoreUnavailable as error:  # the call cannot be undone: the log gets what fits
            logger.bind(session=inbound.session_key).error("cut a long result: {}", error)
            note = render.unspilled(str(error))
        return head_and_tail(text, self._cap, note)

    async def keep(self, key: str, inbound_id: str, result: ToolMessage, seq: int) -> Path:
        """Return the file of a logged result; write it unless it was spilled when it was logged.

        ``seq`` is the result's place in the log, which tells results of one call id apart. Raises
        StoreUnavailable.
        """
        directory = self._home.spill_of(key)
        name = file_name(f"{inbound_id}-{result.call_id}")[-200:]
        spilled = directory / f"{name}.txt"
        if str(spilled) in result.content and await asyncio.to_thread(spilled.is_file):
            return spilled
        path = directory / f"{name}.{seq}.txt"
        await asyncio.to_thread(self._write, path, result.content)
        return path

    def _write(self, path: Path, text: str) -> None:
        with disk_errors(path.parent):
            self._home.private(path.parent)
            write_atomic(path, text.encode(), durable=False)


FULL = 0.85
"""Share of the room that conversation may take before old results are trimmed; the rest covers
errors of the estimate. The room is the window without the answer and the fixed part."""
LOW = 0.5
"""Share of the room that is left after old results were trimmed."""
HARDLY = 0.7
"""Above this share after trimming, conversation is summed up as well, so that not every turn has
to make room again."""
KEPT = 0.3
"""Share of the room for the newest conversation, which is not summed up."""
WORTH = 0.1
"""Share of the room that older conversation must take to be worth a summary."""
RECENT = 0.15
"""Share of the room with the newest results, which are trimmed last."""
CHARACTERS = 6
"""Upper bound of characters per token when loading the log; English words have about five."""
LEAST_ROOM = 2000.0
"""Tokens of conversation below which nothing is trimmed until the provider refuses a request: in so
small a window every turn would end in a summary."""
LEAST_RESULT = 200
"""Smallest result worth trimming, in tokens; the note in its place takes some, too."""

_SAFE = 0.95
"""Share of the window that is used at most, because the fixed part is an estimate, too."""
_REFUSED = 0.8
"""Share of a refused request that is assumed to fit."""
_WORDS = 8000
"""Characters kept of the message that the turn works on, where a summary replaces it."""
_CUT = "[… {omitted} characters left out]"

SUMMING_UP = "The conversation fills the model's window: summing up its older part …"


@dataclass(frozen=True, slots=True)
class View:
    """The parts of a turn's request; ``used`` and ``fixed`` are calibrated tokens.

    ``used`` is the whole request, ``fixed`` its system prompt and tools; ``factor`` corrects
    estimates for this model.
    """

    inbound: InboundMessage
    chosen: ChosenModel
    entries: tuple[Entry, ...]
    used: int
    fixed: int
    factor: float
    emit: Emit

    @property
    def talk(self) -> int:
        """Tokens of the conversation."""
        return self.used - self.fixed

    @property
    def room(self) -> float:
        """Tokens that the conversation may take."""
        return room_for_talk(self.chosen, self.fixed)


def room_for_talk(chosen: ChosenModel, fixed: int) -> float:
    """Tokens that conversation may take beside a fixed part: the window without the answer."""
    return max(_SAFE * (chosen.context_window - chosen.max_tokens) - fixed, LEAST_ROOM)


@dataclass(slots=True)
class Gauge:
    """Estimates the tokens of one turn's requests; it counts each message once.

    ``fixed`` are the tokens of the tools, estimated without ``factor``.
    """

    fixed: int
    factor: float
    _counted: dict[int, tuple[ChatMessage, int]] = field(default_factory=dict)

    def raw(self, messages: Sequence[ChatMessage]) -> int:
        """Estimated tokens of a request, tools included, before calibration."""
        return self.fixed + sum(map(self._of, messages))

    def used(self, messages: Sequence[ChatMessage]) -> int:
        """Estimated tokens of a request for this model."""
        return round(self.raw(messages) * self.factor)

    def _of(self, message: ChatMessage) -> int:
        known = self._counted.get(id(message))
        if known is None:
            known = self._counted[id(message)] = (message, message_tokens(message))
        return known[1]


class Window:
    """Makes room in sessions; each change is logged before the model sees it."""

    def __init__(self, sessions: SessionLog, spill: Spill) -> None:
        self._sessions = sessions
        self._spill = spill

    async def fitted(self, view: View, *, overflowed: bool = False) -> tuple[Entry, ...] | None:
        """Return the entries that the model sees from now on; None if nothing has to change.

        ``overflowed``: the provider has refused the request as too large, so the window is
        smaller than assumed.
        """
        room = view.room
        if overflowed:
            room = max(min(room, _REFUSED * view.used - view.fixed), 1.0)
        elif view.talk <= FULL * room:
            return None
        fitting = _Fitting(view, room)
        await self._trim(fitting, fitting.old_results(), LOW * room, render.trimmed)
        if fitting.talk > HARDLY * room:
            await self._sum_up(fitting)
        if fitting.talk > FULL * room:
            await self._trim(fitting, fitting.results_by_size(), FULL * room, render.too_large)
        return tuple(fitting.entries) if fitting.is_changed else None

    async def begun(self, live: LiveSession) -> tuple[Entry, ...]:
        """Return the entries of a session; if they were cut, log where its view begins.

        An imported session, for example, can hold more than any request, even one for a summary.
        """
        if not live.is_cut or not live.entries:
            return live.entries
        first = live.entries[0]
        mark = Draft(
            kind=EntryKind.COMPACTED,
            message=UserMessage(render.compacted()),
            inbound_id=first.inbound_id,
            principal=first.principal,
            trust=Trust.TRUSTED,
            keeps_from=first.seq,
        )
        return (*await self._sessions.append(live.key, [mark]), *live.entries)

    async def compact(self, view: View, focus: str) -> tuple[Entry, ...] | None:
        """Sum up everything before the last exchange; None if there is nothing before it."""
        start = last_exchange(view.entries)
        if start is None:
            return None
        fitting = _Fitting(view, view.room)
        await self._cut(fitting, start, focus=focus)
        return tuple(fitting.entries)

    async def _trim(
        self,
        fitting: _Fitting,
        places: Sequence[int],
        wanted: float,
        note: Callable[[Path], str],
    ) -> None:
        """Trim results in this order until ``wanted`` tokens are left; log that as one entry."""
        key = fitting.view.inbound.session_key
        replaced = []
        for place in places:
            if fitting.talk <= wanted:
                break
            entry = fitting.entries[place]
            result = entry.message
            assert isinstance(result, ToolMessage), "only results are trimmed"
            path = await self._spill.keep(key, entry.inbound_id, result, entry.seq)
            short = ToolMessage(result.call_id, result.name, note(path))
            fitting.change(place, replace(entry, message=short, is_trimmed=True))
            replaced.append(Replaced(entry.seq, short.call_id, short.name, short.content))
        if not replaced:
            return
        mark = draft_of(fitting.view.inbound, EntryKind.TRIMMED, None)
        appended = await self._sessions.append(key, [replace(mark, replaced=tuple(replaced))])
        fitting.entries.extend(appended)
        fitting.sizes.extend(0 for _ in appended)
        logger.bind(session=key).info("trimmed {} old tool results", len(replaced))

    async def _sum_up(self, fitting: _Fitting) -> None:
        start = cut_place(fitting.entries, fitting.sizes, KEPT * fitting.room)
        if start is None or sum(fitting.sizes[:start]) < WORTH * fitting.room:
            return
        inbound = fitting.view.inbound
        is_kept = any(
            entry.kind is EntryKind.USER and entry.inbound_id == inbound.id
            for entry in fitting.entries[start:]
        )
        fitting.view.emit(Notice(SUMMING_UP))
        await self._cut(fitting, start, under_way="" if is_kept else inbound.content)

    async def _cut(
        self, fitting: _Fitting, start: int, *, focus: str = "", under_way: str = ""
    ) -> None:
        """Replace everything before ``start`` by a summary, or by a note if there is none.

        ``under_way`` is the message that the turn works on, if that is replaced as well.
        """
        view = fitting.view
        former, kept = fitting.entries[:start], fitting.entries[start:]
        summed = await sum_up(
            self._sessions, view.inbound, view.chosen, former, room=fitting.room, focus=focus
        )
        content, trust = render.compacted(), Trust.TRUSTED
        if summed is not None:
            for entry in former:
                trust = trust.joined(entry.trust)
            content = render.summary(summed.content, tainted=trust is Trust.UNTRUSTED)
        if under_way:
            words = head_and_tail(under_way, _WORDS, _CUT)
            content = f"{content}\n\n{render.under_way(words)}"
        mark = replace(
            draft_of(view.inbound, EntryKind.COMPACTED, UserMessage(content), trust),
            keeps_from=kept[0].seq,
            account=view.inbound.account,
        )
        if summed is not None:
            mark = replace(mark, model=summed.model, provider=summed.provider, usage=summed.usage)
        (appended,) = await self._sessions.append(view.inbound.session_key, [mark])
        fitting.begin_with(appended, start)
        logger.bind(session=view.inbound.session_key).info(
            "{} earlier conversation", "summed up" if summed else "left out (no summary)"
        )


class _Fitting:
    """A view while it is changed: its entries, their sizes in tokens, and their sum."""

    def __init__(self, view: View, room: float) -> None:
        self.view = view
        self.room = room
        self.entries = list(view.entries)
        self.sizes = [self._size(entry) for entry in self.entries]
        self.talk = view.talk
        self.is_changed = False

    def old_results(self) -> list[int]:
        """Places of the results that may be trimmed, oldest first: not the newest, none unseen."""
        answers = (at for at, e in enumerate(self.entries) if e.kind is EntryKind.ASSISTANT)
        unseen = max(answers, default=0)
        newest, tokens = len(self.entries), 0
        while newest > 0 and tokens + self.sizes[newest - 1] <= RECENT * self.room:
            newest -= 1
            tokens += self.sizes[newest]
        return [at for at in range(min(newest, unseen)) if self._is_result(at)]

    def results_by_size(self) -> list[int]:
        """Places of all results that are not trimmed, the largest first."""
        places = [at for at in range(len(self.entries)) if self._is_result(at)]
        return sorted(places, key=lambda at: -self.sizes[at])

    def change(self, place: int, entry: Entry) -> None:
        """Put another entry in place of one."""
        size = self._size(entry)
        self.talk += size - self.sizes[place]
        self.entries[place], self.sizes[place] = entry, size
        self.is_changed = True

    def begin_with(self, mark: Entry, start: int) -> None:
        """Put ``mark`` in place of all before ``start``."""
        size = self._size(mark)
        self.talk += size - sum(self.sizes[:start])
        self.entries[:start], self.sizes[:start] = [mark], [size]
        self.is_changed = True

    def _is_result(self, place: int) -> bool:
        entry = self.entries[place]
        is_whole = entry.kind is EntryKind.TOOL and not entry.is_trimmed
        return is_whole and self.sizes[place] >= LEAST_RESULT

    def _size(self, entry: Entry) -> int:
        message = entry.message
        if message is None:
            return 0
        is_past = entry.inbound_id != self.view.inbound.id
        if is_past and isinstance(message, UserMessage | ToolMessage):
            message = replace(message, images=())
        return round(message_tokens(message) * self.view.factor)


def cut_place(entries: Sequence[Entry], sizes: Sequence[int], keep: float) -> int | None:
    """Where to cut so that at most ``keep`` tokens stay; None if there is nothing before.

    The kept part begins with a person's message: the first after which it is small enough, else
    the last. If the last exchange is more than twice too large, it begins with a step within it.
    """
    first = _first_said(entries)
    people = [at for at, e in enumerate(entries) if e.kind is EntryKind.USER and at > first]
    steps = [at for at, e in enumerate(entries) if e.kind is EntryKind.ASSISTANT and at > first]

    def kept(at: int) -> int:
        return sum(sizes[at:])

    fitting = [at for at in people if kept(at) <= keep]
    if fitting:
        return fitting[0]
    if people and kept(people[-1]) <= 2 * keep:
        return people[-1]
    fitting = [at for at in steps if kept(at) <= keep]
    last = [*people, *steps]
    return fitting[0] if fitting else max(last, default=None)


def last_exchange(entries: Sequence[Entry]) -> int | None:
    """Where the last exchange begins; None if it is the first one."""
    first = _first_said(entries)
    people = [at for at, entry in enumerate(entries) if entry.kind is EntryKind.USER]
    return people[-1] if people and people[-1] > first else None


def _first_said(entries: Sequence[Entry]) -> int:
    """The place of the first message that is not a summary."""
    said = (
        at
        for at, entry in enumerate(entries)
        if entry.message is not None and entry.kind is not EntryKind.COMPACTED
    )
    return next(said, len(entries))
