"""Keeps a session's view inside its model's window: what is trimmed or spilled, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loguru import logger

from nanobot.agent.compaction import Compactor
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
    """Keeps results longer than ``cap`` characters in the session's spill folder."""

    def __init__(self, home: Home, *, cap: int) -> None:
        self._home = home
        self._cap = cap

    async def shorten(self, inbound: InboundMessage, call: ToolCall, text: str) -> str:
        """``text`` itself, or its head and tail round a note that names the file with it all."""
        if len(text) <= self._cap:
            return text
        name = file_name(f"{inbound.id}-{call.id}")[-200:]
        path = self._home.spill_of(inbound.session_key) / f"{name}.txt"
        try:
            await asyncio.to_thread(self._write, path, text)
            note = render.spilled(path)
        except StoreUnavailable as error:  # the call has been made: what fits the log is kept
            logger.bind(session=inbound.session_key).error("a long result is cut: {}", error)
            note = render.unspilled(str(error))
        return head_and_tail(text, self._cap, note)

    async def keep(self, key: str, inbound_id: str, result: ToolMessage, seq: int) -> Path:
        """The file with a logged result; written now unless it was spilled when it came.

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
"""The share of the room that conversation may take before something gives way; the rest is for
what the estimate is off by. The room is the window without the answer and the fixed part."""
LOW = 0.5
"""The share that old results are brought down to."""
HARDLY = 0.7
"""Above this share after old results gave way, conversation is summed up as well, lest something
gives way at every turn."""
KEPT = 0.3
"""The share of the room that conversation may take that is not summed up."""
WORTH = 0.1
"""The share of the room that older conversation must take to be worth a summary."""
RECENT = 0.15
"""The share of the room with the newest results, which are not old."""
CHARACTERS = 6
"""Characters, as stored, that a token of the window may be: more are not read. Words have five."""
LEAST_ROOM = 2000.0
"""Tokens of conversation below which nothing gives way until the provider refuses a request: with
so small a window there would be a summary at every turn."""
LEAST_RESULT = 200
"""Tokens of a result that is worth giving way: the note in its place takes some, too."""

_SAFE = 0.95
"""The share of the window that is counted on: the fixed part is an estimate, too."""
_REFUSED = 0.8
"""The share of a refused request that is taken to fit."""
_WORDS = 8000
"""Characters of the message being worked on that are kept word for word."""
_CUT = "[… {omitted} characters left out]"

SUMMING_UP = "The conversation fills the model's window: summing up its older part …"


@dataclass(frozen=True, slots=True)
class View:
    """What a request of a turn is made of; ``used`` and ``fixed`` are calibrated tokens.

    ``used`` is the whole request, ``fixed`` its system prompt and tools; ``factor`` is what
    estimates of this model are multiplied by.
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
        """Tokens that the conversation may have."""
        return room_for_talk(self.chosen, self.fixed)


def room_for_talk(chosen: ChosenModel, fixed: int) -> float:
    """Tokens that conversation may have beside a fixed part: the window without the answer."""
    return max(_SAFE * (chosen.context_window - chosen.max_tokens) - fixed, LEAST_ROOM)


@dataclass(slots=True)
class Gauge:
    """Estimates the requests of one turn, each message once; the turn owns it.

    ``fixed`` is what the tools take, estimated like the rest without ``factor``.
    """

    fixed: int
    factor: float
    _counted: dict[int, tuple[ChatMessage, int]] = field(default_factory=dict)

    def raw(self, messages: Sequence[ChatMessage]) -> int:
        """The tokens of a request, tools included, as estimated for any model."""
        return self.fixed + sum(map(self._of, messages))

    def used(self, messages: Sequence[ChatMessage]) -> int:
        """The tokens of a request for this model."""
        return round(self.raw(messages) * self.factor)

    def _of(self, message: ChatMessage) -> int:
        known = self._counted.get(id(message))
        if known is None:
            known = self._counted[id(message)] = (message, message_tokens(message))
        return known[1]


