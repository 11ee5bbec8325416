"""Finding what ships: in an installed wheel and in a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanobot.core.errors import StoreUnavailable
from nanobot.store.home import builtin_skills_dir, shipped_dir, workspace_templates_dir


def test_a_wheel_has_its_data_inside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "nanobot"
    inside = package / "_data" / "skills"
    inside.mkdir(parents=True)
    (tmp_path / "site-packages" / "skills").mkdir()

    assert shipped_dir("skills", package=package) == inside


def test_a_checkout_has_its_data_beside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "nanobot"
    package.mkdir()
    (tmp_path / "skills").mkdir()

    assert shipped_dir("skills", package=package) == tmp_path / "skills"


def test_an_incomplete_installation_is_said_to_be_one(tmp_path: Path) -> None:
    package = tmp_path / "nanobot"

    with pytest.raises(StoreUnavailable) as raised:
        shipped_dir("skills", package=package)

    assert str(raised.value) == (
        f"skills is missing from the installation at {package}: reinstall it"
    )


def test_this_installation_is_complete() -> None:
    assert (builtin_skills_dir() / "memory" / "SKILL.md").is_file()
    assert (workspace_templates_dir() / "AGENTS.md").is_file()
