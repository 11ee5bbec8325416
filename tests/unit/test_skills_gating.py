"""Which skills may be used here, and the variables they bring to the commands of a turn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nanobot.skills.eligibility import SkillOverride, SkillsSettings, SkillStatus
from nanobot.skills.loader import SkillsLoader
from tests.fakes.skills import write_skill


def loader_of(
    root: Path,
    *,
    environ: Mapping[str, str] | None = None,
    platform: str = "linux",
    **settings: Any,
) -> SkillsLoader:
    return SkillsLoader(
        root / "workspace",
        root / "builtin",
        settings=SkillsSettings(**settings),
        environ=environ or {},
        platform=platform,
        which={"cat": "/bin/cat", "sox": "/bin/sox"}.get,
    )


def status_of(root: Path, name: str, **options: Any) -> SkillStatus:
    statuses = loader_of(root, **options).snapshot().statuses
    return next(status for status in statuses if status.skill.name == name)


@pytest.mark.parametrize(
    ("requires", "missing"),
    [
        ({}, ()),
        ({"bins": ["cat"]}, ()),
        ({"bins": ["cat", "ffmpeg", "jq"]}, ("CLI: ffmpeg", "CLI: jq")),
        ({"anyBins": ["play", "sox"]}, ()),
        ({"anyBins": ["play", "ffplay"]}, ("CLI: play|ffplay",)),
        ({"env": ["SET", "EMPTY", "UNSET"]}, ("ENV: EMPTY", "ENV: UNSET")),
        (
            {"config": ["media.quality", "media.off", "media", "media.quality.deeper", "gone"]},
            ("CONFIG: media.off", "CONFIG: media.quality.deeper", "CONFIG: gone"),
        ),
    ],
)
def test_what_is_missing_is_said_in_the_words_of_the_summary(
    tmp_path: Path, requires: object, missing: tuple[str, ...]
) -> None:
    write_skill(tmp_path / "builtin", "needy", openclaw={"requires": requires})

    status = status_of(
        tmp_path,
        "needy",
        environ={"SET": "1", "EMPTY": ""},
        config={"media": {"quality": "high", "off": False}},
    )

    assert (status.missing, status.is_eligible) == (missing, not missing)


@pytest.mark.parametrize(
    ("systems", "platform", "fits"),
    [
        ([], "linux", True),
        (["linux", "darwin"], "darwin", True),
        (["darwin"], "linux", False),
        (["win32"], "linux", False),
    ],
)
def test_a_skill_for_another_system_is_not_eligible(
    tmp_path: Path, systems: list[str], platform: str, fits: bool
) -> None:
    write_skill(tmp_path / "builtin", "native", openclaw={"os": systems})

    assert status_of(tmp_path, "native", platform=platform).is_eligible is fits


@pytest.mark.parametrize("space", ["openclaw", "moltbot", "clawdbot"])
def test_an_ungated_skill_is_available_whatever_its_gates_say(tmp_path: Path, space: str) -> None:
    write_skill(
        tmp_path / "builtin",
        "ungated",
        f'metadata: {{"{space}": {{"always": true, "os": ["win32"],'
        ' "requires": {"bins": ["ffmpeg"]}}}',
    )
    loader = loader_of(tmp_path)

    assert [skill["name"] for skill in loader.list_skills()] == ["ungated"]
    assert '<skill available="true">' in loader.build_skills_summary()
    assert "<requires>" not in loader.build_skills_summary()
    assert loader.get_always_skills() == []


def test_an_ungated_skill_can_still_be_switched_off(tmp_path: Path) -> None:
    write_skill(tmp_path / "builtin", "ungated", openclaw={"always": True})

    loader = loader_of(tmp_path, entries={"ungated": SkillOverride(enabled=False)})

    assert loader.list_skills() == []


def test_a_disabled_skill_is_neither_listed_nor_always_nor_a_command(tmp_path: Path) -> None:
    write_skill(tmp_path / "builtin", "off", "always: true")
    loader = loader_of(tmp_path, entries={"off": SkillOverride(enabled=False)})

    snapshot = loader.snapshot()

    assert [skill["name"] for skill in loader.list_skills(filter_unavailable=False)] == ["off"]
    assert (loader.list_skills(), snapshot.summary, snapshot.always_text) == ([], "", "")
    assert (snapshot.commands, snapshot.readable) == ((), ())


@pytest.mark.parametrize("key", ["the-key", "Declared", "folder"])
def test_the_operator_may_use_the_skill_key_the_name_or_the_folder(
    tmp_path: Path, key: str
) -> None:
    write_skill(tmp_path / "builtin", "folder", "name: Declared", openclaw={"skillKey": "the-key"})

    loader = loader_of(tmp_path, entries={key: SkillOverride(enabled=False)})

    assert loader.list_skills() == []


def test_the_skill_key_comes_before_the_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "builtin", "folder", openclaw={"skillKey": "the-key"})

    loader = loader_of(
        tmp_path,
        entries={"folder": SkillOverride(enabled=False), "the-key": SkillOverride(enabled=True)},
    )

    assert [skill["name"] for skill in loader.list_skills()] == ["folder"]


def test_allowing_bundled_skills_concerns_only_those(tmp_path: Path) -> None:
    write_skill(tmp_path / "workspace" / "skills", "mine")
    for name in ("first", "second"):
        write_skill(tmp_path / "builtin", name)
    write_skill(tmp_path / "extra", "second")

    def listed(allow_bundled: list[str] | None) -> list[tuple[str, str]]:
        loader = loader_of(tmp_path, allow_bundled=allow_bundled, extra_dirs=[tmp_path / "extra"])
        skills = loader.list_skills(filter_unavailable=False)
        return [(skill["name"], skill["source"]) for skill in skills]

    assert listed(None) == [("first", "builtin"), ("mine", "workspace"), ("second", "builtin")]
    assert listed(["first"]) == [("first", "builtin"), ("mine", "workspace"), ("second", "extra")]
    assert listed([]) == [("mine", "workspace"), ("second", "extra")]


@pytest.mark.parametrize(
    ("override", "missing"),
    [
        (SkillOverride(), ("ENV: API_KEY", "ENV: OTHER", "CONFIG: media.quality")),
        (SkillOverride(api_key="sk-fake-1"), ("ENV: OTHER", "CONFIG: media.quality")),
        (
            SkillOverride(env={"OTHER": "x", "API_KEY": ""}),
            ("ENV: API_KEY", "CONFIG: media.quality"),
        ),
        (SkillOverride(config={"media": {"quality": 3}}), ("ENV: API_KEY", "ENV: OTHER")),
    ],
)
def test_keys_variables_and_config_of_the_operator_satisfy_requirements(
    tmp_path: Path, override: SkillOverride, missing: tuple[str, ...]
) -> None:
    write_skill(
        tmp_path / "builtin",
        "needy",
        openclaw={
            "primaryEnv": "API_KEY",
            "requires": {"env": ["API_KEY", "OTHER"], "config": ["media.quality"]},
        },
    )

    assert status_of(tmp_path, "needy", entries={"needy": override}).missing == missing


def environment_of(
    root: Path, entries: Mapping[str, SkillOverride], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    snapshot = loader_of(root, entries=entries, environ=environ).snapshot()
    return dict(snapshot.environment)


def test_commands_get_the_variables_of_eligible_skills_alone(tmp_path: Path) -> None:
    write_skill(tmp_path / "builtin", "keyed", openclaw={"primaryEnv": "API_KEY"})
    write_skill(tmp_path / "builtin", "unmet", openclaw={"requires": {"bins": ["ffmpeg"]}})
    write_skill(tmp_path / "builtin", "off")

    environment = environment_of(
        tmp_path,
        {
            "keyed": SkillOverride(api_key="sk-fake-1", env={"REGION": "north", "NONE": ""}),
            "unmet": SkillOverride(env={"UNMET": "1"}),
            "off": SkillOverride(enabled=False, env={"OFF": "1"}),
            "absent": SkillOverride(env={"ABSENT": "1"}),
        },
    )

    assert environment == {"REGION": "north", "API_KEY": "sk-fake-1"}


def test_a_variable_that_is_set_already_keeps_its_value(tmp_path: Path) -> None:
    write_skill(tmp_path / "builtin", "keyed", openclaw={"primaryEnv": "API_KEY"})
    override = SkillOverride(api_key="sk-fake-1", env={"REGION": "north", "ZONE": "a"})

    environment = environment_of(
        tmp_path, {"keyed": override}, {"API_KEY": "sk-fake-2", "REGION": "south", "ZONE": ""}
    )

    assert environment == {"API_KEY": "sk-fake-2", "REGION": "south", "ZONE": "a"}


def test_env_comes_before_the_key_and_the_first_skill_before_the_second(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        write_skill(tmp_path / "builtin", name, openclaw={"primaryEnv": "API_KEY"})

    environment = environment_of(
        tmp_path,
        {
            "beta": SkillOverride(api_key="sk-fake-3", env={"BOTH": "beta"}),
            "alpha": SkillOverride(
                api_key="sk-fake-1", env={"API_KEY": "sk-fake-2", "BOTH": "alpha"}
            ),
        },
    )

    assert environment == {"API_KEY": "sk-fake-2", "BOTH": "alpha"}


def test_the_environment_of_the_process_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKILLS_TEST_KEY", raising=False)
    write_skill(tmp_path / "builtin", "keyed", openclaw={"primaryEnv": "SKILLS_TEST_KEY"})
    settings = SkillsSettings(entries={"keyed": SkillOverride(api_key="sk-fake-1")})
    loader = SkillsLoader(tmp_path, tmp_path / "builtin", settings=settings)

    before = dict(os.environ)
    environment = loader.snapshot().environment

    assert dict(environment) == {"SKILLS_TEST_KEY": "sk-fake-1"}
    assert dict(os.environ) == before


def test_by_default_the_environment_and_path_are_those_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "skills-test-program"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    write_skill(
        tmp_path / "builtin",
        "needy",
        openclaw={"requires": {"bins": [program.name], "env": ["SKILLS_TEST_KEY"]}},
    )
    loader = SkillsLoader(tmp_path, tmp_path / "builtin")
    assert loader.list_skills() == []

    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("SKILLS_TEST_KEY", "sk-fake-1")

    assert [skill["name"] for skill in loader.list_skills()] == ["needy"]


def test_secrets_are_not_in_what_is_printed(tmp_path: Path) -> None:
    write_skill(tmp_path / "builtin", "keyed", openclaw={"primaryEnv": "API_KEY"})
    override = SkillOverride(api_key="sk-fake-1", env={"A": "sk-fake-2"}, config={"b": "sk-fake-3"})

    snapshot = loader_of(tmp_path, entries={"keyed": override}).snapshot()

    assert "sk-fake" not in f"{override!r} {snapshot!r}"
