"""The stable prefix: a session's requests share their beginning, but for declared events."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

from PIL import Image as Pillow

from nanobot.channels.socket_protocol import Question
from nanobot.cli.talk import SocketTalk
from nanobot.store.home import Home
from tests.e2e.conftest import Nanobot, eventually, model_config
from tests.fakes.memory import TOOL, is_digest
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request
from tests.fakes.skills import write_skill

TURNS = 50
MEMORY, SKILL, PICTURE, DIGEST, BIG, COMPACT = 8, 14, 20, 24, 26, 45
"""The turn that writes memory, the one before which a skill appears, the one that shows a picture,
the one before which the older part is digested, the first of those with big results, and the one
before which /compact is typed."""
LATER = range(42, 50)
"""Turns with small results again."""
RESTARTS = (11, 33)
"""Turns before which the gateway is restarted, which changes nothing."""

NOTE = "[This result was shown before and gave way to newer ones."
PAST_PICTURE = "[A picture was shown here before."
SUMMARY = "[The earlier part of this conversation is no longer shown; it is kept in the log."
DIGESTED = "[The earlier part of this conversation is no longer shown. What matters of it is in"
TASK = "You sum up the older part of a conversation"
Message = dict[str, Any]


def turn_of(request: Request) -> tuple[int, int]:
    """The number of the turn that a request belongs to, and its step within it."""
    said = [
        (place, found)
        for place, message in enumerate(request.messages)
        if message["role"] == "user"
        and isinstance(message["content"], str)
        and (found := re.search(r"^turn (\d+)$", message["content"], re.MULTILINE))
    ]
    place, found = said[-1]
    answers = [message for message in request.messages[place:] if message["role"] == "assistant"]
    return int(found[1]), len(answers)


def answer(request: Request) -> Reply:
    """Two steps with tools and an answer; some turns do what changes the prefix."""
    if str(request.messages[0]["content"]).startswith(TASK):
        return Reply.text(f"## Facts\nUp to request {request.number} each turn wrote a.txt.")
    if is_digest(request):
        event = {"time": "2026-03-01 12:03", "text": f"Wrote a.txt before {request.number}."}
        return Reply.tool_calls([(TOOL, {"history": [event]})])
    turn, step = turn_of(request)
    if step == 0:
        return Reply.tool_calls(
            [("list_dir", {"path": "."}), ("exec", {"command": "echo $RANDOM; date +%N"})]
        )
    if step == 1:
        return Reply.tool_calls([_second_call(turn)])
    return Reply.text("Done.")


@contextmanager
def served(nanobot: Nanobot) -> Iterator[SocketTalk]:
    """A running gateway, and a client of it."""
    process = nanobot.start("gateway")
    try:
        talks: list[SocketTalk] = []

        def connected() -> bool:
            talks.extend(filter(None, [SocketTalk.connect(Home(nanobot.home))]))
            return bool(talks)

        eventually(connected, "the gateway's socket")
        with talks[0] as talk:
            yield talk
    finally:
        process.terminate()
        process.communicate(timeout=20)


def ask(talk: SocketTalk, text: str) -> str:
    reply = talk.ask(Question(text, "direct"), lambda event: None)
    assert reply.failure == "", reply.answer
    return reply.answer


def _second_call(turn: int) -> tuple[str, dict[str, str]]:
    if turn == MEMORY:
        heading = "## Important Notes"
        edit = {"old_text": heading, "new_text": f"{heading}\n- The key is under the oak."}
        return "edit_file", {"path": "memory/MEMORY.md", **edit}
    if turn == PICTURE:
        return "read_file", {"path": "photo.png"}
    if turn >= BIG and turn not in LATER:
        return "exec", {"command": f"seq {turn}000 {turn + 1}500"}
    return "write_file", {"path": "a.txt", "content": f"turn {turn} "}


def causes(former: Request, later: Request) -> set[str]:
    """What has changed between two requests, each change told from what stands in its place.

    Fails where something differs that none of the declared events explains.
    """
    assert former.body["tools"] == later.body["tools"]
    before, after = former.messages, later.messages
    found = _of_the_prompt(before[0]["content"], after[0]["content"])
    before, after = before[1:], after[1:]
    if _has_picture(before) and not _has_picture(after):
        found.add("a picture left its turn")
        before = [message for message in before if not _has_picture([message])]
    mark = str(after[0]["content"])
    if mark.startswith((SUMMARY, DIGESTED)) and after[0] != before[0]:
        is_summary = mark.startswith(SUMMARY)
        found.add("compaction" if is_summary else "the older part was digested")
        after = after[1:]
        # What is kept begins where the first of the messages after the summary was before.
        before = before[next(at for at, one in enumerate(before) if one == after[0]) :]
    assert len(after) >= len(before)
    for was, now in zip(before, after, strict=False):
        if was == now:
            continue
        assert {**was, "content": ""} == {**now, "content": ""}, "only a content may change"
        if now["content"].startswith(NOTE):
            found.add("an old result gave way")
        else:
            assert now["content"].startswith(was["content"]), now
            assert PAST_PICTURE in now["content"]
    return found


def _of_the_prompt(before: str, after: str) -> set[str]:
    separator = "\n\n---\n\n"
    changed = set(before.split(separator)) ^ set(after.split(separator))
    names = {"# Memory": "memory was written", "# Skills": "a skill was edited"}
    return {names[part.splitlines()[0]] for part in changed}


def _has_picture(messages: list[Message]) -> bool:
    return any("image_url" in json.dumps(message["content"]) for message in messages)


def serialised(request: Request) -> list[str]:
    body = request.body
    return [json.dumps(body["tools"])] + [json.dumps(message) for message in body["messages"]]


def test_over_fifty_turns_with_tools_only_declared_events_change_the_beginning(
    nanobot: Nanobot, model: ModelServer
) -> None:
    model.answer_with(answer)
    config = model_config(model.url, maxTokens=1024)
    window = {"vision": True, "contextWindow": 40_000}
    config["providers"]["custom"]["models"] = {"fake-model": window}
    nanobot.configure(config)

    with ExitStack() as talks:
        for turn in range(TURNS):
            if turn in (0, *RESTARTS):
                talks.close()
                talk = talks.enter_context(served(nanobot))
            if turn == SKILL:
                write_skill(nanobot.workspace / "skills", "sheep")
            if turn == PICTURE:
                Pillow.new("RGB", (64, 48), "red").save(nanobot.workspace / "photo.png")
            if turn == COMPACT:
                assert ask(talk, "/compact a.txt").startswith("Summed up:")
            if turn == DIGEST:
                digested = nanobot.run("memory", "consolidate", "cli:direct")
                assert digested.returncode == 0, digested.stderr
            ask(talk, f"turn {turn}")

    requests = [one for one in model.requests if "list_dir" in one.tools]
    assert len(requests) == 3 * TURNS
    events: list[tuple[int, str]] = []
    for former, later in pairwise(requests):
        is_prefix = serialised(later)[: len(serialised(former))] == serialised(former)
        found = causes(former, later)
        assert is_prefix == (not found)
        events += [(turn_of(later)[0], cause) for cause in sorted(found)]
    print("\n".join(f"turn {turn}: {cause}" for turn, cause in events))
    assert [event for event in events if event[0] < BIG] == [
        (MEMORY + 1, "memory was written"),
        (SKILL, "a skill was edited"),
        (PICTURE + 1, "a picture left its turn"),
        (DIGEST, "the older part was digested"),
    ]
    by_cause = Counter(cause for _, cause in events)
    assert (COMPACT, "compaction") in events
    assert by_cause["compaction"] == 1
    assert by_cause["an old result gave way"] >= 2
    assert len(events) <= 12
