"""Text cut into the terms that are indexed and searched: stems, numbers, pairs of ideographs."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from pathlib import Path

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"  # kana and the marks of repetition
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # ideographs
    "\u1100-\u11ff\uac00-\ud7ff"  # Hangul: particles stick to the words
)
"""Scripts written without spaces (or, Korean, with endings on every word)."""
_TOKEN = re.compile(rf"[{_UNSPACED}]+|(?:(?![{_UNSPACED}])[^\W_])+(?:['’](?:s|t|re|ve|ll|d|m)\b)?")
_ASCII_TOKEN = re.compile(r"[a-z0-9]+(?:'(?:s|t|re|ve|ll|d|m)\b)?")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_KANA = re.compile(r"[\u3041-\u309f\u30fc]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_LONGEST = 64
_LAST_LATIN = "\u052f"
"""The last letter of the scripts (Latin, Greek, Cyrillic) whose accents are not told apart."""


def _words() -> dict[str, list[list[str]]]:
    """The sections of ``words.txt``: lists of words, split at semicolons."""
    sections: dict[str, list[list[str]]] = {}
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    for name, words in re.findall(r"^\[(.+)\]([^\[]*)", re.sub(r"(?m)^#.*\n", "", text), re.M):
        sections[name] = [group.split() for group in words.split(";")]
    return sections


_WORDS = _words()
IRREGULAR = {form: forms[0] for forms in _WORDS["irregular"] for form in forms[1:]}
"""Each irregular form to the word it belongs to."""
UNINFLECTED = frozenset(_WORDS["uninflected"][0])
STOP_WORDS = frozenset(_WORDS["stop"][0])
UNSPACED_STOP = tuple(_WORDS["unspaced stop"][0])
SYNONYMS = _WORDS["synonyms"]


def terms(text: str) -> list[str]:
    """The terms of ``text`` in their order, for the index and for what is compared with it.

    Letters lose case, width and accents; English words become stems; ``a_b-c/d.e`` becomes its
    parts; 1,000 becomes 1000. A run of a script without spaces becomes its overlapping pairs and
    its last character, so that each pair, and each character as the beginning of a term, is found.
    """
    if text.isascii():
        found = _ASCII_TOKEN.findall(_THOUSANDS.sub("", text.lower()))
        return [_stem(token) for token in found]
    result: list[str] = []
    for token in _TOKEN.findall(_THOUSANDS.sub("", folded(text))):
        if _IS_UNSPACED.match(token):
            result += pairs(token)
            result.append(token[-1])
        else:
            result.append(_stem(token))
    return result


def folded(text: str) -> str:
    """``text`` without differences of case, width and, in European scripts, accents."""
    text = unicodedata.normalize("NFKC", text).casefold()
    letters: list[str] = []
    for letter in unicodedata.normalize("NFD", text):
        if unicodedata.combining(letter) and letters and letters[-1] <= _LAST_LATIN:
            continue
        letters.append(letter)
    return unicodedata.normalize("NFC", "".join(letters))


def pairs(run: str) -> list[str]:
    """The overlapping pairs of characters of a run."""
    return [run[place : place + 2] for place in range(len(run) - 1)]


def tokens(text: str) -> list[str]:
    """The words of ``text``, folded but not stemmed; runs without spaces stay whole."""
    return [bare(token) for token in _TOKEN.findall(_THOUSANDS.sub("", folded(text)))]


def is_unspaced(token: str) -> bool:
    """Whether a token is of a script written without spaces."""
    return _IS_UNSPACED.match(token) is not None


def is_grammar(pair: str) -> bool:
    """Whether a pair is of hiragana alone: in Japanese mostly endings and particles."""
    return _KANA.fullmatch(pair) is not None


def bare(token: str) -> str:
    """A word without the ending behind its apostrophe."""
    return re.split(r"['’]", token, maxsplit=1)[0] if "'" in token or "’" in token else token


@lru_cache(maxsize=65536)
def _stem(token: str) -> str:
    return stem(bare(token))


def stem(word: str) -> str:
    """A folded word without its English inflection, as in M. F. Porter's first step (1980).

    Irregular forms come from a table; of the derivations only those go that leave the word
    they were made from (recommendation, recommend). Numbers and mixed identifiers stay.
    """
    known = IRREGULAR.get(word)
    if known is not None:
        word = known
    if word in UNINFLECTED or len(word) < 4 or not word.isalpha() or not word.isascii():
        return word[:_LONGEST]
    word = _without_plural(word[:_LONGEST])
    word = _without_tense(word)
    word = _without_derivation(word)
    if word.endswith("e") and len(word) > 4:
        word = word[:-1]
    if word.endswith("y") and len(word) > 3 and word[-2] not in "aeiou":
        word = word[:-1] + "i"
    return word


def _without_plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith("ies"):
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    if word.endswith(("xes", "ches", "shes", "zzes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _without_tense(word: str) -> str:
    if word.endswith("ied") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= 3 and re.search(r"[aeiouy]", rest):
            if rest[-1] == rest[-2] and rest[-1] not in "aeiouls":
                return rest[:-1]
            return rest
    return word


def _without_derivation(word: str) -> str:
    for ending in ("ation", "ate", "ment", "ness", "ful", "ly", "ion"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 4 and (ending != "ion" or rest[-1] in "st"):
            return rest
    return word
