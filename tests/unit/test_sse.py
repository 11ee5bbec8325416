"""Tests of the parser of server-sent events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.providers.openai import EventStream, EventTooLarge, ServerSentEvent


def parse(*pieces: bytes, limit: int = 1000) -> list[ServerSentEvent]:
    stream = EventStream(limit=limit)
    events = [event for piece in pieces for event in stream.feed(piece)]
    return events + stream.end()


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_kind_of_line_end_separates_events(end: str) -> None:
    body = f"data: one{end}{end}event: named{end}data: two{end}{end}".encode()

    assert parse(body) == [ServerSentEvent("one"), ServerSentEvent("two", "named")]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert parse(b"data:a\n\ndata: b\n\ndata:  c\n\n") == [
        ServerSentEvent("a"),
        ServerSentEvent("b"),
        ServerSentEvent(" c"),
    ]


def test_several_data_lines_are_one_event() -> None:
    assert parse(b"data: {\ndata: }\n\n") == [ServerSentEvent("{\n}")]


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    body = b"data: {\r\ndata: }\r\n\r\ndata: x\r\n\r\n"

    bytewise = parse(*(bytes([byte]) for byte in body))

    assert bytewise == [ServerSentEvent("{\n}"), ServerSentEvent("x")]


def test_comments_and_other_fields_are_no_events() -> None:
    body = b": ping\n\nid: 7\nretry: 100\n\nunknown: x\ndata: y\n\n"

    assert parse(body) == [ServerSentEvent("y")]


def test_a_data_line_without_a_value_is_an_empty_event() -> None:
    assert parse(b"data\n\ndata:\n\n\n\n") == [ServerSentEvent(""), ServerSentEvent("")]


def test_a_byte_order_mark_at_the_start_is_dropped_and_elsewhere_kept() -> None:
    body = "\ufeffdata: a\n\ndata: \ufeffb\n\n".encode()

    assert parse(body) == [ServerSentEvent("a"), ServerSentEvent("\ufeffb")]


def test_the_last_event_counts_without_its_blank_line() -> None:
    assert parse(b"data: a\n\ndata: [DONE]") == [ServerSentEvent("a"), ServerSentEvent("[DONE]")]


def test_a_name_holds_for_one_event_only() -> None:
    body = b"event: error\ndata: a\n\ndata: b\n\n"

    assert parse(body) == [ServerSentEvent("a", "error"), ServerSentEvent("b", "message")]


def test_bytes_that_are_no_utf8_do_not_end_the_stream() -> None:
    assert parse(b"data: \xff\n\ndata: b\n\n") == [ServerSentEvent("\ufffd"), ServerSentEvent("b")]


def test_events_come_as_soon_as_they_are_complete() -> None:
    stream = EventStream()

    assert stream.feed(b"data: a\n") == []
    assert stream.feed(b"\ndata: b") == [ServerSentEvent("a")]
    assert stream.feed(b"\n\n") == [ServerSentEvent("b")]


@pytest.mark.parametrize("body", [b"data: " + b"x" * 100, b"data: x\n" * 100])
def test_an_event_over_the_limit_is_refused(body: bytes) -> None:
    with pytest.raises(EventTooLarge):
        parse(*(bytes([byte]) for byte in body), limit=64)


def test_the_limit_is_for_one_event_not_for_the_stream() -> None:
    stream = EventStream(limit=64)

    events = [event for _ in range(100) for event in stream.feed(b"data: " + b"x" * 50 + b"\n\n")]

    assert len(events) == 100


@given(
    values=st.lists(
        st.text(st.characters(exclude_characters="\r\n\x00", exclude_categories=["Cs"]), min_size=1)
    ),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    space=st.booleans(),
    comment=st.booleans(),
    cuts=st.lists(st.integers(min_value=0)),
)
def test_any_cut_of_the_bytes_gives_the_same_events(
    values: list[str], end: str, space: bool, comment: bool, cuts: list[int]
) -> None:
    values = [value.removeprefix(" ") or "x" for value in values] if not space else values
    head = f": ping{end}{end}" if comment else ""
    data = "".join(
        f"{head}data:{' ' if space else ''}{value}{end}{end}" for value in values
    ).encode()

    assert parse(*pieces_of(data, cuts)) == [ServerSentEvent(value) for value in values]


@given(data=st.binary(), cuts=st.lists(st.integers(min_value=0)))
def test_any_bytes_at_all_give_the_same_events_however_cut(data: bytes, cuts: list[int]) -> None:
    assert parse(*pieces_of(data, cuts)) == parse(data)


@given(text=st.text(st.sampled_from("data: x\r\n\ufeff")), cuts=st.lists(st.integers(min_value=0)))
def test_line_ends_in_any_order_give_the_same_events_however_cut(
    text: str, cuts: list[int]
) -> None:
    data = text.encode()

    assert parse(*pieces_of(data, cuts)) == parse(data)
