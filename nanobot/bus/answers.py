"""What becomes of a turn's answer, by the rule that came with its inbound."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nanobot.agent.turn import Settlement
from nanobot.core.identity import Origin
from nanobot.core.messages import (
    AnswerKind,
    InboundMessage,
    OutboundMessage,
)

SILENT_TOKEN = "HEARTBEAT_OK"


@dataclass(frozen=True, slots=True)
class Consequences:
    """What is committed together with a settlement."""

    outbounds: Sequence[OutboundMessage] = ()
    posts: Sequence[InboundMessage] = ()


def consequences(inbound: InboundMessage, settlement: Settlement) -> Consequences:
    """The outbound or inbound messages that the answer of a turn turns into."""
    rule = inbound.answer
    if not settlement.answer:
        return Consequences()
    match rule.kind:
        case AnswerKind.REPLY:
            return Consequences(outbounds=(reply(inbound, _with_footnote(settlement)),))
        case AnswerKind.REPLY_UNLESS_SILENT:
            if is_silent(settlement.answer):
                return Consequences()
            return Consequences(outbounds=(reply(inbound, _with_footnote(settlement)),))
        case AnswerKind.REPORT:
            report = InboundMessage(
                rule.channel or inbound.channel,
                inbound.sender_id,
                rule.chat_id or inbound.chat_id,
                settlement.answer,
                id=f"{inbound.id}:done",
                thread_id=rule.thread_id,
                origin=Origin.SUBAGENT,
                role=inbound.role,
                trust=inbound.trust,
                session=rule.session or None,
            )
            return Consequences(posts=(report,))
        case AnswerKind.TERMINAL | AnswerKind.NOTHING:
            return Consequences()


def _with_footnote(settlement: Settlement) -> str:
    footnote = f"\n\n{settlement.footnote}" if settlement.footnote else ""
    return settlement.answer + footnote


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
