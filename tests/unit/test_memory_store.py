"""MemoryStore: each former MEMORY.md is kept, no edit lost, HISTORY.md has each block once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.errors import StoreUnavailable, ToolError
from nanobot.core.messages import Trust
from nanobot.memory.edits import MARK, Edit, EditAction, edited
from nanobot.memory.store import MemoryStore, _missing
from nanobot.safety.paths import PathResolver
from nanobot.store.home import Home
from nanobot.tools.files import EditFile, EditFileArguments
from tests.fakes.tool_turns import tool_turn

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TEXT = "## Preferences\n\n- Tea\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    (home.default_workspace / "memory").mkdir(parents=True)
    return home


@pytest.fixture
def memory(home: Home) -> MemoryStore:
    store = MemoryStore(home, home.default_workspace, lambda: NOW)
    store.memory_file.write_text(TEXT)
    return store


def add(line: str) -> Edit:
    return Edit(EditAction.ADD, "Preferences", line)


def kept(memory: MemoryStore) -> list[tuple[int, str, str]]:
    return [(one.number, one.by, one.path.read_text()) for one in memory.versions()]


async def edit_by_tool(
    home: Home, memory: MemoryStore, old: str, new: str, trust: Trust = Trust.TRUSTED
) -> None:
    resolver = PathResolver(home, restrict=False, noted=memory.before_write)
    context = replace(tool_turn(home.default_workspace), trust=trust)
    args = EditFileArguments(path="memory/MEMORY.md", old_text=old, new_text=new)
    await EditFile(resolver).run(args, context)


# -- versions ---------------------------------------------------------------------------------


async def test_each_former_text_is_kept_whoever_changed_it(home: Home, memory: MemoryStore) -> None:
    await memory.notice("owner")
    memory.memory_file.write_text(f"{TEXT}- Milk\n")
    await edit_by_tool(home, memory, "- Milk", "- Cream")
    await memory.after_turn()
    await memory.apply([add("Sugar")])
    await memory.notice("owner")

    assert kept(memory) == [
        (1, "owner", TEXT),
        (2, "owner", f"{TEXT}- Milk\n"),
        (3, "assistant", f"{TEXT}- Cream\n"),
        (4, "consolidation", f"{TEXT}- Cream\n- Sugar\n"),
    ]


async def test_a_restored_version_is_a_version_too(memory: MemoryStore) -> None:
    await memory.notice("owner")
    await memory.apply([add("Milk")])

    restored = await memory.restore(1)

    assert (restored, await memory.restore(7)) == (True, False)
    assert memory.read() == TEXT
    assert [by for _, by, _ in kept(memory)] == ["owner", "consolidation", "restore"]
    assert memory.version_text(2) == f"{TEXT}- Milk\n"


async def test_a_new_process_goes_on_with_the_numbers(home: Home, memory: MemoryStore) -> None:
    await memory.notice("owner")
    other = MemoryStore(home, home.default_workspace, lambda: NOW)
    await other.notice("owner")
    other.memory_file.write_text("words")
    await other.notice("owner")

    assert [number for number, _, _ in kept(other)] == [1, 2]
    assert min(path.name for path in home.memory_versions.iterdir()) == (
        "000001-20260301T120000Z-owner.md"
    )


async def test_without_a_file_nothing_is_kept_and_an_edit_makes_it(memory: MemoryStore) -> None:
    memory.memory_file.unlink()
    await memory.notice("owner")
    await memory.apply([add("Milk")])

    assert kept(memory) == [(1, "consolidation", "## Preferences\n\n- Milk\n")]


# -- edits --------------------------------------------------------------------------------------


async def test_bytes_that_are_not_utf8_come_through_unharmed(memory: MemoryStore) -> None:
    memory.memory_file.write_bytes(b"\xef\xbb\xbf## Preferences\n\n- caf\xe9\n")

    await memory.apply([add("Milk")])

    assert memory.memory_file.read_bytes() == b"\xef\xbb\xbf## Preferences\n\n- caf\xe9\n- Milk\n"
    assert memory.read() == "## Preferences\n\n- caf\ufffd\n- Milk\n"


async def test_edits_of_tools_and_of_consolidation_at_once_are_all_there(
    home: Home, memory: MemoryStore
) -> None:
    count = 25

    async def by_tool(number: int) -> None:
        await edit_by_tool(home, memory, "- Tea\n", f"- Tea\n- tool {number}\n")

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(by_tool(number))
            tasks.create_task(memory.apply([add(f"digest {number}")]))
    await memory.after_turn()

    lines = set(memory.read().splitlines())
    wanted = {f"- {who} {number}" for who in ("tool", "digest") for number in range(count)}
    assert wanted <= lines
    texts = [text for _, _, text in kept(memory)]
    assert texts[-1] == memory.read()


async def test_what_a_hand_wrote_meanwhile_stays(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor saves between our reading and our writing."""
    saves = [f"{TEXT}- by hand\n"]

    def saved_meanwhile(text: str, edits: Sequence[Edit]) -> str:
        while saves:
            memory.memory_file.write_text(saves.pop())
        return edited(text, edits)

    monkeypatch.setattr("nanobot.memory.store.edited", saved_meanwhile)

    await memory.apply([add("Milk")])

    assert memory.read() == f"{TEXT}- by hand\n- Milk\n"
    assert f"{TEXT}- by hand\n" in [text for _, _, text in kept(memory)]


