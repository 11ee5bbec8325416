"""AgentLoop: one turn, from an inbound message to its settlement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loguru import logger

from nanobot.agent.context import ContextBuilder, Sender
from nanobot.agent.turn import (
    Drain,
    Settlement,
    TurnLimits,
    nothing_arrived,
)
from nanobot.agent.window import CHARACTERS, Gauge, Spill, View, Window
from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    FinishReason,
    Image,
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
    Notice,
    TextDelta,
    TextDiscarded,
    ToolFinished,
    ToolStarted,
    UsageReported,
    ignore,
)
from nanobot.core.messages import InboundMessage, Role, Trust, Unanswered
from nanobot.core.ports import ChosenModel, Clock, ModelSource
from nanobot.core.text import tool_tokens
from nanobot.core.tool import Effect, ToolContext, ToolOutput
from nanobot.core.turn_header import HeaderFilter, without_header
from nanobot.prompts import render
from nanobot.session.entries import Draft, Entry, EntryKind
from nanobot.session.history import fold, legal_call, open_calls, violations
from nanobot.session.log import SessionLog
from nanobot.session.usage import ModelCall
from nanobot.skills import SkillsSnapshot
from nanobot.skills.commands import SkillCall, instruction_or_text, skill_call
from nanobot.tools.images import Attached, Pictures, as_shown, has_pictures, without_past_pictures
from nanobot.tools.registry import ToolRegistry, ToolResult, cut_off

NO_ANSWER = "The model gave no answer. Ask again, or choose another model with /model."
"""Stands in for an answer that stayed empty; it never enters the history."""

REPEATS_TOLD = 5
"""From so many times on the model is told that it takes the same step again and again …"""
MOST_REPEATS = 20
"""… and after so many the turn ends, as it does at its limit of steps."""

LATELY = 1_000_000
"""Characters of a session that are read where no model is to see it: its last turn, surely."""

BLIND = (
    "{model} cannot see pictures: it was told of them, but not shown any. Choose one that can with "
    "/model; if this one can, set providers.NAME.models.MODEL.vision to true."
)


@dataclass(frozen=True, slots=True)
class Profile:
    """How a kind of turn runs: what it is told, its tools and its number of steps.

    A turn with a ``limit_s`` is stopped after so many seconds, and leaves no process behind.
    """

    context: ContextBuilder
    tools: ToolRegistry
    max_iterations: int
    limit_s: float | None = None


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
        pictures: Pictures,
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
        self.window = Window(sessions, spill)
        self._pictures = pictures
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
        skills = self._profile(inbound).context.skills_of(inbound.session_key)
        invoked = skill_call(inbound.content, skills)
        if invoked is not None and invoked.command.tool:
            return await self._dispatched(inbound, invoked, skills, emit)
        turn = await self._open(
            inbound, emit, skills, instruction_or_text(invoked, inbound.content)
        )
        if (answer := _answer_in(turn.entries, inbound)) is not None:
            return turn.settle(answer)
        if turn.profile.limit_s is None:
            return turn.settle(await self._steps(turn, drain))
        return await self._limited(turn, turn.profile.limit_s, drain)

    async def _limited(self, turn: _Turn, limit_s: float, drain: Drain) -> Settlement:
        """Work for at most ``limit_s`` seconds; what it left running ends with the turn."""
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return turn.settle(await self._steps(turn, drain))
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            await turn.profile.tools.stopped(turn.inbound.id)
        open_ = open_calls(turn.entries)
        await self._append(
            turn,
            *(
                _tool_draft(turn.inbound, c, render.stopped(), Trust.TRUSTED, ok=False)
                for c in open_
            ),
        )
        turn.ending = f"it had worked for {limit_s:g} s, as long as it may"
        said = (_said(entry) for entry in reversed(turn.entries))
        return turn.settle(next(filter(None, said), ""))

    async def stopped(self, inbound: InboundMessage, consumed: Sequence[str]) -> Settlement:
        """Close the log after the user stopped the turn of ``inbound``: open calls get a result.

        What the turn's tools left running has ended by then.
        """
        await self._profile(inbound).tools.stopped(inbound.id)
        return Settlement(
            session=inbound.session_key,
            consumed=(inbound.id, *consumed),
            answer="",
            entries=await self.closing(inbound, Unanswered.STOPPED),
        )

    async def closing(self, inbound: InboundMessage, ending: Unanswered) -> tuple[Draft, ...]:
        """The entries that close a request without an answer: no later turn goes on with it.

        Calls left open get a result, and a system note says how it ended. What never came into the
        log is noted there only when the user stopped it.
        """
        profile = self._profile(inbound)
        live = await self._sessions.live(inbound.session_key, most=LATELY)
        begun = any(entry.inbound_id == inbound.id for entry in live.entries)
        if ending is Unanswered.STOPPED:
            drafts = [
                _tool_draft(inbound, call, render.stopped(), Trust.TRUSTED, ok=False)
                for call in open_calls(live.entries)
            ]
        elif begun:
            drafts = await self._closed_after_crash(live.entries, inbound, profile.tools)
        else:
            return ()
        if not begun:
            drafts.append(self._said(inbound, profile))
        note = UserMessage(render.unanswered(ending))
        return (*drafts, _draft(inbound, EntryKind.UNANSWERED, note, Trust.TRUSTED))

    def _said(self, inbound: InboundMessage, profile: Profile) -> Draft:
        """What somebody wrote, as the log keeps it: without pictures."""
        message = profile.context.user_message(
            *(inbound.content, (), inbound.channel, inbound.chat_id),
            now=self._clock(),
            sender=_sender(inbound),
        )
        return _draft(inbound, EntryKind.USER, message, inbound.trust)

    def _profile(self, inbound: InboundMessage) -> Profile:
        return self._profiles.get(inbound.profile, self._chat)

    async def _dispatched(
        self, inbound: InboundMessage, invoked: SkillCall, skills: SkillsSnapshot, emit: Emit
    ) -> Settlement:
        """``command-dispatch: tool``: the tool's output is the answer; no model has a part in it.

        The call is in the log before it runs, so that after a crash it is not run again.
        """
        key = inbound.session_key
        profile = self._profile(inbound)
        live = await self._sessions.live(key, most=LATELY)
        drafts = await self._closed_after_crash(live.entries, inbound, profile.tools)
        call = invoked.tool_call(inbound.id, profile.tools.parameters_of)
        entries = [*live.entries, *await self._sessions.append(key, drafts)]
        done = [e for e in entries if e.inbound_id == inbound.id and e.kind is EntryKind.TOOL]
        if not done:
            asked = AssistantMessage("", (call,))
            await self._sessions.append(
                key,
                [
                    self._said(inbound, profile),
                    _draft(inbound, EntryKind.ASSISTANT, asked, inbound.trust),
                ],
                durable=profile.tools.effect_of(call.name) is Effect.WRITE,
            )
            environment = skills.environment if inbound.role is Role.OWNER else {}
            result = await self._run_tool(inbound, call, inbound.trust, environment, emit)
            text = await self._spill.shorten(inbound, call, result.output.text)
            outcome = _tool_draft(inbound, call, text, result.output.trust, ok=result.ok)
            done = [*await self._sessions.append(key, [outcome])]
        text = done[-1].message.content.strip() if done[-1].message is not None else ""
        words = _draft(inbound, EntryKind.ASSISTANT, AssistantMessage(text), done[-1].trust)
        return Settlement(
            session=key,
            consumed=(inbound.id,),
            answer=text,
            entries=(words,) if text else (),
            tools_used=(call.name,),
        )

    async def _open(
        self, inbound: InboundMessage, emit: Emit, skills: SkillsSnapshot, content: str
    ) -> _Turn:
        profile = self._profile(inbound)
        settings = await self._sessions.settings(inbound.session_key)
        if warning := await self._models.prepare(inbound.model or settings.model):
            emit(Notice(warning))
        chosen = self._models.choose(inbound.model or settings.model)
        logged = await self.window.begun(
            await self._sessions.live(inbound.session_key, most=CHARACTERS * chosen.context_window)
        )
        logged = _before_it_began(logged, inbound)
        drafts = await self._closed_after_crash(logged, inbound, profile.tools)
        # Where a summary was made during this turn, its message may be in that.
        said = (EntryKind.USER, EntryKind.COMPACTED)
        seen = {entry.inbound_id for entry in logged if entry.kind in said}
        history = _folded([*logged, *drafts], inbound)
        is_new = inbound.id not in seen or _is_unasked(history, logged, inbound)
        attached = await self._attached(inbound) if is_new else Attached()
        messages = profile.context.build_messages(
            history,
            attached.said_with(content),
            attached.images,
            inbound.channel,
            inbound.chat_id,
            now=self._clock(),
            sender=_sender(inbound),
            role=inbound.role,
            skills=skills,
        )
        if is_new:
            drafts.append(_draft(inbound, EntryKind.USER, messages[-1], inbound.trust))
        else:
            messages.pop()
        appended = await self._sessions.append(inbound.session_key, drafts)
        turn = _Turn(
            inbound=inbound,
            profile=profile,
            chosen=chosen,
            effort=settings.reasoning_effort or chosen.reasoning_effort,
            emit=emit,
            messages=messages,
            entries=[*logged, *appended],
            seen=seen | {inbound.id},
            trust=inbound.trust,
            environment=skills.environment if inbound.role is Role.OWNER else {},
            gauge=Gauge(
                tool_tokens(profile.tools.specs()),
                await self._sessions.calibration.factor(chosen.model),
            ),
        )
        if inbound.id in seen:
            turn.resume(logged)
            turn.call_ids = await self._sessions.call_ids(inbound.session_key, inbound.id)
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
            known = await tools.recovered_call(call, asked_by)
            text = render.interrupted() if known is None else known
            drafts.append(_tool_draft(inbound, call, text, Trust.TRUSTED, ok=known is not None))
        return drafts

    async def _steps(self, turn: _Turn, drain: Drain) -> str:
        parts = turn.parts
        asked_again = False
        for _ in range(turn.profile.max_iterations):
            await self._absorb(turn, drain())
            response = await self._ask(turn, ToolChoice.AUTO)
            if response.tool_calls:
                asked_again = False
                await self._record_calls(turn, response)
                await self._run_calls(turn, response, drain)
                turn.count_step()
                if turn.is_stuck:
                    break
                if turn.repeats >= REPEATS_TOLD:
                    await self._nudge(turn, render.repeated(turn.repeats))
                if turn.chosen.reflect:
                    await self._nudge(turn, render.reflect())
                continue
            await self._pay(turn, response)
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
        if turn.is_stuck:
            turn.ending = f"it had taken the same step {turn.repeats} times in a row"
            await self._nudge(turn, render.stuck(turn.repeats))
        else:
            turn.ending = f"it had taken {turn.profile.max_iterations} steps, as many as it may"
            await self._nudge(turn, render.limit_reached(turn.profile.max_iterations))
        response = await self._ask(turn, ToolChoice.NONE)
        await self._pay(turn, response)
        return self._conclude(turn, parts, response)

    async def _pay(self, turn: _Turn, response: LLMResponse) -> None:
        """Count what an empty answer used, of which nothing enters the log."""
        if response.usage is not None and not response.content.strip():
            call = ModelCall(turn.model, response.provider, response.usage)
            await self._sessions.spend(turn.inbound.account, call)

    def _conclude(self, turn: _Turn, parts: list[str], response: LLMResponse) -> str:
        """The answer for the person; the model's last words wait for the settling transaction."""
        if response.content.strip():
            turn.last_words = _assistant_draft(turn, response)
        answer = "".join([*parts, response.content]).strip()
        if _words(answer) in map(_words, turn.delivered):
            return ""
        return answer or ("" if turn.delivered else NO_ANSWER)

    async def _ask(self, turn: _Turn, choice: ToolChoice) -> LLMResponse:
        await self._make_room(turn)
        try:
            return await self._call_model(turn, choice)
        except ContextOverflow:
            if not await self._make_room(turn, overflowed=True):
                raise
            return await self._call_model(turn, choice)

    async def _make_room(self, turn: _Turn, *, overflowed: bool = False) -> bool:
        """Have something give way where the request is too large; whether something did."""
        view = View(
            inbound=turn.inbound,
            chosen=turn.chosen,
            entries=tuple(turn.entries),
            used=turn.gauge.used(turn.messages),
            fixed=turn.gauge.used(turn.messages[:1]),
            factor=turn.gauge.factor,
            emit=turn.emit,
        )
        entries = await self.window.fitted(view, overflowed=overflowed)
        if entries is None:
            return False
        turn.entries = list(entries)
        turn.messages = [turn.messages[0], *_folded(turn.entries, turn.inbound)]
        return True

    async def _call_model(self, turn: _Turn, choice: ToolChoice) -> LLMResponse:
        chosen = turn.chosen
        if wrong := violations(turn.messages):
            logger.error("an illegal request was mended: {}", "; ".join(wrong))
            turn.messages = [turn.messages[0], *_folded(turn.entries, turn.inbound)]
        messages = as_shown(turn.messages, vision=chosen.vision, model=chosen.model)
        if not chosen.vision and has_pictures(turn.messages) and not turn.told_of_blindness:
            turn.told_of_blindness = True
            turn.emit(Notice(BLIND.format(model=chosen.model)))
        try:
            async with asyncio.timeout(self._limits.model_s):
                response = await chosen.provider.chat(
                    messages,
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
            if not response.footnote and not has_pictures(messages):
                await self._sessions.calibration.observe(
                    chosen.model,
                    estimated=turn.gauge.raw(turn.messages),
                    reported=response.usage.input_tokens,
                )
            turn.emit(UsageReported(response.usage, response.model or chosen.model))
        turn.model = response.model or chosen.model
        turn.footnote = response.footnote
        calls = () if choice is ToolChoice.NONE else turn.own(response.tool_calls)
        return replace(response, content=without_header(response.content), tool_calls=calls)

    async def _record_calls(self, turn: _Turn, response: LLMResponse) -> None:
        """Log the calls before any runs; synced when one of them may change something."""
        writes = any(
            turn.profile.tools.effect_of(call.name) is Effect.WRITE for call in response.tool_calls
        )
        await self._append(turn, _assistant_draft(turn, response), durable=writes)

    async def _run_calls(self, turn: _Turn, response: LLMResponse, drain: Drain) -> None:
        """Run the calls of one step: reads side by side, the rest in order.

        The last call of an answer that the output limit cut off is not run if it may change
        something, even where its arguments look whole: some servers close the brackets.
        """
        tools, calls = turn.profile.tools, response.tool_calls
        was_cut = response.finish_reason is FinishReason.LENGTH
        groups = _grouped(calls, tools)
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
            last = group[-1]
            if was_cut and last is calls[-1] and tools.effect_of(last.name) is Effect.WRITE:
                results = [ToolResult(ToolOutput(cut_off(last.name)), ok=False)]
            elif len(group) == 1:
                results = [await self._run_call(turn, last)]
            else:
                async with asyncio.TaskGroup() as tasks:
                    running = [tasks.create_task(self._run_call(turn, call)) for call in group]
                results = [task.result() for task in running]
            for call, result in zip(group, results, strict=True):
                await self._record_result(turn, call, result)

    async def _run_call(self, turn: _Turn, call: ToolCall) -> ToolResult:
        return await self._run_tool(turn.inbound, call, turn.trust, turn.environment, turn.emit)

    async def _run_tool(
        self,
        inbound: InboundMessage,
        call: ToolCall,
        trust: Trust,
        environment: Mapping[str, str],
        emit: Emit,
    ) -> ToolResult:
        profile = self._profile(inbound)
        context = ToolContext(
            session_key=inbound.session_key,
            inbound_id=inbound.id,
            call_id=call.id,
            channel=inbound.channel,
            chat_id=inbound.chat_id,
            thread_id=inbound.thread_id,
            sender_id=inbound.sender_id,
            principal=inbound.principal,
            trust=trust,
            origin=inbound.origin,
            profile=inbound.profile,
            attended=inbound.attended,
            workspace=profile.context.workspace,
            environment=environment,
            emit=emit,
        )
        emit(ToolStarted(call.id, call.name, profile.tools.summary(call)))
        started = time.monotonic()
        result = await profile.tools.execute(call, context)
        seconds = time.monotonic() - started
        emit(ToolFinished(call.id, call.name, result.ok, seconds))
        logger.bind(session=inbound.session_key, inbound=inbound.id).info(
            "tool {} {} in {:.2f} s", call.name, "ok" if result.ok else "failed", seconds
        )
        return result

    async def _record_result(self, turn: _Turn, call: ToolCall, result: ToolResult) -> None:
        text = await self._spill.shorten(turn.inbound, call, result.output.text)
        turn.trust = turn.trust.joined(result.output.trust)
        turn.tools_used.append(call.name)
        turn.step.append((call.name, call.arguments, result.output.text))
        if result.output.delivered:
            turn.delivered.append(result.output.delivered)
        await self._append(
            turn,
            _tool_draft(
                turn.inbound,
                call,
                text,
                result.output.trust,
                ok=result.ok,
                images=result.output.images,
                delivered=result.output.delivered,
            ),
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
            attached = await self._attached(inbound)
            message = turn.profile.context.user_message(
                attached.said_with(inbound.content),
                attached.images,
                inbound.channel,
                inbound.chat_id,
                now=self._clock(),
                sender=_sender(inbound),
            )
            drafts.append(_draft(inbound, EntryKind.USER, message, inbound.trust))
        await self._append(turn, *drafts)

    async def _attached(self, inbound: InboundMessage) -> Attached:
        """The pictures that a message brings, fit to be shown."""
        return await self._pictures.images_of(inbound.media, inbound.session_key)

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
    gauge: Gauge
    consumed: list[str] = field(default_factory=list)
    tools_used: list[str] = field(default_factory=list)
    usage: Usage = Usage()
    model: str = ""
    footnote: str = ""
    last_words: Draft | None = None
    delivered: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    told_of_blindness: bool = False
    ending: str = ""
    call_ids: set[str] = field(default_factory=set)
    step: list[tuple[str, str, str]] = field(default_factory=list)
    last_step: list[tuple[str, str, str]] = field(default_factory=list)
    repeats: int = 0

    def count_step(self) -> None:
        """Count how often the step that just ended was taken in a row, with the same results."""
        self.repeats = self.repeats + 1 if self.step == self.last_step else 1
        self.last_step, self.step = self.step, []

    @property
    def is_stuck(self) -> bool:
        """Whether the turn takes the same step for ever, not to wait for something."""
        polls = all(self.profile.tools.polls(name) for name, _, _ in self.last_step)
        return self.repeats >= MOST_REPEATS and not polls

    def own(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """The calls under legal names, and under ids that no call of the turn has had.

        What a call did is known by its id, and some endpoints count theirs anew after a compaction.
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
        """Take up what the turn had done before it was cut off.

        That is its taint, what it took in, what it said to its chat by a tool, and the parts of
        an answer that the output limit cut.
        """
        began = False
        words = ""
        for entry in entries:
            own = entry.inbound_id == self.inbound.id
            began = began or own
            if own:
                self.trust = self.trust.joined(entry.trust)
                if entry.delivered:
                    self.delivered.append(entry.delivered)
                if words and entry.kind is EntryKind.NUDGE:
                    self.parts.append(words)
                words = _last_words(entry)
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
            footnote=self.footnote,
            trust=self.trust,
            ending=self.ending,
        )


def _answer_in(entries: Sequence[Entry], inbound: InboundMessage) -> str | None:
    """The answer to this inbound that a log ends with, or None."""
    last = entries[-1] if entries else None
    if last is None or last.inbound_id != inbound.id:
        return None
    return _last_words(last) or None


def _before_it_began(entries: tuple[Entry, ...], inbound: InboundMessage) -> tuple[Entry, ...]:
    """The entries without what was sent to the chat since the turn began: the next turn sees it.

    So a turn that is taken up after a crash goes on with the requests that it had made.
    """
    for began in entries:
        if began.kind is EntryKind.USER and began.inbound_id == inbound.id:
            return tuple(e for e in entries if e.kind is not EntryKind.SENT or e.seq < began.seq)
    return entries


def _folded(entries: Sequence[Draft], inbound: InboundMessage) -> list[ChatMessage]:
    """The history for the turn of ``inbound``; pictures of former turns are only named."""
    shown = without_past_pictures(entries, inbound.id)
    return fold(shown, interrupted=render.interrupted())


def _is_unasked(
    history: Sequence[ChatMessage], entries: Sequence[Entry], inbound: InboundMessage
) -> bool:
    """Whether nothing asks the model for anything, so that ``inbound`` has to be said again.

    That is so when a request before it failed, when the owner has a dead letter tried again, or
    when the log has lost rows.
    """
    asks = bool(history) and not isinstance(history[-1], AssistantMessage)
    if entries and entries[-1].kind is EntryKind.UNANSWERED:
        asks = False
    return not asks and _answer_in(entries, inbound) is None


def _last_words(entry: Entry) -> str:
    """What an assistant entry says, unless it goes on with calls."""
    message = entry.message
    if isinstance(message, AssistantMessage) and not message.tool_calls:
        return message.content
    return ""


def _said(entry: Entry) -> str:
    """What an assistant entry says, beside its calls if it has any."""
    return entry.message.content.strip() if isinstance(entry.message, AssistantMessage) else ""


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
        provider=response.provider,
        usage=response.usage,
        account=turn.inbound.account,
    )


def _tool_draft(
    inbound: InboundMessage,
    call: ToolCall,
    text: str,
    trust: Trust,
    *,
    ok: bool,
    images: tuple[Image, ...] = (),
    delivered: str = "",
) -> Draft:
    return Draft(
        kind=EntryKind.TOOL,
        message=ToolMessage(call.id, call.name, text, images),
        inbound_id=inbound.id,
        principal=str(inbound.principal),
        trust=trust,
        ok=ok,
        delivered=delivered,
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
