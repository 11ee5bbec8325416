"""Subagents: what is posted for one, what its report is, and who may have how many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from nanobot.agent.turn import Drain, TurnResult
from nanobot.bus.answers import report
from nanobot.bus.bus import MessageBus
from nanobot.bus.dispatcher import Dispatcher
from nanobot.bus.session_actor import QueueMode
from nanobot.core.commands import CommandTable
from nanobot.core.errors import RetryLater, ToolError
from nanobot.core.events import Emit, ToolFinished, ToolStarted
from nanobot.core.messages import (
    AnswerKind,
    AnswerRule,
    InboundMessage,
    Origin,
    ParentTurn,
    Role,
    Trust,
    Unanswered,
)
from nanobot.core.tool import ToolContext
from nanobot.session.entries import Draft
from nanobot.session.log import SessionLog, SessionSettings
from nanobot.store.database import Database
from nanobot.subagents.manager import (
    MAX_GENERATION,
    MAX_OPEN,
    Spawn,
    SpawnArguments,
    SubagentManager,
    subagent_id,
)
from tests.fakes.hooks import NoHooks

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
PARENT = InboundMessage(
    "telegram", "42", "42", "look it up", id="p", thread_id="7", role=Role.OWNER, message_id="99"
)


@dataclass(slots=True)
class Turns:
    """An agent that takes in what arrives when its gate opens, and logs it."""

    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    began: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    taken: dict[str, tuple[str, ...]] = field(default_factory=dict)

    async def run_turn(self, inbound: InboundMessage, *, drain: Drain, emit: Emit) -> TurnResult:
        self.began.put_nowait(inbound.id)
        if gate := self.gates.get(inbound.id):
            await gate.wait()
        if error := self.errors.get(inbound.id):
            raise error
        taken = self.taken[inbound.id] = tuple(message.id for message in drain())
        return TurnResult(
            session=inbound.session_key, consumed=(inbound.id, *taken), answer=f"did {inbound.id}"
        )

    async def stopped(self, inbound: InboundMessage, consumed: Sequence[str]) -> TurnResult:
        return TurnResult(session=inbound.session_key, consumed=(inbound.id, *consumed), answer="")

    async def closing(self, inbound: InboundMessage, ending: Unanswered) -> tuple[Draft, ...]:
        return ()


@dataclass(slots=True)
class Bench:
    database: Database
    bus: MessageBus
    sessions: SessionLog
    manager: SubagentManager
    now: list[datetime]

    def dispatcher(self, turns: Turns, **more: object) -> Dispatcher:
        return Dispatcher(
            self.bus,
            turns,
            CommandTable([]),
            lambda: self.now[0],
            subagents=self.manager,
            hooks=NoHooks(),
            **more,  # type: ignore[arg-type]
        )

    async def send(
        self, call: str = "c", *, parent: str = "p", trust: Trust = Trust.TRUSTED
    ) -> InboundMessage:
        sent = await self.manager.send(
            f"task {call}", f"label {call}", inbound_id=parent, call_id=call, trust=trust
        )
        return sent.task

    async def open(self) -> list[str]:
        return [one.parent.label for one in await self.bus.inbox.open_tasks()]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    database = Database(tmp_path / "state.db")
    now = [START]
    bus = MessageBus(database, lambda: now[0])
    sessions = SessionLog(database, lambda: now[0])
    manager = SubagentManager(bus, sessions, lambda: now[0])
    yield Bench(database, bus, sessions, manager, now)
    database.close()


def context(tmp_path: Path, role: Role = Role.OWNER) -> ToolContext:
    return ToolContext(
        session_key=PARENT.session_key,
        inbound_id=PARENT.id,
        call_id="c",
        channel=PARENT.channel,
        chat_id=PARENT.chat_id,
        thread_id=PARENT.thread_id,
        sender_id=PARENT.sender_id,
        principal=replace(PARENT, role=role).principal,
        trust=Trust.UNTRUSTED,
        origin=Origin.USER,
        profile="chat",
        attended=False,
        workspace=tmp_path,
    )


async def test_a_task_has_its_senders_authority_taint_and_model(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.bus.post(PARENT)
    await bench.sessions.change_settings(PARENT.session_key, SessionSettings(model="small"))

    output = await Spawn(bench.manager).run(SpawnArguments(task="Find the date"), context(tmp_path))

    name = subagent_id("p", "c")
    task = await bench.bus.inbox.find(name)
    assert output.text.startswith("The subagent “Find the date” has the task.")
    assert task == InboundMessage(
        "telegram",
        "42",
        "42",
        "Find the date",
        id=name,
        thread_id="7",
        role=Role.OWNER,
        message_id="99",
        origin=Origin.SUBAGENT,
        trust=Trust.UNTRUSTED,
        profile="subagent",
        answer=AnswerRule(AnswerKind.REPORT),
        session=name,
        model="small",
        parent=ParentTurn("Find the date", "p", PARENT.session_key, "chat", AnswerRule()),
    )
    assert (task.principal, task.account) == (PARENT.principal, PARENT.session_key)


async def test_a_guest_sends_none(bench: Bench, tmp_path: Path) -> None:
    await bench.bus.post(PARENT)

    with pytest.raises(ToolError, match="guest"):
        await Spawn(bench.manager).run(SpawnArguments(task="x"), context(tmp_path, Role.GUEST))

    assert await bench.open() == []


async def test_the_same_call_sends_one_and_a_restart_knows_of_it(bench: Bench) -> None:
    await bench.bus.post(PARENT)
    tool = Spawn(bench.manager)
    before = await tool.recovered_call("p", "c")

    await bench.send()
    await bench.send()

    assert await bench.open() == ["label c"]
    assert before is not None
    assert before.startswith("No subagent was sent")
    assert await tool.recovered_call("p", "c") == (
        "The subagent was sent, just before a restart; its report will come."
    )


async def test_a_session_has_a_bounded_number(bench: Bench) -> None:
    await bench.bus.post(PARENT)
    await bench.bus.post(replace(PARENT, id="q", chat_id="43"))
    for number in range(MAX_OPEN):
        await bench.send(str(number))

    with pytest.raises(ToolError, match="as many as may"):
        await bench.send("more")
    await bench.send("elsewhere", parent="q")

    assert len(await bench.open()) == MAX_OPEN + 1


async def test_reports_send_further_ones_only_so_often(bench: Bench) -> None:
    await bench.bus.post(PARENT)
    parent = "p"
    for _ in range(MAX_GENERATION):
        task = await bench.send(parent=parent)
        done = TurnResult(session=task.session_key, consumed=(task.id,), answer="and more")
        await bench.bus.settle(done, posts=[report(task, done)])
        parent = f"{task.id}:done"

    with pytest.raises(ToolError, match="ask the person"):
        await bench.send(parent=parent)


async def test_a_report_is_answered_where_the_sender_was_and_is_as_tainted_as_its_task(
    bench: Bench,
) -> None:
    rule = AnswerRule(AnswerKind.REPLY, "telegram", "42", note="(Late.)")
    job = replace(PARENT, id="j", session="cron:1", profile="job", answer=rule)
    await bench.bus.post(job)
    task = await bench.send(parent="j")
    done = TurnResult(
        session=task.session_key, consumed=(task.id,), answer="7", trust=Trust.UNTRUSTED
    )

    told = report(task, done)

    assert replace(told, content="") == replace(
        job,
        content="",
        id=f"{task.id}:done",
        sender_name="subagent",
        origin=Origin.SUBAGENT,
        trust=Trust.UNTRUSTED,
        answer=replace(rule, note=""),
        parent=task.parent,
    )
    assert told.content.startswith("[Report of the subagent “label c”: finished.")
    assert 'source="subagent label c">\n7\n</untrusted' in told.content


@pytest.mark.parametrize("same_turn", [True, False])
async def test_a_report_steers_the_turn_of_who_sent_it_and_no_other(
    bench: Bench, same_turn: bool
) -> None:
    turns = Turns()
    dispatcher = bench.dispatcher(turns)
    other = PARENT if same_turn else replace(PARENT, sender_id="43")
    turns.gates = {name: asyncio.Event() for name in ("p", "next", subagent_id("p", "c"))}
    await bench.bus.post(PARENT)
    task = await bench.send()
    turns.gates["p"].set()
    await bench.bus.post(replace(other, id="next"))
    while await turns.began.get() != "next":
        pass

    turns.gates[task.id].set()
    async with asyncio.timeout(5):
        while await bench.bus.inbox.find(f"{task.id}:done") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    turns.gates["next"].set()
    async with asyncio.timeout(5):
        while (await bench.bus.counts()).inbox:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await dispatcher.close()

    assert turns.taken["next"] == ((f"{task.id}:done",) if same_turn else ())


async def test_a_report_does_not_interrupt_a_turn(bench: Bench) -> None:
    turns = Turns()
    dispatcher = bench.dispatcher(turns, queue=QueueMode.INTERRUPT)
    turns.gates = {"p": asyncio.Event()}
    await bench.bus.post(PARENT)
    task = await bench.send()
    async with asyncio.timeout(5):
        while await bench.bus.inbox.find(f"{task.id}:done") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    turns.gates["p"].set()
    async with asyncio.timeout(5):
        while (await bench.bus.counts()).inbox:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await dispatcher.close()

    (first, second) = [
        one.message.content for one in await bench.bus.outbox.undelivered("telegram")
    ]
    assert (first, second) == ("did p", f"did {task.id}:done")


async def test_a_subagent_that_fails_too_often_reports_it(bench: Bench) -> None:
    await bench.bus.post(PARENT)
    task = await bench.send()
    await bench.database.write(
        lambda connection: connection.execute("UPDATE inbox SET attempts = 3 WHERE id <> 'p'")
    )
    turns = Turns()

    dispatcher = bench.dispatcher(turns)
    await dispatcher.recover()
    async with asyncio.timeout(5):
        while (await bench.bus.counts()).inbox:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await dispatcher.close()

    told = await bench.bus.inbox.find(f"{task.id}:done")
    assert told is not None
    assert told.content.startswith("[Report of the subagent “label c”: failed: it failed too often")
    assert task.id not in turns.taken


async def test_a_subagent_whose_model_stays_away_reports_it(bench: Bench) -> None:
    turns = Turns()
    await bench.bus.post(PARENT)
    task = await bench.send()
    turns.errors[task.id] = RetryLater("no network")
    dispatcher = bench.dispatcher(turns)

    await dispatcher.recover()
    rule = AnswerRule(AnswerKind.NOTHING)
    async with asyncio.timeout(5):
        for number in count():
            if await bench.bus.inbox.find(f"{task.id}:done") is not None:
                break
            # Mail wakes a session that waits for a model.
            await bench.bus.post(replace(PARENT, id=f"w{number}", session=task.id, answer=rule))
            await asyncio.sleep(0.001)
    await dispatcher.close()

    told = await bench.bus.inbox.find(f"{task.id}:done")
    assert told is not None
    assert "failed: no network" in told.content


async def test_stopping_closes_what_waits_and_tells_the_session(bench: Bench) -> None:
    turns = Turns()
    dispatcher = bench.dispatcher(turns, max_subagents=1)
    await bench.bus.post(PARENT)
    await turns.began.get()
    turns.gates = {subagent_id("p", call): asyncio.Event() for call in "ab"}
    tasks = [await bench.send(call) for call in "ab"]
    await turns.began.get()
    labels = await dispatcher.stop_subagents(PARENT.session_key)

    again = await dispatcher.stop_subagents(PARENT.session_key)
    live = await bench.sessions.live(PARENT.session_key)
    await dispatcher.close()

    assert (labels, again, await bench.open()) == (("label a", "label b"), (), [])
    assert [entry.message.content for entry in live.entries if entry.message] == [
        "[The user stopped the work of these subagents, which will not report: "
        "“label a”, “label b”.]"
    ]
    assert [await bench.bus.inbox.find(f"{task.id}:done") for task in tasks] == [None, None]


async def test_status_tells_how_far_each_is(bench: Bench) -> None:
    await bench.bus.post(PARENT)
    calls = [await bench.send(name) for name in "abc"]
    emits = [bench.manager.began(task) for task in calls[:2]]
    for emit in emits:
        emit(ToolStarted("1", "exec", "sleep 60"))
    emits[0](ToolFinished("1", "exec", True, 1.0))
    bench.now[0] += timedelta(minutes=3)

    lines = await bench.manager.status_lines(PARENT.session_key)

    assert lines == [
        "- “label a”, since 3 min: thinks, after 1 tool calls",
        "- “label b”, since 3 min: tool call 1, exec: sleep 60",
        "- “label c”, since 3 min: waits",
    ]
    assert await bench.manager.counts() == (2, 1)
