"""The web_fetch tool, and the list of the web tools."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
from collections.abc import Iterable
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Literal

from pydantic import Field

from nanobot.core.errors import ToolError
from nanobot.core.messages import Trust
from nanobot.core.text import fence, readable_size
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.internet.addresses import Network, Resolver, parse_url
from nanobot.internet.client import FetchLimits, Response, SafeClient, TLSContexts
from nanobot.internet.reading import DocumentReader, Reading, decoded, visible
from nanobot.internet.search import Brave, DuckDuckGo, SearchEngine, WebSearch

FETCHED_CHARACTERS = 20_000

_ACCEPT = "text/html,application/xhtml+xml,application/json,text/plain,text/*;q=0.9,*/*;q=0.5"
_SEARCH_LIMITS = FetchLimits(max_bytes=2_000_000, total_s=20.0)
_ERROR_BYTES = 100_000
_ERROR_CHARACTERS = 500
_LOOKED_AT = 1024
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_PDF = frozenset({"application/pdf", "application/x-pdf"})
_UNKNOWN = frozenset({"", "application/octet-stream", "binary/octet-stream", "unknown/unknown"})
_TEXT = re.compile(
    r"text/.+|application/(?:.+\+)?(?:json|xml|yaml|toml)|application/(?:x-ndjson|jsonl|x-yaml|sql"
    r"|(?:x-)?javascript|ecmascript|x-sh|x-tex|graphql|xml-dtd|x-www-form-urlencoded)"
)
_MEDIA_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,40}")
_HTML_START = re.compile(rb"\s*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)


class Kind(StrEnum):
    """How a response is read."""

    HTML = "html"
    PDF = "pdf"
    TEXT = "text"
    BINARY = "binary"


class StatusRefused(ToolError):
    """A server answered with an error status; the text quotes its answer, fenced."""

    trust = Trust.UNTRUSTED


class WebFetchArguments(ToolArguments):
    url: str = Field(min_length=1)
    extract_mode: Literal["markdown", "text"] = Field(default="markdown", alias="extractMode")
    max_chars: int = Field(default=FETCHED_CHARACTERS, ge=100, alias="maxChars")


class WebFetch(Tool[WebFetchArguments]):
    """Fetches one URL; the result is fenced and untrusted."""

    name = "web_fetch"
    description = "Fetch a URL: the text of a web page or PDF; JSON and plain text as they are."
    effect = Effect.READ
    arguments = WebFetchArguments

    def __init__(self, client: SafeClient, reader: DocumentReader) -> None:
        self._client = client
        self._reader = reader

    async def run(self, args: WebFetchArguments, context: ToolContext) -> ToolOutput:
        asked = parse_url(args.url)
        async with self._client.get(args.url, headers={"Accept": _ACCEPT}) as response:
            kind = _kind_announced(response.media_type)
            is_error = not 200 <= response.status < 300
            if kind is Kind.BINARY and not is_error:
                raise _binary(response, response.media_type, response.announced_size)
            data, is_whole = await response.read_head(_ERROR_BYTES if is_error else None)
        if is_error:
            raise StatusRefused(await self._problem(response, data))
        # Servers often call unknown files plain text.
        if kind is None or (kind is Kind.TEXT and not response.charset.startswith("utf-16")):
            found = _kind_found(data)
            kind = found if kind is None or found is Kind.BINARY else kind
        if kind is Kind.BINARY:
            raise _binary(response, "", len(data) if is_whole else None)
        reading = await self._read(kind, response, data, is_whole, args)
        status = _status(response.status)
        if response.url != asked:
            status += f", redirected from {asked}"
        text = f"Status: {status}\n\n{reading.text or '(no text; perhaps it needs scripts)'}"
        if reading.title:
            text = f"Title: {reading.title}\n{text}"
        return ToolOutput(
            fence(text, source=str(response.url)) + _remarks(reading, len(data), is_whole),
            Trust.UNTRUSTED,
        )

    async def _read(
        self, kind: Kind, response: Response, data: bytes, is_whole: bool, args: WebFetchArguments
    ) -> Reading:
        if kind is Kind.PDF:
            if not is_whole:
                raise ToolError(
                    f"The PDF document has more than {readable_size(len(data))}, the limit."
                )
            return await self._reader.pdf(data, limit=args.max_chars)
        source = await asyncio.to_thread(decoded, data, response.charset)
        if kind is Kind.HTML:
            return await self._reader.page(
                source,
                url=str(response.url),
                limit=args.max_chars,
                as_markdown=args.extract_mode == "markdown",
            )
        text = visible(source).strip()
        return Reading("", text[: args.max_chars], len(text))

    async def _problem(self, response: Response, data: bytes) -> str:
        """An error status in words, with what the server says about it."""
        problem = f"{response.url.host} answered {_status(response.status)}."
        after = response.headers.get("retry-after", "")
        if re.fullmatch(r"[0-9]{1,6}", after):
            problem += f" It asks to wait {after} s."
        kind = _kind_announced(response.media_type) or _kind_found(data)
        said = ""
        if kind is Kind.TEXT:
            said = visible(decoded(data, response.charset)).strip()
        elif kind is Kind.HTML:
            # The status says enough where its page cannot be read.
            with contextlib.suppress(ToolError):
                reading = await self._reader.page(
                    decoded(data, response.charset),
                    url=str(response.url),
                    limit=_ERROR_CHARACTERS,
                    as_markdown=False,
                )
                said = f"{reading.title}\n{reading.text}".strip()
        if not said:
            return problem
        return f"{problem}\n{fence(said[:_ERROR_CHARACTERS], source=str(response.url))}"


def web_tools(
    *,
    tls: TLSContexts,
    allow_cidrs: Iterable[Network] = (),
    brave_key: str = "",
    max_results: int = 5,
    lookup: Resolver | None = None,
) -> tuple[Tool[Any], ...]:
    """web_search, with Brave where there is a key and DuckDuckGo where not, and web_fetch."""
    allowed = tuple(allow_cidrs)
    client = SafeClient(tls=tls, allow_cidrs=allowed, lookup=lookup)
    search_client = SafeClient(tls=tls, allow_cidrs=allowed, lookup=lookup, limits=_SEARCH_LIMITS)
    engine: SearchEngine = (
        Brave(search_client, brave_key) if brave_key else DuckDuckGo(search_client)
    )
    return (
        WebSearch(engine, max_results=max_results),
        WebFetch(client, DocumentReader()),
    )


def _kind_announced(media_type: str) -> Kind | None:
    """The kind that a media type stands for; None for a type without meaning."""
    if media_type in _UNKNOWN:
        return None
    if media_type in _HTML:
        return Kind.HTML
    if media_type in _PDF:
        return Kind.PDF
    return Kind.TEXT if _TEXT.fullmatch(media_type) else Kind.BINARY


def _kind_found(data: bytes) -> Kind:
    """The kind of a response by its first bytes."""
    head = data[:_LOOKED_AT]
    if head.startswith(b"%PDF-"):
        return Kind.PDF
    if _HTML_START.match(head):
        return Kind.HTML
    is_wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return Kind.BINARY if b"\0" in head and not is_wide else Kind.TEXT


def _binary(response: Response, what: str, size: int | None) -> ToolError:
    amount = "" if size is None else f" ({readable_size(size)})"
    what = what if _MEDIA_TYPE.fullmatch(what) else "binary data"
    return ToolError(
        f"{response.url.host} answered with {what}{amount}; web_fetch reads web pages, text, "
        "JSON and PDF documents only."
    )


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _remarks(reading: Reading, size: int, is_whole: bool) -> str:
    """Remarks for the model on what the text leaves out."""
    remarks = [reading.note] if reading.note else []
    if len(reading.text) < reading.total:
        remarks.append(
            f"the first {len(reading.text):,} of {reading.total:,} characters; more with maxChars"
        )
    if not is_whole:
        remarks.append(f"of a response that was cut at {readable_size(size)}")
    return "".join(f"\n[{remark}]" for remark in remarks)
