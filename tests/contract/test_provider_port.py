"""What every model behind the port does alike: both adapters, and the offline model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import pytest

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    FinishReason,
    LLMResponse,
    ModelRequest,
    SystemMessage,
    ToolChoice,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from nanobot.core.errors import BadRequest
from nanobot.core.events import Event, TextDelta, ignore
from nanobot.core.ports import LLMProvider
from nanobot.providers.litellm import LiteLLM, LiteLLMChat
from nanobot.providers.offline import OfflineModel
from nanobot.providers.openai import OpenAIChat
from tests.fakes.model_server import ModelServer, Reply, Request

KEY = "sk-fake-0123456789abcdef"
LIST = ToolSpec("list_dir", "Lists.", {"type": "object", "properties": {"path": {}}})
READ = ToolSpec("read_file", "Reads.", {"type": "object", "properties": {"path": {}}})


@dataclass(frozen=True)
class Model:
    """A model under test, which understands the offline model's grammar."""

    provider: LLMProvider
    name: str

    async def ask(
        self,
        *messages: ChatMessage,
        tools: tuple[ToolSpec, ...] = (LIST, READ),
        tool_choice: ToolChoice = ToolChoice.AUTO,
        events: list[Event] | None = None,
    ) -> LLMResponse:
        talk = (SystemMessage("You help."), *messages)
        request = ModelRequest(talk, tools, self.name, 500, 0.0, tool_choice=tool_choice)
        return await self.provider.chat(request, ignore if events is None else events.append)


def like_the_offline_model(request: Request) -> Reply:
    """The fake model's answers, by the same grammar."""
    words = request.last_user
    if words == "gibberish":
        return Reply.error(400, "what is that?")
    if request.tool_results and len(request.tool_results) >= words.count("list"):
        return Reply.text(f"It says: {request.tool_results[-1]}")
    if words == "list" and "list_dir" in request.tools and "none" not in str(request.body):
        return Reply.tool_calls([("list_dir", {"path": "."})])
    return Reply.text("I was not told the time.")


MAKE: Mapping[str, Callable[[str, LiteLLM], Model]] = {
    "openai_chat": lambda url, package: Model(
        OpenAIChat(name="fake", base_url=url, api_key=KEY), "fake-model"
    ),
    "litellm_anthropic": lambda url, package: Model(
        LiteLLMChat(name="fake", package=package, prefix="anthropic", base_url=url, api_key=KEY),
        "fake-model",
    ),
    "litellm_openai": lambda url, package: Model(
        LiteLLMChat(name="fake", package=package, prefix="hosted_vllm", base_url=url, api_key=KEY),
        "fake-model",
    ),
    "offline": lambda url, package: Model(OfflineModel(), "offline"),
}


@pytest.fixture(params=MAKE)
async def model(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Model]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    package = LiteLLM()
    async with ModelServer(require_key=KEY) as server:
        server.answer_with(like_the_offline_model)
        made = MAKE[request.param](server.url, package)
        yield made
        await made.provider.aclose()
        await package.aclose()


async def test_text_is_what_its_deltas_add_up_to(model: Model) -> None:
    events: list[Event] = []

    response = await model.ask(UserMessage("time"), events=events)

    deltas = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert deltas == response.content == "I was not told the time."
    assert (response.tool_calls, response.finish_reason) == ((), FinishReason.STOP)


async def test_a_call_is_made_and_its_result_answered(model: Model) -> None:
    asked = UserMessage("list")

    first = await model.ask(asked)
    (call,) = first.tool_calls
    second = await model.ask(
        asked,
        AssistantMessage(first.content, first.tool_calls, thinking_blocks=first.thinking_blocks),
        ToolMessage(call.id, call.name, "notes.md"),
    )

    assert (call.name, json.loads(call.arguments)) == ("list_dir", {"path": "."})
    assert first.finish_reason is FinishReason.TOOL_CALLS
    assert "notes.md" in second.content and second.tool_calls == ()


async def test_calls_have_ids_of_their_own_throughout_a_conversation(model: Model) -> None:
    first = await model.ask(UserMessage("list"))
    (call,) = first.tool_calls
    second = await model.ask(
        UserMessage("list"),
        AssistantMessage("", first.tool_calls),
        ToolMessage(call.id, call.name, "notes.md"),
        AssistantMessage("notes.md"),
        UserMessage("list list"),
        UserMessage("list"),
    )

    ids = [call.id for response in (first, second) for call in response.tool_calls]
    assert all(ids) and len(set(ids)) == len(ids)


async def test_no_tools_are_called_where_the_choice_is_none(model: Model) -> None:
    response = await model.ask(UserMessage("list"), tool_choice=ToolChoice.NONE)

    assert response.tool_calls == () and response.content


async def test_usage_and_the_name_of_the_model_are_told(model: Model) -> None:
    response = await model.ask(UserMessage("time"))

    assert response.usage is not None
    assert response.usage.input_tokens > 0 and response.usage.output_tokens > 0
    assert response.model == model.name
    assert response.provider


async def test_what_is_not_understood_is_a_bad_request(model: Model) -> None:
    with pytest.raises(BadRequest):
        await model.ask(UserMessage("gibberish"))


async def test_the_same_request_gets_the_same_answer(model: Model) -> None:
    answers = await asyncio.gather(*(model.ask(UserMessage("time")) for _ in range(3)))

    assert len({answer.content for answer in answers}) == 1


async def test_closing_twice_is_closing_once(model: Model) -> None:
    await model.ask(UserMessage("time"))

    await model.provider.aclose()
    await model.provider.aclose()
