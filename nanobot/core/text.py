"""Text helpers that several parts share: shortening, fences, JSON as models write it."""

from __future__ import annotations

import json
import secrets

UNTRUSTED_MARK = "(from untrusted content)"
"""What lines of MEMORY.md and paragraphs of HISTORY.md end in that were learnt from outside."""


def one_line(text: str, limit: int = 200) -> str:
    """``text`` on one line of at most ``limit`` characters, cut with an ellipsis."""
    return shortened(" ".join(text.split()), limit)


def shortened(text: str, limit: int) -> str:
    """``text`` of at most ``limit`` characters (of one at least), cut with an ellipsis."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def attribute(text: str) -> str:
    """Text that cannot end the attribute it stands in, whatever a stranger calls themselves."""
    return one_line(text, 80).translate({34: "'", 38: "+", 60: "(", 62: ")"})


def head_and_tail(text: str, limit: int, note: str) -> str:
    """``text`` cut in its middle to about ``limit`` characters, with ``note`` at the cut.

    ``{omitted}`` in ``note`` becomes the number of characters left out. The head gets two thirds.
    """
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    omitted = len(text) - head - tail
    return (
        f"{text[:head]}\n{note.replace('{omitted}', str(omitted))}\n{text[-tail:] if tail else ''}"
    )


def fence(text: str, *, source: str, mark: str | None = None) -> str:
    """``text`` from outside between marks it cannot guess, with its source named."""
    token = mark or secrets.token_hex(4)
    return f"<untrusted {token} source={json.dumps(source)}>\n{text}\n</untrusted {token}>"


def mended_json(text: str) -> object:
    """What a model meant by JSON that is only written badly; None where nobody can tell."""
    import json_repair

    try:
        return json_repair.loads(text)
    except (ValueError, RecursionError):
        return None
