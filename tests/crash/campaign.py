"""A campaign: kill after kill in one world, with a look at everything after each recovery."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, cycle

from tests.crash import points
from tests.crash.points import Point
from tests.crash.world import World

SYNCS = 14
WRITES = 60


def run(
    world: World,
    kills: int,
    chance: random.Random,
    *,
    traced: bool = True,
    told: Callable[[str], None] = lambda line: None,
) -> None:
    """Kill gateways until ``kills`` is reached, or something is wrong (``world.faults``).

    A message is hit twice at most: what fails three times is parked, which has a test of its own.
    """
    plan = _plan(traced=traced and points.HAS_STRACE)
    while world.figures.kills.total() < kills and not world.faults:
        if world.is_down():
            world.start()
        point = next(plan)
        point(world, chance)
        if chance.random() < 0.4:
            points.in_recovery(world, chance)
        world.recover()
        told(f"{world.figures.kills.total()} kills, {world.figures.messages} messages")
    world.stop()
    world.check()


def _plan(*, traced: bool) -> Iterator[Point]:
    """The exact points in turn, between them the sweep over syncs and writes, now and then a long
    one.
    """
    gated, long = cycle(points.GATED), cycle(points.LONG)
    sync, write = cycle(range(1, SYNCS + 1)), cycle(range(1, WRITES + 1, 3))
    for number in count():
        if number % 40 == 20:
            yield next(long)
        elif traced and number % 3 == 1:
            yield partial(points.at_sync, number=next(sync))
        elif traced and number % 6 == 5:
            yield partial(points.at_write, number=next(write))
        else:
            yield next(gated)
