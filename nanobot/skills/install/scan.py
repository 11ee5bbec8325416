"""Scans a skill for signs of malice; a hint for the owner, not a proof."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

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


_FETCH = r"(?:curl|wget|fetch|iwr|irm|invoke-webrequest|invoke-restmethod)\b"
_PREFIX = r"(?:sudo\s+(?:-\w+\s+)*)?(?:/usr/bin/env\s+|/(?:usr/)?bin/)?"
_SH = r"(?:(?:ba|z|da|k|fi)?sh|iex|osascript)\b"
_INTERPRETER = r"(?:python[\d.]*|perl|ruby|node)\b"
_SHELL = rf"{_PREFIX}(?:{_SH}|{_INTERPRETER})"
# Its program is a file or a literal, and what comes through the pipe is data.
_OWN_PROGRAM = (
    r"\s+(?:-[a-z]+\s+)*(?:-\w*[cem]\w*\s+"
    r"(?![^\n|]{0,200}\b(?:exec|eval|system|popen|subprocess|compile)\b|[\"']?\$\()"
    r"|[\"'$~\w{/.][^\s|;&]*\.\w+)"
)
_FED = rf"{_PREFIX}(?:{_SH}|{_INTERPRETER}(?!{_OWN_PROGRAM}))"
_RUN = rf"(?:{_SHELL}\s+(?:-\w+\s+)*|\b(?:source|open|start)\s+|(?:^|\s)\.\s+|\./)[\"']?(?:\./)?"
_ARCHIVE = r"(?:extract|unzip|unpack|unrar|decompress|archive|zip|rar|7z)"
_PASSWORD = (
    r"\bpass(?:word|phrase|code)?\b[^\n.]{0,20}?"
    r"(?:\s+is\s+(?!wrong|missing|not\b|un|set\b|given|asked|needed|required|correct|in\b|the\b|a\b)"
    r"|\s*[:=]\s*|\s+(?=[`'\"]))\**(?:`\S+`|'\S+'|\"\S+\"|(?-i:[a-z0-9])\S*)"
)
_PAGE = (
    r"(?:https?://|\]\(|\b(?:this|that|the|following)\s+(?:web\s?)?"
    r"(?:page|link|site|url|address|website|gist|snippet)\b)"
)
_PROGRAM = r"\b(?:commands?|scripts?|code|installer|snippet|instructions?)\b"
_SENDS = r"(?:send|post|upload|forward|exfiltrate|transmit|submit|mail)"
_SENDER = rf"(?:{_FETCH}|\b(?:nc|ncat|netcat)\b)"
_CALL = r"(?:requests\.\w+|httpx\.\w+|urlopen|\bfetch|axios(?:\.\w+)?|sendBeacon)\s*\("
_ENV_FILE = r"(?<![\w)\]])\.env(?:\.(?:local|production))?(?!\w|\.\w|\()"
_FOLDERS = r"[\"'(]*(?:[~\w/${}.-]*/)?"
_SECRET = r"(?:api[ _-]?keys?|tokens?|passwords?|credentials?|secrets?|private keys?|seed phrase)"
_OWNER = r"(?:the\s+)?(?:user|owner|human|operator|anyone|anybody)"

# Each kind, a text without which its pattern cannot match ("" for none), and the pattern.
_RULES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kind, ".env" * (_ENV_FILE in pattern), re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for kind, pattern in (
        ("download run by a shell", rf"{_FETCH}[^\n]{{0,500}}\|\s*(?:tee\b[^|\n]*\|\s*)?{_FED}"),
        ("download run by a shell", rf"{_SHELL}\s+(?:-\w+\s+)*<\(\s*{_FETCH}"),
        (
            "download run by a shell",
            rf"(?:{_SHELL}\s+-\w*c|eval|source|\biex)\s*\(?[\"'`]?\$?\(?\s*{_FETCH}",
        ),
        ("download run by a shell", rf"(?:^|\s)(?:source|\.)\s+<\(\s*{_FETCH}"),
        (
            "download run by a shell",
            rf"{_FETCH}[^\n]{{0,200}}?(?:\s-o|\s--output|-OutFile|>)[= ]?\s*[\"']?"
            rf"(?P<saved>[\w./~$-]{{1,100}})\b[\s\S]{{0,400}}?{_RUN}(?P=saved)\b",
        ),
        (
            "download run by a shell",
            rf"\b(?:wget|curl)\b[^\n]{{0,100}}?https?://[^\s\"'|;&]{{0,200}}/(?P<named>[\w.-]{{3,80}})"
            rf"[\"']?\s*(?:;|&&|\n)[\s\S]{{0,300}}?{_RUN}(?P=named)\b",
        ),
        (
            "download run by a shell",
            r"\b(?:exec|eval)\s*\([^\n]{0,120}(?:urlopen|requests\.get|httpx\.get|\bfetch)\s*\(",
        ),
        (
            "download run by a shell",
            r"(?:\biex\b|invoke-expression)[^\n]{0,120}(?:Download(?:String|Data)|\bi[wr][rm]\b)"
            r"|DownloadString\([^\n]{0,200}\|\s*iex",
        ),
        (
            "download run by a shell",
            r"\b(?:mshta|regsvr32|msiexec)\b[^\n]{0,60}https?:|\bcertutil\b[^\n]{0,60}-urlcache",
        ),
        (
            "download made executable",
            rf"{_FETCH}[^\n]{{0,500}}(?:&&|;)\s*(?:sudo\s+)?"
            r"(?:chmod\s+(?:\+x|a\+x|u\+x|[0-7]*7[0-7]*)|xattr\s+-\w*[cd])",
        ),
        ("hidden code", rf"base64\s+(?:-d|-D|--decode)[^\n]{{0,300}}\|\s*{_SHELL}"),
        ("hidden code", rf"(?:xxd\s+-r|openssl\s+enc\s+-d)[^\n]{{0,300}}\|\s*{_SHELL}"),
        (
            "hidden code",
            r"(?:\beval|sh\s+-c)\s*[\"'`]?\$\([^\n]{0,200}(?:base64\s+(?:-d|-D|--decode)|xxd\s+-r)",
        ),
        ("hidden code", r"\b(?:powershell|pwsh)[^\n]{0,60}\s-e\w*\s+[A-Za-z0-9+/]{16,}"),
        (
            "hidden code",
            r"\b(?:exec|eval|compile|system)\s*\([^\n]{0,200}"
            r"(?:b64decode|fromhex|atob|Buffer\.from|zlib\.decompress|unhexlify)",
        ),
        ("hidden code", r"(?:\\x[0-9a-f]{2}){40,}"),
        (
            "remote shell",
            r"(?:\bsh\s+-i|bash\s+-i|exec\s+\d+<>)[^\n]{0,40}/dev/(?:tcp|udp)/"
            r"|\b(?:nc|ncat|netcat)\b[^\n]{0,60}\s-\w*[ec]\s+\S*(?:sh|cmd)\b"
            r"|mkfifo[^\n]{0,120}\|\s*(?:nc|ncat|netcat)\b",
        ),
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
        # A skill's own entry of the keychain is where its key should be.
        (
            "credential file",
            r"security\s+(?:dump-keychain|find-\w+-password[^\n]{0,80}Safe Storage)"
            r"|(?:Chrome|Chromium|Brave|Edge|Default)[^\n]{0,60}Login\\?\s*Data",
        ),
        (
            "credential file",
            r"\b(?:cat|read|open|cp|scp|curl|upload|send|print|head|tail|base64|copy)\b[^\n]{0,80}"
            r"\.(?:nanobot/config|openclaw/openclaw|clawdbot/clawdbot|moltbot/moltbot)\.json",
        ),
        (
            "sends the environment away",
            r"(?:\benv\b(?<!\.env)|printenv|os\.environ\b(?!\s*[.\[]))[^\n]{0,120}"
            r"(?:\|\s*(?:curl|nc|wget)|requests\.post|urlopen|httpx\.post)",
        ),
        (
            "sends the environment away",
            rf"{_CALL}[^\n]{{0,200}}(?:os\.environ|process\.env)\b(?!\s*[.\[])",
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
            r"(?:^|[.!?:;]\s)(?:(?!\b(?:not|never|no|cannot)\b|n't\b)[^\n.!?:;]){0,200}"
            rf"\bwithout\s+asking\b(?:[^\n.]{{0,20}}\b(?:{_OWNER}|permission)\b|[.!]|$)",
        ),
        (
            "instructions against the owner",
            r"\byou are (?:now|no longer)\b[^\n.]{0,60}\b(?:assistant|nanobot|model|agent|bound|"
            r"restricted|unrestricted|developer mode|DAN)\b",
        ),
        (
            "instructions against the owner",
            r"<\|?(?:im_start|system|endoftext)\|?>|\[/?INST\]|<</?SYS>>|^#{2,4} *system *: *$",
        ),
        # In code the text after the word is quoted.
        (
            "instructions against the owner",
            r"^[ \t>#*]*system(?: message| prompt| note)?[ *]*:[ *]*(?=[a-z])[^\n]{0,80}"
            r"\b(?:you (?:must|(?:are|will|can|should) now)|ignore|from now on|override)\b",
        ),
        (
            "instructions against the owner",
            r"\b(?:fetch|load|download|curl|read|get|check)\b[^\n]{0,40}https?://\S{1,200}"
            r"\.(?:md|txt|json|ya?ml)\b[^\n]{0,30}?\b(?:and|then)\s+(?:\w+\s+)?"
            r"(?:follow|obey|execute|carry out|do)\s+(?:the|its|all|any|every|what|whatever)\b",
        ),
        (
            "sends secrets away",
            rf"\b{_SENDS}\b[^\n]{{0,100}}{_SECRET}"
            rf"[^\n]{{0,100}}\b(?:to|at|into)\b[^\n]{{0,40}}(?:https?://|webhook|@)",
        ),
        (
            "sends secrets away",
            rf"{_SENDER}[^\n]{{0,200}}(?:@|\bcat\s|--post-file[= ]|\s-T\s?|<\s?|Get-Content\s)"
            rf"{_FOLDERS}{_ENV_FILE}",
        ),
        (
            "sends secrets away",
            rf"\b(?:scp|rsync|sftp)\b[^\n]{{0,80}}\s{_FOLDERS}{_ENV_FILE}[^\n]{{0,80}}\w:",
        ),
        (
            "sends secrets away",
            rf"\b(?:cat|base64|gzip|tar|xxd|openssl)\b[^\n|]{{0,80}}\s{_FOLDERS}{_ENV_FILE}"
            rf"[^\n]{{0,120}}\|\s*{_SENDER}",
        ),
        (
            "sends secrets away",
            rf"{_CALL}[^\n]{{0,200}}(?:open|read\w*|Path)\s*\(\s*{_FOLDERS}{_ENV_FILE}",
        ),
        (
            "sends secrets away",
            rf"\b(?P<taken>\w+)\s*=[^\n=]{{0,100}}{_ENV_FILE}[^\n]{{0,100}}\n[\s\S]{{0,400}}?"
            rf"(?:{_CALL}|\bcurl\b)[^;]{{0,300}}?\b(?P=taken)\b(?!\s*[\[.])",
        ),
        (
            "sends secrets away",
            rf"\b{_SENDS}\b[^\n]{{0,100}}{_ENV_FILE}[^\n]{{0,100}}(?:https?://|webhook)",
        ),
        (
            "sends secrets away",
            rf"{_ENV_FILE}[^\n.]{{0,60}}\b{_SENDS}\s+(?:it|its|them|their|all|everything"
            r"|the (?:file|contents?|values|keys|result))\b[^\n]{0,80}(?:https?://|webhook)",
        ),
        (
            "sends secrets away",
            r"\b(?:webhook\.site|requestbin\.\w+|pipedream\.net|burpcollaborator\.net|oastify\.com"
            r"|oast\.\w+|interact\.sh|beeceptor\.com|requestcatcher\.com|hookbin\.com)\b"
            r"|discord(?:app)?\.com/api/webhooks/\d+/[\w-]{20,}|api\.telegram\.org/bot\d{6,}:\w",
        ),
        (
            "fake prerequisite",
            r"\b(?:paste|copy)\b[^\n.]{0,60}\b(?:into|in)\b[^\n.]{0,20}\b(?:terminal|powershell|"
            r"command prompt|shell)\b",
        ),
        ("fake prerequisite", rf"\b{_ARCHIVE}\b[^\n]{{0,80}}{_PASSWORD}"),
        (
            "fake prerequisite",
            r"\bpass(?:word|phrase|code)?\b[^\n.]{0,40}\b(?:archive|zip|rar|7z)\b\s*(?:is\s|[:=])",
        ),
        (
            "fake prerequisite",
            r"\bunzip\s[^\n]{0,40}(?-i:-P)\s*[\"']?(?-i:[a-z0-9])"
            r"|\b(?:7z\w?|unrar)\s+[xe]\b[^\n]{0,80}\s-p[\"']?(?-i:[a-z0-9])"
            r"|\b(?:7z\w?|unrar)\s+[xe]\s+-p[\"']?(?-i:[a-z0-9])",
        ),
        (
            "fake prerequisite",
            r"\b(?:visit|go to|open|navigate to|browse to|head to|follow|click(?: on)?)\b"
            rf"[^\n]{{0,40}}{_PAGE}\S{{0,200}}[\s,.;:]{{0,3}}(?:(?:and|then|to)\s+){{0,2}}"
            r"(?:download\s+(?:it\s+)?and\s+)?"
            rf"(?:copy\b[^\n]{{0,60}}\b(?:run|execute)\s+(?:it|them|this|that)\b"
            rf"|(?:run|execute|launch)\b[^\n.]{{0,60}}{_PROGRAM})",
        ),
        (
            "fake prerequisite",
            rf"\b(?:run|execute|launch)\b[^\n.]{{0,60}}{_PROGRAM}[^\n.]{{0,30}}"
            rf"\b(?:from|at|shown|found|listed)\b[^\n.]{{0,20}}{_PAGE}",
        ),
        (
            "fake prerequisite",
            r"https?://(?:www\.)?(?:rentry\.(?:co|org)|glot\.io|pastebin\.com|paste\.ee"
            r"|hastebin\.com|dpaste\.\w+|termbin\.com|transfer\.sh|0x0\.st)/(?!api\b|docs?\b)\w",
        ),
    )
)
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
    rules = _RULES
    if path.lower().endswith(".svg"):
        rules = (*_RULES, ("script in a picture", "", _ACTIVE))
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
