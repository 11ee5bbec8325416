"""The web_search tool with two engines: Brave's API (needs a key) and DuckDuckGo's page."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from pydantic import BaseModel, Field, StringConstraints, ValidationError
from pydantic.json_schema import SkipJsonSchema

from nanobot.core.errors import ToolError
from nanobot.core.messages import Trust
from nanobot.core.text import fence, one_line
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.internet.addresses import UrlRefused, parse_url
from nanobot.internet.client import USER_AGENT, Response, SafeClient
from nanobot.internet.reading import decoded, visible

MOST_RESULTS = 10
LONGEST_QUERY = 400

_TITLE = 200
_SNIPPET = 400
_EMPHASIS = re.compile(r"</?(?:strong|b|em|i|mark)>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One hit: plain text, and an http or https URL."""

    title: str
    url: str
    snippet: str


class SearchEngine(Protocol):
    """A search engine; ``search`` raises ToolError when it cannot be used."""

    name: str

    async def search(self, query: str, count: int) -> Sequence[SearchResult]: ...


def _as_standard(schema: dict[str, Any]) -> None:
    """Name the bounds of an optional number as JSON Schema does; pydantic does not."""
    del schema["default"]
    schema["minimum"] = schema.pop("ge")
    schema["maximum"] = schema.pop("le")


class WebSearchArguments(ToolArguments):
    query: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_QUERY)
    ]
    count: int | SkipJsonSchema[None] = Field(
        default=None, ge=1, le=MOST_RESULTS, json_schema_extra=_as_standard
    )


class WebSearch(Tool[WebSearchArguments]):
    """Searches the web with one engine."""

    name = "web_search"
    description = "Search the web: titles, URLs and snippets. Read a result with web_fetch."
    effect = Effect.READ
    arguments = WebSearchArguments

    def __init__(self, engine: SearchEngine, *, max_results: int = 5) -> None:
        """``max_results``: how many where the model names no number."""
        self._engine = engine
        self._max_results = max_results

    async def run(self, args: WebSearchArguments, context: ToolContext) -> ToolOutput:
        count = args.count or self._max_results
        results = (await self._engine.search(args.query, count))[:count]
        if not results:
            return ToolOutput(f"{self._engine.name} finds nothing for this query.")
        text = "\n\n".join(
            f"{number}. {result.title}\n{result.url}" + f"\n{result.snippet}" * bool(result.snippet)
            for number, result in enumerate(results, 1)
        )
        return ToolOutput(fence(text, source=f"{self._engine.name} search"), Trust.UNTRUSTED)


class _BraveHit(BaseModel):
    title: str = ""
    url: str
    description: str = ""


class _BraveHits(BaseModel):
    results: list[_BraveHit] = []


class _BraveAnswer(BaseModel):
    """The part of Brave's answer that is used (``web.results``)."""

    web: _BraveHits = _BraveHits()


class Brave:
    """Brave Search's Web Search API, version 1."""

    name = "Brave"

    def __init__(
        self, client: SafeClient, key: str, *, base: str = "https://api.search.brave.com"
    ) -> None:
        self._client = client
        self._key = key
        self._base = base

    async def search(self, query: str, count: int) -> Sequence[SearchResult]:
        """At most ``count`` results; raises ToolError."""
        asked = urlencode({"q": query, "count": count, "text_decorations": "false"})
        async with self._client.get(
            f"{self._base}/res/v1/web/search?{asked}",
            headers={"Accept": "application/json", "X-Subscription-Token": self._key},
        ) as response:
            data = await response.read()
        if response.status != 200:
            raise _brave_problem(response, data)
        try:
            answer = _BraveAnswer.model_validate_json(data)
        except ValidationError as error:
            raise ToolError("Brave's answer is not what its API promises.") from error
        hits = (
            (_unmarked(hit.title), hit.url, _unmarked(hit.description))
            for hit in answer.web.results
        )
        return list(_presentable(hits))[:count]


