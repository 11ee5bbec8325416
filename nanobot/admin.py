"""Answers ``nanobot memory`` and ``nanobot sessions`` in the process that holds the home."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from loguru import logger

from nanobot.core.errors import NanobotError, StoreUnavailable
from nanobot.core.messages import whole_key
from nanobot.memory.consolidation import Consolidator
from nanobot.memory.edits import sections
from nanobot.memory.progress import MemoryProgress
from nanobot.memory.store import MemoryStore
from nanobot.recall.tool import Recall
from nanobot.session.transfer import Diverged, SessionTransfer, read_file
from nanobot.store.home import Home

PAGE_CHARS = 4_000_000
"""Characters of a page of an export: far below the longest line of the socket."""


class Admin:
    """Answers requests as plain data: ``{"do": …}`` in, ``{"error": text}`` or the answer out."""

    def __init__(
        self,
        *,
        sessions: SessionTransfer,
        progress: MemoryProgress,
        memory: MemoryStore,
        consolidator: Consolidator,
        is_busy: Callable[[str], bool],
        recall: Recall,
        home: Home,
        deleted: Callable[[str], Awaitable[None]],
    ) -> None:
        """``deleted`` is awaited with the key of a deleted session."""
        self._sessions = sessions
        self._progress = progress
        self._memory = memory
        self._consolidator = consolidator
        self._is_busy = is_busy
        self._recall = recall
        self._home = home
        self._deleted = deleted

    async def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request; a failure is returned in ``error``, never raised."""
        try:
            return await self._answer(request)
        except (NanobotError, OSError, ValueError) as error:
            return {"error": str(error)}

    async def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request:
            case {"do": "memory", "version": None | int() as version}:
                return await self._shown(version)
            case {"do": "versions"}:
                return await self._versions()
            case {"do": "restore", "version": int(version)}:
                if not await self._memory.restore(version):
                    raise ValueError(f"there is no version {version}; see `nanobot memory history`")
                return {"restored": version}
            case {"do": "consolidate", "session": None | str() as key}:
                return await self._consolidated(key)
            case {"do": "sessions"}:
                return await self._list()
            case {"do": "page", "session": str(key), "after": int(after), "limit": int(limit)}:
                return await self._page(key, after, limit)
            case {"do": "import", "path": str(path), "session": None | str() as key}:
                return await self._import(Path(path), key)
            case {"do": "delete", "session": str(key)}:
                return await self._delete(key)
        raise ValueError(f"no request about memory or sessions: {request!r}")

    async def _shown(self, version: int | None) -> dict[str, Any]:
        memory = self._memory
        await memory.notice("owner")
        text = memory.read() if version is None else memory.version_text(version)
        if text is None:
            raise ValueError(f"there is no version {version}; see `nanobot memory history`")
        last = await self._progress.last_written()
        return {
            "text": text,
            "path": str(memory.memory_file),
            "sections": dict(sections(text)),
            "warning": memory.warning(),
            "versions": len(memory.versions()),
            "history": {
                "path": str(memory.history_file),
                "bytes": await memory.history_size(),
                "paragraphs": await memory.history_events(),
            },
            "consolidated": None if last is None else last.isoformat(),
            "waiting": list(await self._progress.behind()),
        }

    async def _versions(self) -> dict[str, Any]:
        await self._memory.notice("owner")
        return {
            "versions": [
                {
                    "number": version.number,
                    "at": version.at.isoformat(),
                    "by": version.by,
                    "bytes": version.path.stat().st_size,
                }
                for version in self._memory.versions()
            ]
        }

    async def _consolidated(self, key: str | None) -> dict[str, Any]:
        if key is not None:
            wanted = [await self._existing(key)]
        else:
            wanted = [line.key for line in await self._sessions.overview()]
        outcomes = [await self._consolidator.now(each) for each in wanted]
        return {
            "sessions": [
                {"session": one.session, "steps": one.steps, "error": one.error}
                for one in outcomes
                if one.steps or one.error
            ]
        }

    async def _list(self) -> dict[str, Any]:
        return {
            "sessions": [
                {
                    "key": line.key,
                    "created": line.created_at.isoformat(),
                    "updated": line.updated_at.isoformat(),
                    "entries": line.entries,
                    "live": line.live,
                }
                for line in await self._sessions.overview()
            ]
        }

    async def _existing(self, name: str) -> str:
        """The key of the session that a person names; raises ValueError where there is none."""
        for key in (name, whole_key(name)):
            if await self._sessions.metadata(key) is not None:
                return key
        raise ValueError(f"there is no session {name}; see `nanobot sessions list`")

    async def _page(self, key: str, after: int, limit: int) -> dict[str, Any]:
        key = await self._existing(key)
        metadata = await self._sessions.metadata(key)
        lines, more = await self._sessions.lines(
            key, after=after, limit=limit, most_chars=PAGE_CHARS
        )
        return {"metadata": metadata, "lines": list(lines), "after": more}

    async def _import(self, path: Path, key: str | None) -> dict[str, Any]:
        incoming = await asyncio.to_thread(read_file, path)
        key = whole_key(key) if key else incoming.key
        if self._is_busy(key):
            raise ValueError(f"{key} is answering just now; try again after it")
        try:
            added = await self._sessions.take_in(key, incoming)
        except Diverged:
            raise ValueError(
                f"{key} has messages of its own, which the file does not have: import it as "
                "another session with --session KEY"
            ) from None
        return {
            "session": key,
            "added": added,
            "present": len(incoming.rows) - added,
            "skipped": incoming.skipped,
        }

    async def _delete(self, key: str) -> dict[str, Any]:
        key = await self._existing(key)
        busy = f"messages of {key} wait to be answered; try again after them"
        if self._is_busy(key):
            raise ValueError(busy)
        await self._consolidator.forget(key)
        texts = await self._progress.texts(key)
        entries = await self._sessions.delete(key)
        if entries is None:
            raise ValueError(busy)
        await self._deleted(key)
        for folder in (self._home.media_of(key), self._home.spill_of(key)):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        try:
            await self._recall.forget(key)
        except StoreUnavailable as error:
            # The next search leaves the session out before it looks for anything.
            logger.warning("{} is still in the search index's file: {}", key, error)
        left = [
            paragraph
            for text in texts
            for paragraph in text.split("\n\n")
            if self._memory.holds(paragraph)
        ]
        return {"deleted": entries, "history": left, "path": str(self._memory.history_file)}
