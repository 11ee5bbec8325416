"""A parroted turn header is kept back, however the stream is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from nanobot.agent.filters import HeaderFilter, without_header

HEADER = '<turn time="Sun 2026-03-01 12:00 +0000" channel="cli" chat="direct"/>'
_texts = st.one_of(
    st.text(max_size=40),
    st.text(max_size=20).map(lambda text: f"{HEADER}\n{text}"),
    st.sampled_from(["<", "<tu", "<turn", "<turnip>", "<turn around", " \n<turn x>y", HEADER * 2]),
)


@given(_texts, st.data())
@example(HEADER + "\nHello.", None)
def test_any_cutting_of_the_stream_shows_the_same(text: str, data: st.DataObject | None) -> None:
    cuts = [] if data is None else data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    places = [0, *sorted(cuts), len(text)]
    header = HeaderFilter()

    pieces = [text[a:b] for a, b in pairwise(places)]
    shown = "".join(map(header.feed, pieces)) + header.finish()

    assert shown == without_header(text)


def test_ordinary_text_is_shown_at_once() -> None:
    assert HeaderFilter().feed("Hello") == "Hello"
