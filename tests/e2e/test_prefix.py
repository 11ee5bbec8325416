"""The stable prefix: a session's requests share their beginning, byte for byte."""

from __future__ import annotations

import json
from itertools import pairwise

from tests.e2e.conftest import Nanobot
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request

TURNS = 10


def _serialised(request: Request) -> list[str]:
    body = request.body
    return [json.dumps(body["tools"])] + [json.dumps(message) for message in body["messages"]]


def test_over_ten_turns_with_tools_each_request_begins_with_the_former(
    nanobot: Nanobot, model: ModelServer
) -> None:
    def answer(request: Request) -> Reply:
        step = (
            len(request.messages)
            - 1
            - max(place for place, said in enumerate(request.messages) if said["role"] == "user")
        )
        if step == 0:
            return Reply.tool_calls(
                [("list_dir", {"path": "."}), ("exec", {"command": "echo $RANDOM; date +%N"})]
            )
        if step == 3:
            return Reply.tool_calls([("write_file", {"path": "a.txt", "content": "x"})])
        return Reply.text("Done.")

    model.answer_with(answer)
    nanobot.use_model(model)

    for turn in range(TURNS):
        done = nanobot.run("agent", "-m", f"turn {turn}")
        assert done.returncode == 0, done.stderr

    requests = [_serialised(request) for request in model.requests]
    assert len(requests) == 3 * TURNS
    for former, later in pairwise(requests):
        assert later[: len(former)] == former
