"""A part of a session: as text for the consolidating model, and the model's answer read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nanobot.core.chat import (
    AssistantMessage,
    FinishReason,
    LLMResponse,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from nanobot.core.messages import Role, Trust
from nanobot.core.text import head_and_tail, one_line, read_json
from nanobot.core.turn_header import read_header
from nanobot.memory.edits import Edit, EditAction, marked
from nanobot.session.entries import Entry, EntryKind

WORDS_CHARS = 8000
"""Characters of one message that the model is shown."""
RESULT_CHARS = 1200
"""Characters of a tool result that the model is shown; the answer repeats what matters."""
RAW_CHARS = 4000
"""Characters of one message that are archived raw; the log keeps all of it."""
_CUT = "[… {omitted} characters left out]"


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive entries of one session, oldest first, for one batch.

    The model's view then begins at ``keeps_from``, if given.
    """

    session: str
    entries: tuple[Entry, ...]
    keeps_from: int | None = None

    @property
    def last(self) -> int:
        """The seq of the last entry."""
        return self.entries[-1].seq

    @property
    def said(self) -> tuple[Entry, ...]:
        """The entries with words, without those of dead-lettered messages."""
        dropped = {
            entry.inbound_id: entry.seq
            for entry in self.entries
            if entry.kind is EntryKind.DEAD_LETTER
        }
        return tuple(
            entry
            for entry in self.entries
            if entry.seq > dropped.get(entry.inbound_id, 0) and _words(entry)
        )

    @property
    def has_guest(self) -> bool:
        """Whether anybody but the owner wrote in it."""
        return any(entry.principal.startswith(f"{Role.GUEST}:") for entry in self.entries)

    @property
    def name(self) -> str:
        """A name that identifies the part across tries and processes."""
        return f"{self.session}:{self.entries[0].seq}-{self.last}"

    def of_trust(self, trust: Trust) -> str:
        """The text for the model: all trusted entries, or every entry of the tainted turns."""
        said = self.said
        if trust is Trust.TRUSTED:
            return _shown(entry for entry in said if entry.trust is Trust.TRUSTED)
        tainted = {entry.inbound_id for entry in said if entry.trust is Trust.UNTRUSTED}
        return _shown(entry for entry in said if entry.inbound_id in tainted)

    def raw(self) -> str:
        """The words themselves as paragraphs, tool results by their beginning."""
        paragraphs = []
        for entry in self.said:
            limit = 300 if entry.kind is EntryKind.TOOL else RAW_CHARS
            text = one_line(_words(entry), limit)
            line = f"{stamp(entry.at)} Archived as it was, {self.session}, {_who(entry)}: {text}"
            paragraphs.append(marked(line, entry.trust))
        return "\n\n".join(paragraphs)

    def paragraphs(self, events: Iterable[tuple[Event, Trust]]) -> str:
        """Events as the paragraphs of HISTORY.md, by time; they name a session with guests."""
        first, last = self.entries[0].at, self.entries[-1].at
        timed = [
            (last if event.at is None else min(max(event.at, first), last), event, trust)
            for event, trust in events
        ]
        where = f"({self.session}, with guests) " if self.has_guest else ""
        return "\n\n".join(
            f"{stamp(at)} {where}{marked(event.text, trust)}"
            for at, event, trust in sorted(timed, key=lambda item: item[0])
        )


def size_of(entry: Entry) -> int:
    """Characters that an entry takes in the text for the model."""
    return len(_line(entry)) if _words(entry) else 0


def is_message(entry: Entry) -> bool:
    """Whether it counts as a message: what a person wrote, or an answer (no step with calls)."""
    if entry.kind is EntryKind.USER:
        return True
    message = entry.message
    return isinstance(message, AssistantMessage) and not message.tool_calls


def _shown(entries: Iterable[Entry]) -> str:
    return "\n".join(_line(entry) for entry in entries)


def _line(entry: Entry) -> str:
    limit = RESULT_CHARS if entry.kind is EntryKind.TOOL else WORDS_CHARS
    return f"{stamp(entry.at)} {_who(entry)}: {head_and_tail(_words(entry), limit, _CUT)}"


