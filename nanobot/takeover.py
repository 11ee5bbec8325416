"""Takes over the data of a compatible nanobot when a home starts for the first time.

Jobs go into ``cron/jobs.json``, conversations into the log, history into HISTORY.md. The original
files stay as they are. Each step is idempotent, so that the next start completes one that was cut
off. After the first turn nothing is taken over, since the model may have written such files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

from loguru import logger
from pydantic import ValidationError

from nanobot.core.errors import StoreUnavailable
from nanobot.cron.jobs import Job, JobFile, Jobs
from nanobot.memory.batch import stamp
from nanobot.memory.store import MemoryStore
from nanobot.session.transfer import Diverged, SessionTransfer, read_file
from nanobot.store.database import Database
from nanobot.store.files import write_atomic
from nanobot.store.home import Home

_NAMED = 5
"""The number of skipped items that are named."""
_OWN = "SELECT EXISTS(SELECT 1 FROM inbox) OR EXISTS(SELECT 1 FROM log WHERE inbound_id NOT LIKE ?)"


async def take_over(
    home: Home,
    workspace: Path,
    database: Database,
    *,
    jobs: JobFile,
    sessions: SessionTransfer,
    memory: MemoryStore,
) -> str:
    """Take over what there is; returns a line about it for the owner, "" for nothing."""
    if home.taken_over.exists():
        return ""
    line = ""
    if not await database.read(_has_had_turns):
        line = await _taken_over(home, workspace, jobs, sessions, memory)
    write_atomic(home.taken_over, json.dumps({"takenOver": line}, ensure_ascii=False).encode())
    return line


def _has_had_turns(connection: sqlite3.Connection) -> bool:
    (had,) = connection.execute(_OWN, ("import:%",)).fetchone()
    return bool(had)


async def _taken_over(
    home: Home, workspace: Path, jobs: JobFile, sessions: SessionTransfer, memory: MemoryStore
) -> str:
    left: list[str] = []
    counts = {
        "jobs": await asyncio.to_thread(_take_jobs, workspace / "cron", jobs, left),
        "conversations": await _take_sessions(home, workspace, sessions, left),
        "paragraphs of history": await _take_history(workspace, memory, left),
    }
    taken = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    if not taken and not left:
        return ""
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    not_taken = f"; not taken over: {', '.join(left[:_NAMED])}{more}" if left else ""
    return f"taken over from another nanobot ({taken}){not_taken}; its files stay as they are"


def _take_jobs(folder: Path, jobs: JobFile, left: list[str]) -> int:
    """Add the jobs whose ids are unknown here; returns their number.

    ``action.jsonl`` has changes not yet made to ``jobs.json``.
    """
    records: dict[str, dict[str, Any]] = {}
    try:
        content = json.loads((folder / "jobs.json").read_bytes())
        records.update((str(record["id"]), record) for record in content["jobs"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        left.append(str(folder / "jobs.json"))
    for line in _lines(folder / "action.jsonl"):
        match line:
            case {"action": "add" | "update", "params": {"id": str(name)}}:
                records[name] = line["params"]
            case {"action": "del", "params": {"job_id": str(name)}}:
                records.pop(name, None)
    read: list[Job] = []
    for name, record in records.items():
        try:
            read.append(_with_chat(Job.model_validate(record)))
        except ValidationError:
            match record:
                case {"payload": {"kind": "system_event"}}:
                    pass  # housekeeping of the other program
                case _:
                    left.append(f"job {name}")
    count = 0

    def append(present: Jobs) -> Jobs:
        nonlocal count
        there = {job.id for job in present}
        new = [job for job in read if job.id not in there]
        count = len(new)
        return (*present, *new)

    if read:
        jobs.change(append)
    return count


def _with_chat(job: Job) -> Job:
    """The job with the chat to deliver to, which newer programs store under other names."""
    noted = job.payload.model_extra or {}
    channel = noted.get("originChannel") or noted.get("origin_channel")
    chat = noted.get("originChatId") or noted.get("origin_chat_id")
    if job.payload.channel or not (isinstance(channel, str) and isinstance(chat, str)):
        return job
    update = {"channel": channel, "to": chat, "deliver": True}
    return job.model_copy(update={"payload": job.payload.model_copy(update=update)})


async def _take_sessions(
    home: Home, workspace: Path, sessions: SessionTransfer, left: list[str]
) -> int:
    """Import sessions from the folders of all known versions; returns their number."""
    count = 0
    folders = (home.root / "sessions", workspace / "sessions")
    for file in sorted(file for folder in folders for file in folder.rglob("*.jsonl")):
        try:
            incoming = await asyncio.to_thread(read_file, file)
            count += await sessions.take_in(incoming.key, incoming) > 0
        except (ValueError, OSError, Diverged) as error:
            logger.warning("{} is not taken over: {}", file, error)
            if file.stat().st_size:
                left.append(str(file))
    return count


async def _take_history(workspace: Path, memory: MemoryStore, left: list[str]) -> int:
    """Append the history to HISTORY.md; returns its number of paragraphs."""
    file = workspace / "memory" / "history.jsonl"
    paragraphs = [*filter(None, map(_paragraph, await asyncio.to_thread(_lines, file)))]
    try:
        if paragraphs:
            await memory.append_history("\n\n".join(paragraphs), 0)
    except StoreUnavailable as error:
        logger.warning("{} is not taken over: {}", file, error)
        left.append(str(file))
        return 0
    return len(paragraphs)


def _paragraph(line: dict[str, Any]) -> str:
    text = line.get("content")
    words = re.sub(r"\n\s*\n", "\n", text.strip()) if isinstance(text, str) else ""
    if not words or re.match(r"\[\d{4}-\d\d-\d\d", words):
        return words
    try:
        return f"{stamp(datetime.fromisoformat(str(line.get('timestamp'))))} {words}"
    except (ValueError, OverflowError):
        return words


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; other lines are left out."""
    records = []
    with contextlib.suppress(OSError):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]
