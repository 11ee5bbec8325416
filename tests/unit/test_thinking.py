"""Tests of splitting think tags off a streamed answer."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanobot.providers.answer import Split, ThinkSplitter


def split(pieces: list[str]) -> Split:
    splitter = ThinkSplitter()
    splits = [*(splitter.feed(piece) for piece in pieces), splitter.end()]
    return Split("".join(one.reasoning for one in splits), "".join(one.answer for one in splits))


def expected(text: str) -> Split:
    """The same by one regular expression over the whole text."""
    match = re.fullmatch(r"\s*<think>(.*?)(?:</think>\s*(.*))?", text, re.DOTALL)
    if match is None:
        return Split(answer=text)
    return Split(match[1], match[2] or "")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", Split("", "plain")),
        ("<think>a</think>b", Split("a", "b")),
        ("\n<think>\na\n</think>\n\nb c\n", Split("\na\n", "b c\n")),
        ("<think>never closed", Split("never closed", "")),
        ("<think>cut off in </thi", Split("cut off in </thi", "")),
        ("<think></think>", Split("", "")),
        ("say <think>x</think>", Split("", "say <think>x</think>")),
        ("<think>a</think>b<think>c</think>", Split("a", "b<think>c</think>")),
        ("<thin air", Split("", "<thin air")),
        ("<think", Split("", "<think")),
        ("  \n", Split("", "  \n")),
        ("<think>1 </ 2 </thin </think>x", Split("1 </ 2 </thin ", "x")),
    ],
)
def test_a_tag_at_the_beginning_parts_reasoning_from_the_answer(text: str, result: Split) -> None:
    assert split([text]) == result
    assert split(list(text)) == result


TAGGED = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "\n", "a", "ü", "</thi"])
).map("".join)


@given(text=TAGGED, cuts=st.lists(st.integers(min_value=0)))
@example(text=" <think>a</thi</think> b", cuts=list(range(30)))
def test_any_cut_of_the_text_gives_the_same_parts(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]

    assert split(pieces) == expected(text)


def test_plain_text_is_not_held_back() -> None:
    splitter = ThinkSplitter()

    assert splitter.feed("He") == Split(answer="He")
    assert splitter.feed("llo <think>") == Split(answer="llo <think>")
