"""What a session sees of the skills, when it changes, and what looking costs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nanobot.skills.commands import SkillCall
from nanobot.skills.eligibility import SkillsSettings, SkillsSnapshot
from nanobot.skills.loader import ALWAYS_TOTAL, SkillsLoader
from nanobot.skills.reader import ALWAYS_MAX
from tests.fakes.skills import StillClock, write_raw, write_skill

_opened: list[str] | None = None


def _note_opening(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "")


sys.addaudithook(_note_opening)


@contextmanager
def skill_files_opened() -> Iterator[list[str]]:
    """Collects the paths of all SKILL.md files opened inside the block."""
    global _opened
    found: list[str] = []
    _opened = found
    try:
        yield found
    finally:
        _opened = None
        found[:] = [path for path in found if path.endswith("SKILL.md")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspace" / "skills"


def loader_of(root: Path, *, watch: bool = True, **options: Any) -> SkillsLoader:
    defaults: dict[str, Any] = {
        "clock": StillClock(),
        "environ": {},
        "settings": SkillsSettings(watch=watch),
    }
    return SkillsLoader(root.parent, root.parent / "none", **(defaults | options))


def names(snapshot: SkillsSnapshot) -> list[str]:
    return [skill.name for skill in snapshot.skills]


def test_a_snapshot_holds_all_that_a_turn_needs(root: Path) -> None:
    write_skill(root, "always", "always: true", body="See {baseDir}/notes.md")
    write_skill(root, "usual")
    write_skill(root, "unmet", openclaw={"requires": {"env": ["KEY"]}})
    write_raw(root, "wrong", "---\nalways: perhaps\n---\n")
    loader = loader_of(root)

    snapshot = loader.snapshot_for(None)

    assert names(snapshot) == ["always", "usual"]
    assert [status.skill.name for status in snapshot.statuses] == ["always", "unmet", "usual"]
    assert [broken.name for broken in snapshot.broken] == ["wrong"]
    assert snapshot.summary == loader.build_skills_summary()
    assert snapshot.always == ("always",)
    assert [command.name for command in snapshot.commands] == ["always", "usual"]
    assert snapshot.environment == {}
    assert snapshot.readable == (root / "always", root / "usual")
    assert snapshot.always_text == (
        f"Folder of the skill always: {root}/always\n\n"
        f"### Skill: always\n\nSee {root}/always/notes.md"
    )


def test_always_skills_stand_one_below_the_other(root: Path) -> None:
    for name in ("one", "two"):
        write_skill(root, name, "always: true", body=f"Body of {name}.")

    text = loader_of(root).snapshot().always_text

    assert text == (
        f"Folder of the skill one: {root}/one\n\n### Skill: one\n\nBody of one."
        "\n\n---\n\n"
        f"Folder of the skill two: {root}/two\n\n### Skill: two\n\nBody of two."
    )


def test_an_always_skill_that_the_model_may_not_invoke_stays_out(root: Path) -> None:
    write_skill(root, "hidden", "always: true", "disable-model-invocation: true")

    assert loader_of(root).snapshot().always_text == ""


def test_a_huge_always_skill_is_cut_with_a_note(root: Path) -> None:
    path = write_skill(root, "huge", "always: true", body="a line of text\n" * 10_000)

    text = loader_of(root).snapshot().always_text

    assert ALWAYS_MAX - 100 < len(text) < ALWAYS_MAX + 500
    assert text.endswith(f"a line of text\n\n[Cut here: the rest is in {path}]")


def test_nothing_changed_gives_the_very_same_snapshot(root: Path) -> None:
    write_skill(root, "one")
    loader = loader_of(root)
    held = loader.snapshot_for(None)

    assert loader.snapshot_for(held) is held
    assert loader.snapshot() is held


def test_each_kind_of_change_is_seen_at_the_next_turn(root: Path) -> None:
    loader = loader_of(root)
    held = loader.snapshot_for(None)
    assert names(held) == []

    write_skill(root, "new")
    assert names(loader.snapshot_for(held)) == ["new"]

    write_skill(root, "new", "description: Changed.")
    assert loader.snapshot_for(held).skills[0].manifest.description == "Changed."

    (root / "new").rename(root / "renamed")
    assert names(loader.snapshot_for(held)) == ["renamed"]

    write_raw(root, "renamed", "---\nalways: perhaps\n---\n")
    assert [broken.name for broken in loader.snapshot_for(held).broken] == ["renamed"]

    (root / "renamed" / "SKILL.md").unlink()
    assert loader.snapshot_for(held) == SkillsSnapshot()


def test_the_body_of_an_always_skill_is_seen_to_change(root: Path) -> None:
    write_skill(root, "always", "always: true", body="Before.")
    loader = loader_of(root)
    held = loader.snapshot_for(None)

    write_skill(root, "always", "always: true", body="After!!")

    assert loader.snapshot_for(held).always_text.endswith("After!!")


def test_a_changed_body_that_is_not_in_the_prompt_changes_no_snapshot(root: Path) -> None:
    write_skill(root, "usual", body="Before.")
    loader = loader_of(root)
    held = loader.snapshot_for(None)

    write_skill(root, "usual", body="After, and longer.")

    assert loader.snapshot_for(held) is held
    assert "After" in SkillCall(held.commands[0], "").instruction()


def test_a_rewrite_with_the_size_and_times_of_before_is_seen(root: Path) -> None:
    path = write_skill(root, "same", "description: Old.")
    loader = SkillsLoader(root.parent, root.parent / "none")
    times = path.stat()
    held = loader.snapshot_for(None)

    for word in ("New", "Mew", "Few", "Dew"):
        write_skill(root, "same", f"description: {word}.")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        held = loader.snapshot_for(held)
        assert held.skills[0].manifest.description == f"{word}."


def test_a_retargeted_link_is_seen(tmp_path: Path, root: Path) -> None:
    for name in ("first", "second"):
        write_skill(tmp_path / "elsewhere", name, f"description: The {name}.")
    root.mkdir(parents=True)
    (root / "linked").symlink_to(tmp_path / "elsewhere" / "first")
    loader = loader_of(root)
    held = loader.snapshot_for(None)

    (root / "linked").unlink()
    (root / "linked").symlink_to(tmp_path / "elsewhere" / "second")

    assert held.skills[0].manifest.description == "The first."
    assert loader.snapshot_for(held).skills[0].manifest.description == "The second."


def test_without_watching_a_session_keeps_what_it_started_with(root: Path) -> None:
    write_skill(root, "one")
    loader = loader_of(root, watch=False)
    held = loader.snapshot_for(None)

    write_skill(root, "two")

    assert loader.snapshot_for(held) is held
    assert names(loader.snapshot_for(None)) == ["one", "two"]


def test_programs_are_looked_up_again_after_a_minute(root: Path) -> None:
    write_skill(root, "needy", openclaw={"requires": {"bins": ["ffmpeg", "cat"]}})
    write_skill(root, "other", openclaw={"requires": {"bins": ["cat"]}})
    clock = StillClock()
    installed = {"cat"}
    asked: list[str] = []

    def which(name: str) -> str | None:
        asked.append(name)
        return name if name in installed else None

    loader = loader_of(root, which=which, clock=clock)
    held = loader.snapshot_for(None)
    assert (names(held), sorted(asked)) == (["other"], ["cat", "ffmpeg"])

    installed.add("ffmpeg")
    clock.advance(seconds=59)
    assert loader.snapshot_for(held) is held
    assert len(asked) == 2

    clock.advance(seconds=1)
    held = loader.snapshot_for(held)
    assert (names(held), len(asked)) == (["needy", "other"], 4)

    clock.advance(seconds=60)
    assert loader.snapshot_for(held) is held
    assert len(asked) == 6


def test_programs_are_looked_up_again_when_a_skill_changes(root: Path) -> None:
    write_skill(root, "needy", openclaw={"requires": {"bins": ["ffmpeg"]}})
    installed: set[str] = set()
    loader = loader_of(root, which=lambda name: name if name in installed else None)
    held = loader.snapshot_for(None)

    installed.add("ffmpeg")
    write_skill(root, "new")

    assert (names(held), names(loader.snapshot_for(held))) == ([], ["needy", "new"])


def test_nothing_is_read_before_it_is_asked_for(root: Path) -> None:
    write_skill(root, "one")

    with skill_files_opened() as opened:
        loader = loader_of(root)
        assert opened == []
        loader.snapshot()

    assert opened == [str(root / "one" / "SKILL.md")]


def test_of_a_thousand_skills_only_the_changed_one_is_read_again(root: Path) -> None:
    for number in range(1000):
        write_skill(root, f"skill-{number:03}", body="x" * 100)
    loader = loader_of(root)
    held = loader.snapshot_for(None)

    with skill_files_opened() as opened:
        assert loader.snapshot_for(held) is held
    assert opened == []

    changed = write_skill(root, "skill-500", "description: Changed.")
    with skill_files_opened() as opened:
        assert loader.snapshot_for(held) is not held
    assert opened == [str(changed)]


def test_a_young_file_is_read_again_until_it_has_settled(root: Path) -> None:
    path = write_skill(root, "young")
    clock = StillClock()
    written = path.stat().st_ctime
    clock.now = clock.now.fromtimestamp(written + 1.9, clock.now.tzinfo)
    loader = loader_of(root, clock=clock)
    held = loader.snapshot_for(None)

    counts = []
    for seconds in (0, 0.2, 1):
        clock.advance(seconds=seconds)
        with skill_files_opened() as opened:
            assert loader.snapshot_for(held) is held
        counts.append(len(opened))

    assert counts == [1, 1, 0]


def test_threads_that_look_at_once_see_the_same(root: Path) -> None:
    for number in range(50):
        write_skill(root, f"skill-{number}")
    loader = loader_of(root)
    barrier = threading.Barrier(8)
    seen: list[SkillsSnapshot] = []

    def look() -> None:
        barrier.wait()
        seen.append(loader.snapshot_for(None))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 8
    assert all(snapshot is seen[0] for snapshot in seen)


def test_many_always_skills_together_do_not_flood_the_prompt(root: Path) -> None:
    paths = [
        write_skill(root, f"one-{number}", "always: true", body=f"{number} " * 10_000)
        for number in range(9)
    ]

    text = loader_of(root).snapshot().always_text

    assert len(text) < ALWAYS_TOTAL + 9 * 200
    assert "### Skill: one-0\n\n0 0 " in text
    assert text.endswith(f"### Skill: one-8\n\n[Left out for its length: read {paths[-1]}]")
