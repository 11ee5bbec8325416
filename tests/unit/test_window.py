"""A full window: what gives way, in which order, and that nothing is lost or half-done by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from nanobot.agent.context import ContextBuilder, ContextMeter
from nanobot.agent.loop import AgentLoop
from nanobot.agent.standard_commands import NOTHING, UNSUMMED, compact_command
from nanobot.agent.turn import TurnLimits, TurnResult
from nanobot.agent.window import FULL, SUMMING_UP, Spill, cut_place, room_for_talk
from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    LLMResponse,
    ToolMessage,
    Usage,
    UserMessage,
)
from nanobot.core.commands import Invocation
from nanobot.core.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    RetryLater,
    StoreUnavailable,
)
from nanobot.core.events import Event, Notice
from nanobot.core.messages import InboundMessage, Role, Trust
from nanobot.core.text import message_tokens, tool_tokens
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.internet.reading import DocumentReader
from nanobot.prompts import render
from nanobot.safety.paths import PathResolver
from nanobot.session.entries import Draft, Entry, EntryKind, violations
from nanobot.session.log import SessionLog
from nanobot.session.usage import UsageLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.files import ReadFile
from nanobot.tools.images import Pictures
from nanobot.tools.registry import ToolRegistry
from tests.fakes.scripted_model import Request, ScriptedModel, calls, says

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
KEY = "cli:direct"


class _Wanted(ToolArguments):
    letter: str = "x"
    length: int = 0


def _text(letter: str, length: int) -> str:
    """Words in lines of a thousand characters."""
    return ((letter * 4 + " ") * 199 + letter * 4 + "\n") * (length // 1000) + (
        letter * 4 + " "
    ) * (length % 1000 // 5)


class Fetch(Tool[_Wanted]):
    """Gives as much text as it is asked for, from outside when the letter is a capital."""

    name = "fetch"
    description = "Fetches."
    effect = Effect.READ
    arguments = _Wanted

    async def run(self, args: _Wanted, context: ToolContext) -> ToolOutput:
        trust = Trust.UNTRUSTED if args.letter.isupper() else Trust.TRUSTED
        return ToolOutput(_text(args.letter, args.length), trust)


@dataclass(slots=True)
class Bench:
    """An agent loop over a real log and real files, with a model of a small window."""

    loop: AgentLoop
    model: ScriptedModel
    sessions: SessionLog
    meter: ContextMeter
    home: Home
    usage: UsageLog
    events: list[Event] = field(default_factory=list)

    async def turn(self, name: str, text: str, *answers: object) -> TurnResult:
        self.model.answers = list(answers)  # type: ignore[arg-type]
        result = await self.loop.run_turn(inbound(text, name), emit=self.events.append)
        await self.sessions.append(result.session, result.entries)
        return result

    async def compact(self, focus: str, *answers: object) -> str:
        self.model.answers = list(answers)  # type: ignore[arg-type]
        command = compact_command(self.sessions, self.model, self.loop.window, self.meter)
        return await command.handler(Invocation(inbound(f"/compact {focus}", "in-c"), focus))

    async def kinds(self) -> list[str]:
        return [entry.kind.value for entry in await self.sessions.entries(KEY)]

    async def view(self) -> list[ChatMessage]:
        live = await self.sessions.live(KEY)
        return [entry.message for entry in live.entries if entry.message is not None]


def inbound(text: str, name: str) -> InboundMessage:
    return InboundMessage("cli", "owner", "direct", text, id=name, role=Role.OWNER)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "no-skills").mkdir()
    home = Home(tmp_path / "home")
    database = Database(tmp_path / "state.db")
    sessions = SessionLog(database, lambda: NOW)
    model = ScriptedModel(context_window=9000)
    reading = ReadFile(PathResolver(home, restrict=True), Pictures(home), DocumentReader())
    tools = ToolRegistry([Fetch(), reading])
    context = ContextBuilder(workspace, SkillsLoader(workspace, tmp_path / "no-skills"))
    loop = AgentLoop(
        sessions=sessions,
        models=model,
        context=context,
        tools=tools,
        spill=Spill(home, cap=16_000),
        pictures=Pictures(home),
        clock=lambda: NOW,
        limits=TurnLimits(max_iterations=40),
    )
    meter = ContextMeter(sessions, model, context, tools)
    yield Bench(loop, model, sessions, meter, home, UsageLog(database, lambda: NOW))
    database.close()


def long_answer(turn: int) -> LLMResponse:
    """An answer of about 1,600 of the 7,000 tokens that there are for conversation."""
    return says(f"{turn} " + "word " * 1500)


def fetches(name: str, letter: str, length: int) -> LLMResponse:
    return calls((name, "fetch", f'{{"letter": "{letter}", "length": {length}}}'))


def results(request: Request) -> list[str]:
    return [m.content for m in request.messages if isinstance(m, ToolMessage)]


def size(request: Request) -> int:
    return tool_tokens(request.tools) + sum(map(message_tokens, request.messages))


async def test_old_results_give_way_first_for_notes_that_name_their_files(bench: Bench) -> None:
    for turn, letter in enumerate("abcdef"):
        await bench.turn(f"in-{turn}", letter, fetches(f"c{turn}", letter, 5000), says("ok"))

    *_, last = bench.model.requests
    kept = [text for text in results(last) if text.startswith(tuple("abcdef"))]
    notes = [text for text in results(last) if text not in kept]
    assert [text[0] for text in kept] == list("ef")
    assert notes == [
        render.trimmed(bench.home.spill_of(KEY) / f"in-{turn}-c{turn}.{seq}.txt")
        for turn, seq in enumerate((3, 7, 11, 15))
    ]
    assert [path.read_text()[0] for path in sorted(bench.home.spill_of(KEY).iterdir())] == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert (await bench.kinds()).count("gave_way") == 1
    assert "compacted" not in await bench.kinds()
    assert not any(isinstance(event, Notice) for event in bench.events)


async def test_what_gave_way_stays_so_and_comes_in_batches(bench: Bench) -> None:
    for turn in range(24):
        await bench.turn(f"in-{turn}", "go", fetches(f"c{turn}", "a", 2400), says("ok"))

    requests = bench.model.requests
    broken = sum(
        later.messages[: len(former.messages)] != former.messages
        for former, later in pairwise(requests)
    )
    kinds = await bench.kinds()
    assert broken == kinds.count("gave_way") + kinds.count("compacted")
    assert 0 < broken <= 4
    assert all(violations(request.messages) == [] for request in requests)
    room = room_for_talk(bench.model.choose(None), 0)
    assert max(map(size, requests)) <= room


async def test_a_spilled_result_gives_way_to_the_file_it_has_already(bench: Bench) -> None:
    bench.model.context_window = 12_000
    await bench.turn("in-0", "big", fetches("c0", "a", 40_000), says("ok"))
    (spilled,) = bench.home.spill_of(KEY).iterdir()

    await bench.turn("in-1", "more", fetches("c1", "b", 15_000), says("ok"))
    await bench.turn("in-2", "more", fetches("c2", "b", 15_000), says("ok"))

    assert results(bench.model.requests[-1])[0] == render.trimmed(spilled)
    assert len(spilled.read_text()) == 40_000


async def test_two_megabytes_leave_the_context_small_and_the_file_readable(bench: Bench) -> None:
    path = bench.home.spill_of(KEY) / "in-0-c0.txt"
    part = calls(("c1", "read_file", f'{{"path": "{path}", "offset": 900, "limit": 2}}'))

    await bench.turn("in-0", "big", fetches("c0", "a", 2_000_000), part, says("Read."))

    shown, read = results(bench.model.requests[-1])
    assert len(shown) < 16_500
    assert str(path) in shown
    assert path.stat().st_size == 2_000_000
    assert read.splitlines()[0] == ("aaaa " * 200).strip()
    assert size(bench.model.requests[-1]) < 5000


async def test_when_results_are_not_enough_older_conversation_is_summed_up(bench: Bench) -> None:
    for turn in range(4):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))

    await bench.turn("in-4", "and now?", says("## Facts\nThe key is under the oak."), says("Yes."))

    asked, after = bench.model.requests[-2:]
    assert (asked.tools, asked.messages[0].content) == ((), render.compaction_task())
    assert "[person]\n" in asked.messages[1].content
    assert "say 0" in asked.messages[1].content
    assert after.messages[1] == UserMessage(
        render.summary("## Facts\nThe key is under the oak.", tainted=False)
    )
    assert after.messages[-1].content.endswith("and now?")
    assert size(after) < 0.6 * bench.model.context_window
    assert Notice(SUMMING_UP) in bench.events
    assert (await bench.kinds()).count("user") == 5
    assert (await bench.view())[0] == after.messages[1]


async def test_a_summary_is_counted_like_every_call(bench: Bench) -> None:
    for turn in range(4):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))
    before = await bench.usage.of_session(KEY)

    await bench.turn("in-4", "now?", says("A summary."), says("Yes."))

    after = await bench.usage.of_session(KEY)
    assert sum(line.calls for line in after) - sum(line.calls for line in before) == 2


@pytest.mark.parametrize("answer", [BadRequest("no"), says("  "), ContextOverflow("too long")])
async def test_a_model_that_cannot_sum_up_costs_the_past_but_not_the_turn(
    bench: Bench, answer: LLMResponse | Exception
) -> None:
    for turn in range(4):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))

    result = await bench.turn("in-4", "and now?", answer, says("Yes."))

    assert result.answer == "Yes."
    assert bench.model.requests[-1].messages[1] == UserMessage(render.compacted())


async def test_a_summary_of_words_from_outside_is_marked_as_such(bench: Bench) -> None:
    await bench.turn("in-0", "page", fetches("c0", "A", 4000), long_answer(0))
    for turn in range(1, 4):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))

    await bench.turn("in-4", "and now?", says("The page says a."), says("Yes."))

    mark = (await bench.sessions.live(KEY)).entries[0]
    assert (mark.kind, mark.trust) == (EntryKind.COMPACTED, Trust.UNTRUSTED)
    assert mark.message == UserMessage(render.summary("The page says a.", tainted=True))


async def test_a_summary_takes_the_former_one_over(bench: Bench) -> None:
    for turn in range(4):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))
    await bench.turn("in-4", "and now?", says("First summary."), long_answer(4))
    for turn in range(5, 7):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))

    await bench.turn("in-7", "and now?", says("Second summary."), says("Yes."))

    asked, after = bench.model.requests[-2:]
    assert "[earlier summary]" in asked.messages[1].content
    assert "First summary." in asked.messages[1].content
    assert after.messages[1] == UserMessage(render.summary("Second summary.", tainted=False))
    assert "First summary." not in "".join(m.content for m in after.messages)


async def test_a_turn_too_long_for_the_window_goes_on_and_knows_what_it_works_on(
    bench: Bench,
) -> None:
    steps = [calls((f"c{n}", "fetch", '{"letter": "a"}'), text="word " * 1200) for n in range(5)]

    result = await bench.turn(
        "in-0", "Count the sheep.", *steps, says("Counting."), says("There are six.")
    )

    assert result.answer == "There are six."
    request = bench.model.requests[-1]
    assert request.messages[1] == UserMessage(
        f"{render.summary('Counting.', tainted=False)}\n\n{render.under_way('Count the sheep.')}"
    )
    assert isinstance(request.messages[2], AssistantMessage)
    assert violations(request.messages) == []


async def test_a_turn_cut_off_after_its_own_words_were_summed_up_is_resumed(bench: Bench) -> None:
    steps = [calls((f"c{n}", "fetch", '{"letter": "A"}'), text="word " * 1200) for n in range(5)]
    with pytest.raises(RetryLater):
        await bench.turn("in-0", "Count.", *steps, says("Counting."), RetryLater("asleep"))

    result = await bench.turn("in-0", "Count.", says("Six."))

    assert result.answer == "Six."
    assert (await bench.kinds()).count("user") == 1
    assert result.entries[0].trust is Trust.UNTRUSTED


async def test_results_that_came_just_now_give_way_only_where_they_alone_are_too_much(
    bench: Bench,
) -> None:
    many = calls(
        *(
            (f"c{n}", "fetch", f'{{"letter": "{letter}", "length": {5000 + n}}}')
            for n, letter in enumerate("abcdefg")
        )
    )

    result = await bench.turn("in-0", "all of it", many, says("Read in parts."))

    assert result.answer == "Read in parts."
    shown = results(bench.model.requests[-1])
    assert len(shown) == 7
    assert [text[0] for text in shown if text[0] != "["] == list("abcdef")[: 7 - _noted(shown)]
    assert _noted(shown) >= 1
    assert shown[-1].startswith("[This result does not fit")


def _noted(texts: Sequence[str]) -> int:
    return sum(text.startswith("[") for text in texts)


async def test_an_overflow_is_answered_by_making_room_once(bench: Bench) -> None:
    await bench.turn("in-0", "say 0", long_answer(0))
    await bench.turn("in-1", "say 1", long_answer(1))

    result = await bench.turn(
        "in-2", "now?", ContextOverflow("too long"), says("Summed up."), says("Yes.")
    )

    assert result.answer == "Yes."
    with pytest.raises(ContextOverflow):
        await bench.turn(
            "in-3",
            "again?",
            ContextOverflow("too long"),
            says("Summed up."),
            ContextOverflow("still too long"),
        )


async def test_an_overflow_with_nothing_to_give_way_is_told(bench: Bench) -> None:
    with pytest.raises(ContextOverflow):
        await bench.turn("in-0", "hi", ContextOverflow("too long"))

    assert await bench.kinds() == ["user"]


async def test_a_turn_that_dies_while_it_sums_up_leaves_the_log_as_it_was(bench: Bench) -> None:
    for turn in range(4):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))
    before = await bench.sessions.live(KEY)
    bench.model.gate = asyncio.Event()
    bench.model.called.clear()

    dying = asyncio.create_task(bench.turn("in-4", "and now?", says("never")))
    await bench.model.called.wait()
    dying.cancel()
    await asyncio.wait({dying})

    assert dying.cancelled()
    after = await bench.sessions.live(KEY)
    assert after.entries[: len(before.entries)] == before.entries
    assert [entry.kind for entry in after.entries[len(before.entries) :]] == [EntryKind.USER]


async def test_a_parked_turn_takes_its_summary_of_others_not_with_it(bench: Bench) -> None:
    for turn in range(4):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))
    with pytest.raises(RetryLater):
        await bench.turn("in-4", "poison", says("A summary."), RetryLater("asleep"))

    parked = Draft(
        kind=EntryKind.DEAD_LETTER,
        message=None,
        inbound_id="in-4",
        principal="owner:cli:owner",
        trust=Trust.TRUSTED,
    )
    await bench.sessions.append(KEY, [parked])

    view = await bench.view()
    assert view[0] == UserMessage(render.summary("A summary.", tainted=False))
    assert not any("poison" in message.content for message in view)


# -- /compact ---------------------------------------------------------------------------------


async def test_compact_sums_up_all_but_the_last_exchange_and_says_what_it_saved(
    bench: Bench,
) -> None:
    for turn in range(3):
        await bench.turn(f"in-{turn}", f"say {turn}", says(f"{turn} " * 500))
    before = await bench.meter.report(KEY)

    answer = await bench.compact("the numbers", says("Numbers were said."))

    after = await bench.meter.report(KEY)
    assert answer == f"Summed up: {before.used:,} tokens before, {after.used:,} after."
    assert after.used < before.used
    (asked,) = bench.model.requests[3:]
    assert "Go into this above all: the numbers" in asked.messages[1].content
    summary, *rest = await bench.view()
    assert summary == UserMessage(render.summary("Numbers were said.", tainted=False))
    assert [message.content[-4:] for message in rest] == ["ay 2", "2 2 "]
    assert (await bench.kinds()).count("user") == 3


async def test_compact_with_a_model_that_refuses_says_so_and_keeps_the_log(bench: Bench) -> None:
    for turn in range(3):
        await bench.turn(f"in-{turn}", f"say {turn}", says("ok"))

    answer = await bench.compact("", BadRequest("no"))

    assert answer.startswith(UNSUMMED)
    assert (await bench.kinds()).count("user") == 3


@pytest.mark.parametrize(
    "outage", [RetryLater("asleep"), AuthFailed("no key"), BadRequest("gone", reached=False)]
)
async def test_a_model_that_is_down_costs_nothing_of_what_was_said(
    bench: Bench, outage: Exception
) -> None:
    for turn in range(4):
        await bench.turn(f"in-{turn}", f"say {turn}", long_answer(turn))
    before = await bench.view()

    with pytest.raises(type(outage)):
        await bench.compact("", outage)
    with pytest.raises(type(outage)):
        await bench.turn("in-4", "and now?", outage)

    assert (await bench.view())[: len(before)] == before
    result = await bench.turn("in-4", "and now?", says("A summary."), says("Yes."))
    assert result.answer == "Yes."
    assert (await bench.view())[0] == UserMessage(render.summary("A summary.", tainted=False))


async def test_compact_with_one_exchange_has_nothing_to_do(bench: Bench) -> None:
    await bench.turn("in-0", "hi", says("Hello."))

    assert await bench.compact("") == NOTHING
    assert await bench.kinds() == ["user", "assistant"]


# -- where to cut -----------------------------------------------------------------------------


def entries(kinds: str) -> list[Entry]:
    """u: a person, a: the assistant, t: a result, c: a summary."""
    names: dict[str, tuple[EntryKind, ChatMessage]] = {
        "u": (EntryKind.USER, UserMessage("u")),
        "a": (EntryKind.ASSISTANT, AssistantMessage("a")),
        "t": (EntryKind.TOOL, ToolMessage("1", "look", "t")),
        "c": (EntryKind.COMPACTED, UserMessage("c")),
    }
    return [
        Entry(
            kind=names[kind][0],
            message=names[kind][1],
            inbound_id="in-1",
            principal="owner:cli:owner",
            trust=Trust.TRUSTED,
            seq=seq,
            at=NOW,
        )
        for seq, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "keep", "place"),
    [
        ("", 10, None),
        ("u", 0, None),
        ("cu", 0, None),
        ("ua", 1, 1),
        ("uaua", 10, 2),
        ("cuaua", 2, 3),
        ("uauaua", 2, 4),
        ("uauaua", 4, 2),
        ("uauatat", 4, 2),
        ("uauatatat", 3, 7),
        ("uatatatat", 4, 5),
        ("cuatatat", 4, 4),
    ],
)
def test_the_cut_is_before_a_person_or_within_an_exchange_that_is_too_long(
    kinds: str, keep: int, place: int | None
) -> None:
    assert cut_place(entries(kinds), [1] * len(kinds), keep) == place


def test_the_thresholds_leave_room_for_what_the_estimate_is_off_by() -> None:
    chosen = ScriptedModel(context_window=10_000).choose(None)

    assert FULL * room_for_talk(chosen, 1000) + 1000 < 0.9 * (10_000 - chosen.max_tokens)


# -- what providers report --------------------------------------------------------------------


async def test_what_the_provider_counts_corrects_the_estimate(bench: Bench) -> None:
    def counted(messages: Sequence[ChatMessage]) -> LLMResponse:
        request = bench.model.requests[-1]
        reported = Usage(round(1.5 * size(request)), 5)
        return LLMResponse("word " * 500, usage=reported, model="scripted")

    for turn in range(2):
        await bench.turn(f"in-{turn}", "go", counted)

    assert await bench.sessions.calibration.factor("scripted") == pytest.approx(1.5, abs=0.01)
    report = await bench.meter.report(KEY)
    assert report.calibrated


async def test_on_a_full_disk_nothing_gives_way_and_the_turn_waits_for_room(bench: Bench) -> None:
    bench.home.spill.parent.mkdir()
    bench.home.spill.touch()

    with pytest.raises(StoreUnavailable, match="cannot be written"):
        for turn, letter in enumerate("abcdef"):
            await bench.turn(f"in-{turn}", letter, fetches(f"c{turn}", letter, 5000), says("ok"))
    kinds = await bench.kinds()
    bench.home.spill.unlink()
    result = await bench.turn(f"in-{turn}", letter, says("Yes."))

    assert (result.answer, "gave_way" in kinds) == ("Yes.", False)
    assert "gave_way" in await bench.kinds()
