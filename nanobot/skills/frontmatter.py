"""The frontmatter of a SKILL.md: its place in the file, and its YAML as a tree of text.

The tree's leaves keep their text (``Scalar``), so that a version ``1.10`` stays ``1.10`` and a
program called ``yes`` stays a name; ``plain_values`` resolves them as YAML does where a plain
dict is wanted. Three readers, tried in this order, give the same tree for the same text:

1. ``read_simple``: one ``key: value`` a line, only values that are unambiguous in YAML, and
   ``metadata`` as JSON on one line. It needs no import: PyYAML would delay every cold start.
2. ``read_strict``: YAML 1.1 (libyaml), without aliases and with bounded depth.
3. ``read_lines``: each top-level key by itself, for files that are not valid YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from nanobot.core.errors import NanobotError

HEADER_MAX = 64 * 1024
"""Upper bound of bytes in a frontmatter, fences included."""

_DEPTH_MAX = 32
_KEYS_MAX = 100

_OPENING = re.compile(r"\A\ufeff?(?:[ \t]*\n)*---[ \t]*\n")
_CLOSING = re.compile(r"^---[ \t]*(?:\n|\Z)", re.MULTILINE)


class SkillBroken(NanobotError):
    """A skill cannot be used as it is; the text is the reason, for whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One leaf: its text, and whether it stood plain (``5``) or quoted (``"5"``)."""

    text: str
    plain: bool

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}


Node: TypeAlias = "Scalar | list[Node] | dict[str, Node]"


class Refused(Exception):
    """A reader does not accept this text; the message says why."""


@dataclass(frozen=True, slots=True)
class Frontmatter:
    """The keys of a frontmatter; ``complaint`` is the YAML error, "" for valid YAML."""

    values: dict[str, Node]
    complaint: str = ""


def newlines_unified(text: str) -> str:
    """The text with ``\\n`` for every line ending."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def split(text: str) -> tuple[str | None, str]:
    """The header (without its fences; None if there is none) and the body.

    ``text`` has unified newlines. A header that is opened and not closed counts as none;
    ``header_of`` refuses it.
    """
    opening = _OPENING.match(text)
    if opening is None:
        return None, text.removeprefix("\ufeff")
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        return None, text.removeprefix("\ufeff")
    return text[opening.end() : closing.start()], text[closing.end() :]


def header_of(head: bytes, *, is_whole: bool) -> str | None:
    """The header in the first bytes of a file, or None if the file has none.

    ``is_whole``: ``head`` is all of the file. Raises SkillBroken for a header that does not end
    within ``HEADER_MAX`` bytes or is not UTF-8; what follows the header is not looked at.
    """
    if not is_whole:
        head = head[: max(head.rfind(b"\n"), head.rfind(b"\r")) + 1]
    # Latin-1 maps each byte to one character, so the fences are found before anything is decoded.
    lines = newlines_unified(head.removeprefix(b"\xef\xbb\xbf").decode("latin-1"))
    header, _ = split(lines)
    if header is None:
        if _OPENING.match(lines):
            limit = "" if is_whole else f" within {HEADER_MAX // 1024} KB"
            raise SkillBroken(f"the frontmatter is not closed by a line of ---{limit}")
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise SkillBroken("the file is not UTF-8 (it looks like UTF-16)")
        return None
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        line = header.count("\n", 0, error.start) + 2
        raise SkillBroken(f"the frontmatter is not UTF-8 (line {line})") from error


def read(header: str) -> Frontmatter:
    """The keys of a header; raises SkillBroken when it holds none at all."""
    simple = read_simple(header)
    if simple is not None:
        return Frontmatter(simple)
    try:
        return Frontmatter(read_strict(header))
    except Refused as refusal:
        values = read_lines(header)
        if not values:
            raise SkillBroken(f"the frontmatter is not a mapping: {refusal}") from refusal
        return Frontmatter(values, complaint=str(refusal))


# --- the simple reader ------------------------------------------------------------------------

_SIMPLE = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,99}):(?: (.*))?")
_PLAIN = re.compile(r"(?=[^\W_])(?!.*(?:: | #|:$)).+")
_DOUBLE = re.compile(r'"([^"\\]*)"')
_SINGLE = re.compile(r"'([^']*)'")


