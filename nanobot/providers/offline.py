"""The offline model: a small deterministic ``LLMProvider`` for a first run without a key."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from nanobot.core.chat import (
    AssistantMessage,
    FinishReason,
    LLMResponse,
    ModelRequest,
    ToolCall,
    ToolChoice,
    ToolMessage,
    Usage,
    UserMessage,
)
from nanobot.core.errors import BadRequest
from nanobot.core.events import Emit, TextDelta, ignore
from nanobot.core.turn_header import TIME, read_header

MODEL = "offline"

GRAMMAR = """\
The offline model understands only these forms:
  time                        what time it is
  list [FOLDER]               what is in a folder
  read FILE                   what a file says
  write FILE: TEXT            write a file
  run COMMAND                 run a command
  fetch URL                   what a page says
  remember TEXT               keep a fact in MEMORY.md
  recall WORDS                search what was kept
  remind me in N minutes: TEXT  /  remind me at TIME: TEXT
  help                        this list"""

_said = partial(LLMResponse, model=MODEL, provider=MODEL)
_NOTES = "## Important Notes"


@dataclass(frozen=True, slots=True)
class _Plan:
    """One tool call, and the function that turns its result into an answer."""

    tool: str
    arguments: dict[str, object]
    words: Callable[[str], str]


class OfflineModel:
    """An ``LLMProvider`` that understands the forms of GRAMMAR and calls the real tools."""

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse:
        """Answer; raises BadRequest with the grammar for any other request."""
        messages = request.messages
        asked = max(i for i, message in enumerate(messages) if isinstance(message, UserMessage))
        since = messages[asked + 1 :]
        results = [message for message in since if isinstance(message, ToolMessage)]
        called = [m.tool_calls for m in since if isinstance(m, AssistantMessage)]
        answer = _answer(messages[asked].content, results, {tool.name for tool in request.tools})
        if isinstance(answer, _Plan) and request.tool_choice is ToolChoice.NONE:
            answer = f"I may call no more tools now, and `{answer.tool}` would come next."
        usage = Usage(sum(len(message.content) for message in messages) // 4, 8)
        if isinstance(answer, _Plan):
            arguments = json.dumps(answer.arguments, ensure_ascii=False)
            call = ToolCall(f"offline-{asked}-{len(called)}", answer.tool, arguments)
            return _said("", (call,), FinishReason.TOOL_CALLS, usage)
        on_delta(TextDelta(answer))
        return _said(answer, (), FinishReason.STOP, usage)

    async def aclose(self) -> None:
        """Nothing to close."""


def _answer(request: str, results: Sequence[ToolMessage], tools: set[str]) -> _Plan | str:
    header, text = read_header(request)
    if re.fullmatch(r"(?:help|\?)", text, re.IGNORECASE):
        return GRAMMAR
    if re.fullmatch(r"(?:what(?:'s| is) the )?time(?: is it)?\??", text, re.IGNORECASE):
        return f"It is {header.time}." if header.time else "I was not told the time."
    steps = _steps(text, results, header.time)
    if steps is None:
        raise BadRequest(GRAMMAR)
    if len(results) < len(steps):
        plan = steps[len(results)]
        if plan.tool not in tools:
            return f"There is no tool `{plan.tool}` here, so I cannot do that."
        return plan
    return steps[-1].words(results[-1].content)


def _steps(text: str, results: Sequence[ToolMessage], now: str) -> list[_Plan] | None:
    """The calls for a request, in order; None if it has none of the forms."""
    verb, _, rest = text.partition(" ")
    rest = rest.strip()
    match verb.lower().rstrip(":"):
        case "list" | "ls":
            folder = rest or "."
            return [_Plan("list_dir", {"path": folder}, lambda r: f"In {folder}:\n{r}")]
        case "read" | "show" | "cat" if rest:
            path = _unquoted(rest)
            return [_Plan("read_file", {"path": path}, lambda r: f"{path} says:\n{r}")]
        case "write" if found := re.match(r"(\S+?)\s*[:=]\s+(.*)", rest, re.DOTALL):
            arguments: dict[str, object] = {"path": found[1], "content": found[2] + "\n"}
            return [_Plan("write_file", arguments, lambda r: r)]
        case "run" | "exec" if rest:
            return [_Plan("exec", {"command": rest}, lambda r: f"`{rest}` gave:\n{r}")]
        case "fetch" | "open" if rest:
            return [_Plan("web_fetch", {"url": rest}, lambda r: f"{rest} says:\n{r}")]
        case "remember" if rest:
            return _remember(rest, results)
        case "recall" if rest:
            pattern = "|".join(map(re.escape, rest.split()))
            search: dict[str, object] = {"pattern": pattern, "path": "memory", "ignore_case": True}
            return [_Plan("grep", search, lambda r: f"About {rest}:\n{r}")]
        case "remind" if found := re.match(
            r"(?:me\s+)?(?:in\s+(\d+)\s*(second|minute|min|hour|day)s?|at\s+(\S+))"
            r"(?:\s*:\s*|\s+(?:to|that)\s+)(.+)",
            rest,
            re.DOTALL | re.IGNORECASE,
        ):
            return [_remind(*found.groups(), now=now)]
    return None


def _remember(fact: str, results: Sequence[ToolMessage]) -> list[_Plan]:
    path = "memory/MEMORY.md"
    look = _Plan("read_file", {"path": path}, lambda r: r)
    line = f"- {fact}"
    if not results or _NOTES in results[0].content:
        change: dict[str, object] = {"old_text": _NOTES, "new_text": f"{_NOTES}\n\n{line}"}
        return [look, _Plan("edit_file", {"path": path, **change}, lambda r: _kept(r, fact))]
    # No such heading: append with the shell, which can neither lose nor overwrite anything.
    command = f"mkdir -p memory && printf '%s\\n' {shlex.quote(line)} >> {path} && echo kept"
    return [look, _Plan("exec", {"command": command}, lambda r: _kept(r, fact))]


def _kept(result: str, fact: str) -> str:
    done = result.startswith(("Replaced", "kept"))
    return f"I will remember: {fact}" if done else f"I could not keep it: {result}"


def _remind(
    number: str | None, unit: str | None, moment: str | None, text: str, *, now: str
) -> _Plan:
    if number and unit:
        seconds = int(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit[0].lower()]
        start = datetime.strptime(now, TIME)
        moment = (start + timedelta(seconds=seconds)).isoformat()
    arguments: dict[str, object] = {"action": "add", "mode": "reminder", "message": text}
    return _Plan("cron", {**arguments, "at": moment}, lambda r: r)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"`" else text
