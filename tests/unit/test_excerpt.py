"""What is shown of a file over its cap: what is important first, the rest in fair shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.prompts import render
from nanobot.prompts.excerpt import excerpt

PATH = Path("/w/memory/MEMORY.md")
_lines = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=60),
        st.sampled_from(
            ["## Family", "# Important Notes", "### Keys", "```", "", "- IMPORTANT: x"]
        ),
    ),
    max_size=40,
)


def test_each_section_gives_way_in_its_middle_and_small_ones_stay_whole() -> None:
    facts = [f"- fact {number}" for number in range(10, 90)]
    text = "\n".join(["# Memory", "", *facts, "## Preferences", "- Tea", "## Keys", *facts])

    shown = excerpt(text, 260, PATH)

    note = render.cut_file(sum(map(len, shown.split("\n"))), len(text), PATH).split()[3:]
    head, _, rest = shown.partition("## Preferences\n- Tea\n## Keys\n")
    assert head.startswith("# Memory\n\n- fact 10\n")
    assert "\n[… lines " in head
    assert head.endswith("\n- fact 89\n")
    assert rest.startswith("- fact 10\n")
    assert "- fact 89\n\n[" in rest
    assert shown.split()[-len(note) :] == note


@pytest.mark.parametrize(
    "line",
    [
        "- IMPORTANT: call Ann",
        "- **Important** call",
        "call [important]",
        "- ⚠ gas",
        "Important: x",
    ],
)
def test_a_line_marked_as_important_is_shown_wherever_it_stands(line: str) -> None:
    filler = [f"- fact {number}" for number in range(100)]

    shown = excerpt("\n".join([*filler, line, *filler]), 200, PATH)

    assert line in shown.split("\n")


def test_what_lies_under_an_important_heading_belongs_to_it() -> None:
    filler = [f"- fact {number}" for number in range(100)]
    notes = ["## Important Notes", "### Health", "- No peanuts", "## Rest"]

    shown = excerpt("\n".join([*filler, *notes, *filler]), 200, PATH)

    assert "\n".join(notes) in shown


@given(_lines, st.integers(50, 400))
def test_an_excerpt_is_made_of_the_files_lines_in_order_and_not_much_longer_than_its_cap(
    lines: list[str], cap: int
) -> None:
    text = "\n".join(lines)

    shown = excerpt(text, cap, PATH)

    if len(text) <= cap:
        assert shown == text
        return
    *kept, _, _ = shown.split("\n")
    real = [line for line in kept if not line.startswith("[… lines ")]
    rest = iter(lines)
    assert all(any(line.startswith(one) for line in rest) for one in real)
    assert sum(map(len, real)) <= cap
