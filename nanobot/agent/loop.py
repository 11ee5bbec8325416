"""AgentLoop: one turn, from an inbound message to its settlement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loguru import logger

from nanobot.agent.context import ContextBuilder, Sender
from nanobot.agent.filters import HeaderFilter, without_header
from nanobot.agent.spill import Spill
from nanobot.agent.tools.registry import ToolRegistry, ToolResult
from nanobot.agent.turn import (
    Drain,
    ModelSource,
    Settlement,
    TurnLimits,
    nothing_arrived,
)
from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    FinishReason,
    LLMResponse,
    ToolCall,
    ToolChoice,
    ToolMessage,
    Usage,
    UserMessage,
)
from nanobot.core.errors import ContextOverflow, RetryLater
from nanobot.core.events import (
    Emit,
    Event,
    TextDelta,
    TextDiscarded,
    ToolFinished,
    ToolStarted,
    UsageReported,
    ignore,
)
from nanobot.core.identity import Role, Trust
from nanobot.core.messages import InboundMessage
from nanobot.core.ports import ChosenModel, Clock
from nanobot.core.tool import Effect, ToolContext
from nanobot.prompts import render
from nanobot.session.entries import Draft, Entry, EntryKind
from nanobot.session.history import fold, open_calls, violations
from nanobot.session.log import SessionLog

NO_ANSWER = "The model gave no answer. Ask again, or choose another model with /model."
"""Stands in for an answer that stayed empty; it never enters the history."""

CHARS_PER_TOKEN = 3
"""A cautious guess that errs towards leaving out too much rather than overflowing."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How a kind of turn runs: what it is told, its tools and its number of steps."""

    context: ContextBuilder
    tools: ToolRegistry
    max_iterations: int


