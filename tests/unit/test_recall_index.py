"""The index follows its sources, whatever happens to them or to itself."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanobot.core.errors import StoreUnavailable
from nanobot.recall.chunks import Sources
from nanobot.recall.index import HISTORY, RecallIndex
from nanobot.recall.tool import Recall
from nanobot.store.database import Database
from tests.fakes.said import NOW, Past


@pytest.fixture
async def past(tmp_path: Path) -> AsyncIterator[Past]:
    database = Database(tmp_path / "state.db")
    yield Past(tmp_path, database)
    database.close()


def rows(sources: Sources) -> list[tuple[object, ...]]:
    """What the index holds, in the order of its sources."""
    with sqlite3.connect(sources.index) as connection:
        return connection.execute(
            "SELECT session, seq, part, speaker, at, untrusted, guest, text FROM chunk "
            "ORDER BY session, seq, digest, part"
        ).fetchall()


async def test_what_was_just_said_is_found_at_once(past: Past) -> None:
    await past.say("The boiler is leaking.")
    first = await past.texts("boiler")
    await past.say("We replace the boiler.", by="assistant")

    assert first == ["The boiler is leaking."]
    assert set(await past.texts("boiler")) == {"The boiler is leaking.", "We replace the boiler."}


async def test_a_hand_edit_in_the_middle_of_history_is_found_at_once(past: Past) -> None:
    before = "[2026-01-01 10:00] Rome by train.\n\n{}\n\n[2026-01-03 10:00] Oslo by ship.\n"
    past.write_history(before.format("[2026-01-02 10:00] Paris by plane."))
    first = await past.texts("Paris plane ship")
    past.write_history(before.format("[2026-01-02 10:00] Paris by horse."))

    assert first == ["Paris by plane.", "Oslo by ship."]
    assert await past.texts("Paris plane ship") == ["Paris by horse.", "Oslo by ship."]
    past.sources.history.unlink()
    assert await past.texts("Paris plane ship") == []


@pytest.mark.parametrize("target", ["secret.md", "memory/secret.json", "fifo.md"])
async def test_a_link_or_a_pipe_in_the_place_of_history_brings_nothing_up(
    past: Past, tmp_path: Path, target: str
) -> None:
    workspace = tmp_path / "workspace"
    history = workspace / "memory" / "HISTORY.md"
    history.parent.mkdir(parents=True)
    (tmp_path / "secret.md").write_text("The boiler's secret.")
    (workspace / "memory" / "secret.json").write_text("The boiler's secret.")
    os.mkfifo(workspace / "fifo.md")
    outside = tmp_path if target == "secret.md" else workspace
    history.symlink_to(outside / target)
    sources = Sources(tmp_path / "recall.db", past.sources.state, history, UTC)

    assert Recall(sources, lambda: NOW).search_now("boiler secret").hits == ()


async def test_a_link_within_the_workspace_is_followed(past: Past, tmp_path: Path) -> None:
    history = tmp_path / "workspace" / "memory" / "HISTORY.md"
    history.parent.mkdir(parents=True)
    history.symlink_to("kept.md")
    (history.parent / "kept.md").write_text("[2026-01-01 10:00] The boiler.\n")
    sources = Sources(tmp_path / "recall.db", past.sources.state, history, UTC)

    assert len(Recall(sources, lambda: NOW).search_now("boiler").hits) == 1


async def test_what_a_tool_said_to_the_chat_is_found_and_its_results_are_not(past: Past) -> None:
    await past.say("The parcel has arrived.", by="tool")

    assert await past.texts("parcel") == ["The parcel has arrived."]
    assert await past.texts("Sent") == []


async def test_a_deleted_session_vanishes_from_results_and_from_the_file(past: Past) -> None:
    await past.say("The zebra is called Quagga.", session="telegram:1")
    await past.say("Something else.", session="telegram:2")
    assert await past.texts("zebra")

    await past.delete("telegram:1")
    await past.recall.forget("telegram:1")

    data = past.sources.index.read_bytes()
    assert (await past.texts("zebra"), b"quagga" in data.lower()) == ([], False)


async def test_a_deleted_session_is_not_found_though_nobody_told_the_index(past: Past) -> None:
    await past.say("The zebra is called Quagga.", session="telegram:1")
    assert await past.texts("zebra")

    await past.delete("telegram:1")
    await past.say("A new beginning.", session="telegram:1", days_ago=0)

    assert await past.texts("zebra beginning") == ["A new beginning."]


async def test_a_session_of_the_same_name_and_moment_is_another(past: Past) -> None:
    await past.say("The zebra is called Quagga.", session="telegram:1")
    assert await past.texts("zebra")

    await past.delete("telegram:1")
    await past.say("The zebra has moved.", session="telegram:1")

    assert await past.texts("zebra") == ["The zebra has moved."]


@pytest.mark.parametrize(
    "harm",
    [
        "DROP TABLE words",
        "DELETE FROM words_data",
        "DROP TABLE chunk",
        "DELETE FROM chunk",
        "DELETE FROM words_docsize",
        "DELETE FROM fact",
        "PRAGMA user_version = 99",
        "UPDATE words_data SET block = X'FFFFFFFFFFFF' WHERE id > 10",
    ],
)
async def test_an_index_with_missing_or_senseless_tables_is_made_anew(
    past: Past, harm: str
) -> None:
    await past.say("The boiler is leaking.")
    assert await past.texts("boiler")
    with sqlite3.connect(past.sources.index) as connection:
        connection.execute(harm)
    connection.close()

    assert await past.texts("boiler") == ["The boiler is leaking."]


async def test_an_index_of_garbage_or_none_is_made_anew(past: Past) -> None:
    await past.say("The boiler is leaking.")
    assert await past.texts("boiler")
    for companion in past.folder.glob("recall.db-*"):
        companion.unlink()
    past.sources.index.write_bytes(b"no database at all" * 1000)
    after_garbage = await past.texts("boiler")
    past.sources.index.unlink()

    assert (after_garbage, await past.texts("boiler")) == (["The boiler is leaking."],) * 2


async def test_another_state_database_is_another_past(past: Past) -> None:
    for number in range(5):
        await past.say(f"The boiler number {number}.")
    assert len(await past.texts("boiler")) == 5
    past.database.close()
    for file in past.folder.glob("state.db*"):
        file.unlink()
    past.database = Database(past.folder / "state.db")
    await past.say("Only the heater.")

    assert await past.texts("boiler") == ["Only the heater."]
    past.database.close()


async def test_an_index_that_cannot_be_written_says_so(past: Past, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    sources = Sources(blocked / "recall.db", past.sources.state, past.sources.history)

    with pytest.raises(StoreUnavailable):
        Recall(sources, lambda: NOW).search_now("boiler")


async def test_a_damaged_log_entry_is_left_out(past: Past) -> None:
    seq = await past.say("The boiler is leaking.")
    await past.say("The boiler again.")
    await past.database.write(
        lambda connection: connection.execute("UPDATE log SET payload = '{' WHERE seq = ?", (seq,))
    )

    assert await past.texts("boiler") == ["The boiler again."]


async def test_many_processes_may_bring_it_up_to_date_at_once(past: Past) -> None:
    for number in range(700):
        await past.say(f"The boiler number {number} is leaking.")

    await asyncio.gather(*(past.recall.catch_up() for _ in range(4)))

    assert [row[1] for row in rows(past.sources)] == list(range(1, 701))


WORDS = st.sampled_from(
    ["boiler", "leaks", "Rome", "in", "March", "东京塔", "猫の名前", "4711", "café", "running", "?"]
)
SENTENCES = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
SESSIONS = st.sampled_from(["cli:direct", "telegram:1", "telegram:2"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), SESSIONS, SENTENCES),
        st.tuples(st.just("history"), st.just(""), st.lists(SENTENCES, max_size=5)),
        st.tuples(st.just("delete"), SESSIONS, st.just("")),
        st.tuples(st.just("search"), st.just(""), SENTENCES),
        st.tuples(st.just("reindex"), st.just(""), st.just("")),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, queries=st.lists(SENTENCES, min_size=2, max_size=3))
async def test_after_any_changes_the_index_is_what_a_new_one_would_be(
    steps: list[tuple[str, str, str]], queries: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        past = Past(Path(folder), Database(Path(folder) / "state.db"))
        for what, session, text in steps:
            if what == "say":
                await past.say(text, session=session)
            elif what == "history":
                past.write_history("\n\n".join(f"[2026-01-02 10:00] {one}" for one in text))
            elif what == "delete":
                await past.delete(session)
            elif what == "search":
                await past.texts(text)
            else:
                await past.recall.rebuild()
        fresh = Sources(
            past.folder / "fresh.db", past.sources.state, past.sources.history, past.sources.zone
        )
        found = [await _scores(Recall(past.sources, lambda: NOW), one) for one in queries]
        expected = [await _scores(Recall(fresh, lambda: NOW), one) for one in queries]
        past.database.close()

        assert (rows(past.sources), found) == (rows(fresh), expected)
        assert _words(past.sources) == _words(fresh)


async def _scores(recall: Recall, query: str) -> list[tuple[str, float]]:
    found = await recall.search(query)
    return sorted((hit.chunk.text, round(hit.score, 6)) for hit in found.hits)


def _words(sources: Sources) -> list[tuple[object, ...]]:
    with sqlite3.connect(sources.index) as connection:
        facts = "SELECT name, value FROM fact WHERE name IN ('chunks', 'terms') ORDER BY name"
        return [
            *connection.execute("SELECT term, doc, cnt FROM vocabulary ORDER BY term"),
            *connection.execute(facts),
        ]


async def test_reindexing_says_what_is_in_it(past: Past) -> None:
    past.write_history("[2026-01-01 10:00] Rome.\n\n[2026-01-02 10:00] Paris.\n")
    await past.say("one", session="telegram:1")
    await past.say("two " * 500, session="telegram:2")

    made = await past.recall.rebuild()

    assert (made.sessions, made.paragraphs, made.chunks) == (2, 2, len(rows(past.sources)))
    assert {row[0] for row in rows(past.sources)} == {HISTORY, "telegram:1", "telegram:2"}


def test_a_home_without_anything_has_an_empty_index(tmp_path: Path) -> None:
    sources = Sources(tmp_path / "recall.db", tmp_path / "state.db", tmp_path / "HISTORY.md")

    assert Recall(sources, lambda: NOW).search_now("boiler").hits == ()
    assert RecallIndex(sources).rebuild().chunks == 0
