"""What the model sees: the system prompt from stable parts, and the messages of a turn."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from loguru import logger

from nanobot.core.chat import ChatMessage, Image, SystemMessage, UserMessage
from nanobot.core.messages import Role
from nanobot.core.turn_header import TIME, TurnHeader
from nanobot.prompts import render
from nanobot.prompts.excerpt import BOOTSTRAP_FILES, FILE_CAP, MEMORY, excerpt, too_long
from nanobot.skills.eligibility import SkillsSnapshot

SUBAGENT_FILES = ("TOOLS.md",)
FILES_CAP = 60_000
"""Characters of all bootstrap files together, unless configured."""
SEPARATOR = "\n\n---\n\n"
HELD_SESSIONS = 1000
"""Sessions whose skills are remembered; one that drops out sees the present skills."""
OLD_AFTER = timedelta(minutes=10)
"""A message older than this when its turn begins is marked with its age."""


class SkillSource(Protocol):
    """Where the context gets a turn's skills from; ``held`` is what the session last saw."""

    def snapshot_for(self, held: SkillsSnapshot | None) -> SkillsSnapshot: ...


@dataclass(frozen=True, slots=True)
class Sender:
    """Who wrote a message and when, as far as the turn's header tells it."""

    name: str = ""
    thread: str | None = None
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the system prompt under the name by which a report shows it."""

    name: str
    text: str


class ContextBuilder:
    """Builds requests from the workspace's files, the skills and the history.

    The system prompt depends on files alone, never on the clock or the chat, so that a session's
    requests share their beginning for as long as nothing is edited.
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
        """``profile`` is the kind of turn these requests are for."""
        self.workspace = workspace
        self._skills = skills
        self._tools = frozenset(tools)
        self._file_cap = file_cap
        self._files_cap = files_cap
        self._profile = profile
        self._held: dict[str, SkillsSnapshot] = {}
        self._files: dict[Path, tuple[tuple[int, int, int, int], str]] = {}

    def skills_of(self, session_key: str) -> SkillsSnapshot:
        """The skills as this session sees them now."""
        snapshot = self._skills.snapshot_for(self._held.pop(session_key, None))
        self._held[session_key] = snapshot
        if len(self._held) > HELD_SESSIONS:
            del self._held[next(iter(self._held))]
        return snapshot

    def forget(self, session_key: str) -> None:
        """The session begins anew: its next turn sees the skills as they are then."""
        self._held.pop(session_key, None)

    def build_system_prompt(
        self, role: Role = Role.OWNER, skills: SkillsSnapshot | None = None
    ) -> str:
        """The system prompt; a guest's holds no memory. Without ``skills`` the present ones."""
        return SEPARATOR.join(part.text for part in self.parts(role, skills))

    def parts(
        self, role: Role = Role.OWNER, skills: SkillsSnapshot | None = None
    ) -> tuple[Part, ...]:
        """What the system prompt is joined from, in order."""
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
        """A subagent has a task and no persona: it is told how to work, and of no memories."""
        identity = render.subagent_identity(
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            workspace=self.workspace,
        )
        return [Part("identity", identity), *self._bootstrap(SUBAGENT_FILES)]

    def _bootstrap(self, names: Sequence[str]) -> list[Part]:
        """The bootstrap files, up to their common cap; what does not fit is named."""
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
        """A whole request: system prompt, history, and the current message with its header."""
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
        """A person's words as the model reads them, under the header of their turn."""
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
        """A file's text, or an excerpt within its cap and the room left; "" for none."""
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
            logger.error("{} cannot be read and is left out of the prompt: {}", path, error)
            return ""
        text = text.replace("\r\n", "\n").rstrip()
        if warning := too_long(path.name, len(text), self._file_cap):
            logger.warning("{}", warning)
        text = excerpt(text, cap, path).lstrip()
        self._files[path] = (signature, text)
        return text


def age(span: timedelta) -> str:
    """A span in its largest whole unit: ``12 min``, ``9 h``, ``3 days``."""
    minutes = int(span.total_seconds() // 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h"
    return f"{minutes // (24 * 60)} days"
