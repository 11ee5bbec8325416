"""How messages and HISTORY.md are cut into chunks."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from nanobot.recall.chunks import LONGEST, paragraphs, pieces


def test_a_paragraph_begins_at_its_stamp_or_behind_a_blank_line() -> None:
    text = (
        "# History\n\n[2026-02-01 10:00] Rome in May.\nBy train.\n[2026-02-02 11:30] A bicycle.\n"
        "\nWritten by hand.\n\n[2026-99-02 11:30] No such day.\n"
    )

    found = [(one.at, one.text) for one in paragraphs(text, UTC)]

    assert found == [
        (datetime(2026, 2, 1, 10, 0, tzinfo=UTC), "Rome in May.\nBy train."),
        (datetime(2026, 2, 2, 11, 30, tzinfo=UTC), "A bicycle."),
        (datetime(2026, 2, 2, 11, 30, tzinfo=UTC), "Written by hand."),
        (datetime(2026, 2, 2, 11, 30, tzinfo=UTC), "No such day."),
    ]


def test_the_same_paragraph_twice_has_two_names() -> None:
    twice = list(paragraphs("[2026-02-01 10:00] Rain.\n\n[2026-02-01 10:00] Rain.", UTC))

    assert len({one.digest for one in twice}) == 2


@given(st.text(alphabet="ab .\n。", max_size=4000))
def test_pieces_are_short_and_together_all_there_is(text: str) -> None:
    found = pieces(text)

    assert all(0 < len(piece) <= LONGEST for piece in found)
    assert "".join("".join(found).split()) == "".join(text.split())
