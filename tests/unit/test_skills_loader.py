"""The documented interface of SkillsLoader, as existing callers use it."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.text import text_tokens
from nanobot.skills.catalogue import section_tokens
from nanobot.skills.commands import SkillCall
from nanobot.skills.eligibility import CATALOGUE_TOKENS, SkillsSettings
from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.loader import SkillsLoader
from tests.fakes.skills import write_raw, write_skill


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture
def builtin(tmp_path: Path) -> Path:
    return tmp_path / "builtin"


def test_no_skills_at_all_give_empty_answers(workspace: Path, builtin: Path) -> None:
    loader = SkillsLoader(workspace, builtin)

    assert loader.list_skills() == []
    assert loader.build_skills_summary() == ""
    assert loader.get_always_skills() == []
    assert loader.load_skills_for_context([]) == ""
    assert loader.load_skill("absent") is None
    assert loader.get_skill_metadata("absent") is None
    assert loader.snapshot_for(None).broken == ()


def test_skills_are_listed_by_folder_name_with_path_and_source(
    tmp_path: Path, workspace: Path, builtin: Path
) -> None:
    paths = {
        "workspace": write_skill(workspace / "skills", "delta"),
        "shared": write_skill(tmp_path / "shared", "charlie"),
        "builtin": write_skill(builtin, "bravo"),
        "extra": write_skill(tmp_path / "extra", "alpha"),
    }
    loader = SkillsLoader(
        workspace,
        builtin,
        settings=SkillsSettings(shared_dir=tmp_path / "shared", extra_dirs=[tmp_path / "extra"]),
    )

    assert loader.list_skills() == [
        {"name": "alpha", "path": str(paths["extra"]), "source": "extra"},
        {"name": "bravo", "path": str(paths["builtin"]), "source": "builtin"},
        {"name": "charlie", "path": str(paths["shared"]), "source": "shared"},
        {"name": "delta", "path": str(paths["workspace"]), "source": "workspace"},
    ]


def test_of_the_same_name_the_higher_source_wins(
    tmp_path: Path, workspace: Path, builtin: Path
) -> None:
    roots = {
        "workspace": workspace / "skills",
        "shared": tmp_path / "shared",
        "builtin": builtin,
        "extra": tmp_path / "extra",
    }
    for root in roots.values():
        write_skill(root, "same")
    loader = SkillsLoader(
        workspace,
        builtin,
        settings=SkillsSettings(shared_dir=roots["shared"], extra_dirs=[roots["extra"]]),
    )

    winners = []
    for source, root in roots.items():
        winners.append(loader.list_skills()[0]["source"])
        (root / "same" / "SKILL.md").unlink()
        assert winners[-1] == source
    assert loader.list_skills() == []


def test_a_loader_without_a_builtin_folder_has_the_shipped_skills(workspace: Path) -> None:
    loader = SkillsLoader(workspace)

    assert {"memory"} <= {skill["name"] for skill in loader.list_skills()}
    assert loader.snapshot_for(None).broken == ()


def test_only_usable_skills_are_listed_unless_all_are_asked_for(
    workspace: Path, builtin: Path
) -> None:
    write_skill(builtin, "usable")
    write_skill(builtin, "unmet", openclaw={"requires": {"bins": ["no-such-program"]}})
    write_raw(builtin, "broken", "---\nalways: perhaps\n---\n")
    loader = SkillsLoader(workspace, builtin, which=lambda _: None)

    assert [skill["name"] for skill in loader.list_skills()] == ["usable"]
    assert [skill["name"] for skill in loader.list_skills(filter_unavailable=False)] == [
        "broken",
        "unmet",
        "usable",
    ]


def test_load_skill_gives_the_whole_file(workspace: Path, builtin: Path) -> None:
    path = write_skill(builtin, "whole", "homepage: https://example.org", body="# Title\n\nText é.")
    loader = SkillsLoader(workspace, builtin)

    assert loader.load_skill("whole") == path.read_text(encoding="utf-8")


def test_load_skill_reads_unavailable_and_broken_skills_too(workspace: Path, builtin: Path) -> None:
    unmet = write_skill(builtin, "unmet", openclaw={"requires": {"bins": ["no-such-program"]}})
    broken = write_raw(builtin, "broken", "---\nalways: perhaps\n---\ntext")
    loader = SkillsLoader(workspace, builtin, which=lambda _: None)

    assert loader.load_skill("unmet") == unmet.read_text()
    assert loader.load_skill("broken") == broken.read_text()


@pytest.mark.parametrize("name", ["../secret", "nested/inner", "", ".", "..", "a\x00b"])
def test_load_skill_takes_names_and_not_paths(workspace: Path, builtin: Path, name: str) -> None:
    write_raw(workspace, "secret", "---\ndescription: d\n---\n")
    write_skill(workspace / "skills" / "nested", "inner")
    loader = SkillsLoader(workspace, builtin)

    assert loader.load_skill(name) is None


def test_bodies_for_the_context_have_headings_and_separators(
    workspace: Path, builtin: Path
) -> None:
    write_skill(builtin, "one", body="First body.\n\n---\n\nafter a rule")
    write_skill(builtin, "two", body="Run {baseDir}/scripts/go.py")
    loader = SkillsLoader(workspace, builtin)

    assert loader.load_skills_for_context(["two", "unknown", "one"]) == (
        f"### Skill: two\n\nRun {builtin}/two/scripts/go.py"
        "\n\n---\n\n"
        "### Skill: one\n\nFirst body.\n\n---\n\nafter a rule"
    )


def test_the_summary_is_this_xml(workspace: Path, builtin: Path) -> None:
    weather = write_skill(builtin, "weather", "description: Weather now & later, <anywhere>.")
    transcode = write_skill(
        builtin,
        "transcode",
        "description: Convert media.",
        openclaw={
            "requires": {
                "bins": ["ffmpeg", "cat"],
                "anyBins": ["sox", "play"],
                "env": ["MEDIA_DIR"],
                "config": ["media.quality"],
            }
        },
    )
    loader = SkillsLoader(
        workspace, builtin, environ={}, which=lambda name: "/bin/cat" if name == "cat" else None
    )

    assert (
        loader.build_skills_summary()
        == f"""\
