"""Whatever happened to a session's log, what the next turn sends to the model is legal."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.agent.context import ContextBuilder
from nanobot.agent.loop import AgentLoop
from nanobot.agent.window import Spill
from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from nanobot.core.messages import InboundMessage, Role, Trust
from nanobot.core.turn_header import TurnHeader
from nanobot.providers.wire import wire_messages
from nanobot.session.entries import Draft, EntryKind, Replaced
from nanobot.session.log import SessionLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.images import Pictures
from nanobot.tools.registry import ToolRegistry
from tests.crash.wire import refusals
from tests.fakes.scripted_model import ScriptedModel, says

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SESSION = "telegram:42"


def test_the_checker_refuses_what_strict_providers_refuse() -> None:
    def user(content: object = "hi") -> dict[str, Any]:
        return {"role": "user", "content": content}

    def said(*ids: str, content: str | None = None, **function: object) -> dict[str, Any]:
        made = {"name": "look", "arguments": "{}", **function}
        calls = [{"id": one, "type": "function", "function": made} for one in ids]
        return {"role": "assistant", "content": content, **({"tool_calls": calls} if ids else {})}

    def result(identity: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": identity, "content": "saw"}

    legal = [
        {"role": "system", "content": "be nice"},
        user(),
        said("1", "2"),
        result("2"),
        result("1"),
        said(content="so"),
        user([{"type": "text", "text": "and?"}]),
    ]
    illegal: dict[str, list[Any]] = {
        "at least one message": [],
        "role: one of": ["hello"],
        "without words": [user(), said(), user()],
        "two calls": [user(), said("1", "1"), result("1")],
        "no JSON object": [user(), said("1", arguments="[1]"), result("1")],
        "no name": [user(), said("1", name="no name"), result("1")],
        "empty user": [user(" ")],
        "without its call": [user(), result("1")],
        "no result yet for 1": [user(), said("1"), user()],
        "at the end: no result": [user(), said("1")],
        "first to speak": [said(content="hi"), user()],
        "in a row": [user(), said(content="a"), said(content="b"), user()],
        "after the first": [user(), {"role": "system", "content": "late"}, user()],
        "spoken already": [user(), said(content="bye")],
    }

    found = {reason: refusals({"messages": messages}) for reason, messages in illegal.items()}

    assert refusals({"messages": legal}) == []
    assert {reason for reason, said in found.items() if reason not in " ".join(said)} == set()


# --- Logs as turns write them -------------------------------------------------------------------

_texts = st.text(max_size=8)
_arguments = st.one_of(st.just("{}"), st.just('{"path": "a"}'), _texts)
_names = st.sampled_from(["exec", "read_file", "message", "no name", ""])
_notes = st.builds(
    Replaced, st.integers(1, 60), st.sampled_from(["0-0-0", "1-0-0"]), _names, _texts
)


@st.composite
def _turn(draw: st.DrawFn, number: int) -> list[Draft]:
    """The entries of one turn: its message, steps, an answer."""
    name = f"in-{number}"

    def draft(kind: EntryKind, message: ChatMessage | None, **more: Any) -> Draft:
        return Draft(
            kind=kind,
            message=message,
            inbound_id=name,
            principal="owner:telegram:42",
            trust=Trust.TRUSTED,
            **more,
        )

    entries = [draft(EntryKind.USER, UserMessage(TurnHeader("now").before(draw(_texts))))]
    for step in range(draw(st.integers(0, 3))):
        calls = tuple(
            ToolCall(f"{number}-{step}-{place}", draw(_names), draw(_arguments))
            for place in range(draw(st.integers(1, 3)))
        )
        words = AssistantMessage(draw(_texts), calls)
        entries.append(draft(EntryKind.ASSISTANT, words, model="m", usage=Usage(1, 2)))
        entries += [
            draft(EntryKind.TOOL, ToolMessage(call.id, call.name, draw(_texts)), delivered="said")
            for call in calls
        ]
        if draw(st.booleans()):
            entries.append(
                draft(EntryKind.SYSTEM_NOTE, UserMessage("Assess what the tools returned."))
            )
    entries.append(draft(EntryKind.ASSISTANT, AssistantMessage(draw(_texts) or "done"), model="m"))
    if draw(st.booleans()):
        sent = Draft(
            kind=EntryKind.SENT,
            message=AssistantMessage(draw(_texts)),
            note="[A reminder sent this.]",
            inbound_id=f"cron:{number}",
            principal="owner:telegram:cron",
            trust=Trust.TRUSTED,
        )
        entries.insert(draw(st.integers(0, len(entries))), sent)
    if draw(st.integers(0, 9)) == 0:
        entries.append(draft(EntryKind.RESET, None))
    if draw(st.integers(0, 9)) == 0:
        mark = UserMessage("[The earlier part is left out.]")
        entries.append(draft(EntryKind.COMPACTED, mark, keeps_from=draw(st.integers(1, 60))))
    if draw(st.integers(0, 4)) == 0:
        notes = draw(st.lists(_notes, min_size=1, max_size=4))
        entries.append(draft(EntryKind.TRIMMED, None, replaced=tuple(notes)))
    if draw(st.integers(0, 9)) == 0:
        entries.append(draft(EntryKind.DEAD_LETTER, None))
    return entries


_logs = st.integers(1, 5).flatmap(
    lambda turns: st.tuples(*(_turn(number) for number in range(turns)))
)

# --- What can happen to them --------------------------------------------------------------------

_places = st.integers(0, 60)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "tool_calls", "images", "call_id", "name"]), inner
        )
    ),
    max_leaves=6,
)
_damages = st.one_of(
    st.tuples(st.just("cut after"), _places, st.none()),
    st.tuples(st.just("cut before"), _places, st.none()),
    st.tuples(st.just("lose"), _places, st.none()),
    st.tuples(st.just("repeat"), _places, st.none()),
    st.tuples(st.just("swap"), _places, _places),
    st.tuples(st.just("tear"), _places, st.integers(0, 40)),
    st.tuples(st.just("replace"), _places, _json.map(json.dumps)),
    st.tuples(st.just("replace"), _places, st.sampled_from([b"\xff\x00", b"", 7, 1.5])),
    st.tuples(st.just("kind"), _places, st.sampled_from([*EntryKind, "riddle", ""])),
    st.tuples(st.just("view"), _places, st.none()),
)


def _damage(log: sqlite3.Connection, what: str, place: int, more: Any) -> None:
    rows = [seq for (seq,) in log.execute("SELECT seq FROM log ORDER BY seq")]
    if not rows:
        return
    seq = rows[place % len(rows)]
    columns = "session, kind, inbound_id, principal, trust, at, payload"
    match what:
        case "cut after":
            log.execute("DELETE FROM log WHERE seq > ?", (seq,))
        case "cut before":
            log.execute("DELETE FROM log WHERE seq < ?", (seq,))
        case "lose":
            log.execute("DELETE FROM log WHERE seq = ?", (seq,))
        case "repeat":
            log.execute(
                f"INSERT INTO log ({columns}) SELECT {columns} FROM log WHERE seq = ?", (seq,)
            )
        case "swap":
            other = rows[more % len(rows)]
            log.execute("UPDATE log SET seq = -1 WHERE seq = ?", (seq,))
            log.execute("UPDATE log SET seq = ? WHERE seq = ?", (seq, other))
            log.execute("UPDATE log SET seq = ? WHERE seq = -1", (other,))
        case "tear":
            torn = "coalesce(substr(payload, 1, ?), '')"
            log.execute(f"UPDATE log SET payload = {torn} WHERE seq = ?", (more, seq))
        case "replace":
            log.execute("UPDATE log SET payload = ? WHERE seq = ?", (more, seq))
        case "kind":
            log.execute("UPDATE log SET kind = ? WHERE seq = ?", (str(more), seq))
        case "view":
            log.execute("UPDATE session SET live_from = ?", (seq,))


@settings(max_examples=150, deadline=None)
@given(
    log=_logs,
    damages=st.lists(_damages, max_size=5),
    resumed=st.booleans(),
)
def test_every_request_is_legal_whatever_was_cut_from_or_written_over_the_log(
    log: tuple[list[Draft], ...], damages: list[tuple[str, int, Any]], resumed: bool
) -> None:
    """``resumed``: the turn that follows is one that the log knows already."""
    name = f"in-{len(log) - 1}" if resumed else "in-new"

    requests = asyncio.run(_next_turn([entry for turn in log for entry in turn], damages, name))

    for messages in requests:
        assert refusals({"messages": wire_messages(messages)}) == []


async def _next_turn(
    entries: list[Draft], damages: list[tuple[str, int, Any]], name: str
) -> list[tuple[ChatMessage, ...]]:
    """What a turn of the damaged session sends to the model."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        with closing(Database(root / "state.db")) as database:
            sessions = SessionLog(database, lambda: NOW)
            await sessions.append(SESSION, entries)
            with closing(sqlite3.connect(root / "state.db", isolation_level=None)) as log:
                for damage in damages:
                    _damage(log, *damage)
            (root / "skills").mkdir()
            model = ScriptedModel([says("all right")])
            loop = AgentLoop(
                sessions=sessions,
                models=model,
                context=ContextBuilder(root, SkillsLoader(root, root / "skills")),
                tools=ToolRegistry([]),
                spill=Spill(Home(root / "home"), cap=1000),
                pictures=Pictures(Home(root / "home")),
                clock=lambda: NOW,
            )
            inbound = InboundMessage("telegram", "42", "42", "go on", id=name, role=Role.OWNER)
            await loop.run_turn(inbound)
            return [request.messages for request in model.requests]


def test_the_property_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the folding the same damage makes an illegal request."""
    monkeypatch.setattr(
        "nanobot.agent.turn.fold",
        lambda entries, *, interrupted: [entry.message for entry in entries if entry.message],
    )
    monkeypatch.setattr("nanobot.agent.loop.violations", lambda messages: [])
    call = ToolCall("1", "exec", "{}")
    drafts = [
        Draft(
            kind=kind,
            message=message,
            inbound_id="in-0",
            principal="owner:telegram:42",
            trust=Trust.TRUSTED,
        )
        for kind, message in (
            (EntryKind.USER, UserMessage("go")),
            (EntryKind.ASSISTANT, AssistantMessage("", (call,))),
            (EntryKind.TOOL, ToolMessage("1", "exec", "ran")),
            (EntryKind.ASSISTANT, AssistantMessage("done")),
        )
    ]

    (messages,) = asyncio.run(_next_turn(drafts, [("lose", 2, None)], "in-new"))

    assert refusals({"messages": wire_messages(messages)}) != []
