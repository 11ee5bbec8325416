"""JSON with comments and trailing commas: reading it, finding a line, changing one value.

The standard parser reads a copy in which comments and trailing commas are blanks, so that places
agree with the file. A change replaces the text of one value and keeps everything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_PIECE = re.compile(
    r"""(?P<string>"(?:[^"\\\n]++|\\.)*+")
      | (?P<comment>//[^\n\r]*|/\*.*?\*/)
      | (?P<mark>[{}\[\]:,])
      | (?P<bare>[^\s{}\[\]:,"/]+)""",
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile(
    r"""(?P<name>"(?:[^"\\]++|\\.)*+")\s*:
      | (?P<open>[{\[])
      | (?P<close>[}\]])
      | "(?:[^"\\]++|\\.)*+" | [^\s{}\[\]:,"]+""",
    re.VERBOSE,
)


class JsonError(ValueError):
    """Text that is not JSON; ``line`` and ``column`` count from 1."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"{reason} at line {line}, column {column}")
        self.reason = reason
        self.line = line
        self.column = column


@dataclass(slots=True)
class Spot:
    """The place of a value in the text, ``[start, end)``; members have their name's start too."""

    start: int
    end: int
    members: dict[str, tuple[int, Spot]] = field(default_factory=dict)
    items: list[Spot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its data; ``plain`` is the text with blanks for comments and trailing commas."""

    text: str
    plain: str
    data: Any

    def line_of(self, path: Sequence[str | int]) -> int:
        """The line, from 1, of the deepest part of ``path`` (names as spelled) in the text."""
        spot = _outline(self.plain)
        at = spot.start
        for step in path:
            if isinstance(step, int):
                if step >= len(spot.items):
                    break
                spot = spot.items[step]
                at = spot.start
            elif step in spot.members:
                at, spot = spot.members[step]
            else:
                break
        return self.plain.count("\n", 0, at) + 1

    def with_value(self, path: Sequence[str], value: Any) -> str:
        """The text with ``value`` at ``path`` (names as spelled), everything else unchanged.

        Objects missing (or null) on the way are added. Raises ValueError if something on the way
        is not an object.
        """
        spot = _outline(self.plain)
        for depth, name in enumerate(path):
            if self.plain[spot.start] != "{":
                if self.plain[spot.start : spot.end] == "null":
                    return self._replaced(spot, nested(path[depth:], value))
                raise ValueError("not an object")
            if name not in spot.members:
                return self._inserted(spot, name, nested(path[depth + 1 :], value))
            _, spot = spot.members[name]
        return self._replaced(spot, value)

    def _replaced(self, spot: Spot, value: Any) -> str:
        new = self._rendered(value, self._indent(spot.start))
        return self.text[: spot.start] + new + self.text[spot.end :]

    def _inserted(self, spot: Spot, name: str, value: Any) -> str:
        """The text with one member more at the end of an object."""
        text, closing = self.text, spot.end - 1
        last = next(reversed(spot.members.values()), None)
        after = last[1].end if last else spot.start + 1
        has_comma = any(piece.group() == "," for piece in _PIECE.finditer(text[after:closing]))
        comma = "," if last and not has_comma else ""
        line = text.rfind("\n", 0, closing) + 1
        if not last and not text[after:closing].strip():
            return self._replaced(spot, {name: value})
        if line > spot.start and not text[line:closing].strip():
            indent = text[line:closing] + self._unit()
            if last and not text[text.rfind("\n", 0, last[0]) + 1 : last[0]].strip():
                indent = self._indent(last[0])
            new = f"{indent}{_quoted(name)}: {self._rendered(value, indent)}{self._newline()}"
            return text[:after] + comma + text[after:line] + new + text[line:]
        new = f"{_quoted(name)}: {self._rendered(value, self._indent(spot.start))}"
        at = after if comma else closing
        return f"{text[:at]}{comma} {new}{text[at:]}"

    def _rendered(self, value: Any, indent: str) -> str:
        """A value as JSON; an object with one member a line, the lines after ``indent``."""
        if not isinstance(value, dict) or not value:
            return json.dumps(value, ensure_ascii=False)
        inner, newline = indent + self._unit(), self._newline()
        members = f",{newline}".join(
            f"{inner}{_quoted(name)}: {self._rendered(item, inner)}" for name, item in value.items()
        )
        return f"{{{newline}{members}{newline}{indent}}}"

    def _indent(self, at: int) -> str:
        line = self.text.rfind("\n", 0, at) + 1
        blank = re.compile(r"[ \t]*").match(self.text, line)
        return "" if blank is None else blank.group()

    def _unit(self) -> str:
        found = re.search(r"\n([ \t]+)\"", self.plain)
        return found.group(1) if found else "  "

    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"


def parse(text: str) -> Document:
    """Read JSON with comments and trailing commas.

    A name given twice in one object is an error, as is too deep nesting. Raises JsonError.
    """
    doubled = False

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal doubled
        members = dict(pairs)
        doubled = doubled or len(members) != len(pairs)
        return members

    plain = text
    try:
        try:
            data = json.loads(plain, object_pairs_hook=once)
        except json.JSONDecodeError:
            plain = _blanked(text)
            data = json.loads(plain, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.lineno, error.colno) from None
    except RecursionError:
        raise JsonError("Nested too deeply", 1, 1) from None
    except ValueError:
        raise JsonError("A number has too many digits", 1, 1) from None
    if doubled:
        _outline(plain)  # raises, with the place
    return Document(text, plain, data)


def _blanked(text: str) -> str:
    """The text with blanks for comments and trailing commas, every other character in place."""
    out: list[str] = []
    end, before, comma = 0, "", -1
    for piece in _PIECE.finditer(text):
        out.append(text[end : piece.start()])
        end = piece.end()
        word = piece.group()
        if piece.lastgroup == "comment":
            out.append(re.sub(r"[^\r\n]", " ", word))
            continue
        if word in ("}", "]") and comma >= 0:
            out[comma] = " "
        comma = len(out) if word == "," and before not in ("", ",", "{", "[", ":") else -1
        before = word
        out.append(word)
    out.append(text[end:])
    return "".join(out)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def nested(path: Sequence[str | int], value: Any) -> Any:
    """``value`` within the objects that ``path`` names."""
    for name in reversed(path):
        value = {name: value}
    return value


def _outline(plain: str) -> Spot:
    """The places of all values of a plain text; raises JsonError for a name given twice."""
    stack = [Spot(0, len(plain))]
    name: tuple[str, int] | None = None
    for part in _PART.finditer(plain):
        if part.lastgroup == "name":
            name = (json.loads(part["name"]), part.start())
            if name[0] in stack[-1].members:
                line = plain.count("\n", 0, part.start()) + 1
                column = part.start() - plain.rfind("\n", 0, part.start())
                reason = f"The name {json.dumps(name[0][:80])} is given twice"
                raise JsonError(reason, line, column)
            continue
        if part.lastgroup == "close":
            stack.pop().end = part.end()
            continue
        spot = Spot(part.start(), part.end())
        if name is None:
            stack[-1].items.append(spot)
        else:
            stack[-1].members[name[0]] = (name[1], spot)
            name = None
        if part.lastgroup == "open":
            stack.append(spot)
    return stack[0].items[0]