def read_simple(header: str) -> dict[str, Node] | None:
    """The tree of a header that is unambiguous in YAML; None for any other."""
    values: dict[str, Node] = {}
    for line in header.split("\n"):
        if not line or line.startswith("#"):
            if line.isprintable():
                continue
            return None
        found = _SIMPLE.fullmatch(line)
        if found is None or not line.isprintable():
            return None
        node = _simple_value(found[1], (found[2] or "").strip(" "))
        if node is None:
            return None
        values[found[1]] = node
    return values


def _simple_value(key: str, text: str) -> Node | None:
    if not text:
        return Scalar("", plain=True)
    if key == "metadata" and text.startswith("{"):
        try:
            return json_tree(text)
        except Refused:
            return None
    if _PLAIN.fullmatch(text):
        return Scalar(text, plain=True)
    quoted = _DOUBLE.fullmatch(text) or _SINGLE.fullmatch(text)
    return None if quoted is None else Scalar(quoted[1], plain=False)


# --- the strict reader ------------------------------------------------------------------------


def read_strict(header: str) -> dict[str, Node]:
    """The tree as YAML has it, of duplicate keys the last; raises Refused.

    Built from the parser's events: PyYAML's composer would follow aliases (a few lines can stand
    for gigabytes) and recurse without a limit.
    """
    import yaml  # 18 ms, for the files that need it

    events: Iterator[Any] = yaml.parse(header, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))

    def node(event: Any, depth: int) -> Node:
        if depth > _DEPTH_MAX:
            raise Refused(f"it is nested deeper than {_DEPTH_MAX} levels")
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(event.value, plain=event.implicit[0])
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                items.append(node(event, depth + 1))
            return items
        if isinstance(event, yaml.MappingStartEvent):
            mapping: dict[str, Node] = {}
            while not isinstance(event := next(events), yaml.MappingEndEvent):
                key = node(event, depth + 1)
                if not isinstance(key, Scalar):
                    raise Refused("a key is not a plain word")
                mapping[key.text] = node(next(events), depth + 1)
            return mapping
        raise Refused("YAML aliases are not allowed")

    try:
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            return {}
        root = node(next(events), 0)
        next(events)  # the end of the document
        if not isinstance(next(events), yaml.StreamEndEvent):
            raise Refused("it holds more than one YAML document")
    except yaml.YAMLError as error:
        raise Refused(_complaint(error)) from error
    if isinstance(root, Scalar) and root.is_null:
        return {}
    if not isinstance(root, dict):
        raise Refused("it has no keys")
    return root


def _complaint(error: Exception) -> str:
    """A YAML error in one line, its place counted from the top of the file."""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    mark = getattr(error, "problem_mark", None)
    return str(problem) if mark is None else f"{problem} (line {mark.line + 2})"


# --- the reader of single keys ----------------------------------------------------------------

_KEY = re.compile(r"([A-Za-z][\w.-]*)[ \t]*:(?:[ \t]+(.*)|$)")
_KNOWN_KEY = re.compile(
    r"(name|description|homepage|always|metadata|license|compatibility|user-invocable"
    r"|disable-model-invocation|command-dispatch|command-tool|command-arg-mode|allowed-tools)"
    r"[ \t]*:(.*)"
)
_BLOCK_MARK = re.compile(r"[|>][+-]?[0-9]?[+-]?(?: |$)")


def read_lines(header: str) -> dict[str, Node]:
    """The tree of a header that is not valid YAML, as a person would read it, key by key.

    A key stands at the start of a line; the lines up to the next key belong to it. Each key is
    read as YAML if it is YAML by itself (tabs counting as two blanks), ``metadata`` also as JSON
    with comments and trailing commas, and everything else is taken as the words that stand there.
    Raises SkillBroken for a header with so many keys that this would take long.
    """
    values: dict[str, Node] = {}
    for count, (key, first, rest) in enumerate(_segments(header.split("\n"))):
        if count == _KEYS_MAX:
            raise SkillBroken(f"the frontmatter is not YAML and has more than {_KEYS_MAX} keys")
        values[key] = _segment_value(key, first, rest)
    return values


