"""Looks through a skill for what no honest skill needs; a hint for the owner, not a proof."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from nanobot.agent.skills.admin.bundle import Bundle
from nanobot.core.text import one_line


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


_FETCH = r"(?:curl|wget|fetch|iwr|irm|invoke-webrequest|invoke-restmethod)\b"
_SHELL = (
    r"(?:sudo\s+(?:-\w+\s+)*)?(?:/usr/bin/env\s+|/(?:usr/)?bin/)?"
    r"(?:(?:ba|z|da|k|fi)?sh|python[\d.]*|perl|ruby|node|iex|osascript)\b"
)
_SECRET = r"(?:api[ _-]?keys?|tokens?|passwords?|credentials?|secrets?|private keys?|seed phrase)"
_OWNER = r"(?:the\s+)?(?:user|owner|human|operator|anyone|anybody)"

_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("download run by a shell", rf"{_FETCH}[^\n]{{0,500}}\|\s*(?:tee\b[^|]*\|\s*)?{_SHELL}"),
        ("download run by a shell", rf"{_SHELL}\s+(?:-\w+\s+)*<\(\s*{_FETCH}"),
        (
            "download run by a shell",
            rf"(?:{_SHELL}\s+-\w*c|eval|source|\biex)\s*\(?[\"'`]?\$?\(?\s*{_FETCH}",
        ),
        ("download run by a shell", rf"(?:^|\s)(?:source|\.)\s+<\(\s*{_FETCH}"),
        (
            "download made executable",
            rf"{_FETCH}[^\n]{{0,500}}(?:&&|;)\s*(?:sudo\s+)?chmod\s+(?:\+x|a\+x|u\+x|[0-7]*7[0-7]*)",
        ),
        ("hidden code", rf"base64\s+(?:-d|-D|--decode)[^\n]{{0,300}}\|\s*{_SHELL}"),
        ("hidden code", rf"(?:xxd\s+-r|openssl\s+enc\s+-d)[^\n]{{0,300}}\|\s*{_SHELL}"),
        (
            "hidden code",
            r"\b(?:exec|eval|compile|system)\s*\([^\n]{0,200}"
            r"(?:b64decode|fromhex|atob|Buffer\.from|zlib\.decompress|unhexlify)",
        ),
        ("hidden code", r"(?:\\x[0-9a-f]{2}){40,}"),
        (
            "credential file",
            r"(?:~|\$HOME|\$\{HOME\}|/root|/home/\w+|expanduser\([^)]*|Path\.home\(\)[^\n]{0,20})"
            r"[/\"', ]*\.(?:ssh/(?!config\b|known_hosts\b)|aws/credentials|netrc|git-credentials|"
            r"pypirc|npmrc|docker/config\.json|kube/config|gnupg|config/gh/hosts|"
            r"config/gcloud|password-store|mozilla|config/google-chrome)",
        ),
        ("credential file", r"\bid_(?:rsa|ed25519|ecdsa|dsa)\b(?!\.pub)"),
        (
            "credential file",
            r"/etc/shadow|/proc/(?:self|\d+)/environ|Library/Keychains|wallet\.dat",
        ),
        ("credential file", r"security\s+(?:find-generic-password|dump-keychain)|Login Data\b"),
        (
            "credential file",
            r"\b(?:cat|read|open|cp|scp|curl|upload|send|print|head|tail|base64|copy)\b[^\n]{0,80}"
            r"\.(?:nanobot/config|openclaw/openclaw|clawdbot/clawdbot|moltbot/moltbot)\.json",
        ),
        (
            "sends the environment away",
            r"(?:\benv\b|printenv|os\.environ\b(?!\s*[.\[]))[^\n]{0,120}"
            r"(?:\|\s*(?:curl|nc|wget)|requests\.post|urlopen|httpx\.post)",
        ),
        (
            "instructions against the owner",
            r"\b(?:ignore|disregard|forget|override)\b[^\n.]{0,40}\b(?:previous|prior|above|earlier|"
            r"all|other|system|your|any)\b[^\n.]{0,30}\b(?:instructions?|rules|prompts?|guidelines|"
            r"safety)\b",
        ),
        (
            "instructions against the owner",
            rf"\b(?:do not|don't|never|without)\b[^\n.]{{0,30}}\b(?:tell(?:ing)?|inform(?:ing)?|"
            rf"mention(?:ing)?|notify(?:ing)?|reveal(?:ing)?)\b[^\n.]{{0,40}}\b{_OWNER}\b"
            rf"[^\n.]{{0,40}}(?:\b(?:this|that|it|what|about|step|before)\b|[.!]|$)",
        ),
        (
            "instructions against the owner",
            rf"\bwithout\s+asking\b(?:[^\n.]{{0,20}}\b(?:{_OWNER}|permission)\b|[.!]|$)",
        ),
        (
            "instructions against the owner",
            r"\byou are (?:now|no longer)\b[^\n.]{0,60}\b(?:assistant|nanobot|model|agent|bound|"
            r"restricted|unrestricted|developer mode|DAN)\b",
        ),
        (
            "instructions against the owner",
            r"<\|?(?:im_start|system|endoftext)\|?>|\[/?INST\]|<</?SYS>>|^\s*#{0,4}\s*system\s*:",
        ),
        (
            "sends secrets away",
            rf"\b(?:send|post|upload|forward|exfiltrate|transmit|submit|mail)\b[^\n]{{0,100}}{_SECRET}"
            rf"[^\n]{{0,100}}\b(?:to|at|into)\b[^\n]{{0,40}}(?:https?://|webhook|@)",
        ),
        (
            "fake prerequisite",
            r"\b(?:paste|copy)\b[^\n.]{0,60}\b(?:into|in)\b[^\n.]{0,20}\b(?:terminal|powershell|"
            r"command prompt|shell)\b",
        ),
        (
            "fake prerequisite",
            r"\b(?:extract|unzip|open|archive)\b[^\n]{0,60}\bpass(?:word|phrase)?\b\s*[:=`'\"]",
        ),
    )
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
"""Characters of a line that are looked at in one piece."""


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
    text = data.decode("utf-8", errors="replace").removeprefix("\ufeff")
    # A command goes on in the next line after a backslash.
    joined = re.sub(r"\\\r?\n[ \t]*", lambda match: " " + "\x1f", text)
    number = 1
    for line in joined.split("\n"):
        yield from _in_line(path, number, line.replace("\x1f", ""))
        number += 1 + line.count("\x1f")


def _in_line(path: str, number: int, line: str) -> Iterator[Finding]:
    if hidden := _HIDDEN.search(_FLAG.sub("", line)):
        name = unicodedata.name(hidden[0][-1], f"U+{ord(hidden[0][-1]):04X}")
        yield Finding(path, number, "hidden Unicode", name)
    if (blob := _BLOB.search(line)) and _is_dense(blob[0]):
        yield Finding(path, number, "base64 blob", f"{len(blob[0])} characters")
    # Hidden characters and full-width letters must not hide a phrase.
    plain = unicodedata.normalize("NFKC", _HIDDEN.sub(lambda match: match[0][:-1], line))
    kinds: set[str] = set()
    for start in range(0, max(len(plain), 1), _LONGEST // 2):
        piece = plain[start : start + _LONGEST]
        for kind, pattern in _RULES:
            if kind not in kinds and (found := pattern.search(piece)):
                kinds.add(kind)
                yield Finding(path, number, kind, one_line(found[0].strip(), 120))


def _is_dense(blob: str) -> bool:
    """Whether it looks encoded, and is no long path or row of one letter."""
    return len(set(blob)) > 20 and any(map(str.isdigit, blob)) and blob.lower() != blob
