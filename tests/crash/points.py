"""Where a gateway is killed: exact points by the fakes' gates and by strace, and at random."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from typing import TypeAlias

from tests.crash.jobs import Kind
from tests.crash.world import CHATS, CROWD, PATIENCE_S, World

Point: TypeAlias = Callable[[World, random.Random], None]
"""Has jobs sent to a running gateway and kills it on the way of one of them."""

QUICK = (Kind.TALK, Kind.READ, Kind.COUNT, Kind.TWICE, Kind.BOTH, Kind.TELL, Kind.LONG)
BACKLOG = 1000
"""Messages in each backlog of the long form."""
HAS_STRACE = shutil.which("strace") is not None


def in_model_call(world: World, chance: random.Random) -> None:
    """The model has the request and has not answered; other jobs go on meanwhile."""
    gate = world.model.gate()
    held, token = chance.choice(CHATS), world.next_token
    world.hold = lambda job: gate if job.token == token else None
    world.send(chance.choice(QUICK), held)
    _distract(world, chance, held)
    gate.wait_reached(PATIENCE_S)
    world.kill("in a model call")


def in_stream(world: World, chance: random.Random) -> None:
    """The model has sent the first piece of its answer."""
    world.stream_hold = gate = world.model.gate()
    world.send(chance.choice(QUICK), chance.choice(CHATS))
    gate.wait_reached(PATIENCE_S)
    world.kill("in a stream")


def in_tool(world: World, chance: random.Random) -> None:
    """A command has done half of its work."""
    chat = chance.choice(CHATS)
    job = world.send(Kind.HOLD, chat)
    _distract(world, chance, chat)
    wait_until(lambda: world.ledger_holds(job.lines[0]), "the command")
    world.kill("in a tool")


def before_send(world: World, chance: random.Random) -> None:
    """The platform has the request for a message and has not taken it."""
    _in_send(world, chance, "before")


def after_send(world: World, chance: random.Random) -> None:
    """The platform has taken a message, and its answer has not come."""
    _in_send(world, chance, "after")


def before_acknowledgement(world: World, chance: random.Random) -> None:
    """The inbox has the messages, the platform does not know it."""
    gate = world.api.gate("getUpdates", "before")
    chats = chance.sample(CHATS, 3)
    for chat in chats:
        world.send(chance.choice(QUICK), chat)
    gate.wait_reached(timeout=PATIENCE_S)
    world.kill("before the acknowledgement")


def while_steered(world: World, chance: random.Random) -> None:
    """A turn has taken in a second message, and asks the model again."""
    first, second = world.model.gate(), world.model.gate()
    chat = chance.choice(CHATS)
    gates = {world.next_token: first}
    world.hold = lambda job: gates.get(job.token)
    world.send(Kind.COUNT, chat)
    first.wait_reached(PATIENCE_S)
    polls = len(world.api.polls)
    gates[world.next_token] = second
    world.send(Kind.COUNT, chat)
    world.api.wait_for_poll(after=polls, timeout=PATIENCE_S)
    first.release()
    second.wait_reached(PATIENCE_S)
    world.kill("in a steered turn")


def while_leaving(world: World, chance: random.Random) -> None:
    """It was asked to leave, and gives a turn that hangs its grace while others end."""
    gate = world.model.gate()
    held, token = chance.choice(CHATS), world.next_token
    world.hold = lambda job: gate if job.token == token else None
    world.send(chance.choice(QUICK), held)
    _distract(world, chance, held)
    gate.wait_reached(PATIENCE_S)
    world.ask_to_leave()
    time.sleep(chance.uniform(0, 0.6))
    world.kill("while it leaves")


def at_random(world: World, chance: random.Random) -> None:
    """Some jobs are under way."""
    for _ in range(chance.randint(1, 6)):
        world.send(chance.choice(QUICK), chance.choice(CHATS))
    time.sleep(chance.uniform(0, 0.6))
    world.kill("at random")


def asked_to_leave(world: World, chance: random.Random) -> None:
    """Some jobs are under way at a SIGTERM, and end within the grace or at the next start."""
    for _ in range(chance.randint(1, 6)):
        world.send(chance.choice(QUICK), chance.choice(CHATS))
    time.sleep(chance.uniform(0, 0.6))
    world.leave("at SIGTERM")


def jobs_due_while_down(world: World, chance: random.Random) -> None:
    """Recurring jobs fell due several times while it was down; it is killed as it makes them up."""
    jobs = world.schedule(4)
    world.leave("at SIGTERM")
    world.let_fall_due(jobs, 5)
    world.launch()
    time.sleep(chance.uniform(0.3, 1.2))
    world.kill("with jobs due")


def leaving_thrice(world: World, chance: random.Random) -> None:
    """One long turn sees three SIGTERMs."""
    gate = world.model.gate()
    token = world.next_token
    for times in (1, 2, 3):
        world.hold = lambda job: gate if job.token == token else None
        if times == 1:
            world.send(chance.choice(QUICK), chance.choice(CHATS))
        else:
            world.start()
        gate.wait_reached(PATIENCE_S, times=times)
        world.leave("at SIGTERM")


def in_outbound_backlog(world: World, chance: random.Random, size: int = BACKLOG) -> None:
    """Many messages waited to be delivered at the start, and some are."""
    world.stop()
    world.fill_outbox(size)
    before = len(world.api.sent)
    world.start()
    wait_until(lambda: len(world.api.sent) > before + size // 8, "the first of the backlog")
    world.kill("in a backlog of outbounds")


def in_inbound_backlog(world: World, chance: random.Random, size: int = BACKLOG) -> None:
    """Many messages waited at the platform at the start, and all are in the inbox."""
    world.stop()
    for number in range(size):
        world.send(Kind.TALK, CROWD[number % len(CROWD)])
    world.start()
    wait_until(lambda: not world.api.pending, "the backlog in the inbox")
    world.kill("in a backlog of inbounds")


def at_sync(world: World, chance: random.Random, number: int) -> None:
    """The writer is about to sync for the ``number``-th time."""
    _at_call(world, chance, "fdatasync", number, "at a sync")


def at_write(world: World, chance: random.Random, number: int) -> None:
    """The writer is about to write to the database or its journal for the ``number``-th time."""
    _at_call(world, chance, "pwrite64", number, "at a write")


def in_recovery(world: World, chance: random.Random) -> None:
    """A gateway started after a kill is killed on its way up, or at its first work."""
    if HAS_STRACE and chance.random() < 0.5:
        call, most = chance.choice((("fdatasync", 6), ("pwrite64", 25)))
        _traced(world, call, chance.randint(1, most))
        deadline = time.monotonic() + 4
        while not world.is_dead() and time.monotonic() < deadline:
            time.sleep(0.01)
    else:
        world.launch()
        time.sleep(chance.uniform(0.05, 1.2))
    world.kill("in recovery")


GATED: tuple[Point, ...] = (
    in_model_call,
    in_stream,
    in_tool,
    before_send,
    after_send,
    before_acknowledgement,
    while_steered,
    while_leaving,
    at_random,
    asked_to_leave,
    jobs_due_while_down,
)
LONG: tuple[Point, ...] = (in_outbound_backlog, in_inbound_backlog, leaving_thrice)
"""Points that take a minute, or a quarter of one."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Ask until ``condition`` holds; raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about within {PATIENCE_S} s")
        time.sleep(0.01)


