"""Tests of web_search with both engines, against pages and answers in their format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nanobot.core.errors import ToolError
from nanobot.core.messages import Trust
from nanobot.core.tool import ToolOutput
from nanobot.internet.client import USER_AGENT, FetchLimits, FetchTimedOut, SafeClient
from nanobot.internet.fetch import web_tools
from nanobot.internet.search import (
    Brave,
    DuckDuckGo,
    SearchEngine,
    SearchResult,
    WebSearch,
    WebSearchArguments,
)
from tests.fakes.internet import FakeInternet, FakeNames, OneTLS
from tests.fakes.tool_turns import tool_turn
from tests.fakes.web_server import Page, WebServer, redirect

PUBLIC = "93.184.216.34"
BASE = "http://search.example"
KEY = "fake-brave-key"
BRAVE_PATH = "/res/v1/web/search"
DUCK_PATH = "/html/"


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with WebServer() as server:
        yield server


def client(web: WebServer, limits: FetchLimits = FetchLimits(total_s=20.0)) -> SafeClient:
    names = dict.fromkeys(("search.example", "elsewhere.example"), PUBLIC)
    internet = FakeInternet([PUBLIC], {80: web.port})
    return SafeClient(tls=OneTLS(), lookup=FakeNames(names), network=internet, limits=limits)


def brave(web: WebServer, **options: FetchLimits) -> Brave:
    return Brave(client(web, **options), KEY, base=BASE)


def duckduckgo(web: WebServer, **options: FetchLimits) -> DuckDuckGo:
    return DuckDuckGo(client(web, **options), base=BASE)


async def search(engine: SearchEngine, query: str = "roads & water", **options: int) -> ToolOutput:
    tool = WebSearch(engine, max_results=3)
    args = WebSearchArguments.model_validate({"query": query, **options})
    return await tool.run(args, tool_turn(Path("/nowhere")))


def content(output: ToolOutput) -> list[str]:
    """The lines between the marks."""
    first, *lines, last = output.text.split("\n")
    assert (first[:11], last[:12]) == ("<untrusted ", "</untrusted ")
    return lines


def answer(*hits: tuple[str, str, str]) -> Page:
    """Brave's answer with these results."""
    results = [
        {"type": "search_result", "title": title, "url": url, "description": text, "age": "1 day"}
        for title, url, text in hits
    ]
    body = {"type": "search", "query": {"original": "q"}, "web": {"results": results}}
    return Page(json.dumps(body).encode(), content_type="application/json")


def duck_page(*results: str, no_results: bool = False) -> Page:
    """A page of DuckDuckGo's with these results."""
    none = '<div class="no-results">No results found for <b>q</b></div>' * no_results
    return Page(
        f"""<!DOCTYPE html><html><head><title>q at DuckDuckGo</title></head><body>
        <form id="search_form" action="/html/"><input name="q" value="q"></form>
        <div class="serp__results"><div id="links" class="results">{"".join(results)}{none}</div>
        </div></body></html>""".encode()
    )


def duck_result(link: str, title: str, snippet: str, kind: str = "web-result") -> str:
    return f"""<div class="result results_links results_links_deep {kind} ">
      <div class="links_main links_deep result__body"><h2 class="result__title">
        <a rel="nofollow" class="result__a" href="{link}">{title}</a></h2>
        <div class="result__extras"><a class="result__url" href="{link}"> example.com </a></div>
        <a class="result__snippet" href="{link}">{snippet}</a></div></div>"""


# -- Brave --------------------------------------------------------------------------------------


async def test_results_of_brave_are_listed_fenced_and_untrusted(web: WebServer) -> None:
    web.pages[BRAVE_PATH] = answer(
        ("Roads &amp; <strong>water</strong>", "https://a.example/x?y=1", "All\n about <b>it</b>."),
        ("", "http://b.example/", ""),
        ("Tags\U000e0041", "https://c.example/", "x" * 1000),
    )

    output = await search(brave(web))

    assert content(output) == [
        "1. Roads & water",
        "https://a.example/x?y=1",
        "All about it.",
        "",
        "2. b.example",
        "http://b.example/",
        "",
        "3. Tags",
        "https://c.example/",
        "x" * 399 + "…",
    ]
    assert output.text.startswith("<untrusted ")
    assert 'source="Brave search"' in output.text
    assert output.trust is Trust.UNTRUSTED


