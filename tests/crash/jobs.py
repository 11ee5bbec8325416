"""The messages of the crash suite, and a model that works them off by what the request shows it.

A message is ``job <kind> <token>``. Everything it should cause carries its token: ``«token.n»``
in texts for the chat, ``token.n`` as a line of the ledger. The model keeps nothing between
requests, so that it behaves the same however often a turn is cut off and taken up again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.fakes.model_replies import Reply

_JOB = re.compile(r"\bjob (\w+) (\w+)")
_NOT_RUN = "Not run:"
_NOT_SENT = "Not sent:"
_LONG_PIECES = 3
_FILLER = "All work and no play makes a dull piece of text. " * 70


class Kind(StrEnum):
    """What a message asks for."""

    TALK = "talk"
    """An answer, no tools."""
    LONG = "long"
    """An answer that takes three messages."""
    READ = "read"
    """Two reads side by side."""
    COUNT = "count"
    """One line in the ledger."""
    TWICE = "twice"
    """Two lines, a step each."""
    BOTH = "both"
    """Two lines, two calls of one step."""
    TELL = "tell"
    """A word by the message tool before the answer."""
    HOLD = "hold"
    """A line, then a wait at the pipe, then another line."""


@dataclass(frozen=True, slots=True)
class Job:
    """One message of the suite."""

    kind: Kind
    token: str

    @property
    def text(self) -> str:
        return f"job {self.kind.value} {self.token}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What has to stand in the chat exactly once."""
        count = _LONG_PIECES if self.kind is Kind.LONG else 1
        marks = tuple(_mark(self.token, str(number)) for number in range(1, count + 1))
        return (*marks, _mark(self.token, "told")) if self.kind is Kind.TELL else marks

    @property
    def lines(self) -> tuple[str, ...]:
        """What may stand in the ledger, each at most once."""
        return {
            Kind.COUNT: (f"{self.token}.1",),
            Kind.TWICE: (f"{self.token}.1", f"{self.token}.2"),
            Kind.BOTH: (f"{self.token}.1", f"{self.token}.2"),
            Kind.HOLD: (f"{self.token}.before", f"{self.token}.after"),
        }.get(self.kind, ())


@dataclass(frozen=True, slots=True)
class Ledger:
    """The file that tools count in, and the pipe they wait at."""

    path: str
    pipe: str

    def add(self, line: str) -> str:
        return f"echo {line} >> {self.path}"


def jobs_in(text: str) -> list[Job]:
    """The jobs that a user message names."""
    return [Job(Kind(kind), token) for kind, token in _JOB.findall(text)]


def marks_in(text: str) -> list[str]:
    """The marks in a message of the chat."""
    return re.findall(r"«\w+\.\w+»", text)


def _mark(token: str, name: str) -> str:
    return f"«{token}.{name}»"


def reply_to(messages: Sequence[Mapping[str, Any]], ledger: Ledger) -> Reply:
    """The model's next words or calls: the first step not done of the jobs not answered yet."""
    unanswered = messages[_last_words(messages) + 1 :]
    jobs = [
        job
        for message in unanswered
        if message["role"] == "user"
        for job in jobs_in(str(message["content"]))
    ]
    done = _calls_made(unanswered)
    for job in jobs:
        for step in _steps(job, ledger):
            missing = [call for call in step if json.dumps(call[1]) not in done]
            if missing:
                return Reply.tool_calls(missing)
    return Reply.text("\n\n".join(_answer(job) for job in jobs) or "nothing to do")


def _last_words(messages: Sequence[Mapping[str, Any]]) -> int:
    """Where the last answer stands, -1 for nowhere."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] == "assistant" and not messages[place].get("tool_calls"):
            return place
    return -1


def _calls_made(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """The arguments of the calls that need no repetition: run, or perhaps run."""
    asked: dict[str, str] = {}
    made: set[str] = set()
    for message in messages:
        for call in message.get("tool_calls") or ():
            asked[call["id"]] = json.dumps(json.loads(call["function"]["arguments"]))
        if message["role"] == "tool":
            result = str(message["content"])
            if not result.startswith((_NOT_RUN, _NOT_SENT)):
                made.add(asked[message["tool_call_id"]])
    return made


def _steps(job: Job, ledger: Ledger) -> list[list[tuple[str, dict[str, Any]]]]:
    """The tool calls of a job, step by step."""

    def run(command: str) -> tuple[str, dict[str, Any]]:
        return "exec", {"command": command}

    match job.kind:
        case Kind.READ:
            # The paths tell the calls of one job from another's.
            return [[("list_dir", {"path": "."}), ("list_dir", {"path": f"./{'./' * 2}"})]]
        case Kind.COUNT | Kind.TWICE:
            return [[run(ledger.add(line))] for line in job.lines]
        case Kind.BOTH:
            return [[run(ledger.add(line)) for line in job.lines]]
        case Kind.TELL:
            return [[("message", {"content": f"at work {_mark(job.token, 'told')}"})]]
        case Kind.HOLD:
            before, after = job.lines
            wait = f"cat {ledger.pipe} > /dev/null"
            return [[run(f"{ledger.add(before)} && {wait} && {ledger.add(after)}")]]
        case Kind.TALK | Kind.LONG:
            return []


def _answer(job: Job) -> str:
    if job.kind is Kind.LONG:
        return "\n\n".join(
            f"{_mark(job.token, str(number))} {_FILLER}" for number in range(1, _LONG_PIECES + 1)
        )
    return f"done {_mark(job.token, '1')}"
