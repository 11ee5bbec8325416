"""One turn: model, tools, results, answer, and everything that can come in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from nanobot.agent.context import ContextBuilder
from nanobot.agent.loop import NO_ANSWER, AgentLoop
from nanobot.agent.turn import TurnLimits, TurnResult
from nanobot.agent.window import Spill
from nanobot.core.chat import (
    AssistantMessage,
    FinishReason,
    SystemMessage,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from nanobot.core.errors import BadRequest, ContextOverflow, RetryLater
from nanobot.core.events import Event, TextDelta, ToolFinished, ToolStarted
from nanobot.core.messages import InboundMessage, Role, Trust, Unanswered
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.prompts import render
from nanobot.session.entries import EntryKind, violations
from nanobot.session.log import SessionLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.images import Pictures
from nanobot.tools.registry import ToolRegistry
from tests.fakes.scripted_model import ScriptedModel, calls, says

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class _Text(ToolArguments):
    text: str = ""


class Look(Tool[_Text]):
    """A read that waits until as many run as the test wants side by side."""

    name = "look"
    description = "Looks."
    effect = Effect.READ
    arguments = _Text

    def __init__(self, together: int = 1) -> None:
        self._barrier = asyncio.Barrier(together)

    async def run(self, args: _Text, context: ToolContext) -> ToolOutput:
        async with asyncio.timeout(5):
            await self._barrier.wait()
        return ToolOutput(f"saw {args.text}")


class Act(Tool[_Text]):
    """A write that records what it did and with which context."""

    name = "act"
    description = "Acts."
    effect = Effect.WRITE
    arguments = _Text

    def __init__(self) -> None:
        self.done: list[str] = []
        self.contexts: list[ToolContext] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def run(self, args: _Text, context: ToolContext) -> ToolOutput:
        self.done.append(args.text)
        self.contexts.append(context)
        self.meanwhile()
        await asyncio.sleep(0)
        return ToolOutput(f"did {args.text}", Trust.UNTRUSTED)


@dataclass(slots=True)
class Bench:
    """An agent loop over a real log and real files, with a scripted model."""

    loop: AgentLoop
    model: ScriptedModel
    sessions: SessionLog
    act: Act
    home: Home
    events: list[Event] = field(default_factory=list)

    async def turn(self, text: str, *, name: str = "in-1", **options: object) -> TurnResult:
        result = await self.loop.run_turn(
            inbound(text, name),
            emit=self.events.append,
            **options,  # type: ignore[arg-type]
        )
        await self.sessions.append(result.session, result.entries)
        return result

    async def kinds(self) -> list[str]:
        return [entry.kind.value for entry in await self.sessions.entries("cli:direct")]


def inbound(text: str, name: str = "in-1") -> InboundMessage:
    return InboundMessage("cli", "owner", "direct", text, id=name, role=Role.OWNER)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    database = Database(tmp_path / "state.db")
    made = _bench(tmp_path, database)
    yield made
    database.close()


def _bench(
    tmp_path: Path, database: Database, *, together: int = 1, limits: TurnLimits | None = None
) -> Bench:
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    (tmp_path / "no-skills").mkdir(exist_ok=True)
    home = Home(tmp_path / "home")
    sessions = SessionLog(database, lambda: NOW)
    model, act = ScriptedModel(), Act()
    tools = ToolRegistry([Look(together), act])
    loop = AgentLoop(
        sessions=sessions,
        models=model,
        context=ContextBuilder(workspace, SkillsLoader(workspace, tmp_path / "no-skills")),
        tools=tools,
        spill=Spill(home, cap=1000),
        pictures=Pictures(home),
        clock=lambda: NOW,
        limits=limits or TurnLimits(max_iterations=4),
    )
    return Bench(loop, model, sessions, act, home)


async def test_an_answer_without_tools_is_the_result(bench: Bench) -> None:
    bench.model.answers = [says("Hello!")]

    result = await bench.turn("hi")

    assert (result.answer, result.consumed, result.tools_used) == (
        "Hello!",
        ("in-1",),
        (),
    )
    assert await bench.kinds() == ["user", "assistant"]
    (request,) = bench.model.requests
    assert isinstance(request.messages[0], SystemMessage)
    assert request.messages[1].content.endswith("\nhi")
    assert 'channel="cli"' in request.messages[1].content


async def test_tools_run_and_their_results_reach_the_model(bench: Bench) -> None:
    bench.model.answers = [calls(("1", "act", '{"text": "x"}')), says("Done.")]

    result = await bench.turn("do x")

    assert (result.answer, result.tools_used) == ("Done.", ("act",))
    assert bench.model.requests[1].messages[-1] == ToolMessage("1", "act", "did x")
    entries = await bench.sessions.entries("cli:direct")
    assert [(entry.kind, entry.trust) for entry in entries] == [
        (EntryKind.USER, Trust.TRUSTED),
        (EntryKind.ASSISTANT, Trust.TRUSTED),
        (EntryKind.TOOL, Trust.UNTRUSTED),
        (EntryKind.ASSISTANT, Trust.UNTRUSTED),
    ]
    assert {entry.principal for entry in entries} == {"owner:cli:owner"}
    assert {entry.inbound_id for entry in entries} == {"in-1"}
    started, finished = (
        event for event in bench.events if isinstance(event, ToolStarted | ToolFinished)
    )
    assert (started.call_id, finished.call_id) == ("1", "1")


async def test_reads_of_one_step_run_side_by_side(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    bench = _bench(tmp_path, database, together=3)
    reads = [(str(n), "look", f'{{"text": "{n}"}}') for n in range(3)]
    bench.model.answers = [calls(*reads), says("Seen.")]

    await bench.turn("look at all")

    database.close()
    assert bench.model.requests[1].messages[-3:] == tuple(
        ToolMessage(str(n), "look", f"saw {n}") for n in range(3)
    )


async def test_a_tool_knows_the_facts_of_its_turn_and_its_taint(bench: Bench) -> None:
    bench.model.answers = [
        calls(("1", "act", '{"text": "a"}')),
        calls(("2", "act", '{"text": "b"}')),
        says("ok"),
    ]

    await bench.turn("go")

    first, second = bench.act.contexts
    assert (first.session_key, first.inbound_id, first.call_id) == ("cli:direct", "in-1", "1")
    assert (first.trust, second.trust) == (Trust.TRUSTED, Trust.UNTRUSTED)
    assert first.principal.is_owner


async def test_the_last_step_asks_where_things_stand_without_tools(bench: Bench) -> None:
    bench.model.answers = [*(calls((str(n), "look", "{}")) for n in range(4)), says("So far.")]

    result = await bench.turn("never ends")

    last = bench.model.requests[-1]
    assert result.answer == "So far."
    assert (last.tool_choice, last.tools) == (ToolChoice.NONE, bench.model.requests[0].tools)
    assert last.messages[-1] == UserMessage(render.limit_reached(4))


async def test_an_answer_cut_by_the_limit_is_continued(bench: Bench) -> None:
    bench.model.answers = [says("One, ", FinishReason.LENGTH), says("two.")]

    result = await bench.turn("count")

    assert result.answer == "One, two."
    assert bench.model.requests[1].messages[-1] == UserMessage(render.continue_cut())
    assert await bench.kinds() == ["user", "assistant", "nudge", "assistant"]


async def test_an_empty_answer_is_asked_for_once_more(bench: Bench) -> None:
    bench.model.answers = [says(" "), says("Here.")]

    assert (await bench.turn("hi")).answer == "Here."


async def test_an_answer_that_stays_empty_is_a_fixed_line_outside_the_history(
    bench: Bench,
) -> None:
    bench.model.answers = [says(""), says("")]

    result = await bench.turn("hi")

    assert (result.answer, result.entries) == (NO_ANSWER, ())
    assert await bench.kinds() == ["user", "nudge"]


async def test_a_model_that_fails_leaves_nothing_of_it_in_the_log(bench: Bench) -> None:
    bench.model.answers = [RetryLater("the model is asleep")]

    with pytest.raises(RetryLater):
        await bench.turn("hi")

    assert await bench.kinds() == ["user"]


async def test_after_a_failure_the_same_inbound_goes_on_where_the_log_ends(bench: Bench) -> None:
    bench.model.answers = [
        calls(("1", "act", '{"text": "x"}')),
        RetryLater("the model is asleep"),
        says("Done."),
    ]
    with pytest.raises(RetryLater):
        await bench.turn("do x")

    result = await bench.turn("do x")

    assert (result.answer, bench.act.done) == ("Done.", ["x"])
    assert await bench.kinds() == ["user", "assistant", "tool", "assistant"]


async def test_a_call_left_open_by_a_crash_is_closed_and_not_run_again(bench: Bench) -> None:
    bench.model.answers = [calls(("1", "act", '{"text": "x"}'))]
    crash = asyncio.create_task(bench.turn("do x"))
    bench.act.meanwhile = lambda: crash.cancel()
    await asyncio.wait({crash})
    bench.act.meanwhile = lambda: None
    assert await bench.kinds() == ["user", "assistant"]
    bench.model.answers = [says("I shall check.")]

    result = await bench.turn("do x")

    assert (result.answer, bench.act.done) == ("I shall check.", ["x"])
    assert bench.model.requests[-1].messages[-1] == ToolMessage("1", "act", render.interrupted())


async def test_a_stopped_turn_closes_its_open_calls(bench: Bench) -> None:
    bench.model.answers = [calls(("1", "act", '{"text": "x"}'), ("2", "act", "{}"))]
    stopping = asyncio.create_task(bench.turn("do x"))
    bench.act.meanwhile = lambda: stopping.cancel()
    await asyncio.wait({stopping})

    result = await bench.loop.stopped(inbound("do x"), ["in-2"])

    assert result.consumed == ("in-1", "in-2")
    assert [draft.message for draft in result.entries] == [
        ToolMessage("1", "act", render.stopped()),
        ToolMessage("2", "act", render.stopped()),
        UserMessage(render.unanswered(Unanswered.STOPPED)),
    ]


async def test_a_message_during_a_tool_skips_the_calls_not_started(bench: Bench) -> None:
    mail: list[InboundMessage] = []
    bench.act.meanwhile = lambda: mail.append(inbound("stop that, do y", "in-2"))
    bench.model.answers = [
        calls(("1", "act", '{"text": "x"}'), ("2", "act", '{"text": "z"}')),
        says("As you wish."),
    ]

    def drain() -> tuple[InboundMessage, ...]:
        arrived = tuple(mail)
        mail.clear()
        return arrived

    result = await bench.turn("do x and z", drain=drain)

    assert (result.consumed, bench.act.done) == (("in-1", "in-2"), ["x"])
    *_, ran, skipped, steering = bench.model.requests[1].messages
    assert (ran, skipped) == (
        ToolMessage("1", "act", "did x"),
        ToolMessage("2", "act", render.skipped()),
    )
    assert steering.content.endswith("stop that, do y")


async def test_a_big_result_is_spilled_and_stays_readable(bench: Bench) -> None:
    big = "line\n" * 2000
    bench.act.meanwhile = lambda: None
    bench.model.answers = [
        calls(("1", "act", '{"text": ' + f"{big!r}".replace("'", '"') + "}")),
        says("Big."),
    ]

    await bench.turn("make it big")

    shown = bench.model.requests[1].messages[-1].content
    (spilled,) = (bench.home.spill).rglob("*.txt")
    assert len(shown) < 1500
    assert str(spilled) in shown
    assert spilled.read_text() == f"did {big}"


async def test_two_big_results_of_one_call_id_have_a_file_each(bench: Bench) -> None:
    texts = ["one\n" * 2000, "two\n" * 2000]
    asked = [calls(("1", "act", json.dumps({"text": text}))) for text in texts]
    bench.model.answers = [*asked, says("Both.")]

    await bench.turn("make them big")

    results = [m.content for m in bench.model.requests[-1].messages if isinstance(m, ToolMessage)]
    files = {path.read_text(): str(path) for path in bench.home.spill.rglob("*.txt")}
    assert sorted(files) == sorted(f"did {text}" for text in texts)
    assert all(files[f"did {text}"] in result for text, result in zip(texts, results, strict=True))


async def test_an_overflow_that_cannot_be_summed_up_leaves_out_the_past(
    bench: Bench,
) -> None:
    bench.model.answers = [says("a" * 200), says("b" * 200)]
    await bench.turn("first", name="in-1")
    await bench.turn("second", name="in-2")
    bench.model.answers = [ContextOverflow("too long"), BadRequest("no"), says("Still here.")]

    result = await bench.turn("third", name="in-3")

    assert result.answer == "Still here."
    before, _, after = bench.model.requests[-3:]
    assert len(after.messages) < len(before.messages)
    assert after.messages[1] == UserMessage(render.compacted())
    assert after.messages[-1].content.endswith("third")
    whole = await bench.sessions.entries("cli:direct")
    assert [entry.kind.value for entry in whole].count("user") == 3
    live = await bench.sessions.live("cli:direct")
    assert live.entries[0].kind is EntryKind.COMPACTED


async def test_a_parroted_header_reaches_nobody(bench: Bench) -> None:
    bench.model.answers = [says('<turn time="Sun 12:00" channel="cli" chat="direct"/>\nHello.')]

    result = await bench.turn("hi")

    shown = "".join(event.text for event in bench.events if isinstance(event, TextDelta))
    assert (result.answer, shown) == ("Hello.", "Hello.")
    assert result.entries[0].message == AssistantMessage("Hello.")


async def test_each_request_begins_with_the_whole_former_one(bench: Bench) -> None:
    for turn in range(5):
        bench.model.answers = [
            calls((f"{turn}a", "look", "{}"), (f"{turn}b", "act", "{}")),
            calls((f"{turn}c", "look", "{}")),
            says(f"answer {turn}"),
        ]
        await bench.turn(f"question {turn}", name=f"in-{turn}")

    requests = bench.model.requests
    for former, later in pairwise(requests):
        assert later.messages[: len(former.messages)] == former.messages
        assert later.tools == former.tools
        assert violations(later.messages) == []


async def test_reflection_is_asked_for_and_logged_as_sent(bench: Bench) -> None:
    bench.model.reflect = True
    bench.model.answers = [calls(("1", "look", "{}")), says("Good.")]

    await bench.turn("look")

    assert bench.model.requests[1].messages[-1] == UserMessage(render.reflect())
    assert await bench.kinds() == ["user", "assistant", "tool", "nudge", "assistant"]
