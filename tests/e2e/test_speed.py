"""The speed a user feels at the terminal, held to what the machine can do at best."""

from __future__ import annotations

from pathlib import Path

from benchmarks.one_shot import measure


def test_a_one_shot_costs_at_most_three_and_a_half_times_its_bare_imports(tmp_path: Path) -> None:
    bare, asked = measure(tmp_path, rounds=5)

    assert asked <= 3.5 * bare
