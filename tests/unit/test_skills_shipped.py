"""The built-in skills: small in every prompt, clean to our own scan, their scripts tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nanobot.skills.eligibility import SkillOverride, SkillsSettings
from nanobot.skills.install.bundle import read_archive, read_folder
from nanobot.skills.install.package import lint
from nanobot.skills.install.scan import scan
from nanobot.skills.loader import SkillsLoader
from nanobot.skills.reader import read_body
from nanobot.store.home import builtin_skills_dir

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
    for status in SkillsLoader(tmp_path).snapshot().statuses:
        skill = status.skill
        body = skill.path.read_text(encoding="utf-8")

        assert len(skill.manifest.description.encode()) / 4 <= 25, skill.name
        assert len(body.encode()) / 4 <= 700, skill.name


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_passes_our_own_scan_and_linter(tmp_path: Path, name: str) -> None:
    [skill] = [
        status.skill
        for status in SkillsLoader(tmp_path).snapshot().statuses
        if status.skill.name == name
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
    assert (skill.name, skill.manifest.notes) == ("my-skill", ())


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


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_description_says_on_what_occasions_the_skill_is_for(
    tmp_path: Path, name: str
) -> None:
    statuses = SkillsLoader(tmp_path).snapshot().statuses
    [skill] = [one.skill for one in statuses if one.skill.name == name]

    assert re.search(r"\. Use (when|for) \S+ \S+", skill.manifest.description)
    assert run("check_skill.py", str(skill.folder), cwd=tmp_path).stdout == f"{name}: in order\n"


def test_the_weather_needs_no_program(tmp_path: Path) -> None:
    loader = SkillsLoader(tmp_path, which=lambda _: None)
    ready = {skill.name: skill for skill in loader.snapshot().skills}

    assert {"weather", "clawhub", "summarize"} <= set(ready)
    assert "`web_fetch`" in read_body(ready["weather"])


def test_the_github_skills_token_reaches_gh_where_no_login_does(tmp_path: Path) -> None:
    token = "fake-github-token-0000"
    loader = SkillsLoader(
        tmp_path,
        settings=SkillsSettings(entries={"github": SkillOverride(api_key=token)}),
        environ={},
        which=lambda name: f"/usr/bin/{name}",
    )
    snapshot = loader.snapshot()
    [github] = [skill for skill in snapshot.skills if skill.name == "github"]

    assert snapshot.environment == {"GH_TOKEN": token}
    assert "nanobot config set skills.entries.github.apiKey -" in read_body(github)


def test_the_creator_says_what_is_wrong_with_a_skill(tmp_path: Path) -> None:
    run("init_skill.py", "fresh", "--path", ".", cwd=tmp_path)
    header = "name: Bad_Name\ndescription: Tells: all\nmetadata: {'nanobot': {}}"
    for name, text in {
        "wrong": f"---\n{header}\n---\nDo it.\n",
        "vague": "---\nname: vague\ndescription: Does things.\n---\nRun {baseDir}/x.sh.\n",
        "bare": "Do it.\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(text, encoding="utf-8")

    found = {
        name: run("check_skill.py", name, cwd=tmp_path)
        for name in ("fresh", "wrong", "vague", "bare", "absent")
    }
    packed = run("package_skill.py", "wrong", cwd=tmp_path)

    assert [done.returncode for done in found.values()] == [1] * 5
    assert found["fresh"].stdout == "the description is not written yet\n"
    assert found["wrong"].stdout.splitlines()[:3] == [
        "the name Bad_Name is not the folder's (wrong)",
        "the name Bad_Name has more than lower-case letters, digits, single hyphens",
        "description needs quotes: YAML would read it differently",
    ]
    assert "metadata is not JSON" in found["wrong"].stdout
    assert found["vague"].stdout.splitlines() == [
        "the description does not say when to use the skill",
        "x.sh is named in the body, but it is not there",
    ]
    assert "does not begin with frontmatter" in found["bare"].stdout
    assert packed.returncode == 1 and "needs quotes" in packed.stderr
