"""What is learnt of a model's own tokens: slowly, within bounds, and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nanobot.session.usage import HIGHEST, LOWEST, Calibration
from nanobot.store.database import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    made = Database(tmp_path / "state.db")
    yield made
    made.close()


async def test_a_model_never_heard_of_is_taken_as_estimated(database: Database) -> None:
    assert await Calibration(database).factor("new") == 1.0


async def test_the_first_report_counts_whole_and_later_ones_a_fifth(database: Database) -> None:
    calibration = Calibration(database)

    await calibration.observe("m", estimated=1000, reported=1500)
    first = await calibration.factor("m")
    await calibration.observe("m", estimated=1000, reported=1000)

    assert first == 1.5
    assert await calibration.factor("m") == pytest.approx(1.4)
    assert await calibration.factor("another") == 1.0


async def test_it_is_known_to_the_next_process(database: Database) -> None:
    await Calibration(database).observe("m", estimated=1000, reported=1200)

    assert await Calibration(database).factor("m") == 1.2


@pytest.mark.parametrize("reported", [0, 10, 400, 3100, 10**9])
async def test_a_report_out_of_proportion_is_not_believed(
    database: Database, reported: int
) -> None:
    calibration = Calibration(database)

    await calibration.observe("m", estimated=1000, reported=reported)

    assert await calibration.factor("m") == 1.0


@pytest.mark.parametrize(("reported", "factor"), [(550, LOWEST), (2900, HIGHEST)])
async def test_no_report_moves_it_beyond_its_bounds(
    database: Database, reported: int, factor: float
) -> None:
    calibration = Calibration(database)

    await calibration.observe("m", estimated=1000, reported=reported)

    assert await calibration.factor("m") == factor


async def test_a_short_request_says_nothing(database: Database) -> None:
    calibration = Calibration(database)

    await calibration.observe("m", estimated=100, reported=150)

    assert await calibration.factor("m") == 1.0


async def test_a_disk_that_takes_nothing_costs_no_answer(database: Database) -> None:
    calibration = Calibration(database)
    await calibration.factor("m")
    database.close()

    await calibration.observe("m", estimated=1000, reported=1200)

    assert await calibration.factor("m") == 1.2