class Window:
    """Makes room in sessions; what it changes is in the log before the model sees it."""

    def __init__(self, sessions: SessionLog, spill: Spill) -> None:
        self._sessions = sessions
        self._spill = spill
        self._compactor = Compactor(sessions)

    async def fitted(self, view: View, *, overflowed: bool = False) -> tuple[Entry, ...] | None:
        """The entries that the model is to see from now on; None when they stay as they are.

        ``overflowed``: the provider has refused the request as too large, so that the window is
        smaller than it was taken to be.
        """
        room = view.room
        if overflowed:
            room = max(min(room, _REFUSED * view.used - view.fixed), 1.0)
        elif view.talk <= FULL * room:
            return None
        fitting = _Fitting(view, room)
        await self._give_way(fitting, fitting.old_results(), LOW * room, render.gave_way)
        if fitting.talk > HARDLY * room:
            await self._sum_up(fitting)
        if fitting.talk > FULL * room:
            await self._give_way(fitting, fitting.results_by_size(), FULL * room, render.too_large)
        return tuple(fitting.entries) if fitting.is_changed else None

    async def begun(self, live: LiveSession) -> tuple[Entry, ...]:
        """The entries of a session; where they are cut, the log says from now on where they begin.

        That is so where a session came about without any turn in between (an import, say): what
        is older is more than any request could hold, even one for a summary.
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
        """Sum up everything but the last exchange; None when there is nothing before it."""
        start = last_exchange(view.entries)
        if start is None:
            return None
        fitting = _Fitting(view, view.room)
        await self._cut(fitting, start, focus=focus)
        return tuple(fitting.entries)

    async def _give_way(
        self,
        fitting: _Fitting,
        places: Sequence[int],
        wanted: float,
        note: Callable[[Path], str],
    ) -> None:
        """Have results give way, in this order, until ``wanted`` tokens are left; one log entry."""
        key = fitting.view.inbound.session_key
        replaced = []
        for place in places:
            if fitting.talk <= wanted:
                break
            entry = fitting.entries[place]
            result = entry.message
            assert isinstance(result, ToolMessage), "only results give way"
            path = await self._spill.keep(key, entry.inbound_id, result, entry.seq)
            short = ToolMessage(result.call_id, result.name, note(path))
            fitting.change(place, replace(entry, message=short, gave_way=True))
            replaced.append(Replaced(entry.seq, short.call_id, short.name, short.content))
        if not replaced:
            return
        mark = draft_of(fitting.view.inbound, EntryKind.GAVE_WAY, None)
        appended = await self._sessions.append(key, [replace(mark, replaced=tuple(replaced))])
        fitting.entries.extend(appended)
        fitting.sizes.extend(0 for _ in appended)
        logger.bind(session=key).info("{} old tool results gave way", len(replaced))

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
        """Put a summary (or, failing that, a note) in place of all before ``start``.

        ``under_way`` is what the turn works on, where that is cut off as well.
        """
        view = fitting.view
        former, kept = fitting.entries[:start], fitting.entries[start:]
        summed = await self._compactor.sum_up(
            view.inbound, view.chosen, former, room=fitting.room, focus=focus
        )
        content, trust = render.compacted(), Trust.TRUSTED
        if summed.text:
            for entry in former:
                trust = trust.joined(entry.trust)
            content = render.summary(summed.text, tainted=trust is Trust.UNTRUSTED)
        if under_way:
            words = head_and_tail(under_way, _WORDS, _CUT)
            content = f"{content}\n\n{render.under_way(words)}"
        mark = replace(
            draft_of(view.inbound, EntryKind.COMPACTED, UserMessage(content), trust),
            keeps_from=kept[0].seq,
            model=summed.model,
            provider=summed.provider,
            usage=summed.usage,
            account=view.inbound.account,
        )
        (appended,) = await self._sessions.append(view.inbound.session_key, [mark])
        fitting.begin_with(appended, start)
        logger.bind(session=view.inbound.session_key).info(
            "earlier conversation was {}", "summed up" if summed.text else "left out, unsummed"
        )


class _Fitting:
    """A view being changed: its entries, their sizes in tokens, and what they take together."""

    def __init__(self, view: View, room: float) -> None:
        self.view = view
        self.room = room
        self.entries = list(view.entries)
        self.sizes = [self._size(entry) for entry in self.entries]
        self.talk = view.talk
        self.is_changed = False

    def old_results(self) -> list[int]:
        """Places of the results that may give way, oldest first: not the newest, none unseen."""
        answers = (at for at, e in enumerate(self.entries) if e.kind is EntryKind.ASSISTANT)
        unseen = max(answers, default=0)
        newest, tokens = len(self.entries), 0
        while newest > 0 and tokens + self.sizes[newest - 1] <= RECENT * self.room:
            newest -= 1
            tokens += self.sizes[newest]
        return [at for at in range(min(newest, unseen)) if self._is_result(at)]

    def results_by_size(self) -> list[int]:
        """Places of all results that have not given way, the largest first."""
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
        is_whole = entry.kind is EntryKind.TOOL and not entry.gave_way
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
    """Where to cut, so that at most ``keep`` tokens are kept; None when there is nothing before.

    What is kept begins with a person's message: the first that leaves it small enough, else the
    last. Where the last exchange is more than twice too large, it begins within it, with a step.
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
    """Where the last exchange begins; None when it is the first one."""
    first = _first_said(entries)
    people = [at for at, entry in enumerate(entries) if entry.kind is EntryKind.USER]
    return people[-1] if people and people[-1] > first else None


def _first_said(entries: Sequence[Entry]) -> int:
    """The place of the first message that is no summary."""
    said = (
        at
        for at, entry in enumerate(entries)
        if entry.message is not None and entry.kind is not EntryKind.COMPACTED
    )
    return next(said, len(entries))
