"""Tests of rendering Markdown to formatted text and of cutting that into messages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanobot.channels.markdown import to_formatted_text, to_pieces, to_plain_text
from nanobot.channels.text import (
    Entity,
    EntityKind,
    FormattedText,
    cleaned,
    is_blank,
    split,
    utf16_length,
)

BOLD, ITALIC, STRIKE = EntityKind.BOLD, EntityKind.ITALIC, EntityKind.STRIKETHROUGH
SPOILER, CODE, PRE = EntityKind.SPOILER, EntityKind.CODE, EntityKind.PRE
LINK, QUOTE = EntityKind.TEXT_LINK, EntityKind.BLOCKQUOTE
QUOTES = {QUOTE, EntityKind.EXPANDABLE_BLOCKQUOTE}


# --- Rendering ----------------------------------------------------------------------------------


def test_inline_markup_becomes_entities() -> None:
    rendered = to_formatted_text("a **bold** *it* ~~no~~ ||secret|| `x` [site](https://a.example)")

    assert rendered == FormattedText(
        "a bold it no secret x site",
        (
            Entity(BOLD, 2, 4),
            Entity(ITALIC, 7, 2),
            Entity(STRIKE, 10, 2),
            Entity(SPOILER, 13, 6),
            Entity(CODE, 20, 1),
            Entity(LINK, 22, 4, url="https://a.example"),
        ),
    )


def test_offsets_count_utf16_units() -> None:
    rendered = to_formatted_text("🎉 **é🎉** `漢`")

    assert rendered == FormattedText("🎉 é🎉 漢", (Entity(BOLD, 3, 3), Entity(CODE, 7, 1)))


def test_headings_are_bold_and_markup_within_them_is_not_doubled() -> None:
    rendered = to_formatted_text("# One *two* **three**\ntext\n\n## Four")

    assert rendered == FormattedText(
        "One two three\ntext\n\nFour",
        (Entity(BOLD, 0, 13), Entity(ITALIC, 4, 3), Entity(BOLD, 20, 4)),
    )


def test_bold_pauses_around_code() -> None:
    rendered = to_formatted_text("**use `foo` now**")

    assert rendered == FormattedText(
        "use foo now", (Entity(BOLD, 0, 3), Entity(CODE, 4, 3), Entity(BOLD, 8, 3))
    )


def test_code_gives_way_within_links_and_spoilers() -> None:
    rendered = to_formatted_text("[`foo`](https://a.example) ||`bar`||")

    assert rendered == FormattedText(
        "foo bar", (Entity(LINK, 0, 3, url="https://a.example"), Entity(SPOILER, 4, 3))
    )


def test_fenced_code_keeps_language_and_indentation() -> None:
    rendered = to_formatted_text("Run:\n```python\n\n\tdef f():\n\t\treturn 1\n\n```\nDone")

    assert rendered == FormattedText(
        "Run:\n    def f():\n        return 1\nDone", (Entity(PRE, 5, 29, language="python"),)
    )


@pytest.mark.parametrize(
    ("info", "language", "text"),
    [
        ("", None, "x"),
        ("c++", "c++", "x"),
        ("python title=a.py", "python", "x"),
        ("python {1,3}", "python", "x"),
        ("{.python}", None, "x"),
        ("bash ls -la", "bash", "ls -la\nx"),
        ("just some words!", "just", "some words!\nx"),
        ("(odd)", None, "(odd)\nx"),
    ],
)
def test_what_stands_beside_a_fence_is_attribute_or_code(
    info: str, language: str | None, text: str
) -> None:
    rendered = to_formatted_text(f"```{info}\nx\n```")

    assert rendered == FormattedText(text, (Entity(PRE, 0, len(text), language=language),))


def test_an_unclosed_fence_and_indented_code_are_code() -> None:
    assert to_formatted_text("```\nx") == FormattedText("x", (Entity(PRE, 0, 1),))
    assert to_formatted_text("    x\n    y") == FormattedText("x\ny", (Entity(PRE, 0, 3),))


def test_lists_nest_with_bullets_numbers_and_check_boxes() -> None:
    rendered = to_formatted_text(
        "Items:\n- one\n  - two\n    more\n    - three\n- [ ] open\n- [x] done\n\n"
        "3. first\n4) other\n5) [ ] task"
    )

    assert rendered == FormattedText(
        "Items:\n• one\n   ◦ two\n      more\n      ▪ three\n☐ open\n☑ done\n\n"
        "3. first\n4) other\n5) ☐ task"
    )


def test_a_list_item_keeps_its_paragraphs_and_code() -> None:
    rendered = to_formatted_text("1. do\n\n   then\n   ```sh\n   ls\n   ```\n2. ```\n   x\n   ```")

    assert rendered == FormattedText(
        "1. do\n\n   then\nls\n2.\nx",
        (Entity(PRE, 15, 2, language="sh"), Entity(PRE, 21, 1)),
    )


def test_quotations_hold_formatting_but_neither_quotations_nor_blocks_of_code() -> None:
    rendered = to_formatted_text(
        "> a *b* `c`\n> > inner\n> > lines\n>\n> ```\n> x\n> ```\n> end\n\nout"
    )

    assert rendered == FormattedText(
        "a b c\n> inner\n> lines\n\nx\nend\n\nout",
        (
            Entity(QUOTE, 0, 21),
            Entity(ITALIC, 2, 1),
            Entity(CODE, 4, 1),
            Entity(PRE, 23, 1),
            Entity(QUOTE, 25, 3),
        ),
    )


def test_a_quotation_within_a_list_takes_the_marker_along() -> None:
    rendered = to_formatted_text("- > said\n  - next")

    assert rendered == FormattedText("• said\n   ◦ next", (Entity(QUOTE, 0, 6),))


def test_tables_are_aligned_code() -> None:
    rendered = to_formatted_text(
        "| Name | Qty | 日本 |\n|:--|--:|:-:|\n| Apple | 3 | 🎉 |\n| **Fig** | 1000 | x | more |\n"
    )

    text = (
        "Name  |  Qty | 日本\n------+------+-----\nApple |    3 |  🎉\nFig   | 1000 |  x   | more"
    )
    assert rendered == FormattedText(text, (Entity(PRE, 0, utf16_length(text)),))


def test_a_table_without_heading_has_no_rule_and_its_links_are_spelled_out() -> None:
    rendered = to_formatted_text("| | |\n|-|-|\n| [doc](https://a.example) | v |\n| k | |")

    text = "doc (https://a.example) | v\nk                       |"
    assert rendered == FormattedText(text, (Entity(PRE, 0, len(text)),))


def test_rules_breaks_and_html_are_text() -> None:
    rendered = to_formatted_text("a\\\nb  \nc\nd\n\n---\n\n<b>x</b><br> &lt;&amp; \\*y\\*")

    assert rendered == FormattedText("a\nb\nc\nd\n\n──────────\n\n<b>x</b><br> <& *y*")


def test_pictures_become_links_and_a_linked_picture_keeps_the_outer_target() -> None:
    rendered = to_formatted_text(
        "![cat](https://a.example/c.png) ![](https://a.example/d.png) "
        "[![badge](https://a.example/e.svg)](https://b.example)"
    )

    assert rendered == FormattedText(
        "cat https://a.example/d.png badge",
        (
            Entity(LINK, 0, 3, url="https://a.example/c.png"),
            Entity(LINK, 4, 23, url="https://a.example/d.png"),
            Entity(LINK, 28, 5, url="https://b.example"),
        ),
    )


def test_links_that_telegram_refuses_are_spelled_out() -> None:
    rendered = to_formatted_text(
        "[file](src/a.py) [mail](mailto:me@a.example) [part](#part) [src/b.py](src/b.py) "
        "[x](javascript:alert(1)) ![p](data:image/png;base64,AAAA)"
    )

    assert rendered == FormattedText(
        "file (src/a.py) mail (me@a.example) part src/b.py [x](javascript:alert(1)) p"
    )


def test_addresses_keep_their_underscores_with_and_without_brackets() -> None:
    rendered = to_formatted_text(
        "https://a.example/_next_/x_ *see https://a.example/~~b~~* <https://b.example/_c_> "
        "<me@a.example> [https://a.example/_d_](https://a.example)"
    )

    assert rendered == FormattedText(
        "https://a.example/_next_/x_ see https://a.example/~~b~~ https://b.example/_c_ "
        "me@a.example https://a.example/_d_",
        (
            Entity(ITALIC, 28, 27),
            Entity(LINK, 56, 21, url="https://b.example/_c_"),
            Entity(LINK, 91, 21, url="https://a.example"),
        ),
    )


def test_bars_that_are_operators_are_no_spoilers() -> None:
    text = "if (a||b||c) or x || y || z, |one| and ||| and ||open"

    assert to_formatted_text(text) == FormattedText(text)


def test_link_definitions_are_used_or_shown() -> None:
    rendered = to_formatted_text(
        "[INFO]: started\n\nSee [docs][1].\n\n[1]: https://a.example\n[2]: b"
    )

    assert rendered == FormattedText(
        "[INFO]: started\n\nSee docs.\n\n[2]: b", (Entity(LINK, 21, 4, url="https://a.example"),)
    )


def test_nothing_nested_too_deeply_is_left_out() -> None:
    rendered = to_formatted_text("> " * 500 + "deep\n\n" + "- " * 500 + "down\n\nend")

    assert [word for word in rendered.text.split() if word.isalpha()] == ["deep", "down", "end"]


@pytest.mark.parametrize(
    "markdown",
    [
        "",
        " \n\t\n",
        "\x00\x01",
        "\u200b\u200d\ufeff",
        "```\n\n```",
        "&nbsp;",
        "[](#a)",
        "\u2800",
    ],
)
def test_what_shows_nothing_gives_no_pieces(markdown: str) -> None:
    assert to_pieces(markdown) == ()


def test_refused_characters_are_removed_wherever_they_come_from() -> None:
    rendered = to_formatted_text("a\x00b\r\nc\u202ed &#x202e;e\x1b[0m \ud83c\udf89 \ud800")

    assert rendered == FormattedText("ab\ncd e[0m 🎉 \ufffd")


def test_plain_text_drops_markup_and_spells_targets_out() -> None:
    plain = to_plain_text(
        "# Title\n- **a** `b` ||c||\n\n> said\n> > twice\n\n[d](https://a.example) "
        "<https://b.example>\n\n```py\nx\n```\n\n|a|b|\n|-|-|\n|1|2|"
    )

    assert plain == (
        "Title\n• a b c\n\n> said\n> > twice\n\nd (https://a.example) https://b.example\n\n"
        "x\n\na | b\n----+----\n1 | 2"
    )


# --- Splitting ----------------------------------------------------------------------------------


def test_a_message_that_fits_is_one_piece() -> None:
    message = FormattedText("a b", (Entity(BOLD, 0, 1),))

    assert split(message) == (message,)


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("first par.\n\nsecond par. x\nline", 20, ("first par.", "second par. x\nline")),
        ("aaa\n\nbbb bbb\nccc ccc. ddd", 20, ("aaa\n\nbbb bbb", "ccc ccc. ddd")),
        ("One two. Three four five", 16, ("One two.", "Three four five")),
        ("One (two!) three four five", 18, ("One (two!)", "three four five")),
        ("一二三。四五六七八", 6, ("一二三。", "四五六七八")),
        ("one two three four", 9, ("one two", "three", "four")),
        ("a https://a.example/long/path", 28, ("a", "https://a.example/long/path")),
        ("abcdefghij", 4, ("abcd", "efgh", "ij")),
        ("a" * 8 + " " * 50 + "b", 8, ("a" * 8, "b")),
    ],
)
def test_cuts_prefer_paragraphs_lines_sentences_words(
    text: str, limit: int, pieces: tuple[str, ...]
) -> None:
    assert split(FormattedText(text), limit) == tuple(map(FormattedText, pieces))


def test_graphemes_stay_whole_where_they_fit() -> None:
    family, flag, accented = "👨‍👩‍👧", "🇩🇪", "e\u0301"

    assert [piece.text for piece in split(FormattedText(family * 3), 20)] == [family * 2, family]
    assert [piece.text for piece in split(FormattedText(flag * 3), 7)] == [flag, flag, flag]
    assert [piece.text for piece in split(FormattedText(accented * 3), 3)] == [accented] * 3


def test_a_grapheme_wider_than_the_limit_is_cut_between_code_points() -> None:
    assert [piece.text for piece in split(FormattedText("🇩🇪🎉"), 3)] == ["🇩", "🇪", "🎉"]


def test_with_a_limit_of_one_wide_characters_are_replaced() -> None:
    pieces = split(FormattedText("a🎉b", (Entity(BOLD, 1, 3),)), 1)

    assert pieces == (
        FormattedText("a"),
        FormattedText("\ufffd", (Entity(BOLD, 0, 1),)),
        FormattedText("b", (Entity(BOLD, 0, 1),)),
    )


def test_an_entity_that_fits_is_never_cut() -> None:
    pieces = to_pieces("one two **three four five** six", 18)

    assert pieces == (
        FormattedText("one two"),
        FormattedText("three four five", (Entity(BOLD, 0, 15),)),
        FormattedText("six"),
    )


def test_entities_side_by_side_are_cut_apart_even_within_a_word() -> None:
    pieces = to_pieces("**aaaa***bbbb*", 6)

    assert pieces == (
        FormattedText("aaaa", (Entity(BOLD, 0, 4),)),
        FormattedText("bbbb", (Entity(ITALIC, 0, 4),)),
    )


def test_code_longer_than_a_message_is_closed_and_opened_again_between_lines() -> None:
    pieces = to_pieces("Look:\n```python\ndef f():\n    x = 1\n\n    return x\n```\nDone.", 24)

    assert pieces == (
        FormattedText("Look:\ndef f():\n    x = 1", (Entity(PRE, 6, 18, language="python"),)),
        FormattedText("    return x\nDone.", (Entity(PRE, 0, 12, language="python"),)),
    )


def test_a_long_quotation_is_cut_but_not_the_bold_in_it() -> None:
    pieces = to_pieces("> one two three **four five six** seven", 25)

    assert pieces == (
        FormattedText("one two three", (Entity(QUOTE, 0, 13),)),
        FormattedText("four five six seven", (Entity(QUOTE, 0, 19), Entity(BOLD, 0, 13))),
    )


def test_a_piece_has_at_most_a_hundred_entities() -> None:
    pieces = to_pieces("**a** " * 250)

    assert [len(piece.entities) for piece in pieces] == [100, 100, 50]
    assert " ".join(piece.text for piece in pieces) == " ".join("a" * 250)


def test_a_quotation_with_too_many_entities_is_cut() -> None:
    pieces = to_pieces("> " + "**a** *b* " * 80)

    assert [Counter(entity.kind for entity in piece.entities) for piece in pieces] == [
        {QUOTE: 1, BOLD: 50, ITALIC: 49},
        {QUOTE: 1, ITALIC: 31, BOLD: 30},
    ]


def test_the_innermost_entities_give_way_where_too_many_cover_one_place() -> None:
    message = FormattedText("ab", (Entity(BOLD, 0, 2), Entity(ITALIC, 0, 2), Entity(STRIKE, 1, 1)))

    assert split(message, max_entities=1) == (
        FormattedText("a", (Entity(BOLD, 0, 1),)),
        FormattedText("b", (Entity(BOLD, 0, 1),)),
    )
    assert split(message, max_entities=0) == (FormattedText("ab"),)


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one unit"):
        split(FormattedText("a"), 0)
    with pytest.raises(ValueError, match="negative"):
        split(FormattedText("a"), 10, -1)


def test_a_long_answer_with_code_table_and_emoji_arrives_whole() -> None:
    code = "\n".join(f"    value_{i} = compute({i})  # {'🎉' * (i % 3)}" for i in range(90))
    table = "\n".join(f"| row {i} | {i * i} | {'✅' if i % 2 else '❌'} |" for i in range(60))
    prose = "\n\n".join(f"Paragraph {i} tells **more** about `it` 👩‍🚒. " * 4 for i in range(40))
    head = "| a | b | c |\n|-|-|-|"
    markdown = f"# Report\n\n{prose}\n\n```python\n{code}\n```\n\n{head}\n{table}\n\nEnd 🏁"
    assert len(markdown) > 10_000

    pieces = to_pieces(markdown)

    assert pieces[-1].text.endswith("End 🏁")
    assert characters(*pieces) == characters(to_formatted_text(markdown))
    for piece in pieces:
        assert_acceptable(piece, 4096, 100)
    for i in range(90):
        assert sum(f"value_{i} = compute({i})" in piece.text for piece in pieces) == 1


# --- Any Markdown, any limit --------------------------------------------------------------------

MARKUP = [
    *"*_~`|[]()<>#-+=:!&;\\\"'./1 \t\n",
    *("**", "__", "~~", "||", "```", "~~~", "\n\n", "\n> ", "\n- ", "\n  - ", "\n1. ", "\n# "),
    *("- [ ] ", "](https://a.example)", "![", "[x]: y\n", "\n|a|b|\n|-|-|\n|", "&#10;", "&nbsp;"),
    *("https://", "<b>", "    ", "\n```py\n", "\x00", "\u200b", "\ufeff", "\u3000", "\ud800"),
    *("a", "word", "two words. ", "é", "e\u0301", "漢字。", "🎉", "👩‍🚒", "🇩🇪", "\u202e"),
]
markdowns = st.lists(st.sampled_from(MARKUP), max_size=60).map("".join) | st.text(max_size=200)
limits = st.integers(1, 60) | st.sampled_from([100, 4096])


def units(text: str) -> list[int]:
    raw = text.encode("utf-16-le")
    return [int.from_bytes(raw[i : i + 2], "little") for i in range(0, len(raw), 2)]


def slice_units(text: str, entity: Entity) -> str:
    raw = text.encode("utf-16-le")
    return raw[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le")


def assert_acceptable(piece: FormattedText, limit: int, max_entities: int) -> None:
    """What the Bot API documents about a message and its entities."""
    assert not is_blank(piece.text)
    assert utf16_length(piece.text) <= limit
    assert len(piece.entities) <= max_entities
    assert cleaned(piece.text) == piece.text
    assert not piece.text[-1].isspace()
    opened_by_code = bool(piece.entities) and piece.entities[0].kind is PRE
    assert not piece.text[0].isspace() or (opened_by_code and piece.entities[0].offset == 0)
    order = [(entity.offset, -entity.length) for entity in piece.entities]
    assert order == sorted(order)
    around: list[Entity] = []
    for entity in piece.entities:
        covered = slice_units(piece.text, entity)
        assert covered
        assert covered == (covered.rstrip() if entity.kind is PRE else covered.strip())
        assert (entity.url is not None) == (entity.kind is LINK)
        assert entity.language is None or entity.kind is PRE
        while around and around[-1].offset + around[-1].length <= entity.offset:
            around.pop()
        kinds = {outer.kind for outer in around}
        if around:
            assert entity.offset + entity.length <= around[-1].offset + around[-1].length
        assert entity.kind not in kinds
        assert not kinds & {PRE, CODE}
        assert entity.kind is not PRE or not kinds
        assert entity.kind is not CODE or kinds <= QUOTES
        assert entity.kind not in QUOTES or not kinds & (QUOTES | {LINK})
        around.append(entity)


def characters(*pieces: FormattedText) -> list[tuple[int, frozenset[object]]]:
    """Each unit of what the pieces show, with its formatting; white space left out."""
    shown: list[tuple[int, frozenset[object]]] = []
    for piece in pieces:
        formats: list[set[object]] = [set() for _ in range(utf16_length(piece.text))]
        for entity in piece.entities:
            for index in range(entity.offset, entity.offset + entity.length):
                formats[index].add((entity.kind, entity.url, entity.language))
        invisible = [
            is_blank(char) and not 0xD800 <= unit < 0xE000
            for char in piece.text
            for unit in units(char)
        ]
        shown += [
            (unit, frozenset(formatting))
            for unit, formatting, hidden in zip(units(piece.text), formats, invisible, strict=True)
            if not hidden
        ]
    return shown


@settings(deadline=None, max_examples=400)
@given(markdown=markdowns, limit=limits, max_entities=st.sampled_from([100, 8]))
@example(markdown="🎉🎉", limit=1, max_entities=100)
@example(markdown="```\n" + " " * 50 + "x\n\n y\n```", limit=8, max_entities=100)
@example(markdown="> **a `b` c**\n> ||d||", limit=3, max_entities=8)
def test_any_markdown_is_cut_into_acceptable_pieces_that_keep_text_and_formatting(
    markdown: str, limit: int, max_entities: int
) -> None:
    whole = to_formatted_text(markdown)

    pieces = split(whole, limit, max_entities)

    for piece in pieces:
        assert_acceptable(piece, limit, max_entities)
    if limit > 1:
        assert characters(*pieces) == characters(whole)
    else:
        shown = [char for char in whole.text if not is_blank(char)]
        kept = [char if utf16_length(char) == 1 else "\ufffd" for char in shown]
        assert [piece.text for piece in pieces] == kept


@settings(deadline=None, max_examples=200)
@given(markdown=markdowns, limit=st.integers(2, 60))
def test_no_cut_falls_inside_an_entity_that_fits(markdown: str, limit: int) -> None:
    whole = to_formatted_text(markdown)
    place = 0
    cuts = []
    for piece in split(whole, limit):
        place = whole.text.index(piece.text, place) + len(piece.text)
        cuts.append(utf16_length(whole.text[:place]))

    for entity in whole.entities:
        if entity.length <= limit:
            assert not [cut for cut in cuts if entity.offset < cut < entity.offset + entity.length]


words = st.integers(0, 10**6).map(lambda number: f"w{number}w")
phrases = st.recursive(
    words,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(" ".join),
        st.builds(
            lambda mark, text: f"{mark}{text}{mark}",
            st.sampled_from(["**", "*", "~~", "||"]),
            inner,
        ),
        inner.map(lambda text: f"[{text}](https://a.example)"),
        inner.map(lambda text: f"<b>{text}</b>"),
        words.map(lambda word: f"`{word}`"),
    ),
    max_leaves=6,
)
blocks = st.recursive(
    st.one_of(
        phrases,
        phrases.map(lambda text: f"## {text}"),
        st.builds(lambda a, b: f"{a}\n{b}", phrases, phrases),
        st.builds(lambda a, b: f"```py\n{a}\n  {b}\n```", words, words),
        st.builds(lambda a, b, c: f"| {a} | {b} |\n|-|-|\n| {c} |", words, phrases, phrases),
        st.builds(lambda a, b: f"[{a}]: {b}", words, words),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("\n\n".join),
        inner.map(lambda block: re.sub("^", "> ", block, flags=re.MULTILINE)),
        inner.map(lambda block: "- " + block.replace("\n", "\n  ")),
        inner.map(lambda block: "1. " + block.replace("\n", "\n   ")),
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=200)
@given(markdown=blocks)
def test_every_word_of_a_document_is_rendered_in_order(markdown: str) -> None:
    written = re.findall(r"w\d+w", markdown)

    assert re.findall(r"w\d+w", to_formatted_text(markdown).text) == written
    assert re.findall(r"w\d+w", to_plain_text(markdown)) == written


# --- Cost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "markdown",
    [
        "[" * 100_000,
        "![" * 10_000 + "a" + "](b)" * 10_000,
        "*a **a " * 14_000,
        "**" * 50_000,
        "`a``b```c" * 11_000,
        "> - " * 25_000,
        "||a " * 25_000,
        "https://" * 12_000,
        "|" + "w" * 50_000 + "|b|\n|-|-|\n" + "|a|b|\n" * 10_000,
        "a|" * 10_000 + "\n" + "-|" * 10_000 + "\n" + "|a|\n" * 20_000,
        "```\n" + " " * 100_000 + "x\n```",
        "👨‍👩‍👧" * 20_000,
        "e" + "\u0301" * 100_000,
        "> " + "**a** " * 16_000,
        "\n".join(f"[a{number}]: b" for number in range(10_000)),
    ],
    ids=lambda markdown: repr(markdown[:8]),
)
def test_hostile_text_comes_to_an_end_and_grows_within_bounds(markdown: str) -> None:
    """In quadratic time it would take hours."""
    pieces = to_pieces(markdown)

    assert sum(utf16_length(piece.text) for piece in pieces) < 12 * len(markdown)


def test_importing_the_modules_loads_no_parser() -> None:
    program = (
        "import sys, nanobot.channels.markdown\n"
        "print([name for name in ('markdown_it', 'wcwidth', 'telegram') if name in sys.modules])"
    )

    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert output.stdout == "[]\n"