def _segments(lines: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Each key, the text after its colon, and the lines that go on from there."""
    index = 0
    brackets_close = True
    while index < len(lines):
        found = _KEY.match(lines[index]) or _KNOWN_KEY.match(lines[index])
        start = index
        index += 1
        if found is None:
            continue
        if found[1] == "metadata" and brackets_close:
            end = _closing_line(lines, start, len(found[0]) - len(found[2] or ""))
            brackets_close = end is not None
            index = index if end is None else end + 1
        while index < len(lines) and not (
            _KEY.match(lines[index]) or _KNOWN_KEY.match(lines[index])
        ):
            index += 1
        yield found[1], (found[2] or "").strip(), lines[start + 1 : index]


def _closing_line(lines: list[str], start: int, column: int) -> int | None:
    """The line that closes the bracket which a value opens; ``start`` if it opens none."""
    depth = 0
    is_string = False
    for number in range(start, len(lines)):
        text = lines[number][column:] if number == start else lines[number]
        if depth == 0 and text.strip() and not text.lstrip().startswith(("{", "[")):
            return start
        escaped = False
        for character in text:
            if escaped:
                escaped = False
            elif is_string:
                escaped = character == "\\"
                is_string = character != '"'
            elif character == '"':
                is_string = True
            elif character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
                if depth <= 0:
                    return number
    return None


def _segment_value(key: str, first: str, rest: list[str]) -> Node:
    text = "\n".join((first, *rest))
    attempts: list[Callable[[], Node]] = [
        lambda: read_strict(f"{key}: {text}")[key],
        lambda: read_strict(f"{key}: {text}".replace("\t", "  "))[key],
    ]
    if key == "metadata":
        attempts.append(lambda: json_tree(text))
    for attempt in attempts:
        try:
            return attempt()
        except (Refused, KeyError):
            continue
    words = " ".join(
        part for line in (first, *rest) if (part := line.strip()) and not line.startswith("#")
    )
    words = _BLOCK_MARK.sub("", words, count=1) if _BLOCK_MARK.match(words) else words
    if len(words) > 1 and words[0] == words[-1] and words[0] in "\"'":
        words = words[1:-1]
    return Scalar(words, plain=False)


# --- JSON, and plain values -------------------------------------------------------------------


def json_tree(text: str) -> Node:
    """JSON as a tree, comments and trailing commas allowed; raises Refused."""
    try:
        return _tree(json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_no))
    except (ValueError, RecursionError):
        pass
    import pyjson5  # 17 ms, for the files that need it

    try:
        return _tree(pyjson5.decode(text, _DEPTH_MAX))
    except (pyjson5.Json5DecoderException, ValueError) as error:
        raise Refused("it is not JSON") from error


def _number(text: str) -> Scalar:
    return Scalar(text, plain=True)


def _no(constant: str) -> NoReturn:
    raise ValueError(constant)


def _tree(value: Any, depth: int = 0) -> Node:
    if depth > _DEPTH_MAX:
        raise Refused(f"it is nested deeper than {_DEPTH_MAX} levels")
    match value:
        case Scalar():
            return value
        case dict():
            return {str(key): _tree(item, depth + 1) for key, item in value.items()}
        case list():
            return [_tree(item, depth + 1) for item in value]
        case str():
            return Scalar(value, plain=False)
        case None:
            return Scalar("null", plain=True)
        case bool():
            return Scalar("true" if value else "false", plain=True)
        case _:
            return Scalar(repr(value), plain=True)


TRUE_WORDS = frozenset({"true", "yes", "on"})
FALSE_WORDS = frozenset({"false", "no", "off"})
_TRUE_FORMS = {form for word in TRUE_WORDS for form in (word, word.title(), word.upper())}
_FALSE_FORMS = {form for word in FALSE_WORDS for form in (word, word.title(), word.upper())}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?")


def plain_values(node: Node) -> Any:
    """The tree as dicts, lists, strings, booleans, numbers and None, resolved as YAML does.

    Dates and the more exotic numbers (octal, sexagesimal, infinite) stay text.
    """
    match node:
        case dict():
            return {key: plain_values(item) for key, item in node.items()}
        case list():
            return [plain_values(item) for item in node]
        case Scalar(text, plain=False):
            return text
        case Scalar(text) if node.is_null:
            return None
        case Scalar(text) if text in _TRUE_FORMS:
            return True
        case Scalar(text) if text in _FALSE_FORMS:
            return False
        case Scalar(text) if _INTEGER.fullmatch(text):
            return int(text)
        case Scalar(text) if _FLOAT.fullmatch(text):
            return float(text)
        case Scalar(text):
            return text
