"""The request to the model: its system prompt, its messages, and a report of their tokens."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from loguru import logger

from nanobot.agent.window import CHARACTERS
from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from nanobot.core.messages import Role
from nanobot.core.ports import ModelSource
from nanobot.core.text import MESSAGE_TOKENS, message_tokens, text_tokens, tool_tokens
from nanobot.core.turn_header import TIME, TurnHeader
from nanobot.prompts import render
from nanobot.prompts.excerpt import BOOTSTRAP_FILES, FILE_CAP, MEMORY, excerpt, too_long
from nanobot.session.entries import Entry, EntryKind
from nanobot.session.log import SessionLog
from nanobot.skills.eligibility import SkillsSnapshot
from nanobot.tools.images import without_past_pictures
from nanobot.tools.registry import ToolRegistry

SUBAGENT_FILES = ("TOOLS.md",)
FILES_CAP = 60_000
"""Characters of all bootstrap files together, unless configured."""
SEPARATOR = "\n\n---\n\n"
HELD_SESSIONS = 1000
"""Sessions whose skills are cached; one beyond that sees the present skills."""
OLD_AFTER = timedelta(minutes=10)
"""A message older than this when its turn begins is marked with its age."""


class SkillSource(Protocol):
    """The source of a turn's skills; ``held`` is the snapshot that the session saw last."""

    def snapshot_for(self, held: SkillsSnapshot | None) -> SkillsSnapshot: ...


@dataclass(frozen=True, slots=True)
class Sender:
    """Who wrote a message and when, for the turn header."""

    name: str = ""
    thread: str | None = None
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the system prompt, and its name in reports."""

    name: str
    text: str


class ContextBuilder:
    """Builds requests from the workspace's files, the skills and the history.

    The system prompt depends only on files, never on the clock or the chat, so that providers can
    cache the beginning of a session's requests until a file is edited.
    """

    def __init__(
        self,
        workspace: Path,
        skills: SkillSource,
        *,
        tools: Sequence[str] = (),
        file_cap: int = FILE_CAP,
        files_cap: int = FILES_CAP,
        profile: str = "chat",
    ) -> None:
        """``profile`` names the kind of turn that the requests are for."""
        self.workspace = workspace
        self._skills = skills
        self._tools = frozenset(tools)
        self._file_cap = file_cap
        self._files_cap = files_cap
        self._profile = profile
        self._held: dict[str, SkillsSnapshot] = {}
        self._files: dict[Path, tuple[tuple[int, int, int, int], str]] = {}

    def skills_of(self, session_key: str) -> SkillsSnapshot:
        """The skills that this session sees in its next request."""
        snapshot = self._skills.snapshot_for(self._held.pop(session_key, None))
        self._held[session_key] = snapshot
        if len(self._held) > HELD_SESSIONS:
            del self._held[next(iter(self._held))]
        return snapshot

    def forget(self, session_key: str) -> None:
        """Drop the cached skills of a session in which a new conversation begins."""
        self._held.pop(session_key, None)

    def build_system_prompt(
        self, role: Role = Role.OWNER, skills: SkillsSnapshot | None = None
    ) -> str:
        """The system prompt, without the memory for a guest; ``skills`` default to the present."""
        return SEPARATOR.join(part.text for part in self.parts(role, skills))

    def parts(
        self, role: Role = Role.OWNER, skills: SkillsSnapshot | None = None
    ) -> tuple[Part, ...]:
        """The parts of the system prompt, in order."""
        skills = skills or self._skills.snapshot_for(None)
        if self._profile == "subagent":
            parts = self._subagents_parts()
        else:
            parts = self._assistants_parts(owner=role is Role.OWNER)
        if skills.always_text:
            parts.append(Part("active skills", f"# Active Skills\n\n{skills.always_text}"))
        if skills.summary:
            parts.append(Part("skills summary", render.skills(skills.summary, skills.catalogue)))
        return tuple(parts)

    def _assistants_parts(self, *, owner: bool) -> list[Part]:
        identity = render.identity(
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            workspace=self.workspace,
            owner=owner,
            recall_tool="recall" if "recall" in self._tools else "grep",
            message_tool="message" in self._tools,
        )
        parts = [Part("identity", identity)]
        if self._profile != "chat":
            parts.append(Part("profile", render.profile(self._profile)))
        parts += self._bootstrap(BOOTSTRAP_FILES)
        if owner and (memory := self._file(self.workspace / MEMORY)):
            parts.append(Part("memory", f"# Memory\n\n{memory}"))
        return parts

    def _subagents_parts(self) -> list[Part]:
        """A subagent has a task, but no persona and no memory."""
        identity = render.subagent_identity(
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            workspace=self.workspace,
        )
        return [Part("identity", identity), *self._bootstrap(SUBAGENT_FILES)]

    def _bootstrap(self, names: Sequence[str]) -> list[Part]:
        """The bootstrap files within their common cap; a note names each that does not fit."""
        parts = []
        room = self._files_cap
        for name in names:
            path = self.workspace / name
            if not (text := self._file(path, room)):
                continue
            if not room:
                text = render.cut_files(path)
            room = max(room - len(text), 0)
            parts.append(Part(name, f"## {name}\n\n{text}"))
        return parts

    def build_messages(
        self,
        history: Sequence[ChatMessage],
        current_message: str,
        media: Sequence[Image] = (),
        channel: str = "cli",
        chat_id: str = "direct",
        *,
        now: datetime,
        sender: Sender = Sender(),
        role: Role = Role.OWNER,
        skills: SkillsSnapshot | None = None,
    ) -> list[ChatMessage]:
        """A request: system prompt, history, and the current message with its turn header."""
        current = self.user_message(
            current_message, media, channel, chat_id, now=now, sender=sender
        )
        return [SystemMessage(self.build_system_prompt(role, skills)), *history, current]

    def user_message(
        self,
        content: str,
        media: Sequence[Image],
        channel: str,
        chat_id: str,
        *,
        now: datetime,
        sender: Sender,
    ) -> UserMessage:
        """A person's message as the model reads it, under a turn header."""
        late = sender.sent_at is not None and now - sender.sent_at > OLD_AFTER
        header = TurnHeader(
            time=now.astimezone().strftime(TIME),
            channel=channel,
            chat=chat_id,
            thread=sender.thread or "",
            sender=sender.name,
            sent=f"{age(now - sender.sent_at)} ago" if late and sender.sent_at else "",
        )
        return UserMessage(header.before(content), tuple(media))

    def _file(self, path: Path, room: int | None = None) -> str:
        """A file's text, or an excerpt within its cap and the room left; "" if there is no file."""
        cap = self._file_cap if room is None else min(room, self._file_cap)
        try:
            status = path.stat()
            signature = (status.st_mtime_ns, status.st_size, status.st_ino, cap)
            known = self._files.get(path)
            if known is not None and known[0] == signature:
                return known[1]
            text = path.read_bytes().decode("utf-8", errors="replace").removeprefix("\ufeff")
        except FileNotFoundError:
            return ""
        except OSError as error:
            logger.error("left {} out of the prompt: {}", path, error)
            return ""
        text = text.replace("\r\n", "\n").rstrip()
        if warning := too_long(path.name, len(text), self._file_cap):
            logger.warning("{}", warning)
        text = excerpt(text, cap, path).lstrip()
        self._files[path] = (signature, text)
        return text


