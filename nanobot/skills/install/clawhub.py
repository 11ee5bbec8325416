"""The ClawHub HTTP API: search skills, and fetch one with the hashes of its files.

Endpoints as in ClawHub's documentation of its API, version 1: ``/api/v1/search``,
``/api/v1/skills/SLUG``, ``/api/v1/skills/SLUG/versions/VERSION`` and ``/api/v1/download``.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from nanobot.core.errors import NanobotError
from nanobot.core.text import one_line
from nanobot.internet.addresses import AddressRules, CheckedResolver, NetworkError, parse_url
from nanobot.runtime import EventLoop
from nanobot.skills.install.bundle import Bundle, hashes, read_archive

PUBLIC_URL = "https://clawhub.ai"
DEADLINE_S = 60.0
"""Seconds for one request: redirects, headers and body together."""
_REDIRECTS = 3
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")
_ANSWER_BYTES = 4 * 1024**2
_ARCHIVE_BYTES = 32 * 1024**2
_META = "_meta.json"
"""What the registry itself puts into each archive."""


class RegistryError(NanobotError):
    """The registry could not be asked, or what it said cannot be used."""


@dataclass(frozen=True, slots=True)
class Found:
    """One result of a search."""

    slug: str
    name: str
    summary: str
    version: str


class Registry:
    """A client for one command, in a ``with`` block and outside of any event loop."""

    def __init__(self, url: str = PUBLIC_URL, *, deadline_s: float = DEADLINE_S) -> None:
        self.url = url.rstrip("/")
        self._deadline_s = deadline_s
        self._runner = asyncio.Runner(loop_factory=EventLoop)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(20.0, connect=5.0),
            # So that the size on the wire is the size in memory.
            headers={"Accept-Encoding": "identity"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._runner:
            self._runner.run(self._client.aclose())

    def search(self, query: str, limit: int = 10) -> tuple[Found, ...]:
        """Skills that fit ``query``, best first; raises RegistryError."""
        answer = self._json("/api/v1/search", {"q": query, "limit": str(limit)})
        results = answer.get("results")
        if not isinstance(results, list):
            raise RegistryError(f"{self.url} answered a search with something else")
        found = (result for result in results if isinstance(result, dict) and result.get("slug"))
        return tuple(
            Found(
                one_line(str(result["slug"]), 100),
                one_line(str(result.get("displayName") or ""), 100),
                one_line(str(result.get("summary") or ""), 300),
                one_line(str(result.get("version") or ""), 50),
            )
            for result, _ in zip(found, range(limit), strict=False)
        )

    def latest(self, slug: str) -> str:
        """The newest version of a skill; raises RegistryError, also for one that is blocked."""
        answer = self._json(f"/api/v1/skills/{quote(slug, safe='')}", {})
        moderation = answer.get("moderation")
        if isinstance(moderation, dict) and moderation.get("isMalwareBlocked"):
            raise RegistryError(f"{self.url} has blocked {slug} as malware")
        version = _dict(answer.get("latestVersion")).get("version")
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise RegistryError(f"{self.url} names no version of {slug}")
        return version

    def fetch(self, slug: str, version: str) -> Bundle:
        """The files of a version, each as the registry's hashes say; raises RegistryError."""
        where = f"/api/v1/skills/{quote(slug, safe='')}/versions/{quote(version, safe='')}"
        listed = _dict(self._json(where, {}).get("version")).get("files")
        if not isinstance(listed, list) or not listed:
            raise RegistryError(f"{self.url} lists no files of {slug} {version}")
        expected = {str(_dict(file).get("path")): _dict(file).get("sha256") for file in listed}
        data = self._get(
            "/api/v1/download", {"slug": slug, "version": version}, limit=_ARCHIVE_BYTES
        )
        bundle = {path: file for path, file in read_archive(data).items() if path != _META}
        expected.pop(_META, None)
        if hashes(bundle) != expected:
            raise RegistryError(
                f"the files of {slug} {version} are not those that {self.url} lists "
                "(wrong hash, or one too many or too few); nothing was installed"
            )
        return bundle

    def _json(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        try:
            answer = json.loads(self._get(path, query, limit=_ANSWER_BYTES))
        except (ValueError, RecursionError) as error:
            raise RegistryError(
                f"{self.url}{path} answered with something that is no JSON"
            ) from error
        return _dict(answer)

    def _get(self, path: str, query: Mapping[str, str], *, limit: int) -> bytes:
        try:
            return self._runner.run(self._got(path, query, limit))
        except (TimeoutError, httpx.TimeoutException) as error:
            raise RegistryError(
                f"{self.url} does not answer in time (at most {self._deadline_s:g} s)"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = one_line(str(error), 200) or type(error).__name__
            raise RegistryError(f"{self.url} cannot be reached: {reason}") from error

    async def _got(self, path: str, query: Mapping[str, str], limit: int) -> bytes:
        """The body, all within the deadline, however slowly the bytes trickle in."""
        request = self._client.build_request("GET", f"{self.url}{path}", params=dict(query))
        async with asyncio.timeout(self._deadline_s):
            for _ in range(_REDIRECTS + 1):
                response = await self._client.send(request, stream=True)
                try:
                    if response.next_request is None:
                        return await self._body(response, path, limit)
                    request = response.next_request
                finally:
                    await response.aclose()
                await self._check_redirect(str(request.url))
        raise RegistryError(f"{self.url} redirects more than {_REDIRECTS} times")

    async def _body(self, response: httpx.Response, path: str, limit: int) -> bytes:
        if response.status_code != 200:
            raise RegistryError(_refusal(self.url, response))
        if response.headers.get("content-encoding", "identity") != "identity":
            raise RegistryError(f"{self.url} compresses its answer although it was not asked to")
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > limit:
                raise RegistryError(f"{self.url}{path} sends more than {limit} bytes")
        return bytes(data)

    async def _check_redirect(self, target: str) -> None:
        """A registry may lead elsewhere on the net, but not inwards and not out of TLS."""
        try:
            own, url = parse_url(self.url), parse_url(target)
            if own.scheme == "https" and url.scheme != "https":
                raise RegistryError(f"{self.url} redirects to an address without TLS; refused")
            if url.host != own.host:
                await CheckedResolver(AddressRules()).addresses(url.host)
        except NetworkError as error:
            raise RegistryError(f"{self.url} redirects where it may not: {error}") from error


def _refusal(url: str, response: httpx.Response) -> str:
    if response.status_code == 404:
        return f"{url} knows nothing of that name"
    after = response.headers.get("retry-after", "")
    wait = f"; try again in {one_line(after, 20)} s" if after else ""
    return f"{url} answered with status {response.status_code}{wait}"


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
