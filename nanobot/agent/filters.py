"""Keeps the turn header, should a model parrot it, out of what a person reads."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\A\s*(?:<turn\s[^<>]{0,600}/?>\s*)+")
_OPENING = "<turn "
_LONGEST = 700


def without_header(text: str) -> str:
    """``text`` without turn headers at its beginning."""
    return _HEADER.sub("", text)


class HeaderFilter:
    """Streams text on, holding back its beginning while that may still be a turn header."""

    def __init__(self) -> None:
        self._held = ""
        self._passing = False

    def feed(self, text: str) -> str:
        """What may be shown after ``text`` has arrived."""
        if self._passing:
            return text
        self._held += text
        rest = without_header(self._held)
        if _may_become_header(rest):
            return ""
        self._passing = True
        return rest

    def finish(self) -> str:
        """What was held back and turned out to be no header."""
        rest = "" if self._passing else without_header(self._held)
        self._passing = True
        return rest


def _may_become_header(text: str) -> bool:
    start = text.lstrip()
    if len(start) > _LONGEST:
        return False
    return _OPENING.startswith(start[: len(_OPENING)]) and ">" not in start
