"""Whole sessions: list, export, import, delete."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nanobot.core.chat import AssistantMessage, ChatMessage, ToolCall, ToolMessage, UserMessage
from nanobot.core.messages import Principal, Role, Trust, whole_key
from nanobot.core.ports import Clock
from nanobot.session.entries import Draft, EntryKind, decode, encode
from nanobot.session.log import insert_row, time_of
from nanobot.store.database import Database

_ROLES = {
    EntryKind.USER: "user",
    EntryKind.SYSTEM_NOTE: "user",
    EntryKind.UNANSWERED: "user",
    EntryKind.COMPACTED: "user",
    EntryKind.ASSISTANT: "assistant",
    EntryKind.SENT: "assistant",
    EntryKind.TOOL: "tool",
}
_YEAR_9999 = 253_370_764_800.0
_OWNER = str(Principal(Role.OWNER, "import", "owner"))


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session in the list; ``entries`` counts its whole log, ``live`` what the model sees."""

    key: str
    created_at: datetime
    updated_at: datetime
    entries: int
    live: int


@dataclass(frozen=True, slots=True)
class Row:
    """A log entry as stored; ``seq`` is its former place, if the file was exported by nanobot."""

    kind: EntryKind
    inbound_id: str
    principal: str
    trust: Trust
    at: float
    payload: str
    seq: int | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """What identifies the entry; the mark of a compaction is rewritten at each import."""
        payload = "" if self.kind is EntryKind.COMPACTED else self.payload
        return (self.kind, self.inbound_id, round(self.at, 3), payload)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A session read from a file; ``key`` is "" if the file names none.

    ``digested`` counts the entries already consolidated, ``skipped`` the lines without a message.
    """

    key: str
    rows: tuple[Row, ...]
    digested: int = 0
    skipped: int = 0


class Diverged(Exception):
    """Session and file have each gone on since they were the same."""


class SessionTransfer:
    """Lists, exports, imports and deletes sessions of the state database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def overview(self) -> tuple[SessionLine, ...]:
        """All sessions, the last used first."""

        def read(connection: sqlite3.Connection) -> tuple[SessionLine, ...]:
            rows = connection.execute(
                "SELECT key, created_at, updated_at, count(log.seq), "
                "coalesce(sum(log.seq >= live_from), 0) FROM session "
                "LEFT JOIN log ON log.session = key GROUP BY key ORDER BY updated_at DESC"
            )
            return tuple(
                SessionLine(key, time_of(created), time_of(updated), entries, live)
                for key, created, updated, entries, live in rows
            )

        return await self._database.read(read)

    async def metadata(self, key: str) -> dict[str, Any] | None:
        """The first line of an export; None if there is no such session."""

        def read(connection: sqlite3.Connection) -> dict[str, Any] | None:
            row = connection.execute(
                "SELECT created_at, updated_at, (SELECT count(*) FROM log WHERE session = key "
                "AND seq <= coalesce((SELECT upto FROM digest WHERE session = key), 0)) "
                "FROM session WHERE key = ?",
                (key,),
            ).fetchone()
            if row is None:
                return None
            return {
                "_type": "metadata",
                "key": key,
                "created_at": time_of(row[0]).isoformat(),
                "updated_at": time_of(row[1]).isoformat(),
                "last_consolidated": row[2],
            }

        return await self._database.read(read)

    async def lines(
        self, key: str, *, after: int, limit: int, most_chars: int
    ) -> tuple[tuple[dict[str, Any], ...], int | None]:
        """A page of an export, and the ``after`` of the next one (None: that was all)."""

        def read(
            connection: sqlite3.Connection,
        ) -> tuple[tuple[dict[str, Any], ...], int | None]:
            rows = connection.execute(
                "SELECT seq, kind, inbound_id, principal, trust, at, payload FROM log "
                "WHERE session = ? AND seq > ? ORDER BY seq",
                (key, after),
            )
            lines: list[dict[str, Any]] = []
            room = most_chars
            for row in rows:
                if len(lines) == limit or (lines and room < len(row[6])):
                    return tuple(lines), lines[-1]["nanobot"]["seq"]
                room -= len(row[6])
                lines.append(_line(*row))
            return tuple(lines), None

        return await self._database.read(read)

    async def take_in(self, key: str, incoming: Incoming) -> int:
        """Append the entries that the session does not have yet; returns their number.

        Raises Diverged if the session is not the beginning of what comes in.
        """
        now = self._clock().timestamp()

        def write(connection: sqlite3.Connection) -> int:
            present = _rows(connection, key)
            there = {row.identity for row in present}
            if all(row.identity in there for row in incoming.rows):
                return 0
            begun = [row.identity for row in incoming.rows[: len(present)]]
            if [row.identity for row in present] != begun:
                raise Diverged(key)
            seqs = [row.seq for row in present if row.seq is not None]
            for row in incoming.rows[len(present) :]:
                seqs.append(_insert(connection, key, row, incoming.rows, seqs))
            ats = [row.at for row in incoming.rows]
            connection.execute(
                "INSERT INTO session (key, created_at, updated_at) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET updated_at = max(updated_at, excluded.updated_at)",
                (key, min(*ats, now), min(max(ats), now)),
            )
            _restore_view(connection, key, incoming, seqs)
            return len(incoming.rows) - len(present)

        return await self._database.write(write, durable=True)

    async def delete(self, key: str) -> int | None:
        """Delete a session; returns how many entries it had, None if messages for it wait.

        Rows of the queues stay, without their text, so that no message is accepted twice.
        """
        now = self._clock().timestamp()

        def write(connection: sqlite3.Connection) -> int | None:
            waits = "SELECT 1 FROM inbox WHERE session = ? AND state = 'pending'"
            if connection.execute(waits, (key,)).fetchone():
                return None
            # SQLite overwrites what is freed, so that no text stays in the file.
            connection.execute("PRAGMA secure_delete = ON").fetchone()
            connection.execute(
                "DELETE FROM piece WHERE outbound_id IN "
                "(SELECT id FROM outbox WHERE session = ? AND state <> 'pending')",
                (key,),
            )
            for box in ("inbox", "outbox"):
                connection.execute(
                    f"UPDATE {box} SET payload = '{{}}', "
                    "state = iif(state = 'dead', 'dropped', state), "
                    "settled_at = coalesce(settled_at, ?) "
                    "WHERE session = ? AND state <> 'pending'",
                    (now, key),
                )
            count = connection.execute("DELETE FROM log WHERE session = ?", (key,)).rowcount
            for table in ("digest", "digest_batch"):
                connection.execute(f"DELETE FROM {table} WHERE session = ?", (key,))
            connection.execute("DELETE FROM session WHERE key = ?", (key,))
            connection.execute("PRAGMA secure_delete = OFF").fetchone()
            return count

        return await self._database.write(write, durable=True)


