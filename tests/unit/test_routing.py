"""Nothing ever reaches another target, however chats, services and the message tool interleave."""

from __future__ import annotations

import asyncio
import re
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanobot.agent.context import ContextBuilder
from nanobot.agent.loop import AgentLoop
from nanobot.agent.window import Spill
from nanobot.bus.bus import MessageBus
from nanobot.bus.dispatcher import Dispatcher
from nanobot.core.chat import (
    LLMResponse,
    ModelRequest,
    ToolMessage,
    UserMessage,
)
from nanobot.core.commands import CommandTable
from nanobot.core.events import Emit, ignore
from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage, Origin, Role
from nanobot.core.ports import ChosenModel
from nanobot.session.log import SessionLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.images import Pictures
from nanobot.tools.message import Message
from nanobot.tools.registry import ToolRegistry
from tests.fakes.hooks import NoHooks
from tests.fakes.scripted_model import calls, says

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WORDS = re.compile(r"answer (\w+), tell (\w+|nobody), wait (\d)")


@dataclass(frozen=True, slots=True)
class Wish:
    """One inbound: from where, answered where, what it has the model tell whom, how slowly."""

    chat: str
    home: str
    tells: str
    waits: int
    origin: Origin


class Obedient:
    """A model that does what the last message says: tells somebody first, then answers."""

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        messages = request.messages
        place = max(i for i, message in enumerate(messages) if isinstance(message, UserMessage))
        found = WORDS.search(messages[place].content)
        assert found is not None
        home, tells, waits = found.groups()
        for _ in range(int(waits)):
            await asyncio.sleep(0)
        told = any(isinstance(message, ToolMessage) for message in messages[place:])
        if tells == "nobody" or told:
            return says(f"for {home}")
        where = "" if tells == "here" else f', "channel": "telegram", "chat_id": "{tells}"'
        content = f"for {home}" if tells == "here" else f"for {tells}"
        return calls((f"c{place}", "message", f'{{"content": "{content} early"{where}}}'))

    async def aclose(self) -> None:
        """Nothing to close."""

    async def prepare(self, model: str | None, *, load: bool = True) -> str:
        """Nothing to find out."""
        return ""

    def choose(self, model: str | None) -> ChosenModel:
        return ChosenModel(self, "obedient", 100, 0.0, 1_000_000)


_chats = st.sampled_from(["a", "b", "c"])
_wishes = st.builds(
    lambda chat, elsewhere, tells, waits, origin: Wish(
        chat,
        chat if origin is Origin.USER else elsewhere,
        tells if origin is Origin.USER or tells != "here" else "nobody",
        waits,
        origin,
    ),
    _chats,
    _chats,
    st.sampled_from(["nobody", "here", "a", "b", "c"]),
    st.integers(0, 4),
    st.sampled_from(list(Origin)),
)


def _inbound(number: int, wish: Wish) -> InboundMessage:
    text = f"answer {wish.home}, tell {wish.tells}, wait {wish.waits}"
    service = wish.origin is not Origin.USER
    rule = AnswerRule(AnswerKind.REPLY, "telegram", wish.home) if service else AnswerRule()
    return InboundMessage(
        "telegram",
        "7",
        wish.chat,
        text,
        id=f"in{number}",
        role=Role.OWNER,
        origin=wish.origin,
        answer=rule,
        session=f"{wish.origin}:{number}" if service and number % 2 else None,
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_wishes, min_size=1, max_size=12))
def test_every_message_reaches_the_target_it_was_meant_for(wishes: list[Wish]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        delivered = asyncio.run(_run(Path(folder), wishes))

    assert delivered
    assert [text for target, text in delivered if f"for {target}" not in text] == []


async def _run(folder: Path, wishes: list[Wish]) -> list[tuple[str, str]]:
    """Post all wishes; returns (chat, text) of all that was queued for delivery."""
    database = Database(folder / "state.db")
    bus = MessageBus(database, lambda: NOW)
    model = Obedient()
    (folder / "none").mkdir()
    loop = AgentLoop(
        sessions=SessionLog(database, lambda: NOW),
        models=model,
        context=ContextBuilder(folder, SkillsLoader(folder, folder / "none")),
        tools=ToolRegistry([Message(bus, frozenset({"telegram"}))]),
        spill=Spill(Home(folder / "home"), cap=10_000),
        pictures=Pictures(Home(folder / "home")),
        clock=lambda: NOW,
    )
    dispatcher = Dispatcher(bus, loop, CommandTable([]), lambda: NOW, hooks=NoHooks(), slots=3)
    for number, wish in enumerate(wishes):
        await bus.post(_inbound(number, wish))
    async with asyncio.timeout(20):
        while await bus.inbox.pending():  # noqa: ASYNC110 - what is awaited is in the database
            await asyncio.sleep(0.001)
    waiting = await bus.outbox.undelivered("telegram")
    await dispatcher.close()
    database.close()
    return [(item.message.chat_id, item.message.content) for item in waiting]