async def test_brave_is_asked_with_the_key_the_query_and_the_number(web: WebServer) -> None:
    web.pages[BRAVE_PATH] = answer()

    await search(brave(web))
    await search(brave(web), count=10)

    assert [request.target for request in web.requests] == [
        f"{BRAVE_PATH}?q=roads+%26+water&count={count}&text_decorations=false" for count in (3, 10)
    ]
    assert {request.headers["x-subscription-token"] for request in web.requests} == {KEY}


async def test_the_key_does_not_follow_a_redirect_elsewhere(web: WebServer) -> None:
    web.pages[BRAVE_PATH] = redirect("http://elsewhere.example/")
    web.pages["/"] = answer()

    await search(brave(web))

    assert ["x-subscription-token" in request.headers for request in web.requests] == [True, False]


async def test_results_that_cannot_be_fetched_and_more_than_asked_for_are_left_out(
    web: WebServer,
) -> None:
    links = ("javascript:alert(1)", "https://u:p@a.example/", "https://a.example/1", "ftp://x/")
    hits = [("T", link, "") for link in (*links, "https://a.example/2", "https://a.example/3")]
    web.pages[BRAVE_PATH] = answer(*hits)

    found = await brave(web).search("q", 2)

    assert found == [
        SearchResult("T", "https://a.example/1", ""),
        SearchResult("T", "https://a.example/2", ""),
    ]


INVALID_TOKEN = b'{"error": {"code": "SUBSCRIPTION_TOKEN_INVALID", "status": 422}}'
WRONG_KEY = "Brave does not accept the key in tools.web.search.apiKey; the owner has to mend it."


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (Page(b"", 401), WRONG_KEY),
        (Page(b"", 403), WRONG_KEY),
        (Page(INVALID_TOKEN, 422), WRONG_KEY),
        (
            Page(b'{"error": {"code": "VALIDATION"}}', 422),
            "Brave does not accept this query; make it shorter and simpler.",
        ),
        (Page(b"", 429), "Brave's quota is used up. Try again later."),
        (
            Page(b"", 429, headers=(("X-RateLimit-Reset", "0, 1419704"),)),
            "Brave's quota is used up. Try again in 1 s.",
        ),
        (
            Page(b"", 429, headers=(("Retry-After", "120"),)),
            "Brave's quota is used up. Try again in 120 s.",
        ),
        (Page(b"", 503), "Brave answered with status 503; try again later."),
        (Page(b"<html>"), "Brave's answer is not what its API promises."),
        (Page(b'{"web": []}'), "Brave's answer is not what its API promises."),
    ],
)
async def test_a_refusal_of_brave_says_what_to_do(web: WebServer, page: Page, problem: str) -> None:
    web.pages[BRAVE_PATH] = page

    with pytest.raises(ToolError) as caught:
        await search(brave(web))

    assert str(caught.value) == problem
    assert KEY not in str(caught.value)


# -- DuckDuckGo ---------------------------------------------------------------------------------


async def test_results_of_duckduckgo_are_read_from_its_page_without_the_ads(
    web: WebServer,
) -> None:
    counted = "//duckduckgo.com/l/?uddg=https%3A%2F%2Fa.example%2Fx%3Fy%3D1%26z&amp;rut=0123"
    web.pages[DUCK_PATH] = duck_page(
        duck_result("//duckduckgo.com/y.js?ad_domain=ad.example", "Buy", "Ad", "result--ad"),
        duck_result(counted, "Roads &amp; <b>water</b>", "All &lt;about&gt; <b>it</b>."),
        duck_result("https://b.example/", "Plain", "A snippet"),
        duck_result("http://[", "Broken", ""),
        duck_result("javascript:alert(1)", "Script", ""),
    )

    output = await search(duckduckgo(web))

    assert content(output) == [
        "1. Roads & water",
        "https://a.example/x?y=1&z",
        "All <about> it.",
        "",
        "2. Plain",
        "https://b.example/",
        "A snippet",
    ]
    assert output.trust is Trust.UNTRUSTED


