"""Where the tokens of a session's requests go, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nanobot.agent.context import ContextBuilder
from nanobot.agent.window import CHARACTERS
from nanobot.core.chat import AssistantMessage, ToolMessage
from nanobot.core.messages import Role
from nanobot.core.ports import ModelSource
from nanobot.core.text import MESSAGE_TOKENS, message_tokens, text_tokens, tool_tokens
from nanobot.session.entries import Entry, EntryKind
from nanobot.session.log import SessionLog
from nanobot.tools.images import without_past_pictures
from nanobot.tools.registry import ToolRegistry

TOOLS = "tool schemas"


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a request and its tokens."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ContextReport:
    """The next request of a session as far as it is known, in tokens of its model.

    ``fixed`` is the system prompt and the tools, ``history`` what was said, by kind. ``reserve``
    is the part of ``window`` that is left to the answer. ``calibrated``: the estimate is
    corrected by what the provider has reported of this model.
    """

    session: str
    model: str
    window: int
    reserve: int
    fixed: tuple[Share, ...]
    history: tuple[Share, ...]
    calibrated: bool

    @property
    def fixed_tokens(self) -> int:
        return sum(share.tokens for share in self.fixed)

    @property
    def used(self) -> int:
        return self.fixed_tokens + sum(share.tokens for share in self.history)

    @property
    def percent(self) -> int:
        """How much of the window, without the answer, is used."""
        return round(100 * self.used / max(self.window - self.reserve, 1))

    def document(self) -> dict[str, object]:
        """The same as plain data."""
        return {
            "session": self.session,
            "model": self.model,
            "window": self.window,
            "reserve": self.reserve,
            "used": self.used,
            "percent": self.percent,
            "calibrated": self.calibrated,
            "fixed": {share.name: share.tokens for share in self.fixed},
            "history": {share.name: share.tokens for share in self.history},
        }


class ContextMeter:
    """Measures sessions without changing or asking anything."""

    def __init__(
        self,
        sessions: SessionLog,
        models: ModelSource,
        context: ContextBuilder,
        tools: ToolRegistry,
    ) -> None:
        self._sessions = sessions
        self._models = models
        self._context = context
        self._tools = tools

    async def report(
        self, key: str, role: Role = Role.OWNER, model: str | None = None
    ) -> ContextReport:
        """The report of one session; raises ProviderError when there is no model to ask."""
        settings = await self._sessions.settings(key)
        await self._models.prepare(model or settings.model, load=False)
        chosen = self._models.choose(model or settings.model)
        live = await self._sessions.live(key, most=CHARACTERS * chosen.context_window)
        factor = await self._sessions.calibration.factor(chosen.model)
        parts = self._context.parts(role, self._context.skills_of(key))
        fixed = {part.name: text_tokens(part.text) for part in parts}
        fixed[TOOLS] = tool_tokens(self._tools.specs())
        return ContextReport(
            session=key,
            model=chosen.model,
            window=chosen.context_window,
            reserve=chosen.max_tokens,
            fixed=_shares(fixed, factor),
            history=_shares(_by_kind(without_past_pictures(live.entries, "")), factor),
            calibrated=factor != 1.0,
        )


def in_lines(report: ContextReport) -> tuple[str, ...]:
    """The report in three lines, for a chat."""
    room = report.window - report.reserve
    about = "" if report.calibrated else " about"
    return (
        f"Context:{about} {report.used:,} of {room:,} tokens ({report.percent} %); window "
        f"{report.window:,}, of which {report.reserve:,} are for the answer",
        f"- fixed: {_listed(report.fixed)}",
        f"- history: {_listed(report.history) or 'nothing yet'}",
    )


def _listed(shares: Sequence[Share]) -> str:
    return ", ".join(f"{share.name} {share.tokens:,}" for share in shares)


def _shares(counted: Mapping[str, int], factor: float) -> tuple[Share, ...]:
    return tuple(Share(name, round(tokens * factor)) for name, tokens in counted.items() if tokens)


def _by_kind(entries: Sequence[Entry]) -> dict[str, int]:
    counted = dict.fromkeys(
        ("summary", "messages", "answers", "tool calls", "tool results", "results that gave way"), 0
    )
    for entry in entries:
        match entry.message:
            case None:
                pass
            case AssistantMessage(content=content) as message:
                words = MESSAGE_TOKENS + text_tokens(content)
                counted["answers"] += words
                counted["tool calls"] += message_tokens(message) - words
            case ToolMessage() as message:
                kind = "results that gave way" if entry.gave_way else "tool results"
                counted[kind] += message_tokens(message)
            case message:
                is_summary = entry.kind is EntryKind.COMPACTED
                counted["summary" if is_summary else "messages"] += message_tokens(message)
    return counted
