"""What turns keep to however long a session grows and wherever they are cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from nanobot.agent.context import ContextBuilder
from nanobot.agent.loop import AgentLoop
from nanobot.agent.turn import TurnResult
from nanobot.agent.window import Spill
from nanobot.bus.answers import answer_messages
from nanobot.bus.bus import MessageBus
from nanobot.core.chat import AssistantMessage, ChatMessage, ToolCall, ToolMessage, UserMessage
from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage, Role, Trust
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import SessionLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.images import Pictures
from nanobot.tools.message import Message
from nanobot.tools.registry import ToolRegistry
from tests.fakes.scripted_model import Request, ScriptedModel, calls, says

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SESSION = "telegram:42"


@dataclass(slots=True)
class Bench:
    """An agent loop with the message tool, over a real log and a real outbox."""

    loop: AgentLoop
    model: ScriptedModel
    sessions: SessionLog
    bus: MessageBus
    database: Database
    now: list[datetime]

    async def turn(self, text: str, name: str = "in-1") -> TurnResult:
        """Run a turn and commit what it ends in."""
        result = await self.loop.run_turn(inbound(text, name))
        await self.bus.settle(result)
        return result

    async def queued(self) -> list[tuple[str, str, str]]:
        """The outbox: (id, chat, text)."""
        waiting = await self.bus.outbox.undelivered("telegram")
        return [(one.message.id, one.message.chat_id, one.message.content) for one in waiting]


def inbound(text: str, name: str = "in-1") -> InboundMessage:
    return InboundMessage("telegram", "42", "42", text, id=name, role=Role.OWNER)


def draft(kind: EntryKind, message: ChatMessage | None, name: str = "old") -> Draft:
    return Draft(
        kind=kind,
        message=message,
        inbound_id=name,
        principal="owner:telegram:42",
        trust=Trust.TRUSTED,
    )


def exchange(text: str, number: int) -> list[Draft]:
    """A question and its answer, as a former turn left them."""
    return [
        draft(EntryKind.USER, UserMessage(text), f"old-{number}"),
        draft(EntryKind.ASSISTANT, AssistantMessage(text), f"old-{number}"),
    ]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    database = Database(tmp_path / "state.db")
    now = [NOW]
    sessions = SessionLog(database, lambda: now[0])
    bus = MessageBus(database, lambda: now[0])
    bus.on_outbound(lambda undelivered: None)  # as a gateway's deliveries do
    model = ScriptedModel()
    (tmp_path / "none").mkdir()
    loop = AgentLoop(
        sessions=sessions,
        models=model,
        context=ContextBuilder(tmp_path, SkillsLoader(tmp_path, tmp_path / "none")),
        tools=ToolRegistry([Message(bus, frozenset({"telegram"}))]),
        spill=Spill(Home(tmp_path / "home"), cap=1000),
        pictures=Pictures(Home(tmp_path / "home")),
        clock=lambda: now[0],
    )
    yield Bench(loop, model, sessions, bus, database, now)
    database.close()


def size(messages: Sequence[ChatMessage]) -> int:
    return sum(len(message.content) for message in messages)


async def test_what_the_message_tool_has_said_is_not_said_again(bench: Bench) -> None:
    bench.model.answers = [calls(("1", "message", '{"content": "Half way."}')), says("Half  way.")]

    result = await bench.turn("go")

    assert result.answer == ""
    assert await bench.queued() == [("in-1/message/1", "42", "Half way.")]


async def test_a_turn_that_goes_on_after_a_kill_knows_the_ids_of_calls_it_no_longer_sees(
    bench: Bench,
) -> None:
    same = ("1", "message", '{"content": "Half way."}')
    bench.model.answers = [calls(same), RuntimeError("killed")]
    with pytest.raises(RuntimeError):
        await bench.turn("go")
    mark = draft(EntryKind.COMPACTED, UserMessage("So far."), "in-1")
    (marked,) = await bench.sessions.append(SESSION, [mark])
    await bench.database.write(
        lambda connection: [
            connection.execute("UPDATE session SET live_from = ?", (marked.seq,)),
            connection.execute(
                "INSERT INTO log (session, kind, inbound_id, principal, trust, at, payload) "
                "VALUES (?, 'assistant', 'in-1', 'owner', 'trusted', 0, 'damaged')",
                (SESSION,),
            ),
        ]
    )

    bench.model.answers = [calls(same), calls(same), says("Done.")]
    result = await bench.turn("go")

    assert result.answer == "Done."
    assert [text for _, _, text in await bench.queued()] == ["Half way."] * 3


async def test_the_message_tool_writes_to_the_chat_of_its_own_turn(bench: Bench) -> None:
    for chat in ("42", "43", "42"):
        bench.model.answers = [calls(("1", "message", '{"content": "Half way."}')), says("Done.")]
        place = len(bench.model.requests)
        await bench.loop.run_turn(replace(inbound("go", f"in-{place}"), chat_id=chat))

    assert [(name, chat) for name, chat, _ in await bench.queued()] == [
        ("in-0/message/1", "42"),
        ("in-2/message/1", "43"),
        ("in-4/message/1", "42"),
    ]


def test_an_answer_goes_where_its_rule_says() -> None:
    rule = AnswerRule(AnswerKind.REPLY, "matrix", "77", "5")
    result = TurnResult(session=SESSION, consumed=("in-1",), answer="Done.")

    (here,) = answer_messages(inbound("go"), result)[0]
    (there,) = answer_messages(replace(inbound("go"), answer=rule), result)[0]

    assert (here.channel, here.chat_id, here.thread_id) == ("telegram", "42", None)
    assert (there.channel, there.chat_id, there.thread_id) == ("matrix", "77", "5")


async def test_another_answer_after_the_message_tool_is_said(bench: Bench) -> None:
    bench.model.answers = [calls(("1", "message", '{"content": "Half way."}')), says("Done.")]

    assert (await bench.turn("go")).answer == "Done."


async def test_after_the_message_tool_silence_is_an_answer(bench: Bench) -> None:
    bench.model.answers = [calls(("1", "message", '{"content": "All done."}')), says("")]

    result = await bench.turn("go")

    assert (result.answer, len(bench.model.requests)) == ("", 2)


async def test_what_was_said_elsewhere_is_said_here_all_the_same(bench: Bench) -> None:
    bench.model.answers = [
        calls(("1", "message", '{"content": "Tea is ready.", "chat_id": "77"}')),
        says("Tea is ready."),
    ]

    result = await bench.turn("tell 77")

    assert result.answer == "Tea is ready."
    assert await bench.queued() == [("in-1/message/1", "77", "Tea is ready.")]


@pytest.mark.parametrize(("was_queued", "told"), [(True, "Sent, just"), (False, "Not sent:")])
async def test_after_a_kill_in_the_message_tool_the_model_is_told_whether_it_was_sent(
    bench: Bench, was_queued: bool, told: str
) -> None:
    call = ToolCall("1", "message", '{"content": "Half way."}')
    bench.model.answers = [calls((call.id, call.name, call.arguments)), says("")]
    if was_queued:
        await bench.loop.run_turn(inbound("go"))
        log = await bench.sessions.entries(SESSION)
        await bench.database.write(
            lambda connection: connection.execute("DELETE FROM log WHERE seq > ?", (log[1].seq,))
        )
    else:
        await bench.sessions.append(
            SESSION,
            [
                draft(EntryKind.USER, UserMessage("go"), "in-1"),
                draft(EntryKind.ASSISTANT, AssistantMessage("", (call,)), "in-1"),
            ],
        )
    bench.model.answers = [says("Going on.")]

    result = await bench.turn("go")

    *_, closed = bench.model.requests[-1].messages
    assert isinstance(closed, ToolMessage)
    assert closed.content.startswith(told)
    assert result.answer == "Going on."
    assert len(await bench.queued()) == was_queued


async def test_a_session_of_five_million_characters_is_answered(bench: Bench) -> None:
    old = [one for number in range(500) for one in exchange("x" * 5000, number)]
    await bench.sessions.append(SESSION, old)
    bench.model.answers = [says("A summary of its newest part."), says("Still here.")]

    result = await bench.turn("hello?", "new")

    _, request = bench.model.requests
    assert result.answer == "Still here."
    assert size(request.messages) <= bench.model.context_window * 4  # characters a token
    assert request.messages[-1].content.endswith("hello?")
    assert len(await bench.sessions.entries(SESSION, limit=-1)) > len(old)


async def test_over_fifty_turns_each_request_begins_with_the_whole_former_one(
    bench: Bench,
) -> None:
    for turn in range(50):
        bench.model.answers = [
            calls((f"{turn}", "message", '{"content": "a moment"}')),
            says(f"answer {turn}"),
        ]
        await bench.turn(f"question {turn}", f"in-{turn}")
        bench.now[0] = NOW.replace(hour=turn % 24, minute=turn)

    assert len(bench.model.requests) == 100
    for former, later in pairwise(bench.model.requests):
        assert _begins_with(later, former)


def _begins_with(later: Request, former: Request) -> bool:
    return (
        later.tools == former.tools
        and later.messages[: len(former.messages)] == former.messages
        and len(later.messages) > len(former.messages)
    )


async def test_a_turn_costs_the_same_after_ten_thousand_messages(bench: Bench) -> None:
    """Counted in steps of SQLite's virtual machine, which do not depend on the machine's load."""
    costs = []
    for number in (100, 10_000):
        past = [one for place in range(number // 2) for one in exchange("so it was", place)]
        await bench.sessions.append(SESSION, past)
        await bench.sessions.reset(SESSION, draft(EntryKind.RESET, None))
        bench.model.answers = [says("Yes."), says("Still.")]
        await bench.turn("warm up", f"warm-{number}")
        costs.append(await _steps_of(bench, f"in-{number}"))

    few, many = costs
    assert 0 < many < few * 1.5


async def _steps_of(bench: Bench, name: str) -> int:
    """How many steps SQLite takes for a turn, reading and writing."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    for where in (bench.database.read, bench.database.write):
        await where(lambda connection: connection.set_progress_handler(count, 10))
    await bench.turn("and now?", name)
    for where in (bench.database.read, bench.database.write):
        await where(lambda connection: connection.set_progress_handler(None, 0))
    return steps
