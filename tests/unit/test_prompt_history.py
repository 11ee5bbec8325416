"""The conversation's history file is private and bounded."""

from __future__ import annotations

import stat
from pathlib import Path

from prompt_toolkit.history import FileHistory

from nanobot.cli.repl import HISTORY_LIMIT, prepare_history


def entry(number: int) -> str:
    return f"\n# 2026-01-01 00:00:00.{number:06}\n+message {number}\n+second line\n"


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.write_text(entry(1))
    history.chmod(0o644)

    prepare_history(history)
    prepare_history(tmp_path / "another")

    assert [stat.S_IMODE(path.stat().st_mode) for path in sorted(tmp_path.iterdir())] == [
        0o600,
        0o600,
    ]
    assert history.read_text() == entry(1)


def test_its_older_half_goes_when_it_is_long(tmp_path: Path) -> None:
    history = tmp_path / "history"
    count = HISTORY_LIMIT // len(entry(0)) + 100
    history.write_text("".join(map(entry, range(count))))

    prepare_history(history)

    kept = list(FileHistory(str(history)).load_history_strings())
    assert history.stat().st_size <= HISTORY_LIMIT // 2
    assert kept == [
        f"message {n}\nsecond line" for n in range(count - 1, count - 1 - len(kept), -1)
    ]
    assert len(kept) > count // 3
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
