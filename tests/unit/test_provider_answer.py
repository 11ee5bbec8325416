"""Tests of reading a chat completions response into an answer."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.chat import FinishReason, LLMResponse, ToolCall, Usage
from nanobot.core.events import Event, ReasoningDelta, TextDelta
from nanobot.providers.answer import Answer
from nanobot.providers.failures import EndpointRefused, Garbled
from nanobot.providers.openai import BodyReader
from tests.fakes import openai_replies
from tests.fakes.model_replies import Call, Framing, Ids, Index, Reply, Tokens


def read(
    pieces: list[bytes], events: list[Event] | None = None, taken: tuple[str, ...] = ()
) -> Answer:
    emit = events.append if events is not None else lambda event: None
    answer = Answer(model="asked", taken_ids=taken, emit=emit)
    reader = BodyReader()
    for piece in pieces:
        for document in reader.feed(piece):
            answer.add(document)
    for document in reader.end():
        answer.add(document, whole=reader.is_document)
    if reader.is_done:
        answer.finish()
    return answer


def chunks(*documents: dict[str, Any], done: bool = True) -> list[bytes]:
    data = [json.dumps(document) for document in documents] + ["[DONE]"] * done
    return [f"data: {one}\n\n".encode() for one in data]


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def calls_of(*deltas: dict[str, Any], taken: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    body = chunks(*(delta(tool_calls=[one]) for one in deltas), delta("tool_calls"))
    response = read(body, taken=taken).response()
    return [(call.id, call.name, call.arguments) for call in response.tool_calls]


def call(
    name: str | None = None,
    arguments: Any = None,
    identity: str | None = None,
    index: int | None = None,
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    made: dict[str, Any] = {
        "function": {key: value for key, value in function.items() if value is not None}
    }
    if identity is not None:
        made["id"] = identity
    if index is not None:
        made["index"] = index
    return made


RICH = Reply(
    content="Ein Gruß 🙂 an dich.\n",
    reasoning="Grüße sind höflich 🙂.",
    calls=(
        Call("write_file", '{"path": "ü.txt", "content": "🙂🙂"}', "call_a"),
        Call("list_dir", '{"path": "."}', "call_b"),
        Call("exec", '{"command": "true', "call_c"),
    ),
    usage=Tokens(prompt=1200, completion=34, cached=1024),
)
RICH_RESPONSE = LLMResponse(
    content=RICH.content,
    tool_calls=tuple(ToolCall(one.id or "", one.name, one.arguments) for one in RICH.calls),
    finish_reason=FinishReason.TOOL_CALLS,
    usage=Usage(1200, 34, 1024),
    reasoning_content=RICH.reasoning,
    model="fake-model",
)


@given(
    framing=st.builds(
        Framing,
        newline=st.sampled_from(["\n", "\r\n", "\r"]),
        space=st.booleans(),
        comments=st.booleans(),
        bom=st.booleans(),
        done=st.booleans(),
        text_size=st.integers(0, 5),
        argument_size=st.integers(0, 9),
        sizes=st.lists(st.integers(1, 40), max_size=4).map(tuple),
        interleave=st.booleans(),
        ids=st.sampled_from([Ids.FIRST, Ids.EVERY]),
        ascii_only=st.booleans(),
    ),
    reasoning_field=st.sampled_from(["reasoning_content", "reasoning"]),
)
def test_any_framing_gives_the_same_answer(framing: Framing, reasoning_field: str) -> None:
    reply = RICH.but(framing=framing, reasoning_field=reasoning_field)
    events: list[Event] = []

    answer = read(openai_replies.stream(reply, "fake-model", 1, wants_usage=True), events)

    assert answer.is_finished
    assert answer.response() == RICH_RESPONSE
    assert "".join(one.text for one in events if isinstance(one, TextDelta)) == RICH.content
    assert "".join(one.text for one in events if isinstance(one, ReasoningDelta)) == RICH.reasoning


@given(cuts=st.lists(st.integers(min_value=0)), blank=st.sampled_from(["", "\n\n  ", "\ufeff"]))
def test_one_document_is_read_like_a_stream(cuts: list[int], blank: str) -> None:
    data = blank.encode() + openai_replies.completion(RICH, "fake-model", 1)
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})

    answer = read([data[start:end] for start, end in itertools.pairwise(places)])

    assert answer.is_finished
    assert answer.response() == RICH_RESPONSE


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_a_byte_order_mark_cut_in_two_costs_nothing(cut: int) -> None:
    stream = b"\xef\xbb\xbf" + b"".join(chunks(delta("stop", content="a")))
    document = b"\xef\xbb\xbf" + openai_replies.completion(Reply.text("a"), "m", 1)

    for body in (stream, document):
        assert read([body[:cut], body[cut:]]).response().content == "a"


@pytest.mark.parametrize("framing", [Framing(index=Index.ZERO), Framing(index=Index.MISSING)])
@pytest.mark.parametrize("size", [0, 4])
def test_calls_are_told_apart_by_their_ids_where_indexes_do_not(
    framing: Framing, size: int
) -> None:
    reply = RICH.but(framing=Framing(index=framing.index, argument_size=size))

    answer = read(openai_replies.stream(reply, "fake-model", 1, wants_usage=True))

    assert answer.response() == RICH_RESPONSE


def test_calls_without_index_and_id_are_told_apart_by_complete_arguments() -> None:
    found = calls_of(call("a", '{"x": 1}'), call("a", '{"x": 2}'), call("b", "{}"))

    assert [(name, arguments) for _, name, arguments in found] == [
        ("a", '{"x": 1}'),
        ("a", '{"x": 2}'),
        ("b", "{}"),
    ]
    assert len({identity for identity, _, _ in found}) == 3


def test_fragments_interleaved_by_id_alone_find_their_calls() -> None:
    found = calls_of(
        call("a", '{"x"', "one"),
        call("b", '{"y"', "two"),
        call(None, ": 1}", "one"),
        call(None, ": 2}", "two"),
    )

    assert found == [("one", "a", '{"x": 1}'), ("two", "b", '{"y": 2}')]


def test_a_new_random_id_on_each_fragment_does_not_begin_a_call() -> None:
    found = calls_of(call("a", '{"x"', "r1", 0), call(None, ": 1}", "r2", 0))

    assert found == [("r1", "a", '{"x": 1}')]


def test_a_name_repeated_or_in_pieces_is_one_name() -> None:
    repeated = [
        call("look", "", "c", 0),
        call("look", '{"x": ', "c", 0),
        call("look", "1}", "c", 0),
    ]
    pieces = [call("lo", None, "c", 0), call("ok", None, None, 0), call(None, "{}", None, 0)]

    assert calls_of(*repeated) == [("c", "look", '{"x": 1}')]
    assert calls_of(*pieces) == [("c", "look", "{}")]


def test_arguments_given_as_an_object_become_its_text() -> None:
    assert calls_of(call("a", {"ü": [1]}, "c", 0)) == [("c", "a", '{"ü": [1]}')]


def test_a_call_without_a_name_is_no_call() -> None:
    response = read(chunks(delta(tool_calls=[call(None, "{}", "c", 0)]), delta("stop"))).response()

    assert (response.tool_calls, response.finish_reason) == ((), FinishReason.STOP)


def test_missing_and_repeated_ids_are_replaced_by_the_same_unique_ones_each_time() -> None:
    deltas = [
        call("a", "{}", "call_0", 0),
        call("a", "{}", "call_0", 1),
        call("a", "{}", None, 2),
        call("a", "{}", None, 3),
        call("b", "{}", "old", 4),
    ]

    once, again = (
        [identity for identity, _, _ in calls_of(*deltas, taken=("old", "older"))] for _ in range(2)
    )

    assert once == again
    assert once[0] == "call_0"
    assert len({*once, "old", "older"}) == 7
    assert all(len(identity) == 9 and identity.isalnum() for identity in once[1:])


@pytest.mark.parametrize(
    ("finish", "has_calls", "reason"),
    [
        ("stop", False, FinishReason.STOP),
        ("stop", True, FinishReason.TOOL_CALLS),
        ("tool_calls", False, FinishReason.STOP),
        ("tool_calls", True, FinishReason.TOOL_CALLS),
        ("eos", False, FinishReason.STOP),
        ("length", False, FinishReason.LENGTH),
        ("length", True, FinishReason.LENGTH),
        ("MAX_TOKENS", False, FinishReason.LENGTH),
    ],
)
def test_calls_are_told_by_their_presence(
    finish: str, has_calls: bool, reason: FinishReason
) -> None:
    calls = [call("a", "{}", "c", 0)] if has_calls else []

    response = read(chunks(delta(tool_calls=calls), delta(finish))).response()

    assert (response.finish_reason, bool(response.tool_calls)) == (reason, has_calls)


def test_think_tags_are_reasoning_even_when_cut_in_the_middle() -> None:
    events: list[Event] = []
    body = [delta(content=piece) for piece in ("<th", "ink>h", "m</thi", "nk>\n\nSo", ".")]

    response = read(chunks(*body, delta("stop")), events).response()

    assert (response.reasoning_content, response.content) == ("hm", "So.")
    assert events == [
        ReasoningDelta("h"),
        ReasoningDelta("m"),
        TextDelta("So"),
        TextDelta("."),
    ]


def test_text_held_back_for_a_tag_that_does_not_come_is_not_lost() -> None:
    events: list[Event] = []

    response = read(chunks(delta("stop", content="<thi")), events).response()

    assert (response.content, events) == ("<thi", [TextDelta("<thi")])


def test_a_character_in_two_halves_is_put_together_again() -> None:
    events: list[Event] = []
    body = [delta(content="a\ud83d"), delta(content="\ude42b\ud83d"), delta("stop")]

    response = read(chunks(*body), events).response()

    assert response.content == "a🙂b\ufffd"
    assert events == [TextDelta("a"), TextDelta("🙂b"), TextDelta("\ufffd")]


def test_content_in_parts_is_text_and_thinking() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    body = delta("stop", content=[thinking, {"type": "text", "text": "So."}])

    response = read(chunks(body)).response()

    assert (response.reasoning_content, response.content) == ("hm", "So.")


def test_a_refusal_of_the_model_is_its_answer() -> None:
    assert read(chunks(delta("stop", refusal="I will not."))).response().content == "I will not."


def test_reasoning_blocks_are_put_together_and_kept_apart() -> None:
    first = {"type": "reasoning.text", "text": "a", "index": 0, "signature": None}
    last = {"type": "reasoning.text", "text": "b", "index": 0, "signature": "sig"}
    hidden = {"type": "reasoning.encrypted", "data": "xyz", "index": 1}
    body = [delta(reasoning_details=[one]) for one in (first, last, hidden)]

    response = read(chunks(*body, delta("stop"))).response()

    assert response.thinking_blocks == (
        {"type": "reasoning.text", "text": "ab", "index": 0, "signature": "sig"},
        hidden,
    )


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, 2)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 8},
                "cost": 0.25,
            },
            Usage(9, 2, 8, 0.25),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 5},
            Usage(9, 2, 5),
        ),
        ({"prompt_tokens": 9, "completion_tokens": None, "cached_tokens": 4}, Usage(9, 0, 4)),
        # What no database could add up
        ({"prompt_tokens": 9, "completion_tokens": 10**30, "cached_tokens": -4}, Usage(9, 0, 0)),
        ({"prompt_tokens": 9, "completion_tokens": True, "cost": float("nan")}, Usage(9, 0)),
        ({"prompt_tokens": 9, "cost": float("inf")}, Usage(9, 0)),
        ({"prompt_tokens": 9, "cost": -1}, Usage(9, 0)),
    ],
)
def test_usage_is_found_in_each_form_and_place(usage: dict[str, Any], expected: Usage) -> None:
    inside = {"choices": [{"index": 0, "delta": {}, "usage": usage}]}

    beside = read(chunks(delta("stop"), {"choices": [], "usage": usage})).response()
    within = read(chunks(delta("stop"), inside)).response()
    apart = read(chunks(delta("stop"), {"choices": [], "x_groq": {"usage": usage}})).response()

    assert [beside.usage, within.usage, apart.usage] == [expected] * 3


def test_the_last_usage_counts_and_null_does_not_undo_it() -> None:
    first, last = ({"prompt_tokens": 9, "completion_tokens": n} for n in (1, 2))
    body = [delta() | {"usage": first}, delta("stop") | {"usage": last}, delta() | {"usage": None}]

    assert read(chunks(*body)).response().usage == Usage(9, 2)


def test_done_without_a_reason_finishes_and_the_bare_end_does_not() -> None:
    assert read(chunks(delta(content="a"), done=True)).is_finished
    assert not read(chunks(delta(content="a"), done=False)).is_finished


def test_an_event_torn_at_the_end_leaves_the_answer_unfinished() -> None:
    answer = read([*chunks(delta(content="a"), done=False), b'data: {"choices": [{"del'])

    assert not answer.is_finished


def test_what_follows_done_is_ignored() -> None:
    answer = read([*chunks(delta("stop", content="a")), b"data: not json\n\n"])

    assert answer.response().content == "a"


def test_an_error_event_is_a_refusal_in_each_form() -> None:
    error = {"message": "Overloaded", "code": 529}
    bodies = [
        chunks({"error": error}),
        chunks({"object": "error", **error}),
        [b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"],
        [json.dumps({"error": error}).encode()],
        [json.dumps(error).encode()],
    ]

    for body in bodies:
        with pytest.raises(EndpointRefused) as caught:
            read(body)
        assert (caught.value.failure.status, caught.value.failure.message) == (529, "Overloaded")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "an empty body"),
        (b"\n\n", "an empty body"),
        (b": ping\n\n", ": ping"),
        (b"Service unavailable", "Service unavailable"),
        (b"<html><title>Sign in\n</title>", "an HTML page: Sign in"),
        (b"<html>", "an HTML page"),
        (b'{"choices": [', '{"choices": ['),
        (b"data: {nope}\n\n", "{nope}"),
        (b"data: 7\n\n", "7"),
        (b"[1, 2]", "[1, 2]"),
        (b"[" * 100_000, "[["),
    ],
)
def test_what_is_no_answer_is_shown(body: bytes, words: str) -> None:
    with pytest.raises(Garbled) as caught:
        read([body])

    assert str(caught.value).startswith(words)


KEYS = [
    *("choices", "delta", "message", "index", "content", "refusal", "finish_reason", "usage"),
    *("tool_calls", "function", "name", "arguments", "id", "prompt_tokens", "cached_tokens"),
    *("prompt_tokens_details", "x_groq", "reasoning", "reasoning_details", "type", "text"),
    *("thinking", "error", "model", "object"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    documents=st.lists(
        st.fixed_dictionaries(
            {
                "choices": st.lists(
                    st.fixed_dictionaries({"delta": JSON, "finish_reason": JSON, "usage": JSON}),
                    max_size=1,
                )
            }
        )
        | JSON
    )
)
def test_documents_of_any_shape_give_an_answer_or_a_clear_error(documents: list[Any]) -> None:
    try:
        response = read([f"data: {json.dumps(one)}\n\n".encode() for one in documents]).response()
    except (Garbled, EndpointRefused):
        return

    assert isinstance(response.content, str)
    assert all(isinstance(one.arguments, str) and one.name for one in response.tool_calls)
