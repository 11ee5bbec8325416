"""Every file says in its first line what it is."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("nanobot", "tests", "benchmarks", "skills")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def test_every_module_opens_with_one_sentence() -> None:
    silent = []
    for path in SOURCES:
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if not said.strip().splitlines()[:1]:
            silent.append(str(path.relative_to(ROOT)))

    assert silent == []
    assert len(SOURCES) > 100


def test_scripts_templates_and_settings_open_with_a_comment() -> None:
    scripts = [ROOT / ".ci" / "run", ROOT / "pyproject.toml", ROOT / "requirements.lock"]
    units = sorted((ROOT / "deploy").iterdir())
    templates = sorted((ROOT / "nanobot" / "prompts" / "templates").glob("*.j2"))

    silent = [
        path.name
        for path in (*scripts, *units, *templates)
        if not any(
            line.startswith(("# ", "{# "))
            for line in path.read_text(encoding="utf-8").splitlines()[:2]
        )
    ]

    assert silent == []