_SAID = (
    EntryKind.USER,
    EntryKind.ASSISTANT,
    EntryKind.SENT,
    EntryKind.TOOL,
    EntryKind.UNANSWERED,
)


def _words(entry: Entry) -> str:
    if entry.kind not in _SAID:
        return ""
    message = entry.message
    match message:
        case AssistantMessage(content, calls):
            made = [f"[{call.name} {one_line(call.arguments, 300)}]" for call in calls]
            return " ".join(filter(None, (content.strip(), *made)))
        case UserMessage(content):
            return read_header(content)[1]
        case None:
            return ""
        case _:
            return message.content.strip()


def _who(entry: Entry) -> str:
    message = entry.message
    if isinstance(message, ToolMessage):
        return f"result of {message.name}"
    if not isinstance(message, UserMessage):
        return "assistant"
    if entry.kind is EntryKind.UNANSWERED:
        return "note"
    role = "guest" if entry.principal.startswith(f"{Role.GUEST}:") else "owner"
    return f"{role} {read_header(message.content)[0].sender}".strip()


def stamp(at: datetime) -> str:
    """How a paragraph of HISTORY.md begins: the local time."""
    return f"[{at.astimezone():%Y-%m-%d %H:%M}]"


def cut_place(entries: Sequence[Entry], keep: int) -> int | None:
    """The seq of the first entry to keep in view: a person's message at which a turn begins.

    No turn is divided and at least ``keep`` messages stay. None if only the beginning would do.
    """
    kept = 0
    later: set[str] = set()
    first_of: dict[str, int] = {}
    for place, entry in enumerate(entries):
        if entry.kind is not EntryKind.COMPACTED:  # it stands in front, whoever wrote it
            first_of.setdefault(entry.inbound_id, place)
    earliest = len(entries)
    for place in range(len(entries) - 1, 0, -1):
        entry = entries[place]
        kept += is_message(entry)
        if entry.inbound_id not in later:
            later.add(entry.inbound_id)
            earliest = min(earliest, first_of[entry.inbound_id])
        if kept >= keep and entry.kind is EntryKind.USER and earliest == place:
            return entry.seq
    return None


TOOL = "save_memory"
ENTRY_CHARS = 2000
"""The longest paragraph written, in characters."""
MOST_ENTRIES = 60
MOST_EDITS = 40
_FENCED = re.compile(r"```[\w-]*\s*\n(.*?)```", re.DOTALL)
_LISTED = re.compile(r"\s*\[\s*[{\"'\]]")
_STAMPED = re.compile(r"\A\s*\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d)\]\s*")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d))?")

_LISTS = {
    "history": ("history", "history_entries", "history_entry", "entries", "events"),
    "memory": ("memory", "memory_edits", "edits", "operations"),
}
_ACTIONS = {
    **dict.fromkeys(("add", "append", "insert", "create", "new"), EditAction.ADD),
    **dict.fromkeys(("replace", "update", "change", "edit", "modify"), EditAction.REPLACE),
    **dict.fromkeys(("remove", "delete", "drop"), EditAction.REMOVE),
}


class Unusable(Exception):
    """The answer cannot be used; the text says why, for the log and the owner."""