class DuckDuckGo:
    """DuckDuckGo's page for browsers without scripts; needs no key, but may refuse robots."""

    name = "DuckDuckGo"

    def __init__(self, client: SafeClient, *, base: str = "https://html.duckduckgo.com") -> None:
        self._client = client
        self._base = base

    async def search(self, query: str, count: int) -> Sequence[SearchResult]:
        """At most ``count`` results; raises ToolError."""
        url = f"{self._base}/html/?{urlencode({'q': query})}"
        # DuckDuckGo refuses names that no browser has.
        headers = {"Accept": "text/html", "User-Agent": f"Mozilla/5.0 (compatible; {USER_AGENT})"}
        async with self._client.get(url, headers=headers) as response:
            data = await response.read()
        if response.status != 200 or b"anomaly-modal" in data or b"challenge-form" in data:
            if response.status in {200, 202, 403, 418, 429}:
                problem = "takes this machine for a robot and refuses to search."
            else:
                problem = f"answered with status {response.status}; try again later."
            raise ToolError(f"DuckDuckGo {problem} {_ADVICE}")
        hits = await asyncio.to_thread(_hits_in, decoded(data, response.charset), url)
        if hits is None:
            raise ToolError(f"DuckDuckGo's page was not understood; it may have changed. {_ADVICE}")
        return list(_presentable(hits))[:count]


_ADVICE = (
    "The owner can set a Brave Search key (tools.web.search.apiKey); a page whose URL is known "
    "can be read with web_fetch."
)


def _brave_problem(response: Response, data: bytes) -> ToolError:
    # A wrong token is 422 with this code, a missing or expired one 401 or 403.
    if response.status in {401, 403} or b"SUBSCRIPTION_TOKEN" in data:
        return ToolError(
            "Brave does not accept the key in tools.web.search.apiKey; the owner has to mend it."
        )
    if response.status == 429:
        reset = response.headers.get("retry-after") or response.headers.get("x-ratelimit-reset", "")
        # "1, 86400": until the next second's quota and the next month's.
        seconds = re.match(r"\s*([0-9]{1,7})\s*(?:,|$)", reset)
        wait = f" Try again in {max(int(seconds[1]), 1)} s." if seconds else " Try again later."
        return ToolError(f"Brave's quota is used up.{wait}")
    if response.status == 422:
        return ToolError("Brave does not accept this query; make it shorter and simpler.")
    return ToolError(f"Brave answered with status {response.status}; try again later.")


def _hits_in(source: str, url: str) -> list[tuple[str, str, str]] | None:
    """(title, URL, snippet) of each result on DuckDuckGo's page; None if it is some other page."""
    from lxml import etree  # type: ignore[import-untyped]
    from lxml import html as lxml_html

    try:
        parser = lxml_html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
        page = lxml_html.document_fromstring(source.encode("utf-8", "replace"), parser=parser)
    except etree.ParserError:
        return None
    hits = []
    for result in page.find_class("result"):
        titles = result.find_class("result__a")
        if "result--ad" in result.get("class").split() or not titles:
            continue
        snippets = result.find_class("result__snippet")
        hits.append(
            (
                titles[0].text_content(),
                _target(url, titles[0].get("href", "")),
                snippets[0].text_content() if snippets else "",
            )
        )
    if not hits and not page.find_class("no-results") and not page.find_class("result--no-result"):
        return None
    return hits


def _target(page_url: str, link: str) -> str:
    """The URL of a result, which DuckDuckGo's links hold as a parameter of its counter."""
    try:
        whole = urljoin(page_url, link)
        parts = urlsplit(whole)
        inside = parse_qs(parts.query).get("uddg") if parts.path == "/l/" else None
    except ValueError:
        return ""
    return inside[0] if inside else whole


def _presentable(hits: Iterable[tuple[str, str, str]]) -> Iterator[SearchResult]:
    """Results whose URL can be fetched, their texts plain and short."""
    for title, link, snippet in hits:
        with contextlib.suppress(UrlRefused):
            url = parse_url(link)
            yield SearchResult(
                _plain(title, _TITLE) or url.host, str(url), _plain(snippet, _SNIPPET)
            )


def _plain(text: str, limit: int) -> str:
    return one_line(visible(text), limit)


def _unmarked(text: str) -> str:
    """The plain text of a piece of HTML that knows emphasis only."""
    return html.unescape(_EMPHASIS.sub("", text))
