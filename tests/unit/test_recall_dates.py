"""Which spans of time a question names."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.recall.query import Span, spans

NOW = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
"""A Wednesday."""


def span(first: str, last: str = "") -> Span:
    return Span(date.fromisoformat(first), date.fromisoformat(last or first))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("what did we decide in March?", span("2026-03-01", "2026-03-31")),
        ("the trip in November", span("2025-11-01", "2025-11-30")),
        ("in March 2024", span("2024-03-01", "2024-03-31")),
        ("on 2026-02-03", span("2026-02-03")),
        ("am 3.2.2026", span("2026-02-03")),
        ("on 8 May, 2023", span("2023-05-08")),
        ("on May 8th", span("2026-05-08")),
        ("December 24", span("2025-12-24")),
        ("what happened last week", span("2026-06-01", "2026-06-07")),
        ("yesterday's call", span("2026-06-09")),
        ("two weeks ago", span("2026-05-24", "2026-05-30")),
        ("three months ago", span("2026-03-01", "2026-03-31")),
        ("last month", span("2026-05-01", "2026-05-31")),
        ("last year", span("2025-01-01", "2025-12-31")),
        ("in 2024", span("2024-01-01", "2024-12-31")),
        ("last Friday", span("2026-06-05")),
        ("上周我们说了什么", span("2026-06-01", "2026-06-07")),
        ("去年3月的会议", span("2025-01-01", "2025-12-31")),
        ("先月の旅行", span("2026-05-01", "2026-05-31")),
        ("2025年12月24日", span("2025-12-24")),
        ("on 31 February 2024", span("2024-02-01", "2024-02-29")),
        ("letzte Woche", span("2026-06-01", "2026-06-07")),
    ],
)
def test_a_date_in_a_question_is_a_span(query: str, expected: Span) -> None:
    assert expected in spans(query, NOW)


@pytest.mark.parametrize(
    "query", ["may I march on?", "the mark 1999.5", "on 31 foo 99", "room 2024-99", ""]
)
def test_what_is_no_date_names_nothing(query: str) -> None:
    assert spans(query, NOW) == ()


@given(st.text())
def test_no_text_raises(query: str) -> None:
    spans(query, NOW)


@given(
    st.lists(
        st.sampled_from(
            ("0", "31", "99", "2024", "may", "march", "月", "日", "年", "-", "/", ".", "ago", "前")
        ),
        max_size=8,
    )
)
def test_no_pieces_of_dates_raise(pieces: list[str]) -> None:
    spans(" ".join(pieces), NOW)
    spans("".join(pieces), NOW)
