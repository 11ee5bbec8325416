"""Text from web pages, PDF documents and bytes in any encoding."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from nanobot.core.errors import ToolError
from nanobot.shell.process_tree import run_worker

Kind: TypeAlias = Literal["markdown", "text", "pdf"]

READING_SECONDS = 20.0

_WORKER = Path(__file__).with_name("reading_worker.py")
_AT_ONCE = 2
_DECLARED_WITHIN = 4096
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META_CHARSET = re.compile(
    rb"""<meta\s[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.I
)
_XML_CHARSET = re.compile(
    rb"""^\s*<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9_:.-]{1,40})"""
)

# The encodings of the WHATWG encoding standard, by Python's names. Python knows others, some of
# which are slow or no encodings of text.
_ENCODINGS = frozenset(
    {
        *("utf-8", "utf-16-le", "utf-16-be", "cp866", "koi8-r", "koi8-u", "mac-roman"),
        *("mac-cyrillic", "gb18030", "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949"),
        *(f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
        *("cp874", *(f"cp{page}" for page in range(1250, 1259))),
    }
)
# How the standard, and so every browser, reads these names.
_READ_AS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "utf-16": "utf-16-le",
}
# Invisible to people but read by models (tag characters, zero width, marks of direction). Line
# breaks, tabs and joiners of letters and emoji stay.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A document's title and the first of its ``total`` characters; ``note`` is a remark or ""."""

    title: str
    text: str
    total: int
    note: str = ""


class DocumentReader:
    """Reads pages and PDF documents, a few at a time, each in a process that can be killed."""

    def __init__(self, seconds: float = READING_SECONDS) -> None:
        self._seconds = seconds
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def page(self, source: str, *, url: str, limit: int, as_markdown: bool = True) -> Reading:
        """The content of an HTML page; ``url`` is what its links are relative to."""
        kind: Kind = "markdown" if as_markdown else "text"
        return await self._read(kind, source.encode("utf-8", "replace"), limit, url=url)

    async def pdf(
        self, data: bytes, *, limit: int, first: int = 1, pages: int | None = None
    ) -> Reading:
        """The text of a PDF document from page ``first`` on, at most ``pages`` of them."""
        return await self._read("pdf", data, limit, first=first, pages=pages)

    async def _read(
        self,
        kind: Kind,
        data: bytes,
        limit: int,
        *,
        url: str = "",
        first: int = 1,
        pages: int | None = None,
    ) -> Reading:
        """Raises ToolError, with the reason, where there is no text to be had."""
        # Two slow steps and a fast one, with room for the process to start.
        request = {
            **{"kind": kind, "url": url, "limit": limit, "step": self._seconds / 4},
            **{"first": first, "pages": pages},
        }
        async with self._slots:
            answer, exit_code = await run_worker(
                str(_WORKER), json.dumps(request).encode() + b"\n" + data, seconds=self._seconds
            )
        if exit_code != 0:
            raise ToolError("The document is too large or too tangled to be read.")
        result = json.loads(answer)
        if result["error"]:
            raise ToolError(result["error"])
        text = visible(result["text"])
        hidden = len(result["text"]) - len(text)
        return Reading(visible(result["title"]), text, result["total"] - hidden, result["note"])


def decoded(data: bytes, charset: str = "") -> str:
    """``data`` as text, by its byte order mark, ``charset``, or what it declares itself.

    Bytes that are not valid become U+FFFD. Without a declaration it is UTF-8 if it can be.
    """
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return data[len(bom) :].decode(encoding, "replace")
    head = data[:_DECLARED_WITHIN]
    declared = _META_CHARSET.search(head) or _XML_CHARSET.search(head)
    for label in (charset, declared[1].decode() if declared else ""):
        named = _encoding(label)
        # A declaration that could be read as it stands is not in UTF-16, whatever it says.
        if named and not (label != charset and named.startswith("utf-16")):
            return data.decode(named, "replace")
    return data.decode("utf-8", "replace")


def visible(text: str) -> str:
    """``text`` without invisible characters, its lines ended by a line feed."""
    return _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _encoding(label: str) -> str | None:
    """Python's name of an encoding that pages use; None for any other."""
    try:
        name = codecs.lookup(label).name if label else ""
    except (LookupError, ValueError):
        return None
    name = _READ_AS.get(name, name)
    return name if name in _ENCODINGS else None
