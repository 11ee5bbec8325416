"""Scans a skill for signs of malice; a hint for the owner, not a proof."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nanobot.core.text import one_line
from nanobot.skills.frontmatter import newlines_unified
from nanobot.skills.install.bundle import Bundle


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that stops an installation; ``line`` counts from 1, 0 is the file as a whole."""

    path: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.kind}: {self.text}"


_ACTIVE = re.compile(
    r"<script|<foreignObject|<iframe|[\s\"'/]on[a-z]{3,}\s*=\s*[\"'a-z]|javascript:", re.IGNORECASE
)
_BLOB = re.compile(r"[A-Za-z0-9+/]{240,}={0,2}")
_HIDDEN = re.compile(
    "[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\U000e0001\U000e0020-\U000e007f\U000e0100-\U000e01ef]|[!-~][\u200c\u200d]"
)
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]{1,10}\U000e007f")
_MAGIC = (
    b"\x7fELF",
    b"MZ",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
    b"\xfe\xed\xfa",
    b"PK\x03\x04",
)
_ASSETS = (
    *(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"%PDF-", b"OggS", b"ID3", b"wOFF", b"wOF2"),
    *(b"\x00\x01\x00\x00", b"OTTO", b"\x00\x00\x01\x00"),
)
_PROGRAMS = (".exe", ".dll", ".so", ".dylib", ".pyc", ".class", ".jar", ".dmg", ".pkg", ".msi")
_LONGEST = 4000
"""Characters that are looked at in one piece."""
_OVERLAP = 1000
"""Characters that a piece shares with the next one: no rule needs more."""


@cache
def _rules() -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    """Each kind, a text without which its pattern cannot match ("" for none), and the pattern."""
    table = tomllib.loads(Path(__file__).with_name("scan_rules.toml").read_text("utf-8"))
    fragments: dict[str, str] = {}

    def filled_in(pattern: str | list[str]) -> str:
        text = pattern if isinstance(pattern, str) else "".join(pattern)
        return re.sub(r"\{([A-Z_]+)\}", lambda name: fragments[name[1]], text)

    for name, fragment in table["fragments"].items():
        fragments[name] = filled_in(fragment)
    return tuple(
        (
            kind,
            ".env" if fragments["ENV_FILE"] in text else "",
            re.compile(text, re.IGNORECASE | re.MULTILINE),
        )
        for kind, patterns in table["rules"].items()
        for text in map(filled_in, patterns)
    )


def scan(bundle: Bundle) -> tuple[Finding, ...]:
    """All findings, by file and line."""
    return tuple(
        finding for path, file in sorted(bundle.items()) for finding in _scanned(path, file.data)
    )


def _scanned(path: str, data: bytes) -> Iterator[Finding]:
    if _HIDDEN.search(path):
        yield Finding(repr(path), 0, "hidden Unicode", "in the file's name")
    if data.startswith(_MAGIC) or path.lower().endswith(_PROGRAMS):
        yield Finding(path, 0, "binary", "a program or archive that cannot be read")
        return
    if b"\0" in data:
        if not data.startswith(_ASSETS):
            yield Finding(path, 0, "binary", "neither text nor a picture, font, sound or PDF")
        return
    text = newlines_unified(data.decode("utf-8", errors="replace").removeprefix("\ufeff"))
    # A command goes on in the next line after a backslash.
    joined = re.sub(r"\\\n[ \t]*", " \x1f", text)
    lines: list[str] = []
    starts, numbers = [0], [1]
    for line in joined.split("\n"):
        lines.append(_plain(line.replace("\x1f", "")))
        yield from _in_line(path, numbers[-1], line.replace("\x1f", ""))
        starts.append(starts[-1] + len(lines[-1]) + 1)
        numbers.append(numbers[-1] + 1 + line.count("\x1f"))
    plain = "\n".join(lines)
    rules = _rules()
    if path.lower().endswith(".svg"):
        rules = (*rules, ("script in a picture", "", _ACTIVE))
    found: dict[tuple[int, str], str] = {}
    for start in range(0, max(len(plain), 1), _LONGEST - _OVERLAP):
        piece = plain[start : start + _LONGEST].lower()
        for kind, needle, pattern in rules:
            if needle not in piece:
                continue
            for match in pattern.finditer(plain, start, start + _LONGEST):
                number = numbers[bisect_right(starts, match.start()) - 1]
                found.setdefault((number, kind), one_line(match[0].strip(), 120))
    for (number, kind), words in sorted(found.items()):
        yield Finding(path, number, kind, words)


def _in_line(path: str, number: int, line: str) -> Iterator[Finding]:
    if hidden := _HIDDEN.search(_FLAG.sub("", line)):
        name = unicodedata.name(hidden[0][-1], f"U+{ord(hidden[0][-1]):04X}")
        yield Finding(path, number, "hidden Unicode", name)
    if (blob := _BLOB.search(line)) and _is_dense(blob[0]):
        yield Finding(path, number, "base64 blob", f"{len(blob[0])} characters")


def _plain(line: str) -> str:
    """The line without what could hide a phrase: invisible characters, full-width letters."""
    return unicodedata.normalize("NFKC", _HIDDEN.sub(lambda match: match[0][:-1], line))


def _is_dense(blob: str) -> bool:
    """Whether it looks encoded, and is no long path or row of one letter."""
    return len(set(blob)) > 20 and any(map(str.isdigit, blob)) and blob.lower() != blob
