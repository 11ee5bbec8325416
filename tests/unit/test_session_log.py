"""The session log: appended to, read back as it was, never changed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from nanobot.core.messages import Trust
from nanobot.session.entries import Draft, EntryKind, Replaced, decode, encode
from nanobot.session.log import SessionLog, SessionSettings
from nanobot.store.database import Database

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SessionLog]:
    database = Database(tmp_path / "state.db")
    yield SessionLog(database, lambda: NOW)
    database.close()


def draft(kind: EntryKind, message: ChatMessage | None, **more: object) -> Draft:
    return Draft(
        kind=kind,
        message=message,
        inbound_id="in-1",
        principal="owner:cli:owner",
        trust=Trust.UNTRUSTED,
        **more,  # type: ignore[arg-type]
    )


def said(text: str) -> Draft:
    return draft(EntryKind.USER, UserMessage(text))


async def test_what_was_appended_is_read_back(log: SessionLog) -> None:
    drafts = [
        draft(EntryKind.USER, UserMessage("a picture", (Image("/tmp/a.png", "image/png"),))),
        draft(
            EntryKind.ASSISTANT,
            AssistantMessage(
                "ä", (ToolCall("1", "exec", '{"a": 1}'),), "thought", ({"type": "thinking"},)
            ),
            model="m",
            usage=Usage(1, 2, 3),
        ),
        draft(EntryKind.TOOL, ToolMessage("1", "exec", "out"), ok=False),
    ]

    appended = await log.append("cli:direct", drafts)

    assert (await log.live("cli:direct")).entries == appended
    assert [entry.message for entry in appended] == [draft.message for draft in drafts]
    assert (appended[1].usage, appended[1].model, appended[2].ok) == (Usage(1, 2, 3), "m", False)


async def test_sessions_do_not_see_each_other(log: SessionLog) -> None:
    await log.append("a:1", [said("one")])
    await log.append("a:2", [said("two")])

    seen = [entry.message for entry in (await log.live("a:2")).entries]

    assert seen == [UserMessage("two")]


async def test_after_a_reset_the_past_is_out_of_view_but_kept(log: SessionLog) -> None:
    await log.append("s", [said("old")])
    await log.reset("s", draft(EntryKind.RESET, None))
    await log.append("s", [said("new")])

    live = [entry.message for entry in (await log.live("s")).entries]
    whole = [entry.kind.value for entry in await log.entries("s")]

    assert (live, whole) == ([None, UserMessage("new")], ["user", "reset", "user"])


async def test_a_compaction_stands_before_what_it_keeps(log: SessionLog) -> None:
    entries = await log.append("s", [said("1"), said("2"), said("3")])
    mark = draft(EntryKind.COMPACTED, UserMessage("earlier"), keeps_from=entries[2].seq)
    await log.append("s", [mark])
    await log.append("s", [said("4")])

    live = [entry.message for entry in (await log.live("s")).entries]

    assert live == [UserMessage(text) for text in ("earlier", "3", "4")]


async def test_what_a_parked_message_wrote_is_out_of_view_but_kept(log: SessionLog) -> None:
    def wrote(name: str, text: str) -> Draft:
        return replace(said(text), inbound_id=name)

    await log.append("s", [wrote("a", "before"), wrote("bad", "1"), wrote("b", "taken in")])
    await log.append("s", [replace(draft(EntryKind.DEAD_LETTER, None), inbound_id="bad")])
    await log.append("s", [wrote("c", "after"), wrote("bad", "tried again")])

    live = [entry.message for entry in (await log.live("s")).entries]

    assert live == [UserMessage(t) for t in ("before", "taken in", "after", "tried again")]
    assert len(await log.entries("s")) == 6


async def test_settings_are_remembered(log: SessionLog) -> None:
    await log.change_settings("s", SessionSettings("gpt", "high"))

    assert (await log.live("s")).settings == SessionSettings("gpt", "high")


async def test_damaged_rows_are_left_out(log: SessionLog, tmp_path: Path) -> None:
    await log.append("s", [said(str(number)) for number in range(1, 7)])
    with sqlite3.connect(tmp_path / "state.db") as raw:
        raw.execute("UPDATE log SET payload = '{' WHERE seq = 2")
        raw.execute("UPDATE log SET kind = 'riddle' WHERE seq = 3")
        raw.execute("UPDATE log SET payload = '' WHERE seq = 5")
        raw.execute("UPDATE log SET payload = X'FF00' WHERE seq = 6")
    raw.close()

    live = [entry.message for entry in (await log.live("s")).entries]

    assert live == [UserMessage("1"), UserMessage("4")]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["content", "tool_calls", "images", "call_id", "name", "thinking_blocks"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(kind=st.sampled_from(list(EntryKind)), record=_json)
def test_any_payload_decodes_or_is_a_value_error(kind: EntryKind, record: object) -> None:
    import json

    try:
        decode(kind.value, json.dumps(record))
    except ValueError:
        return


@given(st.text(), st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=3))
def test_assistant_messages_survive_storage(text: str, calls: list[tuple[str, str, str]]) -> None:
    message = AssistantMessage(text, tuple(ToolCall(*call) for call in calls))

    stored = encode(draft(EntryKind.ASSISTANT, message))

    assert decode("assistant", stored)[1] == message


async def test_a_result_that_gave_way_is_seen_as_a_note_and_kept_whole(log: SessionLog) -> None:
    await log.append("s", [said("go"), draft(EntryKind.TOOL, ToolMessage("1", "look", "long"))])
    _, result = await log.entries("s")
    replaced = (Replaced(result.seq, "1", "look", "in a file"),)

    (mark,) = await log.append("s", [draft(EntryKind.TRIMMED, None, replaced=replaced)])

    _, seen, last = (await log.live("s")).entries
    assert (seen.message, seen.is_trimmed) == (ToolMessage("1", "look", "in a file"), True)
    assert (seen.seq, seen.trust, seen.kind) == (result.seq, result.trust, EntryKind.TOOL)
    assert last == mark
    assert await log.entries("s") == (*(await log.entries("s"))[:1], result, mark)


async def test_a_damaged_list_of_what_gave_way_brings_the_results_back(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path / "state.db")
    log = SessionLog(database, lambda: NOW)
    await log.append("s", [said("go"), draft(EntryKind.TOOL, ToolMessage("1", "look", "long"))])

    def damage(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO log (session, kind, inbound_id, principal, trust, at, payload) "
            "VALUES ('s', 'gave_way', 'in-1', 'owner:cli:owner', 'trusted', 0, ?)",
            ('{"replaced": [[2, "1"]]}',),
        )

    await database.write(damage)

    live = await log.live("s")
    database.close()
    assert [entry.message for entry in live.entries] == [
        UserMessage("go"),
        ToolMessage("1", "look", "long"),
    ]


async def test_of_a_long_view_only_the_newest_part_is_read_from_a_person_on(
    log: SessionLog,
) -> None:
    answer = draft(EntryKind.ASSISTANT, AssistantMessage("a" * 100))
    await log.append("s", [said("1" * 100), answer, said("2" * 100), answer, said("3" * 100)])

    whole = await log.live("s", most=10_000)
    newest = await log.live("s", most=400)
    nothing = await log.live("s", most=50)

    assert (len(whole.entries), whole.is_cut) == (5, False)
    assert [entry.seq for entry in newest.entries] == [3, 4, 5]
    assert (newest.is_cut, nothing.is_cut, nothing.entries) == (True, True, ())


async def test_the_mark_of_a_compaction_stays_when_its_turn_is_parked(log: SessionLog) -> None:
    _, kept = await log.append("s", [said("old"), said("kept")])
    mark = draft(EntryKind.COMPACTED, UserMessage("summary"), keeps_from=kept.seq)
    await log.append("s", [replace(mark, inbound_id="bad")])
    await log.append("s", [replace(said("poison"), inbound_id="bad")])

    await log.append("s", [replace(draft(EntryKind.DEAD_LETTER, None), inbound_id="bad")])

    live = await log.live("s")
    assert [e.message for e in live.entries if e.message] == [
        UserMessage("summary"),
        UserMessage("kept"),
    ]


async def test_settings_are_read_without_the_log(log: SessionLog) -> None:
    await log.change_settings("s", SessionSettings("m", "high"))

    assert await log.settings("s") == SessionSettings("m", "high")
    assert await log.settings("unknown") == SessionSettings()
