"""Edits of MEMORY.md's text: a line added to, replaced in or removed from a section."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from nanobot.core.messages import Trust
from nanobot.core.text import UNTRUSTED_MARK
from nanobot.prompts.excerpt import HEADING, headings

MARK = UNTRUSTED_MARK
"""The end of every line and paragraph learnt from untrusted content."""
LINE_CHARS = 600
"""The longest line that an edit writes."""
_CLOSE = 0.85
_OTHERWISE = "Important Notes"
"""The section for an edit that names none."""
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+(?:\[[ xX]\]\s+)?")


class EditAction(StrEnum):
    """What an edit does with its line."""

    ADD = "add"
    REPLACE = "replace"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit: ``line`` is the line to add, or the present line; ``new`` replaces it.

    An untrusted edit may add lines, and change only lines with the mark.
    """

    action: EditAction
    section: str
    line: str
    new: str = ""
    trust: Trust = Trust.TRUSTED


def edits_to_json(edits: Iterable[Edit]) -> str:
    """Edits as they are stored."""
    return json.dumps([asdict(edit) for edit in edits], ensure_ascii=False)


def edits_from_json(text: str) -> tuple[Edit, ...]:
    """What ``edits_to_json`` wrote."""
    edits = (Edit(**record) for record in json.loads(text))
    return tuple(
        replace(edit, action=EditAction(edit.action), trust=Trust(edit.trust)) for edit in edits
    )


def edited(text: str, edits: Iterable[Edit]) -> str:
    """``text`` after the edits; applying them again changes nothing, and other lines stay."""
    newline = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    lines = text.split("\n")
    for edit in edits:
        _apply(lines, edit, "\r" if newline == "\r\n" else "")
    return "\n".join(lines)


def marked(line: str, trust: Trust) -> str:
    """A line, with the mark if it is untrusted."""
    return line if trust is Trust.TRUSTED or line.rstrip().endswith(MARK) else f"{line} {MARK}"


def mark_new_lines(before: str, after: str) -> str:
    """``after`` with the mark on each line of words that ``before`` does not have."""
    known = {_plain(line) for line in before.split("\n")}
    lines = []
    for line in after.split("\n"):
        bare = line.rstrip("\r")
        is_new = _plain(line) not in known and _plain(line) and not HEADING.match(bare)
        lines.append(marked(bare, Trust.UNTRUSTED) + line[len(bare) :] if is_new else line)
    return "\n".join(lines)


def sections(text: str) -> tuple[tuple[str, int], ...]:
    """The headings of a text, each with its number of lines that are not blank."""
    lines = text.split("\n")
    found = [(place, title) for place, _, title in headings(lines)]
    ends = [*(place for place, _ in found[1:]), len(lines)]
    return tuple(
        (title, sum(bool(line.strip()) for line in lines[place + 1 : end]))
        for (place, title), end in zip(found, ends, strict=True)
    )


def _apply(lines: list[str], edit: Edit, ending: str) -> None:
    words = _clean(edit.line)
    if edit.action is EditAction.ADD:
        _add(lines, edit.section, marked(words, edit.trust), ending)
        return
    place = _find(lines, edit.section, words)
    if place is not None and edit.trust is Trust.UNTRUSTED and MARK not in lines[place]:
        place = None  # what is trusted is not changed by what came from outside
        if edit.action is EditAction.REMOVE:
            return
    if edit.action is EditAction.REMOVE:
        if place is not None:
            del lines[place]
        return
    new = marked(_clean(edit.new), edit.trust)
    if place is None:
        _add(lines, edit.section, new, ending)
        return
    if _known((line for other, line in enumerate(lines) if other != place), new):
        del lines[place]
        return
    bare = lines[place].rstrip("\r")
    bullet = _BULLET.match(bare)
    lines[place] = f"{bullet[0] if bullet else ''}{new}{lines[place][len(bare) :]}"


def _add(lines: list[str], section: str, words: str, ending: str) -> None:
    if not words or _known(lines, words):
        return
    line = f"- {words}{ending}"
    bounds = _section(lines, section)
    if bounds is None:
        while lines and not lines[-1].strip():
            lines.pop()
        before = ["" + ending] if lines else []
        if lines and not lines[-1].endswith(ending):
            lines[-1] += ending
        title = _clean(section).rstrip(":") or _OTHERWISE
        lines += [*before, f"## {title}{ending}", "" + ending, line, ""]
        return
    start, end = bounds
    last = end
    while last > start and not lines[last - 1].strip():
        last -= 1
    if last == start:  # nothing stands under the heading yet
        lines[start:end] = ["" + ending, line, *(["" + ending] if end < len(lines) else [""])]
    else:
        if last == len(lines):  # the file has no newline at its end
            lines[-1] += ending
            lines += [line, ""]
        else:
            lines.insert(last, line)


def _section(lines: Sequence[str], name: str) -> tuple[int, int] | None:
    """The lines between the heading and the next one."""
    wanted = _title(name)
    start = None
    for place, _, title in headings(lines):
        if start is not None:
            return start, place
        if _title(title) == wanted:
            start = place + 1
    return None if start is None else (start, len(lines))


def _find(lines: Sequence[str], section: str, words: str) -> int | None:
    """The line with the same words, in the section or else anywhere, else the one similar line.

    None if there is no such line, or several similar ones.
    """
    wanted = _plain(words)
    if not wanted:
        return None
    candidates = [
        place for place, line in enumerate(lines) if _plain(line) and not HEADING.match(line)
    ]
    bounds = _section(lines, section)
    inside = [p for p in candidates if bounds is not None and bounds[0] <= p < bounds[1]]
    for places in (inside, candidates):
        same = [place for place in places if _plain(lines[place]) == wanted]
        if same:
            return same[0]
    for places in (inside, candidates):
        near = [place for place in places if _likeness(_plain(lines[place]), wanted) >= _CLOSE]
        if len(near) == 1:
            return near[0]
    return None


def _likeness(one: str, other: str) -> float:
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= _CLOSE else 0.0


def _known(lines: Iterable[str], words: str) -> bool:
    plain = _plain(words)
    return any(_plain(line) == plain for line in lines)


def _plain(line: str) -> str:
    """A line for comparison, without bullet, mark, case, spacing and full stop."""
    words = _BULLET.sub("", line.strip()).replace(MARK, "")
    return " ".join(words.split()).rstrip(".;").strip("*_ ").casefold()


def _title(name: str) -> str:
    return _plain(name.lstrip("# ")).rstrip(":") or _plain(_OTHERWISE)


def _clean(text: str) -> str:
    """One line of words, without bullet or heading sign."""
    words = _BULLET.sub("", " ".join(text.split())).lstrip("#").strip()
    return words if len(words) <= LINE_CHARS else f"{words[: LINE_CHARS - 1]}…"
