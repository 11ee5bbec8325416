"""One turn: how it runs, its state while it runs, its result, and its view of the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nanobot.agent.context import ContextBuilder
from nanobot.agent.window import Gauge
from nanobot.core.chat import AssistantMessage, ChatMessage, LLMResponse, ToolCall, Usage
from nanobot.core.events import Emit
from nanobot.core.messages import InboundMessage, Trust
from nanobot.core.ports import ChosenModel
from nanobot.prompts import render
from nanobot.session.entries import Draft, Entry, EntryKind, fold, legal_call
from nanobot.tools.images import without_past_pictures
from nanobot.tools.registry import ToolRegistry

Drain: TypeAlias = Callable[[], tuple[InboundMessage, ...]]
"""Returns the messages that arrived for this session and may steer the running turn."""

MOST_REPEATS = 20
"""A turn that takes the same step this often in a row ends, as it does at its limit of steps."""


def nothing_arrived() -> tuple[InboundMessage, ...]:
    """A ``Drain`` for turns that cannot be steered."""
    return ()


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Bounds of one turn; seconds are wall-clock."""

    max_iterations: int = 20
    model_s: float = 600.0
    result_chars: int = 16_000
    continuations: int = 3


@dataclass(frozen=True, slots=True)
class Profile:
    """How a kind of turn runs: its prompt, its tools and its limit of steps.

    A turn that exceeds ``limit_s`` seconds is stopped, with every process that its tools started.
    """

    context: ContextBuilder
    tools: ToolRegistry
    max_iterations: int
    limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What a finished turn leaves; settling commits it in one transaction.

    ``consumed`` are the inbounds that the turn answered, ``entries`` the last entries for the log
    of ``session``. ``answer`` is the text for whoever asked, "" if the ``message`` tool has said
    it already. ``footnote`` is shown below the answer and never logged. ``trust`` is that of the
    answer. ``ending`` names the limit that ended the turn early, "" for none.
    """

    session: str
    consumed: tuple[str, ...]
    answer: str
    entries: tuple[Draft, ...] = ()
    tools_used: tuple[str, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    footnote: str = ""
    trust: Trust = Trust.TRUSTED
    ending: str = ""


CallMade: TypeAlias = tuple[str, str, str]
"""A call that a step made: tool, arguments, result."""


@dataclass(slots=True)
class Turn:
    """The state of one running turn; the task of ``AgentLoop.run_turn`` is its only owner.

    The first seven fields never change. ``entries`` is the log in the model's view, ``messages``
    the same as a request. ``seen`` holds the inbounds whose words are in the log, ``consumed``
    those that steered the turn. ``parts`` are the pieces of an answer that the output limit cut,
    ``said`` what the turn has said to its own chat by a tool, ``latest`` the last response.
    """

    inbound: InboundMessage
    profile: Profile
    chosen: ChosenModel
    effort: str | None
    emit: Emit
    environment: Mapping[str, str]
    gauge: Gauge
    messages: list[ChatMessage]
    entries: list[Entry]
    seen: set[str]
    trust: Trust
    call_ids: set[str] = field(default_factory=set)
    consumed: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    tools_used: list[str] = field(default_factory=list)
    usage: Usage = Usage()
    latest: LLMResponse = LLMResponse("")
    last_step: list[CallMade] = field(default_factory=list)
    repeats: int = 0
    told_of_blindness: bool = False

    def count_step(self, step: list[CallMade]) -> None:
        """Count how often in a row the turn took this step, with the same results."""
        self.repeats = self.repeats + 1 if step == self.last_step else 1
        self.last_step = step

    @property
    def is_stuck(self) -> bool:
        """Whether the turn repeats one step without end, and not to wait for something."""
        polls = all(self.profile.tools.polls(name) for name, _, _ in self.last_step)
        return self.repeats >= MOST_REPEATS and not polls

    def own(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """The calls under legal names and under ids that are unique in this turn.

        The id tells what a call did, and some endpoints reuse ids after a compaction.
        """
        owned = []
        for call in map(legal_call, calls):
            identity = call.id
            while identity in self.call_ids:
                identity = f"{identity}-{len(self.call_ids)}"
            self.call_ids.add(identity)
            owned.append(replace(call, id=identity))
        return tuple(owned)

    def resume(self, entries: Sequence[Entry]) -> None:
        """Restore from the log what the turn had done before the process died."""
        began = False
        words = ""
        for entry in entries:
            own = entry.inbound_id == self.inbound.id
            began = began or own
            if own:
                self.trust = self.trust.joined(entry.trust)
                if entry.delivered:
                    self.said.append(entry.delivered)
                if words and entry.kind is EntryKind.SYSTEM_NOTE:
                    self.parts.append(words)
                words = last_words(entry)
            elif began and entry.kind is EntryKind.USER:
                self.consumed.append(entry.inbound_id)

    def result(self, answer: str, *entries: Draft, ending: str = "") -> TurnResult:
        """The result of the turn, which is over."""
        return TurnResult(
            session=self.inbound.session_key,
            consumed=(self.inbound.id, *self.consumed),
            answer=answer,
            entries=entries,
            tools_used=tuple(self.tools_used),
            usage=self.usage,
            model=self.latest.model,
            footnote=self.latest.footnote,
            trust=self.trust,
            ending=ending,
        )


def last_words(entry: Entry) -> str:
    """The text of an assistant entry that ends a turn; "" for one with tool calls."""
    message = entry.message
    if isinstance(message, AssistantMessage) and not message.tool_calls:
        return message.content
    return ""


def answer_in(entries: Sequence[Entry], inbound: InboundMessage) -> str | None:
    """The answer to this inbound if the log ends with it, else None."""
    last = entries[-1] if entries else None
    if last is None or last.inbound_id != inbound.id:
        return None
    return last_words(last) or None


def without_later_words(entries: tuple[Entry, ...], inbound: InboundMessage) -> tuple[Entry, ...]:
    """The entries without words that were sent to the chat since the turn began.

    A turn that resumes after a crash repeats its requests exactly; the next turn sees those words.
    """
    for began in entries:
        if began.kind is EntryKind.USER and began.inbound_id == inbound.id:
            return tuple(e for e in entries if e.kind is not EntryKind.SENT or e.seq < began.seq)
    return entries


def history_of(entries: Sequence[Draft], inbound: InboundMessage) -> list[ChatMessage]:
    """The history for the turn of ``inbound``, with the pictures of former turns only named."""
    shown = without_past_pictures(entries, inbound.id)
    return fold(shown, interrupted=render.interrupted())


def is_unasked(
    history: Sequence[ChatMessage], entries: Sequence[Entry], inbound: InboundMessage
) -> bool:
    """Whether the history asks the model for nothing, so that ``inbound`` is added once more.

    This happens after a failed request, for a dead letter that is retried, and after lost rows.
    """
    asks = bool(history) and not isinstance(history[-1], AssistantMessage)
    if entries and entries[-1].kind is EntryKind.UNANSWERED:
        asks = False
    return not asks and answer_in(entries, inbound) is None