class AgentLoop:
    """Runs turns; it keeps nothing of a turn once that is over."""

    def __init__(
        self,
        *,
        sessions: SessionLog,
        models: ModelSource,
        context: ContextBuilder,
        tools: ToolRegistry,
        spill: Spill,
        clock: Clock,
        limits: TurnLimits = TurnLimits(),
        profiles: Mapping[str, Profile] = {},
    ) -> None:
        """``profiles`` are those of turns other than a chat's, by name."""
        self._sessions = sessions
        self._models = models
        self._chat = Profile(context, tools, limits.max_iterations)
        self._profiles = profiles
        self._spill = spill
        self._clock = clock
        self._limits = limits

    async def run_turn(
        self, inbound: InboundMessage, *, drain: Drain = nothing_arrived, emit: Emit = ignore
    ) -> Settlement:
        """Work on ``inbound`` until it is answered; what must survive is in the log by then.

        Called again for an inbound whose turn was cut off by a crash, it goes on where the log
        ends: calls left open are closed as interrupted, never run again. Raises ProviderError
        when no model could answer; nothing of that enters the log.
        """
        turn = await self._open(inbound, emit)
        if (answer := _already_answered(turn)) is not None:
            return turn.settle(answer)
        answer = await self._steps(turn, drain)
        return turn.settle(answer)

    async def stopped(self, inbound: InboundMessage, consumed: Sequence[str]) -> Settlement:
        """Close the log after the user stopped the turn of ``inbound``: open calls get a result."""
        live = await self._sessions.live(inbound.session_key)
        drafts = tuple(
            _tool_draft(inbound, call, render.stopped(), Trust.TRUSTED, ok=False)
            for call in open_calls(live.entries)
        )
        return Settlement(
            session=inbound.session_key,
            consumed=(inbound.id, *consumed),
            answer="",
            entries=drafts,
        )

    async def _open(self, inbound: InboundMessage, emit: Emit) -> _Turn:
        profile = self._profiles.get(inbound.profile, self._chat)
        live = await self._sessions.live(inbound.session_key)
        chosen = self._models.choose(inbound.model or live.settings.model)
        drafts = await self._closed_after_crash(live.entries, inbound, profile.tools)
        skills = profile.context.skills_of(inbound.session_key)
        seen = {entry.inbound_id for entry in live.entries if entry.kind is EntryKind.USER}
        messages = profile.context.build_messages(
            fold([*live.entries, *drafts], interrupted=render.interrupted()),
            inbound.content,
            (),
            inbound.channel,
            inbound.chat_id,
            now=self._clock(),
            sender=_sender(inbound),
            role=inbound.role,
            skills=skills,
        )
        if inbound.id in seen:
            messages.pop()
        else:
            drafts.append(_draft(inbound, EntryKind.USER, messages[-1], inbound.trust))
        appended = await self._sessions.append(inbound.session_key, drafts)
        turn = _Turn(
            inbound=inbound,
            profile=profile,
            chosen=chosen,
            effort=live.settings.reasoning_effort,
            emit=emit,
            messages=messages,
            entries=[*live.entries, *appended],
            seen=seen | {inbound.id},
            trust=inbound.trust,
            environment=skills.environment if inbound.role is Role.OWNER else {},
        )
        if inbound.id in seen:
            turn.resume(live.entries)
        room = (chosen.context_window - chosen.max_tokens) * CHARS_PER_TOKEN
        if _size(turn.messages) > max(room, 4 * self._limits.result_chars):
            await self._compact(turn)
        return turn

    async def _closed_after_crash(
        self, entries: Sequence[Entry], inbound: InboundMessage, tools: ToolRegistry
    ) -> list[Draft]:
        """Results for the calls that were open when a process died; none of them runs again."""
        drafts = []
        for call in open_calls(entries):
            asked_by = next(
                entry.inbound_id for entry in reversed(entries) if entry.kind is EntryKind.ASSISTANT
            )
            known = await tools.aftermath(call, asked_by)
            text = render.interrupted() if known is None else known
            drafts.append(_tool_draft(inbound, call, text, Trust.TRUSTED, ok=known is not None))
        return drafts

    async def _steps(self, turn: _Turn, drain: Drain) -> str:
        parts: list[str] = []
        asked_again = False
        for _ in range(turn.profile.max_iterations):
            await self._absorb(turn, drain())
            response = await self._ask(turn, ToolChoice.AUTO)
            if response.tool_calls:
                asked_again = False
                await self._record_calls(turn, response)
                await self._run_calls(turn, response.tool_calls, drain)
                if turn.chosen.reflect:
                    await self._nudge(turn, render.reflect())
                continue
            if (
                response.finish_reason is FinishReason.LENGTH
                and response.content.strip()
                and len(parts) < self._limits.continuations
            ):
                parts.append(response.content)
                await self._append(
                    turn,
                    _assistant_draft(turn, response),
                    _draft(
                        turn.inbound,
                        EntryKind.NUDGE,
                        UserMessage(render.continue_cut()),
                        Trust.TRUSTED,
                    ),
                )
                continue
            if not response.content.strip() and not asked_again and not turn.delivered:
                asked_again = True
                await self._nudge(turn, render.ask_again())
                continue
            return self._conclude(turn, parts, response)
        await self._nudge(turn, render.limit_reached(turn.profile.max_iterations))
        return self._conclude(turn, parts, await self._ask(turn, ToolChoice.NONE))

    def _conclude(self, turn: _Turn, parts: list[str], response: LLMResponse) -> str:
        """The answer for the person; the model's last words wait for the settling transaction."""
        if response.content.strip():
            turn.last_words = _assistant_draft(turn, response)
        answer = "".join([*parts, response.content]).strip()
        if _words(answer) in map(_words, turn.delivered):
            return ""
        return answer or ("" if turn.delivered else NO_ANSWER)

    async def _ask(self, turn: _Turn, choice: ToolChoice) -> LLMResponse:
        try:
            return await self._call_model(turn, choice)
        except ContextOverflow:
            if not await self._compact(turn):
                raise
            return await self._call_model(turn, choice)

    async def _call_model(self, turn: _Turn, choice: ToolChoice) -> LLMResponse:
        chosen = turn.chosen
        if wrong := violations(turn.messages):
            logger.error("an illegal request was mended: {}", "; ".join(wrong))
            turn.messages = [
                turn.messages[0],
                *fold(turn.entries, interrupted=render.interrupted()),
            ]
        try:
            async with asyncio.timeout(self._limits.model_s):
                response = await chosen.provider.chat(
                    turn.messages,
                    turn.profile.tools.specs(),
                    model=chosen.model,
                    max_tokens=chosen.max_tokens,
                    temperature=chosen.temperature,
                    reasoning_effort=turn.effort,
                    tool_choice=choice,
                    on_delta=_filtered(turn.emit),
                )
        except TimeoutError as error:
            raise RetryLater(
                f"{chosen.model} did not answer within {self._limits.model_s:g} s"
            ) from error
        if response.usage is not None:
            turn.usage += response.usage
            turn.emit(UsageReported(response.usage, response.model or chosen.model))
        turn.model = response.model or chosen.model
        calls = () if choice is ToolChoice.NONE else response.tool_calls
        return LLMResponse(
            without_header(response.content),
            calls,
            response.finish_reason,
            response.usage,
            response.reasoning_content,
            response.thinking_blocks,
            response.model,
        )

    async def _record_calls(self, turn: _Turn, response: LLMResponse) -> None:
        """Log the calls before any runs; synced when one of them may change something."""
        writes = any(
            turn.profile.tools.effect_of(call.name) is Effect.WRITE for call in response.tool_calls
        )
        await self._append(turn, _assistant_draft(turn, response), durable=writes)

    async def _run_calls(self, turn: _Turn, calls: Sequence[ToolCall], drain: Drain) -> None:
        """Run the calls of one step: reads side by side, the rest in order."""
        groups = _grouped(calls, turn.profile.tools)
        for place, group in enumerate(groups):
            arrivals = drain() if place else ()
            if arrivals:
                rest = [call for later in groups[place:] for call in later]
                await self._append(
                    turn,
                    *(
                        _tool_draft(turn.inbound, call, render.skipped(), Trust.TRUSTED, ok=False)
                        for call in rest
                    ),
                )
                await self._absorb(turn, arrivals)
                return
            if len(group) == 1:
                results = [await self._run_call(turn, group[0])]
            else:
                async with asyncio.TaskGroup() as tasks:
                    running = [tasks.create_task(self._run_call(turn, call)) for call in group]
                results = [task.result() for task in running]
            for call, result in zip(group, results, strict=True):
                await self._record_result(turn, call, result)

    async def _run_call(self, turn: _Turn, call: ToolCall) -> ToolResult:
        inbound = turn.inbound
        context = ToolContext(
            session_key=inbound.session_key,
            inbound_id=inbound.id,
            call_id=call.id,
            channel=inbound.channel,
            chat_id=inbound.chat_id,
            thread_id=inbound.thread_id,
            sender_id=inbound.sender_id,
            principal=inbound.principal,
            trust=turn.trust,
            origin=inbound.origin,
            profile=inbound.profile,
            attended=inbound.attended,
            workspace=turn.profile.context.workspace,
            environment=turn.environment,
            emit=turn.emit,
        )
        turn.emit(ToolStarted(call.id, call.name, turn.profile.tools.summary(call)))
        started = time.monotonic()
        result = await turn.profile.tools.execute(call, context)
        seconds = time.monotonic() - started
        turn.emit(ToolFinished(call.id, call.name, result.ok, seconds))
        logger.bind(session=inbound.session_key, inbound=inbound.id).info(
            "tool {} {} in {:.2f} s", call.name, "ok" if result.ok else "failed", seconds
        )
        return result

    async def _record_result(self, turn: _Turn, call: ToolCall, result: ToolResult) -> None:
        text = await self._spill.shorten(turn.inbound, call, result.output.text)
        turn.trust = turn.trust.joined(result.output.trust)
        turn.tools_used.append(call.name)
        if result.output.delivered:
            turn.delivered.append(result.output.delivered)
        await self._append(
            turn,
            _tool_draft(turn.inbound, call, text, result.output.trust, ok=result.ok),
        )

    async def _absorb(self, turn: _Turn, arrivals: Sequence[InboundMessage]) -> None:
        """Take messages that arrived during the turn into it."""
        drafts = []
        for inbound in arrivals:
            turn.consumed.append(inbound.id)
            turn.trust = turn.trust.joined(inbound.trust)
            if inbound.id in turn.seen:
                continue
            turn.seen.add(inbound.id)
            message = turn.profile.context.user_message(
                inbound.content,
                (),
                inbound.channel,
                inbound.chat_id,
                now=self._clock(),
                sender=_sender(inbound),
            )
            drafts.append(_draft(inbound, EntryKind.USER, message, inbound.trust))
        await self._append(turn, *drafts)

    async def _nudge(self, turn: _Turn, text: str) -> None:
        await self._append(
            turn, _draft(turn.inbound, EntryKind.NUDGE, UserMessage(text), Trust.TRUSTED)
        )

    async def _append(self, turn: _Turn, *drafts: Draft, durable: bool = False) -> None:
        if not drafts:
            return
        appended = await self._sessions.append(turn.inbound.session_key, drafts, durable=durable)
        turn.entries.extend(appended)
        turn.messages.extend(draft.message for draft in drafts if draft.message is not None)

    async def _compact(self, turn: _Turn) -> bool:
        """Leave older conversation out of what the model sees; False when there is none.

        What is kept begins with a person's message and is at most half as long. The log keeps
        everything; the entry appended says where the model's view begins.
        """
        sizes = [0 if entry.message is None else _size([entry.message]) for entry in turn.entries]
        allowed = sum(sizes) // 2
        start = kept = 0
        for place in range(len(sizes) - 1, -1, -1):
            kept += sizes[place]
            if turn.entries[place].kind is EntryKind.USER:
                if start and kept > allowed:
                    break
                start = place
        if not start:
            return False
        mark = _draft(
            turn.inbound, EntryKind.COMPACTED, UserMessage(render.compacted()), Trust.TRUSTED
        )
        mark = replace(mark, keeps_from=turn.entries[start].seq)
        appended = await self._sessions.append(turn.inbound.session_key, [mark])
        turn.entries = [*appended, *turn.entries[start:]]
        turn.messages = [
            turn.messages[0],
            *fold(turn.entries, interrupted=render.interrupted()),
        ]
        logger.bind(session=turn.inbound.session_key).info(
            "the context window was full: earlier conversation left out for the model"
        )
        return True


