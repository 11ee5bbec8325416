"""Tool calls outside the model's steps: running one, recovering from a crash, skill commands."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from loguru import logger

from nanobot.agent.context import Sender
from nanobot.agent.turn import Profile, TurnResult
from nanobot.agent.window import Spill
from nanobot.core.chat import AssistantMessage, Image, ToolCall, UserMessage
from nanobot.core.events import Emit, ToolFinished, ToolStarted
from nanobot.core.messages import InboundMessage, Role, Trust
from nanobot.core.ports import Clock
from nanobot.core.tool import Effect, ToolContext, ToolOutput
from nanobot.prompts import render
from nanobot.session.entries import (
    Draft,
    Entry,
    EntryKind,
    draft_of,
    open_calls,
    result_draft,
)
from nanobot.session.log import SessionLog
from nanobot.skills.commands import SkillCall
from nanobot.skills.eligibility import SkillsSnapshot
from nanobot.tools.registry import ToolResult

LAST_TURN = 1_000_000
"""Characters of a session that hold its last turn; read where no model is to see the session."""


def environment_of(inbound: InboundMessage, skills: SkillsSnapshot) -> Mapping[str, str]:
    """The skills' variables for the commands of a turn; a guest's turn gets none."""
    return skills.environment if inbound.role is Role.OWNER else {}


def user_message(
    profile: Profile,
    inbound: InboundMessage,
    clock: Clock,
    content: str,
    images: Sequence[Image] = (),
) -> UserMessage:
    """The message of ``inbound`` as its turn reads and logs it, under a turn header."""
    return profile.context.user_message(
        content, images, inbound.channel, inbound.chat_id, now=clock(), sender=sender_of(inbound)
    )


def sender_of(inbound: InboundMessage) -> Sender:
    """Who sent ``inbound``, and when, for its turn header."""
    return Sender(inbound.sender_name, inbound.thread_id, inbound.sent_at)


async def run_tool(
    profile: Profile,
    inbound: InboundMessage,
    call: ToolCall,
    trust: Trust,
    environment: Mapping[str, str],
    emit: Emit,
) -> ToolResult:
    """Run one call; whoever watches the turn sees it start and finish."""
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


async def recovered_calls(
    profile: Profile, inbound: InboundMessage, entries: Sequence[Entry]
) -> list[Draft]:
    """Results for the calls that were open when a process died; none of them runs again."""
    drafts = []
    for call in open_calls(entries):
        asked_by = next(
            entry.inbound_id for entry in reversed(entries) if entry.kind is EntryKind.ASSISTANT
        )
        known = await profile.tools.recovered_call(call, asked_by)
        text = render.interrupted() if known is None else known
        drafts.append(result_draft(inbound, call, text, ToolOutput(text), ok=known is not None))
    return drafts


class ToolCommands:
    """Answers skill commands with ``command-dispatch: tool``: the tool's output is the answer."""

    def __init__(self, sessions: SessionLog, spill: Spill, clock: Clock) -> None:
        self._sessions = sessions
        self._spill = spill
        self._clock = clock

    async def run(
        self,
        profile: Profile,
        inbound: InboundMessage,
        invoked: SkillCall,
        skills: SkillsSnapshot,
        emit: Emit,
    ) -> TurnResult:
        """Run the skill's tool and answer with its output, without a model.

        The call is logged before it runs, so that it does not run again after a crash.
        """
        key = inbound.session_key
        live = await self._sessions.live(key, most=LAST_TURN)
        recovered = await recovered_calls(profile, inbound, live.entries)
        call = invoked.tool_call(inbound.id, profile.tools.parameters_of)
        entries = [*live.entries, *await self._sessions.append(key, recovered)]
        done = [e for e in entries if e.inbound_id == inbound.id and e.kind is EntryKind.TOOL]
        if not done:
            said = user_message(profile, inbound, self._clock, inbound.content)
            asked = AssistantMessage("", (call,))
            await self._sessions.append(
                key,
                [
                    draft_of(inbound, EntryKind.USER, said, inbound.trust),
                    draft_of(inbound, EntryKind.ASSISTANT, asked, inbound.trust),
                ],
                durable=profile.tools.effect_of(call.name) is Effect.WRITE,
            )
            environment = environment_of(inbound, skills)
            result = await run_tool(profile, inbound, call, inbound.trust, environment, emit)
            text = await self._spill.shorten(inbound, call, result.output.text)
            output = ToolOutput(text, result.output.trust)
            drafted = result_draft(inbound, call, text, output, ok=result.ok)
            done = [*await self._sessions.append(key, [drafted])]
        text = done[-1].message.content.strip() if done[-1].message is not None else ""
        answer = draft_of(inbound, EntryKind.ASSISTANT, AssistantMessage(text), done[-1].trust)
        return TurnResult(
            session=key,
            consumed=(inbound.id,),
            answer=text,
            entries=(answer,) if text else (),
            tools_used=(call.name,),
        )
