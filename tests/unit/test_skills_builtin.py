"""The skills and templates that ship: sound, short, and true to the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nanobot.skills.loader import SkillsLoader
from nanobot.skills.reader import read_body
from nanobot.store.home import builtin_skills_dir, workspace_templates_dir


def tokens(text: str) -> int:
    return len(text.encode()) // 4


def template(name: str) -> str:
    return (workspace_templates_dir() / name).read_text(encoding="utf-8")


def test_every_shipped_skill_is_read_without_a_note(tmp_path: Path) -> None:
    snapshot = SkillsLoader(tmp_path).snapshot()

    folders = sorted(path.name for path in builtin_skills_dir().iterdir() if path.is_dir())
    assert [status.skill.name for status in snapshot.statuses] == folders
    assert [status.skill.manifest.notes for status in snapshot.statuses] == [()] * len(folders)
    assert snapshot.broken == ()


def test_the_memory_skill_is_always_there_and_short(tmp_path: Path) -> None:
    [memory] = [status for status in SkillsLoader(tmp_path).snapshot().statuses if status.is_always]

    body = read_body(memory.skill)

    assert memory.skill.name == "memory"
    assert tokens(body) <= 250
    for word in ("MEMORY.md", "HISTORY.md", "edit_file", "grep", "(?i)", "[YYYY-MM-DD HH:MM]"):
        assert word in body


def test_the_memory_skill_names_the_sections_of_the_memory_template(tmp_path: Path) -> None:
    loader = SkillsLoader(tmp_path)

    sections = re.findall(r"^## (.+)$", template("memory/MEMORY.md"), re.MULTILINE)

    assert sections == ["User Information", "Preferences", "Important Notes"]
    assert ", ".join(sections) in loader.load_skills_for_context(["memory"])


def test_a_new_workspace_has_these_files_and_no_others() -> None:
    root = workspace_templates_dir()

    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    assert files == [
        "AGENTS.md",
        "HEARTBEAT.md",
        "SOUL.md",
        "TOOLS.md",
        "USER.md",
        "memory/MEMORY.md",
    ]


def test_the_templates_in_every_prompt_are_short() -> None:
    texts = [template(name) for name in ("AGENTS.md", "SOUL.md", "USER.md", "TOOLS.md")]

    assert sum(tokens(text) for text in texts) <= 600


@pytest.mark.parametrize("field", ["Communication style", "Timezone", "Language"])
def test_the_user_template_asks_for_what_matters(field: str) -> None:
    assert f"- {field}:\n" in template("USER.md")


def test_the_heartbeat_template_holds_nothing_to_do() -> None:
    without_comments = re.sub(r"<!--.*?-->", "", template("HEARTBEAT.md"), flags=re.DOTALL)
    lines = [line.strip() for line in without_comments.splitlines()]

    content = [line for line in lines if line and not line.startswith("#") and line != "- [ ]"]

    assert content == []
    for line in template("HEARTBEAT.md").splitlines():
        assert line.count("<!--") == line.count("-->")


def test_texts_name_only_tools_that_exist() -> None:
    known = {
        "read_file",
        "write_file",
        "edit_file",
        "list_dir",
        "find_files",
        "grep",
        "exec",
        "recall",
    }
    later = {"web_search", "web_fetch", "message", "spawn", "cron", "process"}
    texts = [template("AGENTS.md"), template("TOOLS.md"), template("HEARTBEAT.md")]
    texts.append((builtin_skills_dir() / "memory" / "SKILL.md").read_text(encoding="utf-8"))

    named = {word for text in texts for word in re.findall(r"`([a-z_]+)`", text)}

    assert named <= known
    assert not named & later