<skills>
  <skill available="false">
    <name>transcode</name>
    <description>Convert media.</description>
    <location>{transcode}</location>
    <requires>CLI: ffmpeg, CLI: sox|play, ENV: MEDIA_DIR, CONFIG: media.quality</requires>
  </skill>
  <skill available="true">
    <name>weather</name>
    <description>Weather now &amp; later, &lt;anywhere&gt;.</description>
    <location>{weather}</location>
  </skill>
</skills>"""
    )


@given(description=st.text(min_size=1))
def test_any_description_makes_a_summary_that_is_xml(
    tmp_path_factory: pytest.TempPathFactory, description: str
) -> None:
    root = tmp_path_factory.mktemp("builtin")
    quoted = "".join(f"\\U{ord(letter):08x}" for letter in description if letter.isprintable())
    write_skill(root, "any", f'description: "{quoted}"')
    loader = SkillsLoader(root / "none", root)

    listed = ElementTree.fromstring(loader.build_skills_summary())

    words = "".join(letter for letter in description if letter.isprintable()).split()
    assert listed.findtext("skill/description") == (" ".join(words) or "any")


def test_the_summary_leaves_out_what_the_model_may_not_or_cannot_ever_use(
    workspace: Path, builtin: Path
) -> None:
    write_skill(builtin, "hidden", "disable-model-invocation: true")
    write_skill(builtin, "elsewhere", openclaw={"os": ["darwin"]})
    loader = SkillsLoader(workspace, builtin, platform="linux")

    assert loader.build_skills_summary() == ""
    assert [skill["name"] for skill in loader.list_skills()] == ["hidden"]


def test_the_cost_of_each_skill_is_the_estimate_of_its_entry(
    workspace: Path, builtin: Path
) -> None:
    write_skill(builtin, "one", "description: Über & Größe.")
    write_skill(builtin, "two", openclaw={"requires": {"env": ["KEY"]}})
    snapshot = SkillsLoader(workspace, builtin, environ={}).snapshot()

    entries = re.findall(r"^  <skill .*?^  </skill>\n", snapshot.summary, re.DOTALL | re.MULTILINE)
    assert list(snapshot.costs) == ["one", "two"]
    assert list(snapshot.costs.values()) == [text_tokens(entry) for entry in entries]


@pytest.mark.parametrize("count", [1, 20, 70, 140, 400, 3000])
def test_the_section_of_skills_keeps_within_its_cap(
    tmp_path: Path, workspace: Path, builtin: Path, count: int
) -> None:
    write_skill(builtin, "weather", "description: Weather, for any place.")
    for number in range(count):
        write_skill(workspace / "skills", f"skill-{number:04}", f"description: {'Does it. ' * 30}")
    snapshot = SkillsLoader(
        workspace, builtin, settings=SkillsSettings(catalogue=tmp_path / "c" / "skills.txt")
    ).snapshot()

    assert section_tokens(snapshot) <= CATALOGUE_TOKENS
    assert "Weather, for any place." in snapshot.summary
    assert (snapshot.catalogue is None) == (count <= 20)
    if snapshot.catalogue:
        lines = snapshot.catalogue.read_text("utf-8").splitlines()
        assert len(lines) == count + 1
        path = workspace / "skills" / "skill-0000" / "SKILL.md"
        assert lines[0] == f"- skill-0000 [{path}]: {('Does it. ' * 30).strip()}"


def test_a_catalogue_that_cannot_be_written_costs_no_turn(
    tmp_path: Path, workspace: Path, builtin: Path
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    for number in range(200):
        write_skill(builtin, f"skill-{number:04}", f"description: {'Does it. ' * 30}")
    loader = SkillsLoader(
        workspace, builtin, settings=SkillsSettings(catalogue=tmp_path / "file" / "skills.txt")
    )

    assert loader.snapshot().catalogue is None
    assert "skill-0000" in loader.snapshot().summary


def test_always_skills_are_named_unless_a_requirement_is_unmet(
    workspace: Path, builtin: Path
) -> None:
    write_skill(builtin, "always", "always: true")
    write_skill(builtin, "sometimes")
    write_skill(
        builtin, "unmet", "always: true", openclaw={"requires": {"bins": ["no-such-program"]}}
    )
    loader = SkillsLoader(workspace, builtin, which=lambda _: None)

    assert loader.get_always_skills() == ["always"]


def test_metadata_is_the_frontmatter_as_plain_values(workspace: Path, builtin: Path) -> None:
    write_raw(
        builtin,
        "typed",
        "---\nname: typed\ndescription: 'A: b'\nalways: false\nversion: 3\nratio: 0.5\n"
        'nothing:\ntags: [a, b]\nmetadata: {"nanobot": {"emoji": "🦊"}}\n---\nbody',
    )
    write_raw(builtin, "bare", "no frontmatter here")
    loader = SkillsLoader(workspace, builtin)

    assert loader.get_skill_metadata("typed") == {
        "name": "typed",
        "description": "A: b",
        "always": False,
        "version": 3,
        "ratio": 0.5,
        "nothing": None,
        "tags": ["a", "b"],
        "metadata": {"nanobot": {"emoji": "🦊"}},
    }
    assert loader.get_skill_metadata("bare") is None


def test_the_interface_sees_what_was_written_a_moment_ago(workspace: Path, builtin: Path) -> None:
    loader = SkillsLoader(workspace, builtin)
    assert loader.list_skills() == []

    write_skill(workspace / "skills", "fresh")

    assert [skill["name"] for skill in loader.list_skills()] == ["fresh"]


def test_a_broken_skill_says_why_and_breaks_nothing_else(workspace: Path, builtin: Path) -> None:
    write_skill(builtin, "fine")
    path = write_raw(builtin, "broken", "---\nname: [unclosed\nalways: perhaps\n---\n")
    loader = SkillsLoader(workspace, builtin)

    [broken] = loader.snapshot_for(None).broken
    assert (broken.name, broken.source.value, broken.path, broken.reason) == (
        "broken",
        "builtin",
        path,
        "always: expected true or false, found 'perhaps'"
        " (as YAML: did not find expected ',' or ']' (line 3))",
    )
    assert [skill["name"] for skill in loader.list_skills()] == ["fine"]


def test_a_broken_skill_does_not_hide_a_working_one_below(workspace: Path, builtin: Path) -> None:
    write_raw(workspace / "skills", "memory", "---\nalways: perhaps\n---\n")
    working = write_skill(builtin, "memory")
    loader = SkillsLoader(workspace, builtin)

    assert loader.list_skills(filter_unavailable=False) == [
        {"name": "memory", "path": str(working), "source": "builtin"}
    ]
    assert [broken.source.value for broken in loader.snapshot_for(None).broken] == ["workspace"]


def test_other_files_hidden_folders_and_nested_skills_are_no_skills(
    workspace: Path, builtin: Path
) -> None:
    root = workspace / "skills"
    write_skill(root, "real")
    write_skill(root / "real" / "examples", "inner")
    write_skill(root / "group", "nested")
    write_skill(root, ".git")
    (root / "README.md").write_text("not a skill")
    (root / "empty").mkdir()
    loader = SkillsLoader(workspace, builtin)

    assert [skill["name"] for skill in loader.list_skills(filter_unavailable=False)] == ["real"]
    assert loader.snapshot_for(None).broken == ()


def test_a_linked_folder_is_a_skill_whose_target_is_readable(
    tmp_path: Path, workspace: Path, builtin: Path
) -> None:
    write_skill(tmp_path / "elsewhere", "original")
    (workspace / "skills").mkdir(parents=True)
    (workspace / "skills" / "linked").symlink_to(tmp_path / "elsewhere" / "original")
    loader = SkillsLoader(workspace, builtin)

    assert [skill["name"] for skill in loader.list_skills()] == ["linked"]
    assert loader.snapshot().readable == (tmp_path / "elsewhere" / "original",)


def test_a_linked_skill_file_may_be_a_skill_file_elsewhere_and_nothing_else(
    tmp_path: Path, workspace: Path, builtin: Path
) -> None:
    original = write_skill(tmp_path / "elsewhere", "original")
    secret = tmp_path / "config.json"
    secret.write_text('{"apiKey": "sk-fake-0"}')
    for name, target in (("linked", original), ("leaking", secret)):
        (workspace / "skills" / name).mkdir(parents=True)
        (workspace / "skills" / name / "SKILL.md").symlink_to(target)
    loader = SkillsLoader(workspace, builtin)

    assert [skill["name"] for skill in loader.list_skills()] == ["linked"]
    assert loader.snapshot().readable == (workspace / "skills" / "linked", original)
    assert [(broken.name, broken.reason) for broken in loader.snapshot_for(None).broken] == [
        ("leaking", "SKILL.md is a link to another kind of file outside its folder")
    ]
    assert loader.load_skill("leaking") is None


def test_a_file_swapped_for_a_link_after_it_was_found_is_not_read(
    tmp_path: Path, workspace: Path, builtin: Path
) -> None:
    path = write_skill(workspace / "skills", "swapped")
    secret = tmp_path / "config.json"
    secret.write_text('{"apiKey": "sk-fake-0"}')
    loader = SkillsLoader(workspace, builtin, settings=SkillsSettings(watch=False))
    [command] = loader.snapshot().commands
    path.unlink()
    path.symlink_to(secret)

    with pytest.raises(SkillBroken, match="link to another kind of file"):
        SkillCall(command, "").instruction()


def test_links_in_circles_and_to_nowhere_are_broken_skills(workspace: Path, builtin: Path) -> None:
    root = workspace / "skills"
    write_skill(root, "fine")
    (root / "circle").symlink_to(root / "circle")
    (root / "nowhere").symlink_to(root / "gone")
    loader = SkillsLoader(workspace, builtin)

    assert [(broken.name, broken.reason) for broken in loader.snapshot_for(None).broken] == [
        ("circle", os.strerror(errno.ELOOP)),
        ("nowhere", "the folder is a link to nowhere"),
    ]
    assert [skill["name"] for skill in loader.list_skills()] == ["fine"]


def test_a_link_to_a_folder_that_holds_all_skills_is_broken(workspace: Path, builtin: Path) -> None:
    root = workspace / "skills"
    write_skill(root, "fine")
    write_raw(workspace, "skills", "---\ndescription: not one skill but all of them\n---\n")
    (root / "all").symlink_to(root)
    loader = SkillsLoader(workspace, builtin)

    assert [skill["name"] for skill in loader.list_skills()] == ["fine"]
    assert [broken.reason for broken in loader.snapshot_for(None).broken] == [
        f"its folder is {root}, which contains {root}"
    ]


def test_what_is_called_skill_md_but_is_no_file_is_broken(workspace: Path, builtin: Path) -> None:
    root = workspace / "skills"
    (root / "folder" / "SKILL.md").mkdir(parents=True)
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe" / "SKILL.md")
    loader = SkillsLoader(workspace, builtin)

    assert stat.S_ISFIFO((root / "pipe" / "SKILL.md").stat().st_mode)
    assert [(broken.name, broken.reason) for broken in loader.snapshot_for(None).broken] == [
        ("folder", f"SKILL.md cannot be read: {os.strerror(errno.EISDIR)}"),
        ("pipe", "SKILL.md is not a regular file"),
    ]


def test_a_folder_name_that_cannot_be_shown_is_broken(workspace: Path, builtin: Path) -> None:
    for name in ("line\nbreak", os.fsdecode(b"latin-\xe9")):
        write_raw(workspace / "skills", name, "---\ndescription: d\n---\n")
    loader = SkillsLoader(workspace, builtin)

    assert {broken.reason for broken in loader.snapshot_for(None).broken} == {
        "the folder's name holds characters that cannot be shown"
    }
    assert loader.build_skills_summary() == ""


def test_a_root_that_is_no_folder_is_reported(workspace: Path, builtin: Path) -> None:
    workspace.mkdir()
    (workspace / "skills").write_text("a file")
    write_skill(builtin, "fine")
    loader = SkillsLoader(workspace, builtin)

    assert [(broken.name, broken.reason) for broken in loader.snapshot_for(None).broken] == [
        ("skills", f"not listed: {os.strerror(errno.ENOTDIR)}")
    ]
    assert [skill["name"] for skill in loader.list_skills(filter_unavailable=False)] == ["fine"]
