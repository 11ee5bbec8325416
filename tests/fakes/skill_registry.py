"""A registry of skills on 127.0.0.1 that speaks ClawHub's API, and misbehaves as it is told."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

Files = Mapping[str, str]


@dataclass(slots=True)
class SkillRegistry:
    """What it offers, by slug and version; ``archives`` are sent instead of honest ones."""

    skills: dict[str, dict[str, Files]] = field(default_factory=dict)
    archives: dict[str, bytes] = field(default_factory=dict)
    wrong_hash: bool = False
    status: int = 200
    hold: threading.Event | None = None
    """While set and not released, nothing is answered."""
    latest: dict[str, object] | None = None
    """Said of every skill instead of the truth."""
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, target: str) -> tuple[int, bytes]:
        """Status and body for a GET of ``target``."""
        self.asked.append(target)
        if self.hold is not None:
            self.hold.wait(30)
        if self.status != 200:
            return self.status, b"not now"
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = parts.path.removeprefix("/api/v1/").split("/")
        match path:
            case ["search"]:
                found = [slug for slug in self.skills if query["q"] in slug]
                results = [{"slug": slug, "version": max(self.skills[slug])} for slug in found]
                return _json({"results": results[: int(query["limit"])]})
            case ["skills", _] if self.latest is not None:
                return _json(self.latest)
            case ["skills", slug] if slug in self.skills:
                return _json({"latestVersion": {"version": max(self.skills[slug])}})
            case ["skills", slug, "versions", version] if slug in self.skills:
                return _json({"version": {"files": self._listed(slug, version)}})
            case ["download"]:
                slug = query["slug"]
                data = self.archives.get(slug) or zipped(self.skills[slug][query["version"]])
                return 200, data
        return 404, b"unknown"

    def _listed(self, slug: str, version: str) -> list[dict[str, str]]:
        return [
            {
                "path": path,
                "sha256": "0" * 64
                if self.wrong_hash
                else hashlib.sha256(text.encode()).hexdigest(),
            }
            for path, text in self.skills[slug][version].items()
        ]


def zipped(files: Files) -> bytes:
    """A zip as the registry makes it, its own _meta.json included."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in {**files, "_meta.json": "{}"}.items():
            archive.writestr(path, text)
    return data.getvalue()


@contextmanager
def serving(registry: SkillRegistry) -> Iterator[SkillRegistry]:
    """Serve ``registry`` in a thread; its ``url`` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that went away is no event."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        if registry.hold is not None:
            registry.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _json(value: object) -> tuple[int, bytes]:
    return 200, json.dumps(value).encode()
