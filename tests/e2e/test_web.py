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

PAGE = b"<html><body><article><h1>News</h1><p>It rains in town.</p></article></body></html>"


class _Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

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
