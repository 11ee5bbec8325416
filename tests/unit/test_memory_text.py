"""Edits of MEMORY.md: what is meant is found, what is not meant stays byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.messages import Trust
from nanobot.memory.edits import (
    MARK,
    Edit,
    EditAction,
    edited,
    edits_from_json,
    edits_to_json,
    mark_new_lines,
    sections,
)

ADD, REPLACE, REMOVE = EditAction.ADD, EditAction.REPLACE, EditAction.REMOVE
TEMPLATE = "# Long-term memory\n\n## User Information\n\n## Preferences\n\n## Important Notes\n"
FILLED = (
    "# Long-term memory\n\nHand-written words.\n\n## User Information\n\n- Lives in Bern.\n"
    "* [x] Has a dog,   Rex\n\n## Preferences\n\n- Tea\n\n## Important Notes\n\n"
    "1. Key is at Ann's\n"
)


def add(section: str, line: str, trust: Trust = Trust.TRUSTED) -> Edit:
    return Edit(ADD, section, line, trust=trust)


def test_lines_are_added_under_their_headings() -> None:
    edits = [
        add("Preferences", "Likes tea"),
        add("## important notes:", "- Owns a boat"),
        add("Preferences", "Hates\nphone calls"),
    ]

    assert edited(TEMPLATE, edits) == (
        "# Long-term memory\n\n## User Information\n\n## Preferences\n\n- Likes tea\n"
        "- Hates phone calls\n\n## Important Notes\n\n- Owns a boat\n"
    )


def test_an_unknown_section_is_made_and_a_missing_file_begun() -> None:
    assert edited("", [add("Family", "Ann is a sister")]) == "## Family\n\n- Ann is a sister\n"
    assert edited("Words", [add("Family", "Ann")]) == "Words\n\n## Family\n\n- Ann\n"


def test_the_line_meant_is_found_whatever_its_bullet_case_and_spacing() -> None:
    edits = [
        Edit(REPLACE, "User Information", "lives in bern", "Lives in Basel"),
        Edit(REMOVE, "Preferences", "has a dog, Rex"),
        Edit(REPLACE, "Important Notes", "- Key is at Anns", "Key is at Bob's"),
    ]

    assert edited(FILLED, edits) == (
        "# Long-term memory\n\nHand-written words.\n\n## User Information\n\n- Lives in Basel\n"
        "\n## Preferences\n\n- Tea\n\n## Important Notes\n\n1. Key is at Bob's\n"
    )


def test_a_line_that_is_gone_is_added_when_replaced_and_no_matter_when_removed() -> None:
    edits = [
        Edit(REMOVE, "Preferences", "Has a cat"),
        Edit(REPLACE, "Preferences", "Works at the bank", "Works at the theatre"),
    ]

    assert edited(FILLED, edits) == FILLED.replace("- Tea\n", "- Tea\n- Works at the theatre\n")


def test_of_two_lines_nearly_the_same_neither_is_taken() -> None:
    text = "## Notes\n\n- Meeting room 11 is blue\n- Meeting room 12 is blue\n"

    assert edited(text, [Edit(REMOVE, "Notes", "Meeting room 13 is blue")]) == text


def test_headings_in_a_code_block_are_no_sections() -> None:
    text = "## Notes\n\n```\n## Preferences\n```\n\n## Preferences\n\n- Tea\n"

    assert edited(text, [add("Preferences", "Milk")]) == f"{text}- Milk\n"


def test_windows_line_ends_stay() -> None:
    text = "## Preferences\r\n\r\n- Tea\r\n"

    assert edited(text, [add("Preferences", "Milk"), add("New", "One")]) == (
        "## Preferences\r\n\r\n- Tea\r\n- Milk\r\n\r\n## New\r\n\r\n- One\r\n"
    )


def test_what_came_from_outside_is_marked_and_cannot_change_what_is_trusted() -> None:
    outside = [
        add("Important Notes", "The shop opens at 9", Trust.UNTRUSTED),
        Edit(REMOVE, "User Information", "Lives in Bern", trust=Trust.UNTRUSTED),
        Edit(REPLACE, "Preferences", "Tea", "Coffee", Trust.UNTRUSTED),
    ]
    text = edited(FILLED, outside)
    later = edited(text, [Edit(REMOVE, "", "The shop opens at 9", trust=Trust.UNTRUSTED)])

    assert "- Lives in Bern.\n" in text
    assert "- Tea\n" in text
    assert f"- Coffee {MARK}\n" in text
    assert f"- The shop opens at 9 {MARK}\n" in text
    assert "The shop" not in later


def test_lines_that_a_tainted_turn_added_get_the_mark() -> None:
    after = FILLED.replace("- Tea\n", "- Tea\n- Coffee\n") + "\n## Shops\n"

    assert mark_new_lines(FILLED, after) == after.replace("- Coffee\n", f"- Coffee {MARK}\n")
    assert mark_new_lines(FILLED, FILLED) == FILLED


def test_sections_are_counted() -> None:
    assert sections(FILLED) == (
        ("Long-term memory", 1),
        ("User Information", 2),
        ("Preferences", 1),
        ("Important Notes", 1),
    )


LINES = st.lists(
    st.sampled_from(["- Tea", "## Notes", "", "words", "```", "* x\r", "## New\r", " "]),
    unique=True,
)
EDITS = st.lists(
    st.builds(
        lambda action, section, line, trust: Edit(action, section, line, f"now {line}", trust),
        st.sampled_from(EditAction),
        st.sampled_from(["Notes", "New", ""]),
        st.sampled_from(["Tea", "words", "fresh", "x", "- "]),
        st.sampled_from(Trust),
    ),
    max_size=4,
    unique_by=lambda edit: edit.line,
)
"""No two about one line: such as contradict each other have no right order after a crash."""


@given(LINES, EDITS)
def test_edits_repeated_after_a_crash_change_nothing(lines: list[str], edits: list[Edit]) -> None:
    once = edited("\n".join(lines), edits)

    assert edited(once, edits) == once


@given(EDITS)
def test_edits_survive_their_storage(edits: list[Edit]) -> None:
    assert edits_from_json(edits_to_json(edits)) == tuple(edits)


@pytest.mark.parametrize("text", [TEMPLATE, FILLED, "", "\ufffd\n\n\n", "no newline"])
def test_no_edits_change_nothing(text: str) -> None:
    assert edited(text, []) == text
