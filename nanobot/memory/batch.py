"""A part of a session's log as the text that is digested, or archived as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from nanobot.core.chat import AssistantMessage, ToolMessage, UserMessage
from nanobot.core.identity import Role, Trust
from nanobot.core.text import head_and_tail, one_line
from nanobot.core.turn_header import read_header
from nanobot.memory.answer import Event
from nanobot.memory.edits import marked
from nanobot.session.entries import Entry, EntryKind

WORDS_CHARS = 8000
"""Characters of one message that are digested."""
RESULT_CHARS = 1200
"""Characters of a tool result that are digested: what matters of it, the answer says."""
RAW_CHARS = 4000
"""Characters of one message that are archived raw; the log has all of it."""
_CUT = "[… {omitted} characters left out]"


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive entries of one session, oldest first, to be digested in one step."""

    session: str
    entries: tuple[Entry, ...]

    @property
    def said(self) -> tuple[Entry, ...]:
        """The entries with words in them, without those of messages that were parked."""
        parked = {
            entry.inbound_id: entry.seq for entry in self.entries if entry.kind is EntryKind.PARKED
        }
        return tuple(
            entry
            for entry in self.entries
            if entry.seq > parked.get(entry.inbound_id, 0) and _words(entry)
        )

    @property
    def has_guest(self) -> bool:
        """Whether anybody but the owner has a part in it."""
        return any(entry.principal.startswith(f"{Role.GUEST}:") for entry in self.entries)

    @property
    def name(self) -> str:
        """A name that is the same whenever this part is digested."""
        return f"{self.session}:{self.entries[0].seq}-{self.entries[-1].seq}"

    def of_trust(self, trust: Trust) -> str:
        """What a model is shown: all that is to be trusted, or the tainted turns whole."""
        said = self.said
        if trust is Trust.TRUSTED:
            return _shown(entry for entry in said if entry.trust is Trust.TRUSTED)
        tainted = {entry.inbound_id for entry in said if entry.trust is Trust.UNTRUSTED}
        return _shown(entry for entry in said if entry.inbound_id in tainted)

    def raw(self) -> str:
        """The words themselves as paragraphs; of results, how they began."""
        paragraphs = []
        for entry in self.said:
            limit = 300 if entry.kind is EntryKind.TOOL else RAW_CHARS
            text = one_line(_words(entry), limit)
            line = f"{stamp(entry.at)} Archived as it was, {self.session}, {_who(entry)}: {text}"
            paragraphs.append(marked(line, entry.trust))
        return "\n\n".join(paragraphs)

    def paragraphs(self, events: Iterable[tuple[Event, Trust]]) -> str:
        """Events as the paragraphs of HISTORY.md, by time; a guest's session is named in them."""
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
    """Characters that an entry takes in what is digested."""
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
    """The seq of the first entry to keep in view: a person's message with whole turns behind it.

    At least ``keep`` messages stay. None if there is no such place but the beginning.
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
