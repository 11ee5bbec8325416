"""Turns of every shape against endpoints that enforce their rules on the order of messages.

A real agent loop over a real log, the real adapters and HTTP. The endpoint refuses with the words
that the real one has; what it refuses is learned once, and known to the next process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from nanobot.agent.context import ContextBuilder
from nanobot.agent.loop import AgentLoop
from nanobot.agent.turn import TurnLimits, TurnResult
from nanobot.agent.window import Spill, View
from nanobot.config.schema import AgentDefaults, ModelOverride, ProviderConfig, ProvidersConfig
from nanobot.core.chat import Image
from nanobot.core.events import ignore
from nanobot.core.messages import InboundMessage, Role
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.providers.models import Models
from nanobot.providers.openai import TLS
from nanobot.providers.quirks import Refusals
from nanobot.session.log import SessionLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.images import Pictures
from nanobot.tools.registry import ToolRegistry
from tests.fakes import message_rules
from tests.fakes.message_rules import Rule
from tests.fakes.model_server import Framing, Ids, ModelServer, Reply, Request

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
KEY = "sk-fake-0123456789abcdef"
PICTURE = b"\x89PNG\r\n\x1a\n fake"


@dataclass(frozen=True, slots=True)
class Case:
    """An endpoint: its rule, how it is configured, and how many refusals teach what it wants."""

    rule: Rule
    refusals: int = 0
    provider: str = "custom"
    model: str = "fake-model"
    litellm: bool = False


CASES = {
    "OpenAI": Case(message_rules.strict_ids),
    "Mistral": Case(message_rules.mistral, provider="mistral"),
    "Mistral under another name": Case(message_rules.mistral, refusals=2),
    "Mistral through litellm": Case(message_rules.mistral, refusals=2, litellm=True),
    "DeepSeek's reasoner": Case(message_rules.deepseek_reasoner, refusals=1),
    "Gemma in llama.cpp": Case(message_rules.gemma_in_llama_cpp, refusals=1),
    "Gemma in llama.cpp through litellm": Case(
        message_rules.gemma_in_llama_cpp, refusals=1, litellm=True
    ),
    "Gemma in vLLM": Case(message_rules.gemma, refusals=2),
    "Gemma 2": Case(message_rules.gemma_2, refusals=3),
    "Devstral in llama.cpp": Case(message_rules.devstral_in_llama_cpp, refusals=1),
    "a template of two roles": Case(message_rules.zephyr, refusals=3),
    "Gemini by OpenAI's protocol": Case(message_rules.gemini_by_openai),
    "Anthropic": Case(
        message_rules.anthropic, provider="anthropic", model="claude-fake", litellm=True
    ),
    "Gemini": Case(message_rules.gemini, 1, provider="gemini", model="gemini-fake", litellm=True),
}


class _Text(ToolArguments):
    text: str = ""


class Look(Tool[_Text]):
    """A read that shows a picture."""

    name = "look"
    description = "Looks."
    effect = Effect.READ
    arguments = _Text

    def __init__(self, picture: Path) -> None:
        self._picture = picture

    async def run(self, args: _Text, context: ToolContext) -> ToolOutput:
        return ToolOutput(f"saw {args.text}", images=(Image(str(self._picture), "image/png"),))


class Act(Tool[_Text]):
    """A write that a test can hold."""

    name = "act"
    description = "Acts."
    effect = Effect.WRITE
    arguments = _Text

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def run(self, args: _Text, context: ToolContext) -> ToolOutput:
        self.begun.set()
        await self.go_on.wait()
        return ToolOutput(f"did {args.text}")


@dataclass(slots=True)
class Endpoint:
    """A server with a rule: what it refuses is counted, the rest is answered by the script."""

    server: ModelServer
    rule: Rule
    replies: list[Reply] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)

    def answer(self, request: Request) -> Reply:
        refusal = self.rule(request)
        if refusal is not None:
            self.refused.append(refusal.body or b"")
            return refusal
        return self.replies.pop(0)


@dataclass(slots=True)
class Talk:
    """One session of one process with the endpoint."""

    loop: AgentLoop
    models: Models
    sessions: SessionLog
    act: Act
    endpoint: Endpoint
    number: int = 0

    def inbound(self, text: str) -> InboundMessage:
        self.number += 1
        name = f"in-{id(self)}-{self.number}"
        return InboundMessage("cli", "owner", "direct", text, id=name, role=Role.OWNER)

    async def turn(self, text: str, *replies: Reply, steering: Sequence[str] = ()) -> str:
        """Run a turn; the words of ``steering`` arrive one a look, the first look finds none."""
        self.endpoint.replies += replies
        waiting = [(), *((self.inbound(words),) for words in steering)]
        result = await self.loop.run_turn(
            self.inbound(text), drain=lambda: waiting.pop(0) if waiting else ()
        )
        await self._settle(result)
        assert self.endpoint.replies == []
        return result.answer

    async def stopped_turn(self, text: str, *replies: Reply) -> None:
        """Run a turn that its person stops while ``act`` runs."""
        self.endpoint.replies += replies
        self.act.begun.clear()
        self.act.go_on.clear()
        inbound = self.inbound(text)
        task = asyncio.create_task(self.loop.run_turn(inbound))
        begun = asyncio.create_task(self.act.begun.wait())
        await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED)
        assert begun.done(), task.exception()
        task.cancel()
        await asyncio.wait([task])
        self.act.go_on.set()
        await self._settle(await self.loop.stopped(inbound, ()))

    async def compact(self, summary: str) -> None:
        """What ``/compact`` does, the model's summary being ``summary``."""
        self.endpoint.replies.append(Reply.text(summary))
        view = View(
            inbound=self.inbound("/compact"),
            chosen=self.models.choose(None),
            entries=await self.loop.window.begun(await self.sessions.live("cli:direct")),
            used=10_000,
            fixed=0,
            factor=1.0,
            emit=ignore,
        )
        assert await self.loop.window.compact(view, "") is not None

    async def _settle(self, result: TurnResult) -> None:
        await self.sessions.append(result.session, result.entries)


