"""The stable prefix: a session's requests share their beginning, but for declared events."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby, pairwise
from typing import Any

from PIL import Image as Pillow

from nanobot.channels.socket_protocol import Question
from nanobot.cli.talk import SocketTalk
from nanobot.store.home import Home
from tests.e2e.conftest import Nanobot, eventually, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request
from tests.fakes.skills import write_skill

TURNS = 50
MEMORY, SKILL, PICTURE, BIG, LONG, COMPACT = 8, 14, 20, 26, 40, 49
"""The turn that writes memory, those before which a skill appears and that shows a picture, the
first with big results, the first with long answers, and the one before which /compact is typed."""
RESTARTS = (11, 33)
"""Turns before which the gateway is restarted, which changes nothing."""

NOTE = "[This result was shown before and gave way to newer ones."
PAST_PICTURE = "[A picture was shown here before."
SUMMARY = "[The earlier part of this conversation is no longer shown;"
TASK = "You sum up the older part of a conversation"
MADE_ROOM = ("gave_way", "compacted")

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
    turn, step = turn_of(request)
    if step == 0:
        return Reply.tool_calls(
            [("list_dir", {"path": "."}), ("exec", {"command": "echo $RANDOM; date +%N"})]
        )
    if step == 1:
        return Reply.tool_calls([_second_call(turn)])
    return Reply.text("Done. " + "It was a long day. " * (600 if turn >= LONG else 1))


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
    if BIG <= turn < LONG:
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
    if _is_summary(after[0]) and after[0] != before[0]:
        found.add("compaction")
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


def _is_summary(message: Message) -> bool:
    return str(message["content"]).startswith(SUMMARY)


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
            ask(talk, f"turn {turn}")

    requests = [one for one in model.requests if "tools" in one.body]
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
    ]
    assert events[-1] == (COMPACT, "compaction")
    logged = _fittings(nanobot)
    by_cause = Counter(cause for _, cause in events)
    assert by_cause["compaction"] == sum("compacted" in one for one in logged) >= 2
    assert by_cause["an old result gave way"] >= 2
    assert len({turn for turn, _ in events if turn >= BIG}) == len(logged) <= 8


def _fittings(nanobot: Nanobot) -> list[list[str]]:
    """What was logged each time that room was made: results that gave way, a summary, or both."""
    connection = sqlite3.connect(nanobot.home / "state.db")
    kinds = [kind for (kind,) in connection.execute("SELECT kind FROM log ORDER BY seq")]
    connection.close()
    groups = [list(group) for _, group in groupby(kinds, lambda kind: kind in MADE_ROOM)]
    return [group for group in groups if group[0] in MADE_ROOM]