def read_file(path: Path) -> Incoming:
    """Read a session from a file; its key is in the file, else the file's name (``telegram_42``).

    Raises ValueError, with the file's name, if it holds no session.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            incoming = read_incoming(file)
    except ValueError as error:
        raise ValueError(f"{path} is no session: {error}") from error
    return replace(incoming, key=whole_key(incoming.key or path.stem.replace("_", ":", 1)))


def read_incoming(lines: Iterable[str]) -> Incoming:
    """Read a session from lines of nanobot's export or of a compatible program.

    A compatible program does not say what a tool read: the assistant's words after a tool result
    count as untrusted for the rest of the turn. Raises ValueError if there is no message.
    """
    metadata: Mapping[str, Any] = {}
    rows: list[Row] = []
    places: list[int] = []
    skipped = number = 0
    reader = _CompatReader()
    for line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and record.get("_type") == "metadata":
            metadata = record
            reader.at = _stamp(record.get("created_at"), reader.at)
            continue
        number += 1
        row = _own_row(record) or reader.row(record)
        if row is None:
            skipped += 0 if _is_no_message(record) else 1
        else:
            rows.append(row)
            places.append(number)
    if not rows:
        raise ValueError("there is no message in it")
    key = metadata.get("key")
    last = metadata.get("last_consolidated")
    digested = sum(place <= last for place in places) if isinstance(last, int) else 0
    return Incoming(key if isinstance(key, str) else "", tuple(rows), digested, skipped)


def _is_no_message(record: Any) -> bool:
    """Whether it is an exported line that is not imported."""
    return isinstance(record, dict) and record.get("_type") == EntryKind.TRIMMED.value


class _CompatReader:
    """Reads lines of a compatible program; tracks their turn and the last known time."""

    def __init__(self) -> None:
        self.at = 0.0
        self._turn = "import:before"
        self._trust = Trust.TRUSTED
        self._seen: dict[str, int] = {}

    def row(self, record: Any) -> Row | None:
        if not isinstance(record, dict):
            return None
        role, text = record.get("role"), _text_of(record.get("content"))
        self.at = _stamp(record.get("timestamp"), self.at)
        message: ChatMessage
        match role:
            case "user" if text.strip():
                self._turn, self._trust = self._name(text), Trust.TRUSTED
                kind, message = EntryKind.USER, UserMessage(text)
            case "assistant":
                calls = tuple(_calls(record.get("tool_calls")))
                if not text.strip() and not calls:
                    return None
                kind, message = EntryKind.ASSISTANT, AssistantMessage(text, calls)
            case "tool" if isinstance(call := record.get("tool_call_id"), str) and call:
                self._trust = Trust.UNTRUSTED
                name = record.get("name")
                shown = name if isinstance(name, str) else ""
                kind, message = EntryKind.TOOL, ToolMessage(call, shown, text)
            case _:
                return None
        draft = Draft(
            kind=kind, message=message, inbound_id=self._turn, principal=_OWNER, trust=self._trust
        )
        return Row(kind, self._turn, _OWNER, self._trust, self.at, encode(draft))

    def _name(self, text: str) -> str:
        digest = hashlib.sha256(f"{self.at} {text}".encode()).hexdigest()[:20]
        self._seen[digest] = self._seen.get(digest, 0) + 1
        return f"import:{digest}-{self._seen[digest]}"


def _own_row(record: Any) -> Row | None:
    """A line of nanobot's export; None for any other, or a damaged one.

    Trimming is not imported: the results are whole again.
    """
    own = record.get("nanobot") if isinstance(record, dict) else None
    if not isinstance(own, dict) or own.get("kind") == EntryKind.TRIMMED:
        return None
    try:
        payload = json.dumps(own["payload"], ensure_ascii=False, separators=(",", ":"))
        decode(own["kind"], payload)
        return Row(
            EntryKind(own["kind"]),
            str(own["inbound_id"]),
            str(own["principal"]),
            Trust(own["trust"]),
            _stamp(record["timestamp"], 0.0),
            payload,
            int(own["seq"]),
        )
    except (ValueError, TypeError, KeyError):
        return None


def _calls(value: Any) -> Iterable[ToolCall]:
    for call in value if isinstance(value, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(call.get("id"), str):
            arguments = function.get("arguments", "{}")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield ToolCall(call["id"], str(function.get("name", "")), text)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _stamp(value: Any, otherwise: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 <= value < _YEAR_9999 else otherwise
    try:
        stamp = datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError):
        return otherwise
    return stamp if 0 <= stamp < _YEAR_9999 else otherwise


def _line(
    seq: int, kind: str, inbound_id: str, principal: str, trust: str, at: float, payload: str
) -> dict[str, Any]:
    line: dict[str, Any] = {"timestamp": time_of(at).isoformat()}
    try:
        record: Any = json.loads(payload)
        known, message, _ = decode(kind, payload)
    except ValueError:
        known, message, record = None, None, payload
    if known in _ROLES and message is not None:
        line = {"role": _ROLES[known], "content": message.content, **line}
    else:
        line = {"_type": kind, **line}
    match message:
        case AssistantMessage(_, calls) if calls:
            line["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        case ToolMessage(call_id, name):
            line |= {"tool_call_id": call_id, "name": name}
        case _:
            pass
    line["nanobot"] = {
        "seq": seq,
        "kind": kind,
        "inbound_id": inbound_id,
        "principal": principal,
        "trust": trust,
        "payload": record,
    }
    return line


def _rows(connection: sqlite3.Connection, key: str) -> list[Row]:
    rows = connection.execute(
        "SELECT kind, inbound_id, principal, trust, at, payload, seq FROM log "
        "WHERE session = ? AND kind <> ? ORDER BY seq",
        (key, EntryKind.TRIMMED.value),
    )
    return [Row(EntryKind(row[0]), row[1], row[2], Trust(row[3]), *row[4:]) for row in rows]


def _insert(
    connection: sqlite3.Connection, key: str, row: Row, rows: tuple[Row, ...], seqs: list[int]
) -> int:
    payload = row.payload
    if row.kind is EntryKind.COMPACTED:
        record = json.loads(payload)
        record["keeps_from"] = _moved(record.get("keeps_from"), rows, seqs)
        payload = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    facts = (row.kind.value, row.inbound_id, row.principal, row.trust.value, row.at, payload)
    return insert_row(connection, key, facts)


def _moved(former: object, rows: tuple[Row, ...], seqs: list[int]) -> int:
    """The present seq of the entry with a former one; 0 if it was not imported."""
    places = (place for place, row in enumerate(rows[: len(seqs)]) if row.seq == former)
    place = next(places, None)
    return 0 if place is None else seqs[place]


def _restore_view(
    connection: sqlite3.Connection, key: str, incoming: Incoming, seqs: list[int]
) -> None:
    """Set where the view begins and how far the session is consolidated, as in the file."""
    live_from = 0
    for row, seq in zip(incoming.rows, seqs, strict=True):
        if row.kind is EntryKind.RESET:
            live_from = seq
        elif row.kind is EntryKind.COMPACTED:
            former = json.loads(row.payload).get("keeps_from")
            live_from = max(live_from, _moved(former, incoming.rows, seqs))
    if incoming.digested:
        upto = seqs[incoming.digested - 1]
        connection.execute(
            "INSERT INTO digest (session, upto) VALUES (?, ?) "
            "ON CONFLICT (session) DO UPDATE SET upto = max(upto, excluded.upto)",
            (key, upto),
        )
        if all(row.seq is None for row in incoming.rows):  # shown is only what is not consolidated
            live_from = max(live_from, upto + 1)
    connection.execute(
        "UPDATE session SET live_from = max(live_from, ?) WHERE key = ?", (live_from, key)
    )
