"""A request without the orders and roles that a server refuses says all the same."""

from __future__ import annotations

from typing import Any

import pytest

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from nanobot.providers.failures import failure_in_body
from nanobot.providers.quirks import (
    SAME_ROLE_TWICE,
    SYSTEM_ROLE,
    TOOL_ROLE,
    USER_AFTER_TOOL,
    ordered,
    refused_order,
)
from nanobot.providers.wire import wire_messages

CAT = Image("cat.png", "image/png")
TALK: list[ChatMessage] = [
    SystemMessage("You help."),
    UserMessage("stopped"),
    UserMessage("look"),
    AssistantMessage("I look.", (ToolCall("a", "look", "{}"), ToolCall("b", "see", '{"x":1}'))),
    ToolMessage("a", "look", "a cat", (CAT,)),
    ToolMessage("b", "see", "a dog"),
    UserMessage("go on"),
]
PICTURES = {CAT: "data:image/png;base64,AA=="}
SHOWN = [
    {"type": "text", "text": "[look]"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    {"type": "text", "text": "go on"},
]


def sent(*refused: str) -> list[dict[str, Any]]:
    return ordered(wire_messages(TALK, pictures=PICTURES), {*refused})


def call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}


SYSTEM = {"role": "system", "content": "You help."}
BRIDGE = {"role": "assistant", "content": "I have read the results."}
RESULTS = [
    {"role": "tool", "tool_call_id": "a", "content": "a cat"},
    {"role": "tool", "tool_call_id": "b", "content": "a dog"},
]


def test_where_nothing_is_refused_nothing_changes() -> None:
    assert sent() == wire_messages(TALK, pictures=PICTURES)


def test_an_assistant_message_stands_between_a_result_and_a_user() -> None:
    messages = sent()

    assert sent(USER_AFTER_TOOL) == [*messages[:-1], BRIDGE, messages[-1]]


def test_where_roles_must_alternate_users_are_joined_and_calls_told_one_by_one() -> None:
    assert sent(SAME_ROLE_TWICE) == [
        SYSTEM,
        {"role": "user", "content": "stopped\n\nlook"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call("a", "look", "{}")]},
        RESULTS[0],
        {"role": "assistant", "content": None, "tool_calls": [call("b", "see", '{"x":1}')]},
        RESULTS[1],
        BRIDGE,
        {"role": "user", "content": SHOWN},
    ]


def test_where_tools_have_no_role_calls_and_results_are_told_in_words() -> None:
    results = [
        {"type": "text", "text": "[result of look]\na cat\n\n[result of see]\na dog"},
        *SHOWN,
    ]

    assert sent(SAME_ROLE_TWICE, TOOL_ROLE) == [
        SYSTEM,
        {"role": "user", "content": "stopped\n\nlook"},
        {
            "role": "assistant",
            "content": 'I look.\n[called look with {}]\n[called see with {"x":1}]',
        },
        {"role": "user", "content": results},
    ]


def test_where_there_is_no_system_role_the_first_user_says_it() -> None:
    assert sent(SYSTEM_ROLE)[:2] == [
        {"role": "user", "content": "You help.\n\nstopped"},
        {"role": "user", "content": "look"},
    ]


def test_the_next_meaning_of_a_refusal_is_tried_where_the_first_is_known() -> None:
    failure = failure_in_body(400, b'{"message": "Conversation roles must alternate user/assist"}')

    assert [
        refused_order(failure, known)
        for known in (set(), {SAME_ROLE_TWICE}, {SAME_ROLE_TWICE, TOOL_ROLE})
    ] == [SAME_ROLE_TWICE, TOOL_ROLE, None]


@pytest.mark.parametrize("status", [401, 429, 503])
def test_other_failures_say_nothing_of_the_order(status: int) -> None:
    assert refused_order(failure_in_body(status, b"roles must alternate"), set()) is None
