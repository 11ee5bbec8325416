"""The commands /model, /think and /usage, over a real log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from nanobot.agent.context import ContextBuilder, ContextMeter
from nanobot.agent.standard_commands import StandardCommands
from nanobot.config.schema import AgentDefaults, ProviderConfig, ProvidersConfig
from nanobot.core.chat import Usage
from nanobot.core.commands import CommandTable, Invocation
from nanobot.core.errors import AuthFailed
from nanobot.core.messages import InboundMessage, Role
from nanobot.providers.models import Models
from nanobot.providers.openai import TLS
from nanobot.session.log import SessionLog, SessionSettings
from nanobot.session.usage import ModelCall, UsageLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.tools.registry import ToolRegistry

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class NoTurns:
    """A dispatcher in which nothing runs."""

    async def stop(self, session_key: str) -> bool:
        return False

    async def stop_subagents(self, session_key: str) -> tuple[str, ...]:
        return ()

    def try_again(self, session_key: str) -> None:
        """Nothing was put off."""

    def running_since(self, session_key: str) -> datetime | None:
        return None

    def waiting(self, session_key: str) -> int:
        return 0


@dataclass
class Bench:
    table: CommandTable
    sessions: SessionLog
    usage: UsageLog

    async def say(self, text: str, role: Role = Role.OWNER) -> str:
        inbound = InboundMessage("telegram", "7", "1", text, role=role)
        found = self.table.find(text)
        assert found is not None
        command, argument = found
        return await command.handler(Invocation(inbound, argument))

    async def settings(self) -> SessionSettings:
        return (await self.sessions.live("telegram:1")).settings


async def none(session_key: str) -> tuple[str, ...]:
    return ()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    database = Database(tmp_path / "state.db")
    sessions = SessionLog(database, lambda: NOW)
    usage = UsageLog(database, lambda: NOW)
    key = ProviderConfig(api_key=SecretStr("sk-fake-0123"))
    models = Models(
        AgentDefaults(model="groq/llama-3", fallback_models=("deepseek/deepseek-chat",)),
        ProvidersConfig(groq=key, deepseek=key),
        {},
        tls=TLS(),
        offline_allowed=False,
    )
    context = ContextBuilder(tmp_path, SkillsLoader(tmp_path, tmp_path / "no-skills"))
    table = StandardCommands(
        sessions=sessions,
        models=models,
        usage=usage,
        turns=NoTurns,
        meter=ContextMeter(sessions, models, context, ToolRegistry([])),
        clock=lambda: NOW,
        renewed=context.forget,
        subagents=none,
    ).table(())
    yield Bench(table, sessions, usage)
    await models.aclose()
    database.close()


# -- /model -----------------------------------------------------------------------------------


async def test_model_says_which_one_why_and_what_stands_in(bench: Bench) -> None:
    assert await bench.say("/model") == (
        "Model: groq/llama-3, through groq (the model's prefix groq/); "
        "if it cannot answer: deepseek/deepseek-chat"
    )


async def test_model_with_a_name_chooses_it_for_the_session(bench: Bench) -> None:
    answer = await bench.say("/model deepseek/deepseek-chat")

    described = "deepseek/deepseek-chat, through deepseek (the model's prefix deepseek/)"
    assert answer == f"From the next message on: {described}"
    assert await bench.settings() == SessionSettings(model="deepseek/deepseek-chat")
    assert await bench.say("/model") == (
        f"Model: {described}\nChosen with /model; `/model default` goes back."
    )


async def test_model_default_goes_back(bench: Bench) -> None:
    await bench.say("/think high")
    await bench.say("/model deepseek/deepseek-chat")

    answer = await bench.say("/model default")

    assert answer.startswith("From the next message on: groq/llama-3")
    assert await bench.settings() == SessionSettings(None, "high")


async def test_a_model_that_cannot_be_asked_is_refused_with_the_reason(bench: Bench) -> None:
    with pytest.raises(AuthFailed, match="no model is configured"):
        await bench.say("/model offline")
    too_many = await bench.say("/model llama 3")

    assert too_many.startswith("Say /model and one name")
    assert await bench.settings() == SessionSettings()


# -- /think -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["low", "medium", "high", "off"])
async def test_think_sets_the_level_of_the_session(bench: Bench, level: str) -> None:
    answer = await bench.say(f"/think {level.upper()}")

    assert answer == f"Reasoning from the next message on: {level}"
    assert await bench.settings() == SessionSettings(None, level)
    assert await bench.say("/think") == f"Reasoning: {level}"


async def test_think_default_leaves_it_to_the_model(bench: Bench) -> None:
    await bench.say("/think high")

    await bench.say("/think default")

    assert await bench.settings() == SessionSettings()
    assert await bench.say("/think") == "Reasoning: as the model likes"


async def test_an_unknown_level_changes_nothing(bench: Bench) -> None:
    answer = await bench.say("/think harder")

    assert answer == "Say /think and one of low, medium, high, off, or default."
    assert await bench.settings() == SessionSettings()


# -- /usage -----------------------------------------------------------------------------------


async def test_usage_shows_today_this_session_and_the_week_by_model(bench: Bench) -> None:
    await bench.usage.record("telegram:1", [ModelCall("claude-x", "anthropic", Usage(100, 10))])
    await bench.usage.record("cli:direct", [ModelCall("llama-3", "groq", Usage(50, 5, 0, 0.25))])

    assert (await bench.say("/usage")).splitlines() == [
        "Today: 2 calls, 150 tokens in, 15 out, $0.2500 for 1 of the calls, "
        "the others' cost unknown",
        "This session: 1 call, 100 tokens in, 10 out, cost unknown",
        "Last 7 days: 2 calls, 150 tokens in, 15 out, $0.2500 for 1 of the calls, "
        "the others' cost unknown",
        "- claude-x (anthropic): 1 call, 100 tokens in, 10 out, cost unknown",
        "- llama-3 (groq): 1 call, 50 tokens in, 5 out, $0.2500",
    ]


async def test_usage_acts_at_once_and_the_others_keep_their_place(bench: Bench) -> None:
    lanes = {}
    for name in ("usage", "model", "think"):
        found = bench.table.find(f"/{name}")
        assert found is not None
        lanes[name] = found[0].control

    assert lanes == {"usage": True, "model": False, "think": False}


# -- guests -----------------------------------------------------------------------------------


async def test_a_guest_sees_little_and_changes_nothing(bench: Bench) -> None:
    await bench.usage.record("cli:direct", [ModelCall("llama-3", "groq", Usage(50, 5))])

    answers = [
        await bench.say(text, Role.GUEST)
        for text in ("/model", "/model deepseek/x", "/think", "/think high", "/usage")
    ]

    assert answers == [
        "Model: llama-3",
        "Only the owner can change that.",
        "Reasoning: as the model likes",
        "Only the owner can change that.",
        "This session: nothing",
    ]
    assert await bench.settings() == SessionSettings()
