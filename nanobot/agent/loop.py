"""AgentLoop: one turn, from an inbound message to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loguru import logger

from nanobot.agent.context import ContextBuilder
from nanobot.agent.tool_calls import (
    LAST_TURN,
    ToolCommands,
    environment_of,
    recovered_calls,
    run_tool,
    sender_of,
    user_message,
)
from nanobot.agent.turn import (
    CallMade,
    Drain,
    Profile,
    Turn,
    TurnLimits,
    TurnResult,
    answer_in,
    history_of,
    is_unasked,
    nothing_arrived,
    without_later_words,
)
from nanobot.agent.window import CHARACTERS, Gauge, Spill, View, Window
from nanobot.core.chat import (
    AssistantMessage,
    FinishReason,
    LLMResponse,
    ModelRequest,
    ToolCall,
    ToolChoice,
    UserMessage,
)
from nanobot.core.errors import ContextOverflow, RetryLater
from nanobot.core.events import Emit, Notice, UsageReported, ignore
from nanobot.core.messages import InboundMessage, Unanswered
from nanobot.core.ports import Clock, ModelSource
from nanobot.core.text import tool_tokens
from nanobot.core.tool import Effect, ToolOutput
from nanobot.core.turn_header import filtered, without_header
from nanobot.prompts import render
from nanobot.session.entries import (
    Draft,
    EntryKind,
    answer_draft,
    closed_calls,
    draft_of,
    open_calls,
    result_draft,
    violations,
)
from nanobot.session.log import SessionLog
from nanobot.session.usage import ModelCall
from nanobot.skills.commands import instruction_or_text, skill_call
from nanobot.skills.eligibility import SkillsSnapshot
from nanobot.tools.images import Attached, Pictures, as_shown, has_pictures
from nanobot.tools.registry import ToolRegistry, ToolResult, cut_off

NO_ANSWER = "The model gave no answer. Ask again, or choose another model with /model."
"""The answer when the model's stays empty; it never enters the history."""

REPEATS_TOLD = 5
"""Steps repeated this often in a row are pointed out to the model."""

BLIND = (
    "{model} cannot see pictures: it was told of them, but not shown any. Choose one that can with "
    "/model; if this one can, set providers.NAME.models.MODEL.vision to true."
)