def age(span: timedelta) -> str:
    """A time span in its largest whole unit: ``12 min``, ``9 h``, ``3 days``."""
    minutes = int(span.total_seconds() // 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h"
    return f"{minutes // (24 * 60)} days"


TOOLS = "tool schemas"


@dataclass(frozen=True, slots=True)
class ContextReport:
    """The tokens of a session's next request, without the message to come.

    ``fixed`` are the parts of the system prompt and the tools, ``history`` the kinds of messages.
    ``reserve`` is the part of ``window`` kept for the answer. ``calibrated``: the estimate is
    corrected by what the provider has reported for this model.
    """

    session: str
    model: str
    window: int
    reserve: int
    fixed: Mapping[str, int]
    history: Mapping[str, int]
    calibrated: bool

    @property
    def fixed_tokens(self) -> int:
        return sum(self.fixed.values())

    @property
    def used(self) -> int:
        return self.fixed_tokens + sum(self.history.values())

    @property
    def percent(self) -> int:
        """The used share of the window, in percent of what is not reserved."""
        return round(100 * self.used / max(self.window - self.reserve, 1))

    def document(self) -> dict[str, object]:
        """The report as plain data."""
        return {
            "session": self.session,
            "model": self.model,
            "window": self.window,
            "reserve": self.reserve,
            "used": self.used,
            "percent": self.percent,
            "calibrated": self.calibrated,
            "fixed": dict(self.fixed),
            "history": dict(self.history),
        }


class ContextMeter:
    """Counts the tokens of sessions' requests; it writes nothing and calls no model."""

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
        """The report of one session; raises ProviderError if no model is configured."""
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
            fixed=_scaled(fixed, factor),
            history=_scaled(_by_kind(without_past_pictures(live.entries, "")), factor),
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


def _listed(tokens: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in tokens.items())


def _scaled(counted: Mapping[str, int], factor: float) -> dict[str, int]:
    return {name: round(tokens * factor) for name, tokens in counted.items() if tokens}


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
                kind = "results that gave way" if entry.is_trimmed else "tool results"
                counted[kind] += message_tokens(message)
            case message:
                is_summary = entry.kind is EntryKind.COMPACTED
                counted["summary" if is_summary else "messages"] += message_tokens(message)
    return counted
