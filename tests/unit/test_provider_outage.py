"""An outage from end to end: bus, dispatcher, agent and models over one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nanobot.agent.context import ContextBuilder
from nanobot.agent.loop import AgentLoop
from nanobot.agent.window import Spill
from nanobot.bus.bus import MessageBus
from nanobot.bus.dispatcher import Dispatcher
from nanobot.core.chat import AssistantMessage
from nanobot.core.commands import CommandTable
from nanobot.core.errors import AuthFailed, RetryLater
from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage, Role
from nanobot.core.ports import ChosenModel
from nanobot.providers.resilient import Candidate, Fallback, Outages
from nanobot.session.log import SessionLog
from nanobot.session.usage import UsageLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.images import Pictures
from nanobot.tools.registry import ToolRegistry
from tests.fakes.hooks import NoHooks
from tests.fakes.scripted_model import ScriptedModel, says

DOWN = RetryLater("no connection")


class Gateway:
    """One process's parts over the state in ``folder``."""

    def __init__(self, folder: Path, now: datetime) -> None:
        self.now = now
        self.usual, self.other = ScriptedModel(), ScriptedModel()
        workspace = folder / "workspace"
        workspace.mkdir(exist_ok=True)
        (folder / "no-skills").mkdir(exist_ok=True)
        home = Home(folder / "home")
        self.database = Database(folder / "state.db")
        self.outages = Outages()
        self.sessions = SessionLog(self.database, lambda: self.now)
        self.usage = UsageLog(self.database, lambda: self.now)
        self.bus = MessageBus(self.database, lambda: self.now)
        loop = AgentLoop(
            sessions=self.sessions,
            models=self,
            context=ContextBuilder(workspace, SkillsLoader(workspace, folder / "no-skills")),
            tools=ToolRegistry([]),
            spill=Spill(home, cap=1000),
            pictures=Pictures(home),
            clock=lambda: self.now,
        )
        self.dispatcher = Dispatcher(
            self.bus, loop, CommandTable(()), lambda: self.now, hooks=NoHooks()
        )

    async def prepare(self, model: str | None, *, load: bool = True) -> str:
        """Nothing to find out."""
        return ""

    def choose(self, model: str | None) -> ChosenModel:
        candidates = [
            Candidate("acme/usual", "usual", self.usual, 500),
            Candidate("emca/other", "other", self.other, 500),
        ]
        return ChosenModel(Fallback(candidates, self.outages), "usual", 500, 0.0, 100_000)

    async def says(self) -> list[str]:
        """What goes to the chat."""
        waiting = await self.bus.outbox.undelivered("telegram")
        return [undelivered.message.content for undelivered in waiting]

    async def told(self, count: int) -> list[str]:
        """The same, once there are ``count`` messages."""

        async def are_there() -> bool:
            return len(await self.says()) >= count

        await until(are_there)
        return await self.says()

    async def states(self) -> list[tuple[str, str]]:
        return await self.database.read(
            lambda connection: list(
                connection.execute("SELECT id, state FROM inbox ORDER BY seq").fetchall()
            )
        )

    async def settled(self) -> None:
        async def is_settled() -> bool:
            return all(state == "done" for _, state in await self.states())

        await until(is_settled)

    async def kept(self, name: str) -> None:
        """Wait until a message has been put off to a time that is to come."""

        async def is_kept() -> bool:
            until = await self.database.read(
                lambda connection: connection.execute(
                    "SELECT not_before FROM inbox WHERE id = ?", (name,)
                ).fetchone()[0]
            )
            return until is not None and until > self.now.timestamp()

        await until(is_kept)

    async def stop(self) -> None:
        await self.dispatcher.close()
        self.database.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until ``condition`` holds, at most 5 s: what is awaited is in the database."""
    async with asyncio.timeout(5):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def message(name: str, text: str = "Hello?", answer: AnswerRule = AnswerRule()) -> InboundMessage:
    return InboundMessage("telegram", "7", "1", text, id=name, role=Role.OWNER, answer=answer)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[timedelta], Gateway]]:
    """Starts a process on the same state, so long after noon; the last one is stopped."""
    started: list[Gateway] = []

    def begin(after: timedelta = timedelta()) -> Gateway:
        started.append(Gateway(tmp_path, datetime(2026, 3, 1, 12, tzinfo=UTC) + after))
        return started[-1]

    yield begin
    await started[-1].stop()


Start = Callable[..., Gateway]


async def test_a_fallback_answers_and_the_chat_is_told_who_it_was(start: Start) -> None:
    gateway = start()
    gateway.usual.answers = [DOWN]
    gateway.other.answers = [says("Hello.")]

    await gateway.bus.post(message("a"))
    await gateway.settled()

    assert await gateway.says() == [
        "Hello.\n\n(answered by emca/other, because acme/usual cannot be reached)"
    ]
    entries = await gateway.sessions.entries("telegram:1")
    assert entries[-1].message == AssistantMessage("Hello.")


async def test_a_silent_answer_of_a_fallback_stays_silent(start: Start) -> None:
    gateway = start()
    gateway.usual.answers = [DOWN]
    gateway.other.answers = [says("HEARTBEAT_OK")]

    await gateway.bus.post(
        message("a", answer=AnswerRule(AnswerKind.REPLY_UNLESS_SILENT, "telegram", "1"))
    )
    await gateway.settled()

    assert await gateway.says() == []


async def test_when_nobody_answers_the_message_is_kept_and_told_once(start: Start) -> None:
    gateway = start()
    gateway.usual.answers = [DOWN, DOWN, says("Hello."), says("Yes."), says("Good.")]
    gateway.other.answers = [DOWN, DOWN]

    await gateway.bus.post(message("a"))
    await gateway.kept("a")
    before = await gateway.says()
    gateway.now += timedelta(minutes=1)
    await gateway.bus.post(message("b", "Are you there?"))
    await gateway.kept("a")
    await gateway.bus.post(message("c", "Hm?"))
    await gateway.settled()

    assert before == [
        "No model can be reached at the moment (acme/usual does not answer: no connection; "
        "emca/other does not answer: no connection). Your message is kept; I try again in a minute."
    ]
    assert (await gateway.says())[1:] == ["Hello.", "Yes.", "Good."]


async def test_a_kept_message_is_answered_after_a_restart_when_it_is_due(start: Start) -> None:
    gateway = start()
    gateway.usual.answers = [DOWN]
    gateway.other.answers = [DOWN]
    await gateway.bus.post(message("a"))
    await gateway.told(1)
    await gateway.kept("a")
    await gateway.stop()

    early = start(timedelta(seconds=5))
    await early.dispatcher.recover()
    async with asyncio.timeout(5):
        while early.dispatcher.waiting("telegram:1") == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    running, asked_early = early.dispatcher.running_turns(), len(early.usual.requests)
    await early.stop()
    later = start(timedelta(minutes=5))
    later.usual.answers = [says("Hello.")]
    await later.dispatcher.recover()
    await later.settled()

    assert (running, asked_early) == (0, 0)
    assert (await later.says())[1:] == ["Hello."]
    assert len(later.usual.requests) == 1
    kinds = [entry.kind.value for entry in await later.sessions.entries("telegram:1")]
    assert kinds == ["user", "assistant"]


async def test_an_outage_that_lasts_over_a_restart_is_not_told_again(start: Start) -> None:
    gateway = start()
    gateway.usual.answers, gateway.other.answers = [DOWN], [DOWN]
    await gateway.bus.post(message("a"))
    await gateway.told(1)
    await gateway.kept("a")
    await gateway.stop()

    later = start(timedelta(minutes=5))
    later.usual.answers, later.other.answers = [DOWN, says("Hello."), says("Yes.")], [DOWN]
    await later.dispatcher.recover()
    await later.kept("a")
    await later.bus.post(message("b", "Are you there?"))
    await later.settled()

    assert (await later.says())[1:] == ["Hello.", "Yes."]


async def test_keys_that_nobody_accepts_are_told_and_not_tried_again(start: Start) -> None:
    gateway = start()
    gateway.usual.answers = [AuthFailed("acme does not accept the key")]
    gateway.other.answers = [AuthFailed("emca does not accept the key")]

    await gateway.bus.post(message("a"))
    texts = await gateway.told(1)

    assert texts == ["I could not answer: acme does not accept the key"]
    assert await gateway.states() == [("a", "dead")]


async def test_what_was_used_is_counted_over_outages_and_restarts(start: Start) -> None:
    gateway = start()
    gateway.usual.answers = [says(""), DOWN]
    gateway.other.answers = [DOWN]
    await gateway.bus.post(message("a"))
    await gateway.told(1)
    await gateway.kept("a")
    await gateway.stop()

    later = start(timedelta(minutes=5))
    later.usual.answers = [says("Hello.")]
    await later.dispatcher.recover()
    await later.settled()

    (line,) = await later.usage.of_session("telegram:1")
    assert (line.calls, line.usage.input_tokens, line.usage.output_tokens) == (2, 20, 10)
