"""Sessions read from files of others, however odd, and taken in whole or not at all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.chat import UserMessage
from nanobot.core.messages import Trust
from nanobot.session.entries import Draft, EntryKind, decode
from nanobot.session.log import SessionLog
from nanobot.session.transfer import Diverged, SessionTransfer, read_incoming
from nanobot.store.database import Database

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    made = Database(tmp_path / "state.db")
    yield made
    made.close()


def lines(*records: Any) -> list[str]:
    return [json.dumps(record) for record in records]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "_type": st.sampled_from(["metadata", "x"]),
        "role": st.sampled_from(["user", "assistant", "tool", "system", 7]),
        "content": JSON,
        "timestamp": JSON,
        "tool_calls": JSON,
        "tool_call_id": JSON,
        "name": JSON,
        "nanobot": JSON,
        "last_consolidated": JSON,
        "key": JSON,
    },
)


@given(st.lists(RECORDS | JSON, max_size=6))
def test_whatever_stands_in_a_file_what_is_taken_can_be_read_back(records: list[Any]) -> None:
    try:
        incoming = read_incoming(lines(*records))
    except ValueError as error:
        assert "no message" in str(error)  # noqa: PT017
        return

    assert 0 <= incoming.digested <= len(incoming.rows)
    for row in incoming.rows:
        kind, message, _ = decode(row.kind.value, row.payload)
        assert (kind, message is None) == (row.kind, False)
        assert datetime.fromtimestamp(row.at, UTC).year < 9999


def test_a_line_with_half_a_surrogate_pair_is_left_out() -> None:
    good = '{"role": "user", "content": "hi"}'

    incoming = read_incoming([good, '{"role": "user", "content": "\\ud83d"}', "[" * 100_000])

    assert (len(incoming.rows), incoming.skipped) == (1, 2)


async def test_the_same_words_twice_are_two_messages(database: Database) -> None:
    transfer = SessionTransfer(database, lambda: NOW)
    said = {"role": "user", "content": "yes"}
    file = read_incoming(lines(said, said, {"role": "assistant", "content": "no"}, said))

    added = [await transfer.take_in("cli:x", file), await transfer.take_in("cli:x", file)]

    live = await SessionLog(database, lambda: NOW).live("cli:x")
    assert added == [4, 0]
    assert len({entry.inbound_id for entry in live.entries}) == 3


async def test_a_session_with_words_of_its_own_is_left_as_it_is(database: Database) -> None:
    transfer = SessionTransfer(database, lambda: NOW)
    log = SessionLog(database, lambda: NOW)
    own = Draft(
        kind=EntryKind.USER,
        message=UserMessage("mine"),
        inbound_id="1",
        principal="owner:cli:owner",
        trust=Trust.TRUSTED,
    )
    await log.append("cli:x", [own])

    with pytest.raises(Diverged):
        await transfer.take_in("cli:x", read_incoming(lines({"role": "user", "content": "hi"})))

    assert [entry.message for entry in await log.entries("cli:x")] == [UserMessage("mine")]


async def test_a_view_comes_along_with_the_session(database: Database) -> None:
    transfer = SessionTransfer(database, lambda: NOW)
    log = SessionLog(database, lambda: NOW)

    def draft(kind: EntryKind, text: str, keeps_from: int | None = None) -> Draft:
        return Draft(
            kind=kind,
            message=UserMessage(text),
            inbound_id=text,
            principal="owner:cli:owner",
            trust=Trust.TRUSTED,
            keeps_from=keeps_from,
        )

    await log.append("cli:other", [draft(EntryKind.USER, "elsewhere")])
    entries = await log.append("cli:a", [draft(EntryKind.USER, text) for text in "123"])
    await log.append("cli:a", [draft(EntryKind.COMPACTED, "before", entries[1].seq)])
    exported, more = await transfer.lines("cli:a", after=0, limit=99, most_chars=10**6)

    await transfer.take_in("cli:b", read_incoming(lines(*exported)))

    assert more is None
    for key in ("cli:a", "cli:b"):
        live = (await log.live(key)).entries
        shown = [entry.message.content for entry in live if entry.message is not None]
        assert shown == ["before", "2", "3"]


async def test_a_session_is_not_deleted_while_it_has_mail(database: Database) -> None:
    transfer = SessionTransfer(database, lambda: NOW)
    await transfer.take_in("cli:x", read_incoming(lines({"role": "user", "content": "hi"})))
    await database.write(
        lambda connection: connection.execute(
            "INSERT INTO inbox (id, session, channel, payload, received_at) "
            "VALUES ('1', 'cli:x', 'cli', '{}', 0)"
        )
    )

    refused = await transfer.delete("cli:x")
    await database.write(lambda connection: connection.execute("UPDATE inbox SET state = 'done'"))
    deleted = await transfer.delete("cli:x")

    assert (refused, deleted) == (None, 1)
    assert await transfer.overview() == ()
