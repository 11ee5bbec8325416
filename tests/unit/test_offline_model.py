"""The offline model: what it understands, and that it drives the real tools."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    LLMResponse,
    ModelRequest,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from nanobot.core.errors import BadRequest
from nanobot.core.turn_header import TurnHeader
from nanobot.providers.offline import GRAMMAR, OfflineModel

HEADER = TurnHeader("Sun 2026-03-01 12:00 +0000", "cli", "direct").before("")
TOOLS = [
    ToolSpec(name, "", {})
    for name in ("read_file", "write_file", "edit_file", "list_dir", "grep", "exec", "cron")
]


async def answer(text: str, *after: ChatMessage, tools: Sequence[ToolSpec] = TOOLS) -> LLMResponse:
    messages = [SystemMessage("prompt"), UserMessage(HEADER + text), *after]
    return await OfflineModel().chat(ModelRequest(messages, tools, "offline", 100, 0.0))


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("list", "list_dir", '{"path": "."}'),
        ("list notes", "list_dir", '{"path": "notes"}'),
        ("read 'a b.txt'", "read_file", '{"path": "a b.txt"}'),
        ("write a.txt: hello: you", "write_file", '{"path": "a.txt", "content": "hello: you\\n"}'),
        ("run ls -l | wc", "exec", '{"command": "ls -l | wc"}'),
        (
            "recall blue boat",
            "grep",
            '{"pattern": "blue|boat", "path": "memory", "ignore_case": true}',
        ),
        ("remember I like tea", "read_file", '{"path": "memory/MEMORY.md"}'),
    ],
)
async def test_each_form_is_a_call_of_the_real_tool(text: str, tool: str, arguments: str) -> None:
    (call,) = (await answer(text)).tool_calls

    assert (call.name, call.arguments) == (tool, arguments)


async def test_the_result_is_quoted_in_the_answer() -> None:
    call = ToolCall("offline-1-0", "read_file", '{"path": "a.txt"}')
    after = (AssistantMessage("", (call,)), ToolMessage(call.id, call.name, "42"))

    assert (await answer("read a.txt", *after)).content == "a.txt says:\n42"


async def test_time_and_help_need_no_tool() -> None:
    assert (await answer("time")).content == "It is Sun 2026-03-01 12:00 +0000."
    assert (await answer("help")).content == GRAMMAR


async def test_what_it_does_not_understand_is_refused_with_the_grammar() -> None:
    with pytest.raises(BadRequest, match="run COMMAND"):
        await answer("compose a symphony")


async def test_a_tool_that_is_not_there_is_said() -> None:
    assert "no tool `web_fetch`" in (await answer("fetch http://example.com")).content


async def test_a_fact_is_added_under_the_notes_and_the_rest_kept() -> None:
    call = ToolCall("offline-1-0", "read_file", '{"path": "memory/MEMORY.md"}')
    known = "# Memory\n\n## Important Notes\n\n- old\n"
    after = (AssistantMessage("", (call,)), ToolMessage(call.id, call.name, known))

    (edit,) = (await answer("remember tea", *after)).tool_calls

    assert edit.name == "edit_file"
    assert "- tea" in edit.arguments


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("remind me in 5 minutes: tea", "2026-03-01T12:05:00+00:00"),
        ("remind me in 2 hours to call Ann", "2026-03-01T14:00:00+00:00"),
        ("remind me at 2026-03-02T08:00 that it is Monday", "2026-03-02T08:00"),
    ],
)
async def test_a_reminder_is_a_call_of_cron(text: str, at: str) -> None:
    (call,) = (await answer(text)).tool_calls

    assert call.name == "cron"
    assert f'"at": "{at}"' in call.arguments
    assert '"mode": "reminder"' in call.arguments