class AgentLoop:
    """Runs turns. It holds no state of a turn beyond the call of ``run_turn``."""

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
        """``context`` and ``tools`` are a chat's; ``profiles`` are those of other turns by name."""
        self._sessions = sessions
        self._models = models
        self._chat = Profile(context, tools, limits.max_iterations)
        self._profiles = profiles
        self._spill = spill
        self._tool_commands = ToolCommands(sessions, spill, clock)
        self.window = Window(sessions, spill)
        self._pictures = pictures
        self._clock = clock
        self._limits = limits

    async def run_turn(
        self, inbound: InboundMessage, *, drain: Drain = nothing_arrived, emit: Emit = ignore
    ) -> TurnResult:
        """Work on ``inbound`` until it is answered; every step is logged before the next.

        A turn that a crash cut off continues where the log ends: open calls are closed as
        interrupted and never run again. Raises ProviderError when no model can answer; nothing
        of that enters the log.
        """
        profile = self._profile(inbound)
        skills = profile.context.skills_of(inbound.session_key)
        invoked = skill_call(inbound.content, skills)
        if invoked is not None and invoked.command.tool:
            return await self._tool_commands.run(profile, inbound, invoked, skills, emit)
        content = instruction_or_text(invoked, inbound.content)
        turn = await self._open(inbound, emit, skills, content)
        if (answer := answer_in(turn.entries, inbound)) is not None:
            return turn.result(answer)
        if profile.limit_s is None:
            return await self._steps(turn, drain)
        return await self._limited(turn, profile.limit_s, drain)

    async def _open(
        self, inbound: InboundMessage, emit: Emit, skills: SkillsSnapshot, content: str
    ) -> Turn:
        """Bring the log up to date and set up the turn's state and first request."""
        profile = self._profile(inbound)
        settings = await self._sessions.settings(inbound.session_key)
        if warning := await self._models.prepare(inbound.model or settings.model):
            emit(Notice(warning))
        chosen = self._models.choose(inbound.model or settings.model)
        logged = await self.window.begun(
            await self._sessions.live(inbound.session_key, most=CHARACTERS * chosen.context_window)
        )
        logged = without_later_words(logged, inbound)
        drafts = await recovered_calls(profile, inbound, logged)
        # A summary made during this turn may contain the turn's own message.
        said = (EntryKind.USER, EntryKind.COMPACTED)
        seen = {entry.inbound_id for entry in logged if entry.kind in said}
        history = history_of([*logged, *drafts], inbound)
        is_new = inbound.id not in seen or is_unasked(history, logged, inbound)
        attached = await self._attached(inbound) if is_new else Attached()
        messages = profile.context.build_messages(
            history,
            attached.said_with(content),
            attached.images,
            inbound.channel,
            inbound.chat_id,
            now=self._clock(),
            sender=sender_of(inbound),
            role=inbound.role,
            skills=skills,
        )
        if is_new:
            drafts.append(draft_of(inbound, EntryKind.USER, messages[-1], inbound.trust))
        else:
            messages.pop()
        appended = await self._sessions.append(inbound.session_key, drafts)
        factor = await self._sessions.calibration.factor(chosen.model)
        turn = Turn(
            inbound=inbound,
            profile=profile,
            chosen=chosen,
            effort=settings.reasoning_effort or chosen.reasoning_effort,
            emit=emit,
            environment=environment_of(inbound, skills),
            gauge=Gauge(tool_tokens(profile.tools.specs()), factor),
            messages=messages,
            entries=[*logged, *appended],
            seen=seen | {inbound.id},
            trust=inbound.trust,
        )
        if inbound.id in seen:
            turn.resume(logged)
            turn.call_ids = await self._sessions.call_ids(inbound.session_key, inbound.id)
        return turn

    async def _limited(self, turn: Turn, limit_s: float, drain: Drain) -> TurnResult:
        """Work for at most ``limit_s`` seconds; the turn's processes end with it."""
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await self._steps(turn, drain)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            await turn.profile.tools.stopped(turn.inbound.id)
        left = open_calls(turn.entries)
        await self._append(turn, *closed_calls(turn.inbound, left, render.stopped()))
        messages = (entry.message for entry in reversed(turn.entries))
        said = (one.content.strip() for one in messages if isinstance(one, AssistantMessage))
        ending = f"it had worked for {limit_s:g} s, as long as it may"
        return turn.result(next(filter(None, said), ""), ending=ending)

    async def _steps(self, turn: Turn, drain: Drain) -> TurnResult:
        """Ask the model and run its calls, step by step, until it answers or meets a limit."""
        asked_again = False
        for _ in range(turn.profile.max_iterations):
            await self._absorb(turn, drain())
            response = await self._ask(turn, ToolChoice.AUTO)
            if response.tool_calls:
                asked_again = False
                turn.count_step(await self._run_calls(turn, response, drain))
                if turn.is_stuck:
                    break
                if turn.repeats >= REPEATS_TOLD:
                    await self._note(turn, render.repeated(turn.repeats))
                if turn.chosen.reflect:
                    await self._note(turn, render.reflect())
            elif (
                response.finish_reason is FinishReason.LENGTH
                and response.content.strip()
                and len(turn.parts) < self._limits.continuations
            ):
                turn.parts.append(response.content)
                cut = answer_draft(turn.inbound, response, turn.trust)
                more = UserMessage(render.continue_cut())
                note = draft_of(turn.inbound, EntryKind.SYSTEM_NOTE, more)
                await self._append(turn, cut, note)
            elif not response.content.strip() and not asked_again and not turn.said:
                asked_again = True
                await self._count_empty(turn, response)
                await self._note(turn, render.ask_again())
            else:
                return await self._conclude(turn, response)
        if turn.is_stuck:
            ending = f"it had taken the same step {turn.repeats} times in a row"
            await self._note(turn, render.stuck(turn.repeats))
        else:
            ending = f"it had taken {turn.profile.max_iterations} steps, as many as it may"
            await self._note(turn, render.limit_reached(turn.profile.max_iterations))
        return await self._conclude(turn, await self._ask(turn, ToolChoice.NONE), ending)

    async def _conclude(self, turn: Turn, response: LLMResponse, ending: str = "") -> TurnResult:
        """The result of the turn; its last entry is left to the settling transaction."""
        await self._count_empty(turn, response)
        entries: list[Draft] = []
        if response.content.strip():
            entries.append(answer_draft(turn.inbound, response, turn.trust))
        answer = "".join([*turn.parts, response.content]).strip()
        if _words(answer) in map(_words, turn.said):
            answer = ""
        elif not answer and not turn.said:
            answer = NO_ANSWER
        return turn.result(answer, *entries, ending=ending)

    async def _count_empty(self, turn: Turn, response: LLMResponse) -> None:
        """Count the usage of an empty response, which does not enter the log."""
        if response.usage is not None and not response.content.strip():
            call = ModelCall(response.model, response.provider, response.usage)
            await self._sessions.spend(turn.inbound.account, call)

    async def _ask(self, turn: Turn, choice: ToolChoice) -> LLMResponse:
        await self._make_room(turn)
        try:
            return await self._call_model(turn, choice)
        except ContextOverflow:
            if not await self._make_room(turn, overflowed=True):
                raise
            return await self._call_model(turn, choice)

    async def _make_room(self, turn: Turn, *, overflowed: bool = False) -> bool:
        """Trim or sum up a request that is too large; returns whether that changed it."""
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
        turn.messages = [turn.messages[0], *history_of(turn.entries, turn.inbound)]
        return True

    async def _call_model(self, turn: Turn, choice: ToolChoice) -> LLMResponse:
        chosen = turn.chosen
        if wrong := violations(turn.messages):
            logger.error("repaired an illegal request: {}", "; ".join(wrong))
            turn.messages = [turn.messages[0], *history_of(turn.entries, turn.inbound)]
        messages = as_shown(turn.messages, vision=chosen.vision, model=chosen.model)
        if not chosen.vision and has_pictures(turn.messages) and not turn.told_of_blindness:
            turn.told_of_blindness = True
            turn.emit(Notice(BLIND.format(model=chosen.model)))
        try:
            async with asyncio.timeout(self._limits.model_s):
                request = ModelRequest(
                    messages,
                    turn.profile.tools.specs(),
                    chosen.model,
                    chosen.max_tokens,
                    chosen.temperature,
                    reasoning_effort=turn.effort,
                    tool_choice=choice,
                )
                response = await chosen.provider.chat(request, filtered(turn.emit))
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
        turn.latest = replace(
            response,
            content=without_header(response.content),
            tool_calls=() if choice is ToolChoice.NONE else turn.own(response.tool_calls),
            model=response.model or chosen.model,
        )
        return turn.latest

    async def _run_calls(self, turn: Turn, response: LLMResponse, drain: Drain) -> list[CallMade]:
        """Run the calls of one step, reads side by side, the rest in order; returns what ran.

        The calls are logged before any of them runs, and synced if one may change something. The
        last call of a response that the output limit cut off does not run if it may change
        something, even if its arguments look whole: some servers close the brackets.
        """
        tools, calls = turn.profile.tools, response.tool_calls
        writes = any(tools.effect_of(call.name) is Effect.WRITE for call in calls)
        asked = answer_draft(turn.inbound, response, turn.trust)
        await self._append(turn, asked, durable=writes)
        was_cut = response.finish_reason is FinishReason.LENGTH
        groups = _grouped(calls, tools)
        step: list[CallMade] = []
        for place, group in enumerate(groups):
            if arrivals := drain() if place else ():
                rest = [call for later in groups[place:] for call in later]
                await self._append(turn, *closed_calls(turn.inbound, rest, render.skipped()))
                await self._absorb(turn, arrivals)
                break
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
                step.append((call.name, call.arguments, result.output.text))
        return step

    async def _run_call(self, turn: Turn, call: ToolCall) -> ToolResult:
        return await run_tool(
            turn.profile, turn.inbound, call, turn.trust, turn.environment, turn.emit
        )

    async def _record_result(self, turn: Turn, call: ToolCall, result: ToolResult) -> None:
        output = result.output
        text = await self._spill.shorten(turn.inbound, call, output.text)
        turn.trust = turn.trust.joined(output.trust)
        turn.tools_used.append(call.name)
        if output.delivered:
            turn.said.append(output.delivered)
        await self._append(turn, result_draft(turn.inbound, call, text, output, ok=result.ok))

    async def _absorb(self, turn: Turn, arrivals: Sequence[InboundMessage]) -> None:
        """Add messages that arrived during the turn to it."""
        drafts = []
        for inbound in arrivals:
            turn.consumed.append(inbound.id)
            turn.trust = turn.trust.joined(inbound.trust)
            if inbound.id in turn.seen:
                continue
            turn.seen.add(inbound.id)
            attached = await self._attached(inbound)
            content = attached.said_with(inbound.content)
            message = user_message(turn.profile, inbound, self._clock, content, attached.images)
            drafts.append(draft_of(inbound, EntryKind.USER, message, inbound.trust))
        await self._append(turn, *drafts)

    async def _attached(self, inbound: InboundMessage) -> Attached:
        return await self._pictures.images_of(inbound.media, inbound.session_key)

    async def _note(self, turn: Turn, text: str) -> None:
        note = draft_of(turn.inbound, EntryKind.SYSTEM_NOTE, UserMessage(text))
        await self._append(turn, note)

    async def _append(self, turn: Turn, *drafts: Draft, durable: bool = False) -> None:
        """Log the drafts, and add them to what the model is sent next."""
        if not drafts:
            return
        appended = await self._sessions.append(turn.inbound.session_key, drafts, durable=durable)
        turn.entries.extend(appended)
        turn.messages.extend(draft.message for draft in drafts if draft.message is not None)

    async def stopped(self, inbound: InboundMessage, consumed: Sequence[str]) -> TurnResult:
        """End the turn's processes after its user stopped it; the result closes its log."""
        await self._profile(inbound).tools.stopped(inbound.id)
        return TurnResult(
            session=inbound.session_key,
            consumed=(inbound.id, *consumed),
            answer="",
            entries=await self.closing(inbound, Unanswered.STOPPED),
        )

    async def closing(self, inbound: InboundMessage, ending: Unanswered) -> tuple[Draft, ...]:
        """The entries that close a request without an answer, so that no later turn continues it.

        Open calls get a result, and a system note says how the request ended. A request that is
        not in the log yet is only noted if its user stopped it.
        """
        profile = self._profile(inbound)
        live = await self._sessions.live(inbound.session_key, most=LAST_TURN)
        begun = any(entry.inbound_id == inbound.id for entry in live.entries)
        if ending is Unanswered.STOPPED:
            drafts = closed_calls(inbound, open_calls(live.entries), render.stopped())
        elif begun:
            drafts = await recovered_calls(profile, inbound, live.entries)
        else:
            return ()
        if not begun:
            said = user_message(profile, inbound, self._clock, inbound.content)
            drafts.append(draft_of(inbound, EntryKind.USER, said, inbound.trust))
        note = UserMessage(render.unanswered(ending))
        return (*drafts, draft_of(inbound, EntryKind.UNANSWERED, note))

    def _profile(self, inbound: InboundMessage) -> Profile:
        return self._profiles.get(inbound.profile, self._chat)


def _grouped(calls: Sequence[ToolCall], tools: ToolRegistry) -> list[list[ToolCall]]:
    """The calls in order, with reads that follow each other in one group."""
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