def _distract(world: World, chance: random.Random, taken: int) -> None:
    """Send jobs to other chats, which are anywhere on their way when the kill comes."""
    others = [chat for chat in CHATS if chat != taken]
    for chat in chance.sample(others, chance.randint(0, 3)):
        world.send(chance.choice(QUICK), chat)


def _in_send(world: World, chance: random.Random, when: str) -> None:
    chat = chance.choice(CHATS)
    gate = world.api.gate("sendMessage", "before" if when == "before" else "after", chat_id=chat)
    world.send(chance.choice((Kind.TALK, Kind.TELL, Kind.LONG)), chat)
    _distract(world, chance, chat)
    gate.wait_reached(timeout=PATIENCE_S)
    world.kill(f"{when} a send")


def _at_call(world: World, chance: random.Random, call: str, number: int, name: str) -> None:
    world.stop()
    for _ in range(chance.choice((0, 0, 3))):  # now and then it finds work waiting
        world.send(chance.choice(QUICK), chance.choice(CHATS))
    if _traced(world, call, number, polling=True):
        deadline = time.monotonic() + PATIENCE_S
        while not world.is_dead() and time.monotonic() < deadline:
            world.send(chance.choice(QUICK), chance.choice(CHATS))
            time.sleep(0.2)
    world.died(name)


def _traced(world: World, call: str, number: int, *, polling: bool = False) -> bool:
    command = (
        *("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"),
        *("-e", f"inject={call}:signal=SIGKILL:when={number}"),
    )
    if polling:
        return world.start(*command)
    world.launch(*command)
    return True