@dataclass(slots=True)
class _Turn:
    """The state of one running turn; ``run_turn``'s task is its only owner."""

    inbound: InboundMessage
    profile: Profile
    chosen: ChosenModel
    effort: str | None
    emit: Emit
    messages: list[ChatMessage]
    entries: list[Entry]
    seen: set[str]
    trust: Trust
    environment: Mapping[str, str]
    consumed: list[str] = field(default_factory=list)
    tools_used: list[str] = field(default_factory=list)
    usage: Usage = Usage()
    model: str = ""
    last_words: Draft | None = None
    delivered: list[str] = field(default_factory=list)

    def resume(self, entries: Sequence[Entry]) -> None:
        """Take up what the turn had done before it was cut off: its taint, what it took in."""
        began = False
        for entry in entries:
            own = entry.inbound_id == self.inbound.id
            began = began or own
            if own:
                self.trust = self.trust.joined(entry.trust)
            elif began and entry.kind is EntryKind.USER:
                self.consumed.append(entry.inbound_id)

    def settle(self, answer: str) -> Settlement:
        return Settlement(
            session=self.inbound.session_key,
            consumed=(self.inbound.id, *self.consumed),
            answer=answer,
            entries=() if self.last_words is None else (self.last_words,),
            tools_used=tuple(self.tools_used),
            usage=self.usage,
            model=self.model,
        )


