"""Calling tools by what a model wrote: order, arguments, limits, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from loguru import logger
from pydantic import Field

from nanobot.core.chat import ToolCall
from nanobot.core.errors import ToolError
from nanobot.core.messages import Trust
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.safety.paths import PathResolver
from nanobot.safety.redaction import MASK, Redactor
from nanobot.shell.commands import BackgroundProcesses, CommandRunner
from nanobot.shell.sandbox import Sandbox, SandboxPolicy
from nanobot.store.home import Home
from nanobot.tools.images import Pictures
from nanobot.tools.registry import AnyTool, ToolRegistry, ToolResult, default_tools
from tests.fakes.tool_turns import tool_turn

PARAMETERS = "Parameters: path (string, required), count (integer), tags (array)."


class NoteArguments(ToolArguments):
    path: str
    count: int = Field(default=1, ge=1)
    tags: tuple[str, ...] = ()


class Note(Tool[NoteArguments]):
    """Repeats its arguments."""

    name = "note"
    description = "Repeat the arguments."
    effect = Effect.WRITE
    arguments = NoteArguments

    async def run(self, args: NoteArguments, context: ToolContext) -> ToolOutput:
        return ToolOutput(f"{args.path}|{args.count}|{list(args.tags)}", Trust.UNTRUSTED)


class Look(Note):
    name = "look"
    effect = Effect.READ


class NoArguments(ToolArguments):
    pass


class Troubled(Tool[NoArguments]):
    """Raises what it was made with, or waits for ever."""

    name = "troubled"
    description = "Fail."
    effect = Effect.READ
    arguments = NoArguments
    timeout_s: ClassVar[float | None] = 0.05

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def run(self, args: NoArguments, context: ToolContext) -> ToolOutput:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), level="DEBUG", diagnose=False)
    yield lines
    logger.remove(sink)


async def execute(tool: Tool[Any], arguments: str, *, name: str | None = None) -> tuple[str, bool]:
    result = await ToolRegistry([tool]).execute(
        ToolCall("call_1", name or tool.name, arguments), tool_turn(Path("/nowhere"))
    )
    return result.output.text, result.ok


@pytest.mark.parametrize(
    "arguments",
    [
        '{"path": "a", "count": 2, "tags": ["x"]}',
        '{"path": "a", "count": "2", "tags": ["x"]}',
        json.dumps('{"path": "a", "count": 2, "tags": ["x"]}'),
        '{"path": "a", "count": 2, "tags": ["x"],}',
        "{'path': 'a', 'count': 2, 'tags': ['x']}",
        '```json\n{"path": "a", "count": 2, "tags": ["x"]}\n```',
        '{path: "a", count: 2, tags: ["x"]}',
        '{"path": "a", "count": 2, "tags": ["x"]}}',
    ],
)
async def test_arguments_are_understood_however_badly_they_are_written(arguments: str) -> None:
    assert await execute(Note(), arguments) == ("a|2|['x']", True)


async def test_raw_line_breaks_in_a_string_are_kept() -> None:
    assert await execute(Note(), '{"path": "one\ntwo\tthree"}') == ("one\ntwo\tthree|1|[]", True)
    assert await execute(Note(), '```json\n{"path": "one\ntwo"}```') == ("one\ntwo|1|[]", True)


async def test_null_means_not_given() -> None:
    assert await execute(Note(), '{"path": "a", "count": null, "tags": null}') == ("a|1|[]", True)


async def test_no_arguments_at_all_are_an_empty_object() -> None:
    text, ok = await execute(Note(), "")

    assert (text, ok) == (f"Wrong arguments for note: path is required. {PARAMETERS}", False)


async def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    text, ok = await execute(Note(), r'{"path": "cut \ud83d", "tags": ["\ud83d\ude00"]}')

    assert (text, ok) == ("cut \ufffd|1|['😀']", True)


@pytest.mark.parametrize(
    "arguments", ['{"path": "half of a fi', '{"path": "a"', '{"path": "a", "tags": ["x"', "{"]
)
async def test_a_call_cut_off_in_the_middle_writes_nothing(arguments: str) -> None:
    text, ok = await execute(Note(), arguments)

    assert (text, ok) == (
        "The arguments of note end in the middle and nothing was done. "
        "Send the call again, long content in several parts.",
        False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "{'path': 'half of a fi",
        '{path: "half of a fi',
        '```json\n{"path": "half of a fi',
        '{"tags": ["x",], "path": "half of a fi',
        json.dumps('{"path": "half of a fi'),
        json.dumps("{'path': 'half of a fi"),
        '{"path": "a", "count": 1',
    ],
)
async def test_a_call_cut_off_writes_nothing_however_badly_it_was_begun(arguments: str) -> None:
    text, ok = await execute(Note(), arguments)

    assert ("end in the middle and nothing was done" in text, ok) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"path": "a"}{"path": "b"}', "Extra data"),
        ('{"path": "say "a" and "b""}', "Expected"),
        (r'{"path": "a\d+"}', r"\d is no escape sequence"),
        (r"{'path': 'a\x41'}", r"\x is no escape sequence"),
        ("nonsense", "Expected"),
    ],
)
async def test_a_call_of_which_something_may_be_missing_writes_nothing(
    arguments: str, reason: str
) -> None:
    text, ok = await execute(Note(), arguments)

    assert (reason in text, "nothing was done" in text, ok) == (True, True, False)


async def test_a_call_that_only_reads_is_mended_where_it_was_cut_off() -> None:
    assert await execute(Look(), '{"path": "a"') == ("a|1|[]", True)


@pytest.mark.parametrize("arguments", ["[1, 2]", "3", "nonsense", '"text"', "null", "[" * 100_000])
async def test_what_is_no_object_is_refused_with_a_reminder(arguments: str) -> None:
    assert await execute(Look(), arguments) == (
        f"The arguments of look are not a JSON object. {PARAMETERS}",
        False,
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "path is required"),
        ({"path": None}, "path: input should be a valid string, not None"),
        ({"path": "a", "count": 0}, "count: input should be greater than or equal to 1, not 0"),
        ({"path": "a", "count": "many"},
         "count: input should be a valid integer, unable to parse string as an integer, "
         "not 'many'"),
        ({"path": "a", "tags": ["x", 2]}, "tags.1: input should be a valid string, not 2"),
        ({"path": "a", "tag": []}, "there is no tag (did you mean tags?)"),
        ({"file": "a"}, "path is required; there is no file"),
        ({"path": ["x" * 100]},
         f"path: input should be a valid string, not ['{'x' * 57}…"),
    ],
)  # fmt: skip
async def test_wrong_arguments_are_told_so_that_they_can_be_mended(
    arguments: dict[str, object], problem: str
) -> None:
    assert await execute(Note(), json.dumps(arguments)) == (
        f"Wrong arguments for note: {problem}. {PARAMETERS}",
        False,
    )


async def test_an_unknown_tool_brings_the_nearest_ones() -> None:
    assert await execute(Note(), "{}", name="notes") == (
        "There is no tool 'notes'; did you mean note?",
        False,
    )
    assert await execute(Note(), "{}", name="xyz") == (
        "There is no tool 'xyz'; there are note.",
        False,
    )


async def test_what_a_tool_refuses_is_told_as_it_says(logged: list[str]) -> None:
    assert await execute(Troubled(ToolError("Not today.")), "{}") == ("Not today.", False)
    assert logged == []


async def test_a_defect_is_logged_once_with_its_traceback_and_told_in_a_line(
    logged: list[str],
) -> None:
    text, ok = await execute(Troubled(ZeroDivisionError("a\nb")), "{}")

    assert (text, ok) == ("troubled failed: ZeroDivisionError: a b", False)
    assert len(logged) == 1
    assert "Traceback" in logged[0]


async def test_a_tool_over_its_time_is_stopped() -> None:
    assert await execute(Troubled(), "{}") == ("troubled was stopped after 0.05 seconds.", False)


async def test_a_timeout_of_the_tools_own_is_a_defect(logged: list[str]) -> None:
    assert await execute(Troubled(TimeoutError()), "{}") == (
        "troubled failed: TimeoutError",
        False,
    )
    assert len(logged) == 1


async def test_a_cancellation_goes_through() -> None:
    registry = ToolRegistry([Troubled()])
    task = asyncio.create_task(
        registry.execute(ToolCall("1", "troubled", "{}"), tool_turn(Path("/nowhere")))
    )
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_trust_and_text_come_through_with_secrets_masked() -> None:
    registry = ToolRegistry([Note()], mask=Redactor(["fake-secret-1"]).mask)

    told = await registry.execute(
        ToolCall("1", "note", '{"path": "fake-secret-1"}'), tool_turn(Path("/nowhere"))
    )
    refused = await registry.execute(
        ToolCall("1", "note", '{"path": ["fake-secret-1"]}'), tool_turn(Path("/nowhere"))
    )

    assert told == ToolResult(ToolOutput(f"{MASK}|1|[]", Trust.UNTRUSTED), ok=True)
    assert "fake-secret-1" not in refused.output.text
    assert not refused.ok


def test_tools_keep_their_order_and_effect() -> None:
    registry = ToolRegistry([Note(), Look(), Troubled()])

    assert registry.names == ("note", "look", "troubled")
    assert [spec.name for spec in registry.specs()] == ["note", "look", "troubled"]
    assert registry.without("look", "absent").names == ("note", "troubled")
    assert [registry.effect_of(name) for name in ("note", "look", "absent")] == [
        Effect.WRITE,
        Effect.READ,
        Effect.WRITE,
    ]


def test_two_tools_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="'note'"):
        ToolRegistry([Note(), Note()])


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        ('{"path": "notes/today.md"}', "notes/today.md"),
        ('{"count": 3, "path": "a.txt"}', "a.txt, count=3"),
        ('{"path": "a\\n  b", "tags": ["ü"]}', 'a b, tags=["ü"]'),
        ('{"path": "fake-secret-1"}', MASK),
        ('{"path": "' + "x" * 76 + 'fake-secret-1"}', "x" * 76 + "…re…"),
        ('{"other": 1}', "1"),
        ("broken fake-secret-1", f"broken {MASK}"),
        ("[1, 2]", "[1, 2]"),
        ("", ""),
        ('{"path": "' + "y" * 1_000_000 + '"}', "y" * 79 + "…"),
    ],
)
def test_a_call_is_summed_up_in_a_line_without_secrets(arguments: str, summary: str) -> None:
    registry = ToolRegistry([Note()], mask=Redactor(["fake-secret-1"]).mask)

    assert registry.summary(ToolCall("1", "note", arguments)) == summary


def tools_of(folder: Path) -> tuple[AnyTool, ...]:
    runner = CommandRunner(Sandbox(SandboxPolicy(), environ={}, user_home=folder))
    home = Home(folder)
    resolver = PathResolver(home, restrict=False)
    return default_tools(resolver, runner, BackgroundProcesses(runner), Pictures(home))


def test_the_default_tools_have_the_names_and_parameters_of_the_contract(tmp_path: Path) -> None:
    tools = tools_of(tmp_path)

    specs = {
        spec.name: (tuple(spec.parameters["properties"]), tuple(spec.parameters["required"]))
        for spec in ToolRegistry(tools).specs()
    }

    assert specs == {
        "read_file": (("path", "offset", "limit", "line_numbers"), ("path",)),
        "write_file": (("path", "content"), ("path", "content")),
        "edit_file": (
            ("path", "old_text", "new_text", "replace_all"),
            ("path", "old_text", "new_text"),
        ),
        "list_dir": (("path",), ("path",)),
        "find_files": (("pattern", "path", "limit"), ("pattern",)),
        "grep": (
            ("pattern", "path", "glob", "ignore_case", "context", "limit"),
            ("pattern",),
        ),
        "exec": (("command", "working_dir", "timeout", "background"), ("command",)),
        "process": (("action", "id", "input", "eof", "timeout_s"), ("action",)),
    }


def test_the_default_tools_cost_few_tokens(tmp_path: Path) -> None:
    tools = tools_of(tmp_path)

    size = sum(
        len(json.dumps([spec.name, spec.description, spec.parameters]))
        for spec in ToolRegistry(tools).specs()
    )

    assert size < 3800  # about 950 tokens of the 3,000 that everything fixed may cost
