"""Conversations and answers for tests of consolidation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.model_replies import Reply
from tests.fakes.model_server import Request

TOOL = "save_memory"


def is_digest(request: Request) -> bool:
    """Whether a request asks for the consolidation of a conversation."""
    return TOOL in request.tools


def saves(history: Sequence[Any], memory: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """The answer of a model that does as it was told."""
    return Reply.tool_calls([(TOOL, {"history": list(history), "memory": list(memory)})])


def write_session(path: Path, turns: int, *, key: str = "telegram:42") -> Path:
    """A session's file of the family with that many questions and answers, a minute each."""
    lines: list[dict[str, Any]] = [{"_type": "metadata", "key": key}]
    for number in range(turns):
        stamp = f"2026-03-01T12:{number:02d}"
        question = f"question {number} about the boat"
        lines.append({"role": "user", "content": question, "timestamp": f"{stamp}:00"})
        answer = f"answer {number}: mast{number}"
        lines.append({"role": "assistant", "content": answer, "timestamp": f"{stamp}:10"})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path
