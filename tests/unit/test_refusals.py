"""How long a refusal is remembered, and for which models."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from nanobot.providers.quirks import EVERY_MODEL, REMEMBERED, Refusals

THEN = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_refusal_holds_for_its_endpoint_and_model_until_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "refusals.json"
    Refusals(path, now=lambda: THEN).add("here", "m", {"temperature"})
    Refusals(path, now=lambda: THEN).add("here", EVERY_MODEL, {"stream_options"})

    def known(endpoint: str, model: str, *, after: timedelta) -> set[str]:
        return set(Refusals(path, now=lambda: THEN + after).of(endpoint, model))

    assert known("here", "m", after=timedelta(days=1)) == {"temperature", "stream_options"}
    assert known("here", "another", after=timedelta(days=1)) == {"stream_options"}
    assert known("elsewhere", "m", after=timedelta(days=1)) == set()
    assert known("here", "m", after=REMEMBERED) == set()


def test_where_nothing_can_be_written_a_refusal_holds_for_the_process(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    refusals = Refusals(tmp_path / "cache" / "refusals.json")

    refusals.add("here", "m", {"temperature"})

    assert refusals.of("here", "m") == {"temperature"}