@dataclass(frozen=True, slots=True)
class Event:
    """One paragraph for HISTORY.md; ``at`` is the local time the model gave, if it gave one."""

    text: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model made of a part: at least one event, and edits of MEMORY.md."""

    events: tuple[Event, ...]
    edits: tuple[Edit, ...] = ()


def tool_spec(*, edits: bool) -> ToolSpec:
    """The tool by which a model answers; without ``edits`` it offers none."""
    text = {"type": "string"}
    properties: dict[str, Any] = {
        "history": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "time": {"type": "string", "description": "YYYY-MM-DD HH:MM"},
                    "text": {"type": "string", "description": "One paragraph."},
                },
                "required": ["time", "text"],
            },
        }
    }
    if edits:
        properties["memory"] = {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "action": {"type": "string", "enum": [action.value for action in EditAction]},
                    "section": text,
                    "line": {
                        "type": "string",
                        "description": "The line to add; or the present line, as it stands.",
                    },
                    "new_line": {"type": "string", "description": "For replace alone."},
                },
                "required": ["action", "section", "line"],
            },
        }
    parameters = {"type": "object", "properties": properties, "required": ["history"]}
    return ToolSpec(TOOL, "Save what is worth keeping of the conversation.", parameters)


def read_answer(response: LLMResponse, trust: Trust) -> Answer:
    """The answer in a response, with edits of that trust. Raises Unusable."""
    if response.finish_reason is FinishReason.LENGTH:
        raise Unusable("the answer was cut off")
    texts = [call.arguments for call in response.tool_calls]
    if not texts and not response.content.strip():
        raise Unusable("the answer was empty")
    reason = "the answer was prose alone"
    for text in texts or _documents(response.content):
        try:
            document = _unwrapped(_loaded(text))
        except Unusable as error:
            reason = str(error)
            continue
        events = tuple(_events(_list_of(document, "history")))[:MOST_ENTRIES]
        if events:
            edits = tuple(_edits(_list_of(document, "memory"), trust))[:MOST_EDITS]
            return Answer(events, edits)
        reason = "the answer has nothing for HISTORY.md"
    raise Unusable(reason)


def _documents(content: str) -> Iterator[str]:
    """The texts that may be the document: fenced blocks, the whole text, each object in prose."""
    yield from _FENCED.findall(content)
    if content.lstrip().startswith("{"):
        yield content
    decoder = json.JSONDecoder(strict=False)
    start = content.find("{")
    while start >= 0:
        try:
            _, end = decoder.raw_decode(content, start)
        except RecursionError:
            return
        except ValueError:
            end = start + 1
        else:
            yield content[start:end]
        start = content.find("{", end)


def _loaded(text: str) -> Any:
    """The document in a text, None if it is none; raises Unusable if its end is missing."""
    try:
        return read_json(text)
    except EOFError:
        raise Unusable("the answer was cut off") from None
    except ValueError:
        return None


def _unwrapped(document: Any) -> Mapping[str, Any]:
    """The object with the lists, taken out of a call or a list of one."""
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict):
        raise Unusable("the answer is no JSON object")
    for name in ("arguments", "parameters", "input", TOOL):
        inner = document.get(name)
        if isinstance(inner, str):
            inner = _loaded(inner)
        if isinstance(inner, dict):
            return inner
    return document


def _list_of(document: Mapping[str, Any], what: str) -> list[Any]:
    for name in _LISTS[what]:
        value = document.get(name)
        if isinstance(value, str) and _LISTED.match(value):
            value = _loaded(value)
        if isinstance(value, list):
            return value
        if isinstance(value, dict) or (what == "history" and isinstance(value, str)):
            return [value]
    return []


def _events(items: list[Any]) -> Iterator[Event]:
    for item in items:
        stamp = ""
        if isinstance(item, dict):
            stamp = _first(item, ("time", "timestamp", "at", "when", "date"))
            item = _first(item, ("text", "entry", "content", "summary", "event", "history_entry"))
        if not isinstance(item, str):
            continue
        if found := _STAMPED.match(item):
            stamp = stamp or found[1]
            item = item[found.end() :]
        text = one_line(item, ENTRY_CHARS)
        if any(character.isalnum() for character in text):
            yield Event(text, _time(stamp))


def _edits(items: list[Any], trust: Trust) -> Iterator[Edit]:
    for item in items:
        if not isinstance(item, dict):
            continue
        name = _first(item, ("action", "op", "operation", "type")).lower() or "add"
        action = _ACTIONS.get(name)
        section = _first(item, ("section", "heading", "category"))
        line = _first(item, ("line", "old_line", "old", "text", "content", "fact"))
        new = _first(item, ("new_line", "new", "with", "replacement"))
        if action is EditAction.ADD:
            line = line or new
        if action is None or not line or (action is EditAction.REPLACE and not new):
            continue
        yield Edit(action, section, line, new if action is EditAction.REPLACE else "", trust)


def _first(item: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = item.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _time(stamp: str) -> datetime | None:
    found = _STAMP.search(stamp)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]} {found[2] or '00:00'}").astimezone()
    except ValueError:
        return None
