"""The built-in skills: small in every prompt, clean to our own scan, their scripts tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nanobot.agent.skills import SkillsLoader
from nanobot.agent.skills.admin.bundle import read_archive, read_folder
from nanobot.agent.skills.admin.lint import lint
from nanobot.agent.skills.admin.scan import scan
from nanobot.store.shipped import builtin_skills_dir

SHIPPED = {"memory", "cron", "weather", "github", "summarize", "tmux", "clawhub", "skill-creator"}
SCRIPTS = builtin_skills_dir() / "skill-creator" / "scripts"


def run(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / script), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_promised_skills_ship(tmp_path: Path) -> None:
    names = {skill["name"] for skill in SkillsLoader(tmp_path).list_skills(False)}

    assert names >= SHIPPED


def test_their_part_of_every_prompt_is_small(tmp_path: Path) -> None:
    for standing in SkillsLoader(tmp_path).snapshot().standings:
        skill = standing.skill
        body = skill.path.read_text(encoding="utf-8")

        assert len(skill.description.encode()) / 4 <= 25, skill.name
        assert len(body.encode()) / 4 <= 700, skill.name


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_passes_our_own_scan_and_linter(tmp_path: Path, name: str) -> None:
    [skill] = [
        standing.skill
        for standing in SkillsLoader(tmp_path).snapshot().standings
        if standing.skill.name == name
    ]

    assert scan(read_folder(skill.folder)) == ()
    assert lint(skill) == ()


def test_the_tmux_skills_commands_do_what_it_says(tmp_path: Path) -> None:
    text = (builtin_skills_dir() / "tmux" / "SKILL.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8"}

    result = subprocess.run(
        ["timeout", "30", "bash", "-c", block],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert ">>> print(6 * 7)\n42\n" in result.stdout


def test_the_creators_scripts_make_and_pack_a_skill(tmp_path: Path) -> None:
    made = run("init_skill.py", "my-skill", "--path", "skills", cwd=tmp_path)
    packed = run("package_skill.py", "skills/my-skill", cwd=tmp_path)

    assert (made.returncode, made.stdout) == (0, "skills/my-skill/SKILL.md\n")
    assert (packed.returncode, packed.stdout) == (0, "my-skill.skill\n")
    assert zipfile.ZipFile(tmp_path / "my-skill.skill").namelist() == ["my-skill/SKILL.md"]
    [skill] = SkillsLoader(tmp_path, tmp_path / "none").snapshot().skills
    assert (skill.name, skill.notes) == ("my-skill", ())


def test_what_is_packed_depends_on_the_files_alone(tmp_path: Path) -> None:
    run("init_skill.py", "good", "--path", "skills", cwd=tmp_path)
    script = tmp_path / "skills" / "good" / "scripts" / "do.sh"
    script.parent.mkdir()
    script.write_text("echo done\n", encoding="utf-8")
    script.chmod(0o755)
    os.utime(script, (0, 0))  # older than a zip can say

    first = run("package_skill.py", "skills/good", "--out", "one/deep", cwd=tmp_path)
    os.utime(script)
    again = run("package_skill.py", "skills/good", "--out", "two", cwd=tmp_path)

    assert (first.returncode, first.stdout) == (0, "one/deep/good.skill\n")
    assert (again.returncode, again.stderr) == (0, "")
    packed = (tmp_path / "one" / "deep" / "good.skill").read_bytes()
    assert packed == (tmp_path / "two" / "good.skill").read_bytes()
    assert read_archive(packed)["good/scripts/do.sh"].executable


def test_the_creators_scripts_refuse_what_is_wrong(tmp_path: Path) -> None:
    run("init_skill.py", "good", "--path", "skills", cwd=tmp_path)
    (tmp_path / "skills" / "good" / "key").symlink_to("/etc/passwd")
    (tmp_path / "empty").mkdir()

    results = [
        run("init_skill.py", "../evil", "--path", "skills", cwd=tmp_path),
        run("init_skill.py", "good", "--path", "skills", cwd=tmp_path),
        run("package_skill.py", "skills/good", cwd=tmp_path),
        run("package_skill.py", "empty", cwd=tmp_path),
    ]

    assert [result.returncode for result in results] == [1, 1, 1, 1]
    assert "is a link" in results[2].stderr
    assert not list(tmp_path.glob("*.skill"))
