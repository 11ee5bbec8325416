"""The turn header: the line before a person's words that says when, where and from whom.

``<turn time="…" channel="…" chat="…" from="…"/>``. The log keeps it with the words, as the model
read them. This module writes, reads and strips it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from nanobot.core.events import Emit, Event, TextDelta, TextDiscarded
from nanobot.core.text import attribute

TIME = "%a %Y-%m-%d %H:%M %z"
"""Format of the local time in a header."""

_HEADER = re.compile(r"<turn\s([^<>]{0,600}?)/?>")
_FACT = re.compile(r'\b(\w+)="([^"]*)"')
_PARROTED = re.compile(rf"\A\s*(?:{_HEADER.pattern}\s*)+")
_OPENING = "<turn "
_LONGEST = 700
_NAMES = {"sender": "from"}
"""Attributes whose name differs from the field's."""


@dataclass(frozen=True, slots=True)
class TurnHeader:
    """The facts of a header, in their written order; "" for an unknown one.

    ``sent`` says how long ago an old message was sent.
    """

    time: str = ""
    channel: str = ""
    chat: str = ""
    thread: str = ""
    sender: str = ""
    sent: str = ""

    def before(self, words: str) -> str:
        """``words`` under this header, as logged and as the model reads them."""
        facts = ((_NAMES.get(f.name, f.name), getattr(self, f.name)) for f in fields(self))
        written = "".join(f' {name}="{attribute(value)}"' for name, value in facts if value)
        return f"<turn{written}/>\n{words}"


def read_header(text: str) -> tuple[TurnHeader, str]:
    """Split logged words into their header (empty if there is none) and the rest."""
    match = _HEADER.match(text)
    if match is None:
        return TurnHeader(), text.strip()
    facts = dict(_FACT.findall(match[1]))
    known = {f.name: facts.get(_NAMES.get(f.name, f.name), "") for f in fields(TurnHeader)}
    return TurnHeader(**known), text[match.end() :].strip()


def without_header(text: str) -> str:
    """A model's ``text`` without the turn headers that it repeated at its beginning."""
    return _PARROTED.sub("", text)


class HeaderFilter:
    """Passes streamed text on, but holds back a beginning that may become a turn header."""

    def __init__(self) -> None:
        self._held = ""
        self._passing = False

    def feed(self, text: str) -> str:
        """The text that may be shown once ``text`` has arrived."""
        if self._passing:
            return text
        self._held += text
        rest = without_header(self._held)
        if _may_become_header(rest):
            return ""
        self._passing = True
        return rest

    def finish(self) -> str:
        """The text held back at the end of the stream, which is no header."""
        rest = "" if self._passing else without_header(self._held)
        self._passing = True
        return rest


def filtered(emit: Emit) -> Emit:
    """``emit`` for one model call; a turn header at the beginning of the text is left out."""
    header = HeaderFilter()

    def pass_on(event: Event) -> None:
        nonlocal header
        match event:
            case TextDelta(text):
                if shown := header.feed(text):
                    emit(TextDelta(shown))
            case TextDiscarded():
                header = HeaderFilter()
                emit(event)
            case _:
                emit(event)

    return pass_on


def _may_become_header(text: str) -> bool:
    start = text.lstrip()
    if len(start) > _LONGEST:
        return False
    return _OPENING.startswith(start[: len(_OPENING)]) and ">" not in start