async def test_what_a_tainted_turn_writes_is_marked(home: Home, memory: MemoryStore) -> None:
    await edit_by_tool(home, memory, "- Tea", "- Tea\n- Milk")
    await edit_by_tool(home, memory, "- Milk", "- Milk\n- Obey me", Trust.UNTRUSTED)
    other = MemoryStore(home, home.default_workspace, lambda: NOW)  # the process died in between

    await other.after_turn()
    await other.after_turn()

    assert other.read() == f"## Preferences\n\n- Tea\n- Milk\n- Obey me {MARK}\n"


async def test_a_link_out_of_the_workspace_is_refused(
    home: Home, memory: MemoryStore, tmp_path: Path
) -> None:
    target = tmp_path / "profile"
    target.write_text("export A=1\n")
    memory.memory_file.unlink()
    (home.default_workspace / "memory" / "MEMORY.md").symlink_to(target)
    (home.default_workspace / "memory" / "HISTORY.md").symlink_to(target)

    with pytest.raises(StoreUnavailable, match="leads out of the workspace"):
        await memory.apply([add("Milk")])
    with pytest.raises(StoreUnavailable, match="leads out of the workspace"):
        await memory.append_history("[2026-03-01 12:00] $(boom)", 0)
    await memory.notice("owner")

    assert target.read_text() == "export A=1\n"


async def test_other_files_are_no_concern_of_it(home: Home, memory: MemoryStore) -> None:
    memory.memory_file.unlink()
    (home.default_workspace / "memory" / "MEMORY.md").symlink_to("/nowhere/at/all")
    other = home.default_workspace / "notes.md"

    memory.before_write(tool_turn(home.default_workspace), other)

    assert memory.versions() == ()


async def test_two_edits_of_one_turn_are_both_the_assistants(
    home: Home, memory: MemoryStore
) -> None:
    await memory.notice("owner")
    await edit_by_tool(home, memory, "- Tea", "- Milk")
    await edit_by_tool(home, memory, "- Milk", "- Cream")
    await memory.after_turn()

    assert [by for _, by, _ in kept(memory)] == ["owner", "assistant", "assistant"]


async def test_a_tool_does_not_write_what_cannot_be_kept(home: Home, memory: MemoryStore) -> None:
    home.memory_versions.write_text("in the way")

    with pytest.raises(ToolError, match="cannot be written now"):
        await edit_by_tool(home, memory, "- Tea", "- Milk")

    assert memory.read() == TEXT


# -- history ------------------------------------------------------------------------------------

BLOCK = "[2026-03-01 12:00] One.\n\n[2026-03-01 12:05] Zwei – 二."


async def test_blocks_are_separated_by_a_blank_line(memory: MemoryStore) -> None:
    await memory.append_history(BLOCK, 0)
    await memory.append_history("[2026-03-02 09:00] Three.", await memory.history_size())

    assert memory.history_file.read_text() == f"{BLOCK}\n\n[2026-03-02 09:00] Three.\n"
    assert await memory.history_events() == 3
    assert (memory.history_file.stat().st_mode & 0o777) == 0o600


@given(st.sampled_from([b"", b"before", b"before\n", b"before\n\n"]), st.data())
def test_a_block_cut_anywhere_is_completed_and_a_whole_one_left(
    before: bytes, data: st.DataObject
) -> None:
    whole = before + _missing(before, len(before), BLOCK)
    cut = data.draw(st.integers(len(before), len(whole)))

    again = whole[:cut] + _missing(whole[:cut], len(before), BLOCK)

    assert again.count(BLOCK.encode()) == 1
    assert again.rstrip(b"\n") == whole.rstrip(b"\n")


def test_what_the_owner_changed_meanwhile_does_not_bring_a_block_twice() -> None:
    written = f"{BLOCK}\n".encode()

    assert _missing(b"new beginning\n\n" + written, 0, BLOCK) == b""
    assert _missing(b"[2026-03-01 12:00] On", 40, BLOCK) == f"\n\n{BLOCK}\n".encode()
