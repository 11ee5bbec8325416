"""The short form of the campaign, and the message that kills every gateway that takes it up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from nanobot.bus.backlog import PAGE
from tests.crash.campaign import run
from tests.crash.jobs import Kind
from tests.crash.points import (
    GATED,
    in_inbound_backlog,
    in_outbound_backlog,
    wait_until,
)
from tests.crash.world import CHATS, PATIENCE_S, World, open_world

SHORT = 9
"""Kills: every second one at a sync or a write; the exact points have a test of their own."""


@pytest.fixture
def world() -> Iterator[World]:
    with open_world() as opened:
        yield opened


@pytest.mark.timeout(400)
def test_killed_anywhere_it_answers_everything_once(world: World) -> None:
    """``python -m tests.crash --kills 300`` is the long form."""
    run(world, SHORT, random.Random(5))

    figures = world.figures
    assert world.faults == [], world.log()
    assert figures.kills.total() >= SHORT
    assert (figures.answered, figures.lost, figures.doubled, figures.ran_twice) == (
        figures.messages,
        0,
        0,
        0,
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize("point", GATED, ids=lambda point: str(point.__name__))
def test_each_exact_point_twice(world: World, point: object) -> None:
    """What a point leaves behind is the start of the next kill at it."""
    chance = random.Random(11)
    world.start()
    for _ in range(2):
        assert callable(point)
        point(world, chance)
        world.start()
    world.settle()

    world.stop()
    world.check()
    assert world.faults == [], world.log()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("point", [in_outbound_backlog, in_inbound_backlog])
def test_a_backlog_of_more_than_a_page_is_worked_off_once(
    world: World, point: Callable[[World, random.Random, int], None]
) -> None:
    point(world, random.Random(3), 2 * PAGE)

    world.recover()

    assert world.faults == [], world.log()
    assert world.figures.answered == 2 * PAGE


@pytest.mark.timeout(200)
def test_a_message_that_kills_three_gateways_is_parked_with_an_apology(world: World) -> None:
    gate = world.model.gate()
    poison = world.next_token
    world.hold = hold = lambda job: gate if job.token == poison else None
    world.start()
    world.send(Kind.TALK, CHATS[0])
    for times in range(1, 4):
        gate.wait_reached(PATIENCE_S, times=times)
        world.kill("in a model call")
        world.hold = hold
        if times == 3:
            innocent = world.send(Kind.TALK, CHATS[0])
        world.start()

    wait_until(lambda: len(world.api.sent) == 2, "the apology and the answer")

    world.stop()
    apology, answer = (message.text for message in world.api.sent)
    assert apology.startswith("Sorry: this message made me fail 3 times")
    assert answer == f"done {innocent.marks[0]}"
