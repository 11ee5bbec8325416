"""What a model answers to a consolidation: read tolerantly, never half."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.chat import FinishReason, LLMResponse, ToolCall
from nanobot.core.messages import Trust
from nanobot.memory.batch import (
    ENTRY_CHARS,
    Answer,
    Event,
    Unusable,
    read_answer,
    tool_spec,
)
from nanobot.memory.edits import Edit, EditAction

NOON = datetime(2026, 3, 1, 12, 0).astimezone()
GOOD = {
    "history": [{"time": "2026-03-01 12:00", "text": "Ann chose tea."}],
    "memory": [
        {"action": "add", "section": "Preferences", "line": "Tea"},
        {"action": "replace", "section": "Notes", "line": "old", "new_line": "new"},
    ],
}
ANSWER = Answer(
    (Event("Ann chose tea.", NOON),),
    (
        Edit(EditAction.ADD, "Preferences", "Tea"),
        Edit(EditAction.REPLACE, "Notes", "old", "new"),
    ),
)
TEXT = json.dumps(GOOD)
BRACKETED = {"history": [{"time": "2026-03-01 12:00", "text": "He wrote ]}]} and left."}]}


def called(arguments: str) -> LLMResponse:
    return LLMResponse("", (ToolCall("1", "save_memory", arguments),), FinishReason.TOOL_CALLS)


def read(response: LLMResponse) -> Answer:
    return read_answer(response, Trust.TRUSTED)


@pytest.mark.parametrize(
    "response",
    [
        called(TEXT),
        called(json.dumps(TEXT)),
        called(TEXT[:-1] + ",}"),
        called(TEXT.replace('"action"', "action")),
        called(json.dumps({"arguments": GOOD})),
        called(json.dumps([GOOD])),
        called(json.dumps({**GOOD, "history": json.dumps(GOOD["history"])})),
        LLMResponse(TEXT),
        LLMResponse(f"Sure:\n```json\n{TEXT}\n```\nAnything else?"),
        LLMResponse(f"Sure: {TEXT} Anything else?"),
        LLMResponse(f'The set {{x}} has "one" member: {TEXT} Is that {{fine}}?'),
        LLMResponse(json.dumps({"name": "save_memory", "arguments": TEXT})),
        LLMResponse(TEXT, (ToolCall("1", "save_memory", TEXT),)),
    ],
)
def test_the_digest_is_found_however_it_was_written(response: LLMResponse) -> None:
    assert read(response) == ANSWER


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (LLMResponse(""), "empty"),
        (LLMResponse("Ann chose tea."), "prose alone"),
        (LLMResponse("{ I think } that is all"), "JSON object"),
        (LLMResponse(TEXT, (), FinishReason.LENGTH), "cut off"),
        (called(""), "cut off"),
        (called("null"), "no JSON object"),
        (called("[]"), "no JSON object"),
        (called("{}"), "nothing for HISTORY.md"),
        (called('{"history": 7}'), "nothing for HISTORY.md"),
        (called('{"history": [7, null, {"text": 3}, "…"]}'), "nothing for HISTORY.md"),
        (called("[" * 100_000), "no JSON object"),
    ],
)
def test_what_is_of_no_use_says_why(response: LLMResponse, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        read(response)


@given(st.integers(1, len(TEXT) - 1), st.booleans())
def test_half_an_answer_never_passes_for_one(length: int, as_call: bool) -> None:
    half = TEXT[:length]

    with pytest.raises(Unusable):
        read(called(half) if as_call else LLMResponse(f"```json\n{half}"))


@given(st.integers(1, len(repr(BRACKETED)) - 1))
def test_half_an_answer_in_single_quotes_never_passes_for_one(length: int) -> None:
    assert read(called(repr(BRACKETED))).events == (Event("He wrote ]}]} and left.", NOON),)

    with pytest.raises(Unusable):
        read(called(repr(BRACKETED)[:length]))


def test_wrong_types_are_taken_for_what_they_must_mean() -> None:
    document = {
        "history": [
            "[2026-03-01 12:00] Ann chose tea.",
            {"when": "2026-03-01", "entry": "Bob\ncame\tlate"},
            ["nested"],
            {"time": "the other day", "text": "Eve left"},
        ],
        "memory": {"op": "DELETE", "heading": "Notes", "old": "gone"},
    }

    digest = read(called(json.dumps(document)))

    midnight = datetime(2026, 3, 1).astimezone()
    assert digest == Answer(
        (Event("Ann chose tea.", NOON), Event("Bob came late", midnight), Event("Eve left")),
        (Edit(EditAction.REMOVE, "Notes", "gone"),),
    )


def test_a_paragraph_that_begins_with_its_time_is_no_list() -> None:
    digest = read(called(json.dumps({"history_entry": "[2026-03-01 12:00] Ann chose tea."})))

    assert digest.events == (Event("Ann chose tea.", NOON),)


def test_edits_that_say_nothing_are_left_out() -> None:
    edits = [
        {"action": "explode", "line": "x"},
        {"action": "replace", "section": "Notes", "line": "old"},
        {"action": "add", "section": "Notes", "line": ""},
        "add tea",
    ]

    assert read(called(json.dumps({**GOOD, "memory": edits}))).edits == ()


def test_a_paragraph_is_one_line_of_bounded_length() -> None:
    (event,) = read(called(json.dumps({"history": ["word " * 2000]}))).events

    assert (len(event.text), "\n" in event.text) == (ENTRY_CHARS, False)


def test_edits_carry_the_trust_of_what_they_came_from() -> None:
    digest = read_answer(called(TEXT), Trust.UNTRUSTED)

    assert {edit.trust for edit in digest.edits} == {Trust.UNTRUSTED}


def test_a_guests_digest_is_offered_no_edits() -> None:
    offered = [list(tool_spec(edits=edits).parameters["properties"]) for edits in (True, False)]

    assert offered == [["history", "memory"], ["history"]]


def test_a_list_in_a_text_that_ends_early_never_passes_for_a_paragraph() -> None:
    listed = json.dumps(GOOD["history"])

    with pytest.raises(Unusable, match="cut off"):
        read(called(json.dumps({"history": listed[:-10]})))