@asynccontextmanager
async def talking(folder: Path, endpoint: Endpoint, case: Case) -> AsyncIterator[Talk]:
    """What one process is made of, over the home in ``folder``."""
    (folder / "none").mkdir(exist_ok=True)
    picture = folder / "picture.png"
    picture.write_bytes(PICTURE)
    home = Home(folder / "home")
    override = {case.model: ModelOverride(vision=True)}
    provider = ProviderConfig(
        api_key=SecretStr(KEY),
        api_base=endpoint.server.url,
        adapter="litellm" if case.litellm else "openai",
        models=override,
    )
    models = Models(
        AgentDefaults(model=case.model, provider=case.provider, reflect="on"),
        ProvidersConfig(**{case.provider: provider}),
        {},
        tls=TLS(),
        offline_allowed=False,
        refusals=Refusals(home.refusals),
    )
    database = Database(folder / "state.db")
    sessions = SessionLog(database, lambda: NOW)
    act = Act()
    loop = AgentLoop(
        sessions=sessions,
        models=models,
        context=ContextBuilder(folder, SkillsLoader(folder, folder / "none")),
        tools=ToolRegistry([Look(picture), act]),
        spill=Spill(home, cap=1000),
        pictures=Pictures(home),
        clock=lambda: NOW,
        limits=TurnLimits(max_iterations=3),
    )
    try:
        yield Talk(loop, models, sessions, act, endpoint)
    finally:
        await models.aclose()
        database.close()


def calls(*wanted: tuple[str, str], text: str = "", same_ids: bool = False) -> Reply:
    made = Reply.tool_calls([(name, {"text": words}) for name, words in wanted], text=text)
    return made.but(framing=Framing(ids=Ids.SAME)) if same_ids else made


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy stands between the tests and their server."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_every_shape_of_turn_is_answered(tmp_path: Path, case: Case) -> None:
    async with ModelServer(require_key=KEY) as server:
        endpoint = Endpoint(server, case.rule)
        server.answer_with(endpoint.answer)

        async with talking(tmp_path, endpoint, case) as talk:
            await talk.stopped_turn("a", calls(("act", "a")))
            answers = [
                await talk.turn(
                    "parallel calls, each with a picture",
                    calls(("look", "a"), ("look", "b"), ("act", "c"), text="I look."),
                    Reply.text("Parallel."),
                ),
                await talk.turn(
                    "steering",
                    calls(("act", "a"), ("act", "b")),
                    calls(("act", "c"), same_ids=True),
                    Reply.text("Steered."),
                    steering=["first", "second"],
                ),
                await talk.turn("cut", Reply.cut_by_length("In two "), Reply.text("parts.")),
                await talk.turn(
                    "more steps than allowed",
                    *[calls(("act", "again"), same_ids=True) for _ in range(3)],
                    Reply.text("That is where things stand."),
                ),
            ]
            await talk.compact("They looked and acted.")
            answers.append(
                await talk.turn(
                    "after a compaction",
                    calls(("look", "a"), ("look", "b"), same_ids=True),
                    Reply.text("Compacted."),
                )
            )
            await talk.stopped_turn("b", calls(("look", "a"), ("act", "b"), same_ids=True))
        learned = len(endpoint.refused)
        async with talking(tmp_path, endpoint, case) as talk:
            answers.append(
                await talk.turn("the next process", calls(("look", "a")), Reply.text("Known."))
            )

    assert answers == [
        "Parallel.",
        "Steered.",
        "In two parts.",
        "That is where things stand.",
        "Compacted.",
        "Known.",
    ]
    assert (learned, len(endpoint.refused)) == (case.refusals, case.refusals), endpoint.refused
