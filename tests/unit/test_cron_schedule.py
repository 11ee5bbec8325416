"""A year of schedules in several zones, against a second implementation and plain arithmetic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from nanobot.core.errors import JobError
from nanobot.cron.schedule import At, Every, Schedule, cron, next_after, upcoming, zone_named

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Pacific/Auckland",
    "Africa/Casablanca",
)
EXPRESSIONS = (
    "0 9 * * 1-5",
    "30 2 * * *",
    "0 0 * * *",
    "15 1,2,3 * * *",
    "0 3 29 2 *",
    "59 23 31 12 *",
    "0 12 1 * *",
    "0 6 1,15 * 1",
    "30 * * * *",
    "0 */6 * * *",
    "*/20 2 * * 0",
    "0 9 * mar-oct sun",
)
# 2028 is a leap year.
YEARS = (2026, 2028)


def walk(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    found = []
    moment: datetime | None = start
    while (moment := next_after(schedule, moment or start)) is not None and moment < end:
        found.append(moment)
    return found


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("year", YEARS)
def test_a_year_of_cron_expressions_is_as_cronsim_says(zone: str, year: int) -> None:
    start = datetime(year, 1, 1, tzinfo=ZoneInfo(zone))
    end = start + timedelta(days=366)
    for expr in EXPRESSIONS:
        expected = []
        for due in CronSim(expr, start):
            if due >= end:
                break
            expected.append(due.astimezone(UTC))

        found = walk(cron(expr, zone), start, end)

        assert found == expected, (expr, zone)
        assert all(before < after for before, after in pairwise(found))


def test_a_change_of_half_an_hour_loses_nothing() -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    start, end = (datetime(2026, 4, 5, hour, tzinfo=zone) for hour in (0, 4))

    found = walk(cron("30 * * * *", zone.key), start, end)

    # 01:30 comes twice: clocks go back from 02:00 to 01:30.
    assert [due.astimezone(UTC).isoformat()[11:16] for due in found] == [
        "13:30",
        "14:30",
        "15:00",
        "16:00",
        "17:00",
    ]


def test_quarters_of_an_hour_follow_the_time_through_both_changes() -> None:
    zone = ZoneInfo("Europe/Berlin")
    for month, day in ((3, 29), (10, 25)):
        start = datetime(2026, month, day, tzinfo=zone)
        end = start + timedelta(days=1)

        found = walk(cron("*/15 * * * *", zone.key), start, end)

        assert {after - before for before, after in pairwise(found)} == {timedelta(minutes=15)}
        hours = (end.astimezone(UTC) - start.astimezone(UTC)).total_seconds() / 3600
        assert len(found) == hours * 4 - 1


def test_a_leap_day_comes_only_in_leap_years() -> None:
    schedule = cron("0 8 29 2 *", "Europe/Berlin")

    found = upcoming(schedule, datetime(2026, 1, 1, tzinfo=UTC), 2)

    assert found == (
        datetime(2028, 2, 29, 7, tzinfo=UTC),
        datetime(2032, 2, 29, 7, tzinfo=UTC),
    )


@pytest.mark.parametrize("seconds", [7, 60, 5400, 86400, 604800])
def test_intervals_are_plain_arithmetic_whatever_moment_one_asks_from(seconds: int) -> None:
    anchor = datetime(2028, 1, 3, 10, 0, 1, 500_000, tzinfo=UTC)
    schedule = Every(timedelta(seconds=seconds), anchor)

    for days in (0, 0.3, 31, 58.999, 180, 365):
        after = anchor + timedelta(days=days)
        due = next_after(schedule, after)
        assert due is not None
        steps = (due - anchor) / timedelta(seconds=seconds)
        assert (steps, 0 < (due - after).total_seconds() <= seconds) == (int(steps), True)


def test_the_first_run_of_an_interval_is_one_interval_after_its_anchor() -> None:
    anchor = datetime(2026, 1, 1, tzinfo=UTC)

    assert next_after(Every(timedelta(hours=1), anchor), anchor - timedelta(days=1)) == (
        anchor + timedelta(hours=1)
    )


def test_a_moment_comes_once() -> None:
    at = datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))

    assert walk(At(at), at - timedelta(days=1), at + timedelta(days=9)) == [at.astimezone(UTC)]


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("9 o'clock", "five fields"),
        ("* * * *", "five fields"),
        ("0 0 9 * * *", "five fields"),
        ("H * * * *", "five fields"),
        ("61 * * * *", "minute hour day month"),
        ("0 9 30 2 *", "never comes true"),
        ("@reboot", "five fields"),
    ],
)
def test_a_wrong_expression_is_refused_with_what_to_mend(expr: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        cron(expr, "UTC")


@pytest.mark.parametrize("name", ["Europe/Atlantis", "", "../etc/passwd", "CEST+9"])
def test_a_wrong_zone_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(JobError, match="Europe/Berlin"):
        zone_named(name)
