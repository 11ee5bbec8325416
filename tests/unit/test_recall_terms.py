"""How text becomes terms: stems, identifiers, scripts without spaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.recall.terms import stem, terms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("researching adoption", "Researched ADOPTIONS"),
        ("I bought two knives", "i buy two knife"),
        ("the decision", "The decided"),
        ("Anna's cafés", "Anna café"),
        ("recommendation", "recommend"),
        ("stopped running", "stop run"),
        ("parties", "party"),
        ("colour", "color"),
        ("ＡＢＣ １２", "abc 12"),
        ("3,500 euros", "3500 euro"),
        ("Straße", "strasse"),
    ],
)
def test_forms_of_one_word_become_one_term(one: str, other: str) -> None:
    assert terms(one) == terms(other)


@pytest.mark.parametrize("word", ["business", "apartment", "family", "news", "wedding", "paris"])
def test_words_that_only_look_inflected_stay_whole(word: str) -> None:
    assert stem(word) == word


def test_identifiers_become_their_parts_in_order() -> None:
    assert terms("see /etc/nginx/site_v2.conf:80, SKU-4711") == [
        *("see", "etc", "nginx", "site", "v2", "conf", "80", "sku", "4711"),
    ]


def test_scripts_without_spaces_become_pairs_and_the_last_character() -> None:
    assert terms("去东京塔 today") == ["去东", "东京", "京塔", "塔", "today"]
    assert terms("猫です") == ["猫で", "です", "す"]
    assert terms("塔") == ["塔"]


@given(st.text())
def test_any_text_has_terms_that_fts5_takes_as_they_are(text: str) -> None:
    for term in terms(text):
        assert term == "".join(term.split()) and '"' not in term and "\0" not in term and term


@given(st.text(alphabet="aeiousdgnbrtly", min_size=1, max_size=12))
def test_a_stem_is_never_empty_and_never_longer(word: str) -> None:
    assert 0 < len(stem(word)) <= len(word)
