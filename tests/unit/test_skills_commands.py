"""Slash commands: names that every channel takes, and what comes of one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.prompts import render
from nanobot.skills.commands import SkillCall, sanitized, slash_commands
from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.loader import SkillsLoader
from nanobot.skills.manifest import Manifest
from nanobot.skills.reader import Skill, Source
from tests.fakes.skills import write_skill


def skill(name: str, *, user_invocable: bool = True) -> Skill:
    folder = Path("/skills") / name
    return Skill(
        name=name,
        source=Source.WORKSPACE,
        folder=folder,
        path=folder / "SKILL.md",
        readable=(folder,),
        manifest=Manifest(name=name, description="d", user_invocable=user_invocable),
    )


def commands(*names: str, reserved: tuple[str, ...] = ()) -> dict[str, str]:
    found = slash_commands([skill(name) for name in names], reserved)
    return {command.name: command.skill.name for command in found}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("weather", "weather"),
        ("skill-creator", "skill_creator"),
        ("Über Größe", "uber_gro_e"),
        ("a.b--c", "a_b_c"),
        ("_private_", "private"),
        ("天气", "skill"),
        ("🦊", "skill"),
        ("x" * 40, "x" * 32),
        ("x" * 31 + "-y", "x" * 31),
    ],
)
def test_names_become_what_telegram_takes(name: str, command: str) -> None:
    assert sanitized(name) == command


@given(names=st.lists(st.text(min_size=1), unique=True, max_size=6))
def test_any_names_become_different_valid_commands_in_any_order(names: list[str]) -> None:
    found = commands(*names, reserved=("skill",))

    assert found == commands(*reversed(names), reserved=("skill",))
    assert sorted(found.values()) == sorted(names)
    assert all(re.fullmatch(r"[a-z0-9_]{1,32}", command) for command in found)
    assert "skill" not in found


def test_of_two_that_come_to_the_same_name_the_one_that_bears_it_keeps_it() -> None:
    assert commands("a-b", "a_b", "a.b") == {"a_b": "a_b", "a_b_2": "a-b", "a_b_3": "a.b"}


def test_a_number_finds_room_within_the_length() -> None:
    assert commands("x" * 32, "x" * 33) == {"x" * 32: "x" * 32, f"{'x' * 30}_2": "x" * 33}


def test_reserved_names_are_left_to_their_owner() -> None:
    assert commands("new", "stop", reserved=("new",)) == {"new_2": "new", "stop": "stop"}


def test_only_eligible_skills_that_users_may_invoke_are_commands(tmp_path: Path) -> None:
    write_skill(tmp_path, "usual")
    write_skill(tmp_path, "internal", "user-invocable: false")
    write_skill(tmp_path, "private", "disable-model-invocation: true")
    write_skill(tmp_path, "unmet", openclaw={"requires": {"bins": ["no-such-program"]}})
    write_skill(tmp_path, "help")
    loader = SkillsLoader(tmp_path / "none", tmp_path, which=lambda _: None)

    snapshot = loader.snapshot()

    assert [command.name for command in snapshot.commands] == ["help_2", "private", "usual"]
    assert snapshot.command("usual") is snapshot.commands[2]
    assert snapshot.command("internal") is None


def test_an_invocation_has_the_body_its_folder_and_the_arguments(tmp_path: Path) -> None:
    write_skill(tmp_path, "go", body="Run {baseDir}/go.sh, then {baseDir}/stop.sh.")
    loader = SkillsLoader(tmp_path / "none", tmp_path)
    [command] = loader.snapshot().commands

    instruction = SkillCall(command, "to the  {baseDir} moon ").instruction()

    assert instruction == render.skill_command(
        command="go",
        skill="go",
        folder=tmp_path / "go",
        body=f"Run {tmp_path}/go/go.sh, then {tmp_path}/go/stop.sh.",
        arguments="to the  {baseDir} moon ",
    )


def test_invoking_a_skill_that_is_gone_says_so(tmp_path: Path) -> None:
    path = write_skill(tmp_path, "gone")
    loader = SkillsLoader(tmp_path / "none", tmp_path)
    [command] = loader.snapshot().commands
    path.unlink()

    with pytest.raises(SkillBroken, match="No such file"):
        SkillCall(command, "").instruction()


def test_a_dispatched_command_names_its_tool_and_its_arguments(tmp_path: Path) -> None:
    write_skill(tmp_path, "run-it", "command-dispatch: tool", "command-tool: exec")
    [command] = SkillsLoader(tmp_path / "none", tmp_path).snapshot().commands

    call = SkillCall(command, " ls -l ").tool_call("1", lambda _: {})

    assert (command.tool, call.name) == ("exec", "exec")
    assert json.loads(call.arguments) == {
        "command": " ls -l ",
        "commandName": "run_it",
        "skillName": "run-it",
    }
