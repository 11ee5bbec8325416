"""Fetching a page as the installed program does it: fenced, untrusted, and never inwards."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.e2e.conftest import Nanobot, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer
from tests.fakes.names import noted_names

PAGE = "<html><body><article><h1>News</h1><p>It rains in town.</p></article></body></html>"
LONG = "The council met on Tuesday, and it talked about roads, and about water. " * 12
NAV = '<nav><ul><li><a href="/">Home</a></li><li><a href="/shop">Shop</a></li></ul></nav>'
COOKIES = '<div class="cookie-banner"><p>We use cookies to show you what you may like.</p></div>'
ASIDE = "<aside><h3>Most read</h3><p>Subscribe to our letter, it comes each day.</p></aside>"
FOOTER = "<footer><p>© The Daily. All rights reserved.</p></footer>"
CHROME = ("Home", "Shop", "cookies", "Most read", "Subscribe", "rights reserved")
FACTS = ("The mayor resigned.", "Nobody was hurt.", "The vote is on May 3.")
SHORT = "".join(f"<p>{fact}</p>" for fact in FACTS)
PAGES = {
    "article": (
        f"{COOKIES}{NAV}<main><h1>Roads</h1><p>{FACTS[0]}</p><p>{LONG}</p>{SHORT}</main>{ASIDE}",
        ("# Roads", LONG.strip(), *FACTS),
    ),
    "plain": (
        f'{NAV}{COOKIES}<div id="content"><h1>Roads</h1><p>{LONG}</p>{SHORT}</div>{ASIDE}{FOOTER}',
        ("# Roads", *FACTS),
    ),
    "bare": (f"<h1>Roads</h1><p>{LONG}</p>{SHORT}", ("# Roads", *FACTS)),
    "rows": (
        f"{NAV}<div><div><h2>One</h2><p>{LONG}</p></div><div><h2>Two</h2>{SHORT}</div></div>"
        f"{FOOTER}",
        ("## One", "## Two", *FACTS),
    ),
    "docs": (
        f"<header>{NAV}</header>{ASIDE}<main><nav><a href='/'>Shop</a></nav><article><h1>Install"
        f"</h1><p>Run this:</p><pre>pip install it</pre><p>{LONG}</p><h2>Options</h2><table><tr>"
        "<th>Name</th><th>Default</th></tr><tr><td>a</td><td>1</td></tr></table><aside><p>Needs "
        f"Python 3.11.</p></aside></article></main>{FOOTER}",
        ("# Install", "Run this:", "pip install it", "## Options", "| a | 1 |", "Needs Python"),
    ),
    "trailing": (
        f"{NAV}<article><h1>Roads</h1><p>{LONG}</p><p>Who voted:</p><ul><li>Ann</li><li>Bob</li>"
        f"</ul><table><tr><td>May 3</td><td>Vote</td></tr></table></article>{FOOTER}",
        ("Who voted:", "- Ann", "- Bob", "| May 3 | Vote |"),
    ),
    "faq": (
        f"{NAV}<main><h1>Questions</h1><details><summary>How long?</summary><p>Two days.</p>"
        f"</details><details><summary>How much?</summary><p>{LONG}</p></details><details><summary>"
        f"Can I return it?</summary><p>Within 14 days.</p></details></main>{FOOTER}",
        ("How long?", "Two days.", "Can I return it?", "Within 14 days."),
    ),
    "forum": (
        f"{NAV}<div><article><p>How do I mend it?</p></article><article><p>{LONG}</p></article>"
        f"<article><p>Thanks, that was it.</p></article></div>{FOOTER}",
        ("How do I mend it?", "Thanks, that was it."),
    ),
}


class _Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        page = (f"<html><body>{PAGES[name][0]}</body></html>" if name in PAGES else PAGE).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *arguments: object) -> None:
        """Nothing: the test's own output is enough."""


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/news"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_is_fenced_and_its_turn_untrusted(
    nanobot: Nanobot, model: ModelServer, site: str
) -> None:
    config = model_config(model.url)
    config["tools"] = {"web": {"allowCidrs": ["127.0.0.0/8"]}}
    nanobot.configure(config)
    model.script(Reply.tool_calls([("web_fetch", {"url": site})]), Reply.text("It rains."))

    done = nanobot.run("agent", "-m", "what is new?")

    (page,) = model.requests[1].tool_results
    with sqlite3.connect(nanobot.home / "state.db") as log:
        trust = log.execute("SELECT kind, trust FROM log ORDER BY seq").fetchall()
    log.close()
    assert done.stdout == "It rains.\n"
    assert "It rains in town." in page
    assert "<untrusted " in page
    assert f'source="{site}"' in page
    assert trust == [
        ("user", "trusted"),
        ("assistant", "trusted"),
        ("tool", "untrusted"),
        ("assistant", "untrusted"),
    ]


def test_all_that_a_page_says_is_read_and_nothing_of_what_is_round_it(
    nanobot: Nanobot, model: ModelServer, site: str
) -> None:
    config = model_config(model.url)
    config["tools"] = {"web": {"allowCidrs": ["127.0.0.0/8"]}}
    nanobot.configure(config)
    fetches = [("web_fetch", {"url": f"{site}/{name}"}) for name in PAGES]
    model.script(Reply.tool_calls(fetches), Reply.text("I have read them."))

    nanobot.run("agent", "-m", "what is new?")

    read = dict(zip(PAGES, model.requests[1].tool_results, strict=True))
    missing = {name: [fact for fact in PAGES[name][1] if fact not in read[name]] for name in PAGES}
    chrome = {name: [word for word in CHROME if word in read[name]] for name in PAGES}
    assert (missing, chrome) == ({name: [] for name in PAGES}, {name: [] for name in PAGES})
    beside = len("We use cookies to show you what you may like.".replace(" ", ""))
    said = [name for name in PAGES if f"[{beside} characters beside the main" in read[name]]
    assert said == ["article", "plain"]


def test_this_machine_is_not_fetched_from(nanobot: Nanobot, model: ModelServer, site: str) -> None:
    nanobot.use_model(model)
    model.script(Reply.tool_calls([("web_fetch", {"url": site})]), Reply.text("I may not."))

    nanobot.run("agent", "-m", "what is new?")

    (refused,) = model.requests[1].tool_results
    assert "It rains" not in refused
    assert "127.0.0.1" in refused


@pytest.mark.parametrize("configured", [True, False])
def test_a_key_of_brave_search_may_come_from_the_environment(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path, configured: bool
) -> None:
    config = model_config(model.url)
    key = "fake-brave-key-0000"
    if configured:
        config["tools"] = {"web": {"search": {"apiKey": key}}}
    else:
        nanobot.environ["BRAVE_API_KEY"] = key
    nanobot.configure(config)
    nanobot.environ |= noted_names(tmp_path / "site")
    model.script(Reply.tool_calls([("web_search", {"query": "news"})]), Reply.text("None."))

    nanobot.run("agent", "-m", "what is new?")

    asked = (tmp_path / "site" / "asked").read_text("utf-8").splitlines()
    assert set(asked) == {"api.search.brave.com"}
