"""When a job is due: pure functions of a schedule and a moment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo

from nanobot.core.errors import JobError

LATE = timedelta(minutes=2)
"""A run that is later than this carries a note."""
_TICK = timedelta(microseconds=1)
_FOLD_STEP = timedelta(minutes=1)
_ALIAS = re.compile(r"@(?:hourly|daily|midnight|weekly|monthly|yearly|annually)", re.IGNORECASE)
_FIELD = re.compile(r"[0-9A-Za-z*,/#?-]+")
_RANDOM = re.compile(r"(?<![a-z])[hr](?![a-z])", re.IGNORECASE)
_FURTHEST = 40


@dataclass(frozen=True, slots=True)
class At:
    """Once, at an aware moment."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Every:
    """At ``anchor`` plus each whole multiple of ``interval``, so that restarts keep the phase."""

    interval: timedelta
    anchor: datetime


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression (five fields or an alias) in a named time zone.

    Clock changes are handled as by Debian's cron: a time of day that is skipped runs at the end of
    the gap, one that is repeated runs once; expressions whose minute or hour begins with ``*``
    follow elapsed time.
    """

    expr: str
    zone: str


Schedule: TypeAlias = At | Every | Cron


def next_after(schedule: Schedule, after: datetime) -> datetime | None:
    """The first due time later than ``after`` (aware), in UTC; None when there is none."""
    match schedule:
        case At(at):
            return at.astimezone(UTC) if at > after else None
        case Every(interval, anchor):
            steps = max((after - anchor) // interval, 0) + 1
            try:
                return (anchor + steps * interval).astimezone(UTC)
            except OverflowError:
                return None
        case Cron(expr, zone):
            return _next_cron(expr, ZoneInfo(zone), after)


def upcoming(schedule: Schedule, after: datetime, count: int = 3) -> tuple[datetime, ...]:
    """The next ``count`` due times (fewer when the schedule ends)."""
    found: list[datetime] = []
    while len(found) < count and (due := next_after(schedule, after)) is not None:
        found.append(due)
        after = due
    return tuple(found)


def zone_named(name: str) -> str:
    """``name`` if it is a time zone; raises JobError with an example."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise JobError(
            f"There is no time zone {name!r}; name one such as Europe/Berlin or UTC."
        ) from error
    return name


def local_zone() -> str:
    """The name of the machine's time zone; UTC where it has none."""
    import tzlocal

    try:
        return zone_named(tzlocal.get_localzone_name() or "UTC")
    except (JobError, LookupError, ValueError):
        return "UTC"


def cron(expr: str, zone: str) -> Cron:
    """A checked cron schedule; raises JobError saying how to mend it."""
    text = " ".join(expr.split())
    made = Cron(text, zone_named(zone))
    fields = text.split(" ")
    known = _ALIAS.fullmatch(text) or (
        len(fields) == 5 and all(_FIELD.fullmatch(field) for field in fields)
    )
    if not known or _RANDOM.search("" if text.startswith("@") else text):
        raise JobError(
            f"{expr!r} is no cron expression: write five fields (minute hour day month weekday), "
            "such as `0 9 * * 1-5` for 9:00 on weekdays, or an alias such as @daily."
        )
    from croniter import CroniterError

    try:
        first = next_after(made, datetime.now(UTC))
    except (CroniterError, ValueError, KeyError) as error:
        raise JobError(
            f"{expr!r} is no cron expression ({error}): the fields are minute hour day month "
            "weekday, such as `0 9 * * 1-5`."
        ) from error
    if first is None:
        raise JobError(f"{expr!r} never comes true; check its day and month.")
    return made


def _next_cron(expr: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    local = after.astimezone(zone)
    wall = local.replace(tzinfo=None, fold=0)
    if _follows_the_clock(expr):
        return _next_wild(expr, zone, wall, local)
    while (wall_next := _next_wall(expr, wall)) is not None:
        wall = wall_next
        due = _first_instant(wall, zone)
        if due > after:
            return due
    return None


def _follows_the_clock(expr: str) -> bool:
    fields = expr.split(" ")
    return expr.lower() == "@hourly" or (len(fields) == 5 and "*" in (fields[0][0], fields[1][0]))


def _next_wild(expr: str, zone: ZoneInfo, wall: datetime, local: datetime) -> datetime | None:
    """The next wall time that exists, and in a repeated hour each of its two instants."""
    fold = local.fold
    if not fold and _is_repeated(wall, zone):
        following = _next_wall(expr, wall)
        if following is not None and _is_repeated(following, zone):
            return following.replace(tzinfo=zone).astimezone(UTC)
        # The first pass through the hour is over; the second begins where clocks go back.
        wall, fold = _second_pass(local, zone) - _TICK, 1
    following = _next_wall(expr, wall)
    while following is not None and not _exists(following, zone):
        following = _next_wall(expr, following)
    if following is None:
        return None
    return following.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _second_pass(local: datetime, zone: ZoneInfo) -> datetime:
    """The wall time right after clocks go back, for a moment in the first pass of that hour."""
    moment = local.astimezone(UTC).replace(second=0, microsecond=0)
    while not (passed := moment.astimezone(zone)).fold:
        moment += _FOLD_STEP
    return passed.replace(tzinfo=None, fold=0)


def _is_repeated(wall: datetime, zone: ZoneInfo) -> bool:
    first, second = wall.replace(tzinfo=zone), wall.replace(tzinfo=zone, fold=1)
    return _exists(wall, zone) and first.utcoffset() != second.utcoffset()


def _exists(wall: datetime, zone: ZoneInfo) -> bool:
    there_and_back = wall.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)
    return there_and_back.replace(tzinfo=None, fold=0) == wall


def _first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which clocks show ``wall``, or the end of the gap that swallows it."""
    if _exists(wall, zone):
        return wall.replace(tzinfo=zone).astimezone(UTC)
    # Read with the offset after the gap, a skipped time lies before the change.
    moment = wall.replace(tzinfo=zone, fold=1).astimezone(UTC).replace(second=0, microsecond=0)
    before = moment.astimezone(zone).utcoffset()
    while moment.astimezone(zone).utcoffset() == before:
        moment += _FOLD_STEP
    return moment


def _next_wall(expr: str, after: datetime) -> datetime | None:
    """The next time on a clock without changes; None when there is none within decades."""
    from croniter import CroniterBadDateError, croniter

    walk = croniter(expr, after, max_years_between_matches=_FURTHEST)
    try:
        found: datetime = walk.get_next(datetime)
    except CroniterBadDateError:
        return None
    return found
