"""Tests of messages and tools in OpenAI's wire form."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from nanobot.providers.quirks import Quirks, ReasoningBack, quirks_of
from nanobot.providers.wire import (
    call_ids,
    encode_body,
    read_pictures,
    rough_size,
    wire_messages,
    wire_tools,
)

CAT = Image("/pictures/cat.png", "image/png")
DOG = Image("/pictures/dog.jpg", "image/jpeg")
PICTURES = {CAT: "data:image/png;base64,Y2F0", DOG: "data:image/jpeg;base64,ZG9n"}


def picture(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": PICTURES[image]}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_each_kind_of_message_has_its_form() -> None:
    wire = wire_messages(
        [
            SystemMessage("You help."),
            UserMessage("List it."),
            AssistantMessage("Looking.", (ToolCall("c1", "list_dir", '{"path":"."}'),), "hm"),
            ToolMessage("c1", "list_dir", "a\nb"),
            AssistantMessage("Two files.", reasoning="done"),
        ]
    )

    assert wire == [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "List it."},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "list_dir", "arguments": '{"path":"."}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a\nb"},
        {"role": "assistant", "content": "Two files."},
    ]


def test_a_call_without_words_has_null_for_content() -> None:
    [message] = wire_messages([AssistantMessage("", (ToolCall("c1", "look", "{}"),))])

    assert message["content"] is None


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a": 1 }', '{"a": 1 }'),
        ("", "{}"),
        (" ", "{}"),
        ('{"a": 1', '{"unreadable":"{\\"a\\": 1"}'),
        ("[1]", '{"unreadable":"[1]"}'),
        ("[" * 100_000, None),
    ],
)
def test_arguments_are_always_the_text_of_an_object(arguments: str, sent: str | None) -> None:
    [message] = wire_messages([AssistantMessage("", (ToolCall("c1", "look", arguments),))])

    text = message["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(text), dict)
    assert sent is None or text == sent


def test_pictures_of_the_user_follow_the_words() -> None:
    assert wire_messages([UserMessage("Which?", (CAT, DOG))], pictures=PICTURES) == [
        {"role": "user", "content": [words("Which?"), picture(CAT), picture(DOG)]}
    ]
    assert wire_messages([UserMessage("", (CAT,))], pictures=PICTURES) == [
        {"role": "user", "content": [picture(CAT)]}
    ]


def test_pictures_of_tools_follow_the_last_result_in_a_users_message() -> None:
    calls = (ToolCall("c1", "read_file", "{}"), ToolCall("c2", "look", "{}"))

    wire = wire_messages(
        [
            AssistantMessage("", calls),
            ToolMessage("c1", "read_file", "a cat", (CAT,)),
            ToolMessage("c2", "look", "a dog", (DOG,)),
            AssistantMessage("Nice."),
        ],
        pictures=PICTURES,
    )

    assert [message["role"] for message in wire] == [
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]
    assert wire[3]["content"] == [
        words("[read_file]"),
        picture(CAT),
        words("[look]"),
        picture(DOG),
    ]


def test_pictures_of_tools_join_the_users_next_message() -> None:
    wire = wire_messages(
        [ToolMessage("c1", "look", "a cat", (CAT,)), UserMessage("And this?", (DOG,))],
        pictures=PICTURES,
    )

    assert wire[1:] == [
        {
            "role": "user",
            "content": [words("[look]"), picture(CAT), words("And this?"), picture(DOG)],
        }
    ]


def test_pictures_of_the_last_tool_are_not_lost() -> None:
    wire = wire_messages([ToolMessage("c1", "look", "a cat", (CAT,))], pictures=PICTURES)

    assert wire[1:] == [{"role": "user", "content": [words("[look]"), picture(CAT)]}]


def test_the_model_is_told_of_a_picture_that_cannot_be_read(tmp_path: Path) -> None:
    there = tmp_path / "there.png"
    there.write_bytes(b"\x89PNG")
    seen, gone = Image(str(there), "image/png"), Image(str(tmp_path / "gone.png"), "image/png")
    messages = [UserMessage("Look.", (seen, gone))]

    pictures = read_pictures(messages)

    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    assert pictures == {seen: url}
    assert wire_messages(messages, pictures=pictures)[0]["content"] == [
        words("Look."),
        {"type": "image_url", "image_url": {"url": url}},
        words("[gone.png: this picture could not be read]"),
    ]


def test_reasoning_goes_back_only_where_it_is_wanted() -> None:
    blocks = ({"type": "reasoning.text", "text": "hm"}, {"type": "thinking", "signature": "s"})
    call = (ToolCall("c1", "look", "{}"),)
    messages = [
        AssistantMessage("a", reasoning="hm", thinking_blocks=blocks),
        AssistantMessage("b", call),
        AssistantMessage("c"),
    ]

    def extra(back: ReasoningBack) -> list[dict[str, Any]]:
        wire = wire_messages(messages, quirks=Quirks(reasoning_back=back))
        return [
            {key: value for key, value in message.items() if key.startswith("reasoning")}
            for message in wire
        ]

    assert extra(ReasoningBack.NONE) == [{}, {}, {}]
    assert extra(ReasoningBack.CONTENT) == [
        {"reasoning_content": "hm"},
        {"reasoning_content": ""},
        {},
    ]
    assert extra(ReasoningBack.DETAILS) == [{"reasoning_details": [blocks[0]]}, {}, {}]


def test_short_ids_are_the_same_for_a_call_and_its_result() -> None:
    messages: list[ChatMessage] = [
        AssistantMessage("", (ToolCall("call_abc", "a", "{}"), ToolCall("Abc123xyz", "b", "{}"))),
        ToolMessage("call_abc", "a", "1"),
        ToolMessage("Abc123xyz", "b", "2"),
    ]

    wire = wire_messages(messages, quirks=Quirks(short_call_ids=True))

    sent = [call["id"] for call in wire[0]["tool_calls"]]
    assert sent == [message["tool_call_id"] for message in wire[1:]]
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", sent[0]) and sent[1] == "Abc123xyz"


def test_tools_keep_their_order_and_schema() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}

    wire = wire_tools([ToolSpec("second", "2", schema), ToolSpec("first", "1", {})])

    assert json.dumps(wire) == json.dumps(
        [
            {
                "type": "function",
                "function": {"name": "second", "description": "2", "parameters": schema},
            },
            {
                "type": "function",
                "function": {"name": "first", "description": "1", "parameters": {}},
            },
        ]
    )


def test_a_body_is_its_head_messages_and_tail_in_order() -> None:
    messages = [{"role": "user", "content": "ü 🙂"}]

    body = encode_body({"model": "m", "tools": []}, messages, {"stream": True})

    assert body.decode() == (
        '{"model":"m","tools":[],"messages":[{"role":"user","content":"ü 🙂"}],"stream":true}'
    )


def test_half_a_character_does_not_prevent_a_request() -> None:
    body = encode_body({"model": "m"}, [{"role": "user", "content": "a\ud83d"}], {"n": 1})

    assert json.loads(body)["messages"][0]["content"] == "a?"


MESSAGES = st.lists(
    st.one_of(
        st.builds(UserMessage, st.text(), st.sampled_from([(), (CAT,)])),
        st.builds(
            AssistantMessage,
            st.text(),
            st.lists(st.builds(ToolCall, st.text(), st.text(), st.text()), max_size=2).map(tuple),
        ),
        st.builds(ToolMessage, st.text(), st.text(), st.text()),
    )
)


@given(earlier=MESSAGES, later=MESSAGES)
def test_the_bytes_of_a_conversation_begin_with_those_of_its_beginning(
    earlier: list[ChatMessage], later: list[ChatMessage]
) -> None:
    short = encode_body({"model": "m"}, wire_messages(earlier, pictures=PICTURES), {"n": 1})
    whole = encode_body(
        {"model": "m"}, wire_messages([*earlier, *later], pictures=PICTURES), {"n": 1}
    )

    assert whole.startswith(short.removesuffix(b'],"n":1}'))


@given(messages=MESSAGES)
def test_the_rough_size_is_near_the_real_one(messages: list[ChatMessage]) -> None:
    wire = wire_messages(messages, pictures=PICTURES)

    size = rough_size(wire)

    texts = sum(len(message.content) for message in messages)
    assert texts <= size <= len(json.dumps(wire, ensure_ascii=False))


def test_call_ids_are_those_of_all_assistants_messages() -> None:
    messages: list[ChatMessage] = [
        AssistantMessage("", (ToolCall("a", "x", "{}"), ToolCall("b", "x", "{}"))),
        ToolMessage("c", "x", ""),
        AssistantMessage("", (ToolCall("d", "x", "{}"),)),
    ]

    assert call_ids(messages) == {"a", "b", "d"}


@pytest.mark.parametrize(
    ("model", "quirks"),
    [
        ("gpt-4o", Quirks()),
        ("openai/gpt-oss-120b", Quirks()),
        ("o3-mini", Quirks(takes_max_completion_tokens=True, takes_temperature=False)),
        ("openai/o1", Quirks(takes_max_completion_tokens=True, takes_temperature=False)),
        ("olmo-3", Quirks()),
        (
            "openai/GPT-5-mini",
            Quirks(takes_max_completion_tokens=True, takes_temperature=False, effort_off="minimal"),
        ),
        (
            "gpt-5.2",
            Quirks(takes_max_completion_tokens=True, takes_temperature=False, effort_off="none"),
        ),
        (
            "moonshotai/kimi-k2-thinking",
            Quirks(takes_temperature=False, reasoning_back=ReasoningBack.CONTENT),
        ),
        ("moonshotai/kimi-k2", Quirks()),
        ("deepseek-reasoner", Quirks(reasoning_back=ReasoningBack.CONTENT)),
        ("deepseek-chat", Quirks()),
        ("", Quirks()),
    ],
)
def test_quirks_go_by_the_models_name(model: str, quirks: Quirks) -> None:
    assert quirks_of(model) == quirks