def _already_answered(turn: _Turn) -> str | None:
    """The answer that the log already holds for this inbound, or None."""
    if not turn.entries:
        return None
    last = turn.entries[-1]
    if (
        last.inbound_id == turn.inbound.id
        and isinstance(last.message, AssistantMessage)
        and not last.message.tool_calls
    ):
        return last.message.content
    return None


def _grouped(calls: Sequence[ToolCall], tools: ToolRegistry) -> list[list[ToolCall]]:
    groups: list[list[ToolCall]] = []
    reading = False
    for call in calls:
        reads = tools.effect_of(call.name) is Effect.READ
        if reads and reading:
            groups[-1].append(call)
        else:
            groups.append([call])
        reading = reads
    return groups


def _words(text: str) -> str:
    return " ".join(text.split())


def _sender(inbound: InboundMessage) -> Sender:
    return Sender(inbound.sender_name, inbound.thread_id, inbound.sent_at)


def _draft(inbound: InboundMessage, kind: EntryKind, message: ChatMessage, trust: Trust) -> Draft:
    return Draft(
        kind=kind,
        message=message,
        inbound_id=inbound.id,
        principal=str(inbound.principal),
        trust=trust,
    )


def _assistant_draft(turn: _Turn, response: LLMResponse) -> Draft:
    return Draft(
        kind=EntryKind.ASSISTANT,
        message=AssistantMessage(
            response.content,
            response.tool_calls,
            response.reasoning_content,
            response.thinking_blocks,
        ),
        inbound_id=turn.inbound.id,
        principal=str(turn.inbound.principal),
        trust=turn.trust,
        model=turn.model,
        usage=response.usage,
    )


def _tool_draft(
    inbound: InboundMessage, call: ToolCall, text: str, trust: Trust, *, ok: bool
) -> Draft:
    return Draft(
        kind=EntryKind.TOOL,
        message=ToolMessage(call.id, call.name, text),
        inbound_id=inbound.id,
        principal=str(inbound.principal),
        trust=trust,
        ok=ok,
    )


def _filtered(emit: Emit) -> Callable[[Event], None]:
    """``emit`` for one model call, with a parroted header held back from the text."""
    header = HeaderFilter()

    def pass_on(event: Event) -> None:
        nonlocal header
        match event:
            case TextDelta(text):
                if shown := header.feed(text):
                    emit(TextDelta(shown))
            case TextDiscarded():
                header = HeaderFilter()
                emit(event)
            case _:
                emit(event)

    return pass_on


def _size(messages: Sequence[ChatMessage]) -> int:
    """Characters of a request's messages, calls included."""
    total = 0
    for message in messages:
        total += len(message.content)
        if isinstance(message, AssistantMessage):
            total += sum(len(call.arguments) + len(call.name) for call in message.tool_calls)
    return total
