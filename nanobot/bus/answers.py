"""Turns an answer into messages, by the answer rule that came with its inbound."""

from __future__ import annotations

import re
from dataclasses import replace

from nanobot.agent.loop import NO_ANSWER
from nanobot.agent.turn import TurnResult
from nanobot.core.messages import (
    AnswerKind,
    Cause,
    InboundMessage,
    Origin,
    OutboundMessage,
    Trust,
)
from nanobot.core.text import fence, one_line
from nanobot.prompts import render

SILENT_TOKEN = "HEARTBEAT_OK"


def answer_messages(
    inbound: InboundMessage, result: TurnResult
) -> tuple[tuple[OutboundMessage, ...], tuple[InboundMessage, ...]]:
    """The outbounds and the inbounds that the answer of a turn turns into."""
    kind = inbound.answer.kind
    if kind is AnswerKind.REPORT:
        return (), (report(inbound, result),)
    is_said = kind is AnswerKind.REPLY or (
        kind is AnswerKind.REPLY_UNLESS_SILENT and not is_silent(result.answer)
    )
    if not result.answer or not is_said:
        return (), ()
    return (_answer(inbound, result),), ()


def report(task: InboundMessage, result: TurnResult, failure: str = "") -> InboundMessage:
    """What a subagent came to, as a message to the session that sent it.

    It is answered as that turn's would be, on the same person's authority, and is no more to be
    trusted than what the subagent has read. ``failure`` says why there is no result.
    """
    parent = task.parent
    assert parent is not None, "only a subagent's task is answered by a report"
    ending = failure or (result.ending and f"stopped, since {result.ending}") or "finished"
    text = result.answer or "(It said nothing.)"
    if result.trust is Trust.UNTRUSTED:
        text = fence(text, source=f"subagent {parent.label}")
    return replace(
        task,
        content=render.subagent_report(label=parent.label, ending=ending, text=text),
        id=f"{task.id}:done",
        sender_name="subagent",
        trust=result.trust,
        profile=parent.profile,
        answer=replace(parent.answer, note=""),
        session=parent.session,
        model=parent.model,
    )


def _answer(inbound: InboundMessage, result: TurnResult) -> OutboundMessage:
    """The answer with its footnote; the log of the chat's session has it without."""
    plain = reply(inbound, result.answer)
    footnote = f"\n\n{result.footnote}" if result.footnote else ""
    cause = None
    if inbound.answer.channel and result.answer != NO_ANSWER:
        cause = Cause(_named(inbound), str(inbound.principal), plain.content, result.trust)
    return replace(plain, content=plain.content + footnote, cause=cause)


def _named(inbound: InboundMessage) -> str:
    """What the model of another chat is told that an inbound was."""
    match inbound.origin:
        case Origin.CRON:
            return f"the scheduled job “{one_line(inbound.content, 40)}”"
        case Origin.HEARTBEAT:
            return "the heartbeat"
    return "another conversation"


def reply(inbound: InboundMessage, text: str, *, kind: str = "answer") -> OutboundMessage:
    """An outbound to where the answers of ``inbound`` go, with a deterministic id."""
    rule = inbound.answer
    elsewhere = bool(rule.channel)
    return OutboundMessage(
        rule.channel or inbound.channel,
        rule.chat_id or inbound.chat_id,
        f"{rule.note}\n\n{text}" if rule.note else text,
        reply_to=inbound.message_id if inbound.is_group and not elsewhere else None,
        id=f"{inbound.id}/{kind}",
        thread_id=rule.thread_id if elsewhere else inbound.thread_id,
        session=inbound.session_key,
        inbound_id=inbound.id,
    )


def is_silent(answer: str) -> bool:
    """Whether an answer is nothing but the silent token (markup, case, underscores aside)."""
    letters = re.sub(r"[\W_]+", "", answer).lower()
    return letters == SILENT_TOKEN.replace("_", "").lower()