async def test_duckduckgo_is_asked_by_a_name_that_browsers_share(web: WebServer) -> None:
    web.pages[DUCK_PATH] = duck_page(no_results=True)

    await search(duckduckgo(web))

    (request,) = web.requests
    assert request.target == "/html/?q=roads+%26+water"
    assert request.headers["user-agent"] == f"Mozilla/5.0 (compatible; {USER_AGENT})"


async def test_no_more_results_are_shown_than_were_asked_for(web: WebServer) -> None:
    web.pages[DUCK_PATH] = duck_page(
        *(duck_result(f"https://a.example/{n}", f"T{n}", "S") for n in range(20))
    )

    numbers = [
        len([line for line in content(output) if line.startswith("https:")])
        for output in (
            await search(duckduckgo(web)),
            await search(duckduckgo(web), count=1),
            await search(duckduckgo(web), count=10),
        )
    ]

    assert numbers == [3, 1, 10]


ADVICE = (
    "The owner can set a Brave Search key (tools.web.search.apiKey); a page whose URL is known "
    "can be read with web_fetch."
)
ROBOT = f"DuckDuckGo takes this machine for a robot and refuses to search. {ADVICE}"
CHALLENGE = b'<div class="anomaly-modal__title">Unfortunately, bots use DuckDuckGo too.</div>'


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (Page(CHALLENGE), ROBOT),
        (Page(CHALLENGE, 202), ROBOT),
        (Page(b"", 202), ROBOT),
        (Page(b"Forbidden", 403), ROBOT),
        (Page(b"", 429), ROBOT),
        (Page(b"", 500), f"DuckDuckGo answered with status 500; try again later. {ADVICE}"),
        (
            Page(b"<p>Something new"),
            f"DuckDuckGo's page was not understood; it may have changed. {ADVICE}",
        ),
        (Page(b""), f"DuckDuckGo's page was not understood; it may have changed. {ADVICE}"),
    ],
)
async def test_a_refusal_of_duckduckgo_says_that_it_is_one(
    web: WebServer, page: Page, problem: str
) -> None:
    web.pages[DUCK_PATH] = page

    with pytest.raises(ToolError) as caught:
        await search(duckduckgo(web))

    assert str(caught.value) == problem


# -- both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "path", "page", "name"),
    [
        (brave, BRAVE_PATH, answer(), "Brave"),
        (brave, BRAVE_PATH, Page(b"{}"), "Brave"),
        (duckduckgo, DUCK_PATH, duck_page(no_results=True), "DuckDuckGo"),
    ],
)
async def test_nothing_found_is_no_error(
    web: WebServer, make: Callable[[WebServer], SearchEngine], path: str, page: Page, name: str
) -> None:
    web.pages[path] = page

    assert await search(make(web)) == ToolOutput(f"{name} finds nothing for this query.")


@pytest.mark.parametrize("make", [brave, duckduckgo])
async def test_an_engine_that_does_not_answer_is_left(
    web: WebServer, make: Callable[..., SearchEngine]
) -> None:
    web.pages |= dict.fromkeys((BRAVE_PATH, DUCK_PATH), Page(silent=True))

    with pytest.raises(FetchTimedOut):
        await search(make(web, limits=FetchLimits(total_s=0.2)))


@pytest.mark.parametrize(
    ("key", "host"), [("", "html.duckduckgo.com"), (KEY, "api.search.brave.com")]
)
async def test_brave_is_asked_where_there_is_a_key_and_duckduckgo_where_not(
    key: str, host: str
) -> None:
    names = FakeNames()
    tool, _ = web_tools(tls=OneTLS(), brave_key=key, lookup=names)

    with pytest.raises(ToolError, match=f"There is no host {host}"):
        await tool.run(WebSearchArguments(query="q"), tool_turn(Path("/nowhere")))

    assert names.asked == [host]
