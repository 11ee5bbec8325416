"""MEMORY.md with its versions, HISTORY.md, and the /memory command."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from loguru import logger

from nanobot.core.commands import Command, Invocation
from nanobot.core.errors import StoreUnavailable, ToolError
from nanobot.core.messages import Role, Trust
from nanobot.core.ports import Clock
from nanobot.core.tool import ToolContext
from nanobot.memory.edits import Edit, edited, mark_new_lines, sections
from nanobot.memory.progress import MemoryProgress
from nanobot.prompts.excerpt import FILE_CAP, excerpt, too_long
from nanobot.store.files import alone_with_files, sync_directory, write_atomic
from nanobot.store.home import Home

_VERSION = re.compile(r"\A(\d{6,})-(\d{8}T\d{6}Z)-([a-z]+)\.md\Z")
_TRIES = 5
"""Tries of an edit while other programs change MEMORY.md."""
_EVENT = re.compile(rb"^\[\d{4}-\d\d-\d\d \d\d:\d\d\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Version:
    """A former or present text of MEMORY.md; ``by`` names its presumable writer."""

    number: int
    at: datetime
    by: str
    path: Path


class MemoryStore:
    """The two files of a workspace's memory; the only writer of both in this program."""

    def __init__(
        self, home: Home, workspace: Path, clock: Clock, *, file_cap: int = FILE_CAP
    ) -> None:
        """``file_cap``: the characters of MEMORY.md that conversations see."""
        self._versions_dir = home.memory_versions
        self._workspace = workspace
        self._clock = clock
        self._file_cap = file_cap
        self._lock = threading.RLock()
        self._seen: tuple[int, int, int, int] | None = None
        self._tool_wrote = False
        # MEMORY.md before a tainted turn wrote it; on disk, so that a crash loses no mark.
        self._before_taint = self._versions_dir / "before-taint.md"

    @property
    def memory_file(self) -> Path:
        """The real path of MEMORY.md, wherever a link leads."""
        return self._real("MEMORY.md")

    @property
    def history_file(self) -> Path:
        """The real path of HISTORY.md, wherever a link leads."""
        return self._real("HISTORY.md")

    def read(self) -> str:
        """The text of MEMORY.md; "" when there is none."""
        return _readable(self._bytes(self.memory_file))

    def shown(self) -> str:
        """The text of MEMORY.md as the model sees it."""
        return excerpt(self.read(), self._file_cap, self.memory_file)

    def warning(self) -> str:
        """A warning for the owner if the model does not see all of MEMORY.md, else ""."""
        return too_long("MEMORY.md", len(self.read().strip()), self._file_cap)

    # -- versions -------------------------------------------------------------------------------

    async def notice(self, by: str) -> None:
        """Keep MEMORY.md as a version of ``by`` if it has changed since the last look.

        Costs one stat if it has not. A failure is logged and raises nothing.
        """
        try:
            if self._signature() != self._seen:
                await asyncio.to_thread(self._keep, by)
        except (OSError, StoreUnavailable) as error:
            logger.error("MEMORY.md cannot be kept as a version: {}", error)

    def before_write(self, context: ToolContext, path: Path) -> None:
        """Keep a version before a file tool writes ``path`` (a real one), if that is MEMORY.md.

        Raises ToolError if no version can be kept. ``after_turn`` marks the lines that a turn adds
        after it read untrusted content.
        """
        try:
            if path != self.memory_file:
                return
            with self._lock:
                self._keep("assistant" if self._tool_wrote else "owner")
                self._tool_wrote = True
                if context.trust is Trust.UNTRUSTED and not self._before_taint.exists():
                    self._versions_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                    write_atomic(self._before_taint, self._bytes(path))
        except (OSError, StoreUnavailable) as error:
            raise ToolError(f"MEMORY.md cannot be written now: {error}") from error

    async def after_turn(self, by: str = "assistant") -> None:
        """Mark the lines that tainted turns added by file tools, and keep a changed text.

        The app calls it at its start too, for a turn that a crash interrupted.
        """
        try:
            if self._before_taint.exists():
                await asyncio.to_thread(self._mark)
        except (OSError, StoreUnavailable) as error:
            logger.error("MEMORY.md cannot be marked: {}", error)
        await self.notice("assistant" if self._tool_wrote else by)
        self._tool_wrote = False

    def versions(self) -> tuple[Version, ...]:
        """Every version, oldest first; the last is the present text as of the last ``notice``."""
        if not self._versions_dir.is_dir():
            return ()
        found = []
        for path in self._versions_dir.iterdir():
            if name := _VERSION.match(path.name):
                at = datetime.strptime(name[2], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                found.append(Version(int(name[1]), at, name[3], path))
        return tuple(sorted(found, key=lambda version: version.number))

    def version_text(self, number: int) -> str | None:
        """The text of a version, or None."""
        data = self._version(number)
        return None if data is None else _readable(data)

    async def restore(self, number: int) -> bool:
        """Restore a version and keep the present text as another; False for an unknown number."""
        return await asyncio.to_thread(self._restore, number)

    # -- edits ----------------------------------------------------------------------------------

    async def apply(self, edits: Sequence[Edit], by: str = "consolidation") -> bool:
        """Apply edits to the present file; whether that changed anything.

        Applying them again changes nothing. Concurrent changes by others stay: the edits are then
        applied to the new text. Raises OSError, or StoreUnavailable if the file keeps changing.
        """
        return bool(edits) and await asyncio.to_thread(
            self._change, lambda text: edited(text, edits), by
        )

    # -- history --------------------------------------------------------------------------------

    async def history_size(self) -> int:
        """Bytes of HISTORY.md, 0 when there is none."""
        return await asyncio.to_thread(_size, self.history_file)

    async def append_history(self, block: str, place: int) -> None:
        """Append paragraphs, synced. ``place``: the size of the file when they were stored.

        Called again after a crash, it finds the block, or completes a part of it.
        """
        await asyncio.to_thread(self._append, block, place)

    async def history_events(self) -> int:
        """How many paragraphs HISTORY.md has."""

        def count() -> int:
            return len(_EVENT.findall(self._bytes(self.history_file)))

        return await asyncio.to_thread(count)

    def holds(self, block: str) -> bool:
        """Whether HISTORY.md still has this block unchanged."""
        return block.encode() in self._bytes(self.history_file)

    # -- on threads -----------------------------------------------------------------------------

    def _keep(self, by: str) -> None:
        with self._lock:
            signature = self._signature()
            if signature is None or signature == self._seen:
                return
            data = self._bytes(self.memory_file)
            versions = self.versions()
            if not versions or versions[-1].path.read_bytes() != data:
                self._add_version(data, versions[-1].number + 1 if versions else 1, by)
            self._seen = signature

    def _add_version(self, data: bytes, number: int, by: str) -> None:
        self._versions_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = self._clock().astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        write_atomic(self._versions_dir / f"{number:06d}-{stamp}-{by}.md", data)

    def _change(self, change: Callable[[str], str], by: str) -> bool:
        path = self._to_write("MEMORY.md")
        for _ in range(_TRIES):
            with alone_with_files(), self._lock:
                self._keep("owner")
                signature, data = self._signature(), self._bytes(path)
                text = self._text(data)
                new = change(text)
                if new == text:
                    return False
                bom = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
                if self._signature() != signature:
                    continue
                write_atomic(path, bom + new.encode("utf-8", "surrogateescape"), mode=-1)
                self._keep(by)
                return True
        raise StoreUnavailable(f"{path} changes all the time")

    def _mark(self) -> None:
        with alone_with_files(), self._lock:
            if self._before_taint.exists():
                before = self._text(self._before_taint.read_bytes())
                self._change(lambda text: mark_new_lines(before, text), "assistant")
                self._before_taint.unlink()

    def _restore(self, number: int) -> bool:
        data = self._version(number)
        if data is None:
            return False
        with alone_with_files(), self._lock:
            self._keep("owner")
            if data != self._bytes(self.memory_file):
                write_atomic(self._to_write("MEMORY.md"), data, mode=-1)
                self._keep("restore")
        return True

    def _version(self, number: int) -> bytes | None:
        found = (version for version in self.versions() if version.number == number)
        version = next(found, None)
        return None if version is None else version.path.read_bytes()

    def _append(self, block: str, place: int) -> None:
        path = self._to_write("HISTORY.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        descriptor = os.open(
            path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreUnavailable(f"{path} is no ordinary file")
            missing = _missing(file.read() if _size(path) else b"", place, block)
            while missing:
                missing = missing[file.write(missing) or 0 :]
            os.fsync(descriptor)
        if is_new:
            sync_directory(path.parent)

    def _real(self, name: str) -> Path:
        return Path(os.path.realpath(self._workspace / "memory" / name))

    def _to_write(self, name: str) -> Path:
        """The real path, if it is in the workspace; raises StoreUnavailable otherwise.

        A link that a command made must not lead to a write elsewhere.
        """
        path = self._real(name)
        if Path(os.path.realpath(self._workspace)) not in path.parents:
            raise StoreUnavailable(
                f"memory/{name} leads out of the workspace, to {path}: put the file itself there, "
                "or move the whole workspace (agents.defaults.workspace)"
            )
        return path

    def _signature(self) -> tuple[int, int, int, int] | None:
        try:
            status = self.memory_file.stat()
        except FileNotFoundError:
            return None
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def _bytes(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""

    def _text(self, data: bytes) -> str:
        """The text; bytes that are not UTF-8 survive a round trip."""
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")


def _readable(data: bytes) -> str:
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _missing(present: bytes, place: int, block: str) -> bytes:
    """The bytes to append to ``present`` so that it has ``block`` once."""
    text = block.encode()
    if len(present) != place and text in present:
        return b""
    if present[place:] and (lead := _lead(present[:place])) is not None:
        whole = lead + text + b"\n"
        if whole.startswith(present[place:]):
            return whole[len(present) - place :]  # the rest of what a crash cut
    return _lead(present) + text + b"\n"


def _lead(before: bytes) -> bytes:
    """The line ends that separate a paragraph from what stands before it."""
    if not before or before.endswith(b"\n\n"):
        return b""
    return b"\n" if before.endswith(b"\n") else b"\n\n"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


SHOWN_CHARS = 3000
_OWNERS = "Only the owner can see that."


def memory_command(memory: MemoryStore, progress: MemoryProgress) -> Command:
    """/memory: the text of MEMORY.md, sizes and the last consolidation, for the owner."""

    async def show(invocation: Invocation) -> str:
        if invocation.inbound.role is not Role.OWNER:
            return _OWNERS
        text = memory.read().strip()
        counted = ", ".join(f"{name}: {count}" for name, count in sections(text) if count)
        last = await progress.last_written()
        behind = await progress.behind()
        events = await memory.history_events()
        when = "never" if last is None else f"{last.astimezone():%Y-%m-%d %H:%M}"
        facts = [
            f"MEMORY.md: {len(text):,} characters ({counted or 'nothing yet'}), "
            f"{len(memory.versions())} versions",
            f"HISTORY.md: {events:,} {'paragraph' if events == 1 else 'paragraphs'}, "
            f"{await memory.history_size():,} bytes",
            f"Last consolidation: {when}"
            + (f"; {len(behind)} conversations wait to be archived" if behind else ""),
        ]
        here = await progress.of(invocation.inbound.session_key)
        if warning := memory.warning():
            facts.append(warning)
        if here.error:
            facts.append(f"Here the last try failed: {here.error}")
        shown = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}\n[…]"
        return "\n".join(facts) + (f"\n\n{shown}" if counted else "")

    return Command("memory", "what I know of you, and when it was written", show)
