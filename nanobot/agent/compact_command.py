"""``/compact``: sum up the older part of a conversation now."""

from __future__ import annotations

from nanobot.agent.report import ContextMeter, ContextReport
from nanobot.agent.window import CHARACTERS, View, Window
from nanobot.core.commands import Command, Invocation
from nanobot.core.events import ignore
from nanobot.core.ports import ModelSource
from nanobot.session.entries import EntryKind
from nanobot.session.log import SessionLog

NOTHING = "There is nothing to sum up yet."
UNSUMMED = (
    "The model could not sum the conversation up, so its older part is left out as it is; it "
    "stays in the log."
)


def compact_command(
    sessions: SessionLog, models: ModelSource, window: Window, meter: ContextMeter
) -> Command:
    """The command; it waits its turn like a message, so that nothing else changes the session."""

    async def compact(invocation: Invocation) -> str:
        inbound = invocation.inbound
        key = inbound.session_key
        before = await meter.report(key, inbound.role, inbound.model)
        settings = await sessions.settings(key)
        chosen = models.choose(inbound.model or settings.model)
        live = await sessions.live(key, most=CHARACTERS * chosen.context_window)
        view = View(
            inbound=inbound,
            chosen=chosen,
            entries=await window.begun(live),
            used=before.used,
            fixed=before.fixed_tokens,
            factor=await sessions.calibration.factor(chosen.model),
            emit=ignore,
        )
        entries = await window.compact(view, invocation.argument)
        if entries is None:
            return NOTHING
        after = await meter.report(key, inbound.role, inbound.model)
        assert entries[0].kind is EntryKind.COMPACTED, "a compaction begins with its mark"
        lines = [f"Summed up: {_tokens(before)} tokens before, {_tokens(after)} after."]
        if not entries[0].model:
            lines = [f"{UNSUMMED} {_tokens(before)} tokens before, {_tokens(after)} after."]
        return "\n".join(lines)

    return Command("compact", "sum up what was said so far: /compact [what matters]", compact)


def _tokens(report: ContextReport) -> str:
    return f"{report.used:,}"
