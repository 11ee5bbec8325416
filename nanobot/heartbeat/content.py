"""Whether HEARTBEAT.md asks for anything."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOTHING = re.compile(
    r"""\s*(?:
        \#{1,6}(?:\s.*)?                              # a heading
      | (?:[-*+]|\d+[.)])?\s*(?:\[[ xX]?\])?          # a bullet, an empty check box, nothing
      | (?:-{3,}|\*{3,}|_{3,}|={3,})                  # a rule
    )\s*""",
    re.VERBOSE,
)


def has_tasks(text: str) -> bool:
    """Whether anything is left but headings, comments, rules and empty check boxes."""
    plain = _COMMENT.sub("", text.removeprefix("\ufeff"))
    return not all(_NOTHING.fullmatch(line) for line in plain.splitlines())
