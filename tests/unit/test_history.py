"""Folding a log into a history: legal whatever happened to the log."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from nanobot.core.messages import Trust
from nanobot.session.entries import Draft, EntryKind, fold, open_calls, violations

LOST = "interrupted"


def _draft(message: ChatMessage | None) -> Draft:
    kinds = {
        UserMessage: EntryKind.USER,
        AssistantMessage: EntryKind.ASSISTANT,
        ToolMessage: EntryKind.TOOL,
    }
    kind = EntryKind.RESET if message is None else kinds[type(message)]
    return Draft(
        kind=kind,
        message=message,
        inbound_id="in",
        principal="owner:cli:owner",
        trust=Trust.TRUSTED,
    )


def _log(*messages: ChatMessage | None) -> list[Draft]:
    return [_draft(message) for message in messages]


def test_a_whole_log_is_sent_as_it_is() -> None:
    messages: list[ChatMessage] = [
        UserMessage("hello"),
        AssistantMessage("", (ToolCall("1", "read_file", "{}"),)),
        ToolMessage("1", "read_file", "text"),
        AssistantMessage("done"),
    ]

    assert fold(_log(*messages), interrupted=LOST) == messages


def test_a_missing_result_is_told_as_interrupted() -> None:
    log = _log(
        UserMessage("hello"),
        AssistantMessage("", (ToolCall("1", "exec", "{}"), ToolCall("2", "exec", "{}"))),
        ToolMessage("2", "exec", "ran"),
        UserMessage("and?"),
    )

    assert fold(log, interrupted=LOST)[2:] == [
        ToolMessage("1", "exec", LOST),
        ToolMessage("2", "exec", "ran"),
        UserMessage("and?"),
    ]


def test_orphan_results_and_empty_words_are_left_out() -> None:
    log = _log(
        ToolMessage("9", "exec", "whose?"),
        AssistantMessage("before anybody asked"),
        UserMessage("hello"),
        AssistantMessage("  "),
        ToolMessage("1", "exec", "whose?"),
        AssistantMessage("hi"),
    )

    assert fold(log, interrupted=LOST) == [UserMessage("hello"), AssistantMessage("hi")]


def test_open_calls_are_those_without_a_result_at_the_end() -> None:
    first, second = ToolCall("1", "exec", "{}"), ToolCall("2", "exec", "{}")
    log = _log(
        UserMessage("go"), AssistantMessage("", (first, second)), ToolMessage("1", "exec", "ok")
    )

    assert open_calls(log) == (second,)
    assert open_calls(_log(UserMessage("go"))) == ()


def test_assistant_messages_that_lost_what_stood_between_them_become_one() -> None:
    log = _log(
        UserMessage("go"),
        AssistantMessage("first"),
        AssistantMessage("second", (ToolCall("1", "exec", "{}"),)),
        ToolMessage("1", "exec", "ran"),
    )

    assert fold(log, interrupted=LOST)[1:] == [
        AssistantMessage("first\n\nsecond", (ToolCall("1", "exec", "{}"),)),
        ToolMessage("1", "exec", "ran"),
    ]


def test_a_name_that_no_provider_takes_back_is_mended() -> None:
    log = _log(
        UserMessage("go"),
        AssistantMessage("", (ToolCall("1", "run this!", "{}"), ToolCall("2", "", "{}"))),
        ToolMessage("1", "run this!", "no such tool"),
    )

    assert fold(log, interrupted=LOST)[1:] == [
        AssistantMessage("", (ToolCall("1", "run_this_", "{}"), ToolCall("2", "unknown", "{}"))),
        ToolMessage("1", "run_this_", "no such tool"),
        ToolMessage("2", "unknown", LOST),
    ]


_ids = st.sampled_from(["", "1", "2", "3"])
_names = st.sampled_from(["exec", "", "no name"])
_calls = st.lists(st.builds(ToolCall, _ids, _names, st.just("{}")), max_size=3)
_messages = st.one_of(
    st.none(),
    st.builds(UserMessage, st.text(max_size=3)),
    st.builds(AssistantMessage, st.text(max_size=3), _calls.map(tuple)),
    st.builds(ToolMessage, _ids, st.just("exec"), st.text(max_size=3)),
)


def _sent(text: str) -> Draft:
    return replace(
        _draft(AssistantMessage(text)), kind=EntryKind.SENT, note="[A job sent:]", inbound_id="job"
    )


def test_words_that_were_sent_to_the_chat_stand_behind_a_note_even_at_the_beginning() -> None:
    log = [_sent("Tea?"), *_log(UserMessage("yes"), AssistantMessage("On.")), _sent("Hot!")]

    assert fold(log, interrupted=LOST) == [
        UserMessage("[A job sent:]"),
        AssistantMessage("Tea?"),
        UserMessage("yes"),
        AssistantMessage("On."),
        UserMessage("[A job sent:]"),
        AssistantMessage("Hot!"),
    ]


def test_calls_are_open_whatever_was_sent_to_the_chat_since() -> None:
    calls = (ToolCall("1", "exec", "{}"), ToolCall("2", "exec", "{}"))
    log = _log(AssistantMessage("", calls), ToolMessage("1", "exec", "ran"))

    assert open_calls([*log, _sent("Tea?")]) == calls[1:]


@given(st.lists(_messages, max_size=30))
def test_every_history_is_legal_whatever_is_in_the_log(
    messages: list[ChatMessage | None],
) -> None:
    history = fold(_log(*messages), interrupted=LOST)

    assert violations([SystemMessage("prompt"), *history]) == []


def test_the_checker_sees_what_a_provider_would_refuse() -> None:
    call = ToolCall("1", "exec", "{}")

    found = violations(
        [
            UserMessage("a"),
            SystemMessage("late"),
            AssistantMessage("", (call,)),
            UserMessage("b"),
            ToolMessage("7", "exec", "orphan"),
            AssistantMessage(""),
            AssistantMessage("", (call, call)),
            UserMessage(" "),
            AssistantMessage("", (ToolCall("3", "no name", "{}"),)),
        ]
    )

    assert [line.partition(": ")[2] for line in found] == [
        "a system message after the first",
        "calls without a result: 1",
        "a result without a call: 7",
        "an empty assistant message",
        "two assistant messages in a row",
        "two calls with one id",
        "calls without a result: 1, 1",
        "an empty user message",
        "a call of a name that is none",
        "calls without a result: 3",
    ]
