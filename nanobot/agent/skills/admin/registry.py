"""The ClawHub HTTP API: search skills, and fetch one with the hashes of its files.

Endpoints as in ClawHub's documentation of its API, version 1: ``/api/v1/search``,
``/api/v1/skills/SLUG``, ``/api/v1/skills/SLUG/versions/VERSION`` and ``/api/v1/download``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from nanobot.agent.skills.admin.bundle import Bundle, read_archive
from nanobot.agent.skills.admin.lock import hashes
from nanobot.core.errors import NanobotError
from nanobot.core.text import one_line

PUBLIC_URL = "https://clawhub.ai"
DEADLINE_S = 60.0
"""Seconds for one request, its body included."""
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
    """A client for one command; close it with ``with``."""

    def __init__(self, url: str = PUBLIC_URL, *, deadline_s: float = DEADLINE_S) -> None:
        self.url = url.rstrip("/")
        self._deadline_s = deadline_s
        timeout = httpx.Timeout(min(20.0, deadline_s), connect=min(5.0, deadline_s))
        self._client = httpx.Client(timeout=timeout, follow_redirects=True, max_redirects=3)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

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
        if not isinstance(version, str) or not version:
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
        import json

        try:
            answer = json.loads(self._get(path, query, limit=_ANSWER_BYTES))
        except (ValueError, RecursionError) as error:
            raise RegistryError(
                f"{self.url}{path} answered with something that is no JSON"
            ) from error
        return _dict(answer)

    def _get(self, path: str, query: Mapping[str, str], *, limit: int) -> bytes:
        until = time.monotonic() + self._deadline_s
        data = bytearray()
        try:
            with self._client.stream("GET", f"{self.url}{path}", params=dict(query)) as response:
                if response.status_code != 200:
                    raise RegistryError(_refusal(self.url, response))
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > limit:
                        raise RegistryError(f"{self.url}{path} sends more than {limit} bytes")
                    if time.monotonic() > until:
                        raise RegistryError(
                            f"{self.url} was too slow: not done after {self._deadline_s:g} s"
                        )
        except httpx.TimeoutException as error:
            raise RegistryError(f"{self.url} does not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = one_line(str(error), 200) or type(error).__name__
            raise RegistryError(f"{self.url} cannot be reached: {reason}") from error
        return bytes(data)


def _refusal(url: str, response: httpx.Response) -> str:
    if response.status_code == 404:
        return f"{url} knows nothing of that name"
    after = response.headers.get("retry-after", "")
    wait = f"; try again in {one_line(after, 20)} s" if after else ""
    return f"{url} answered with status {response.status_code}{wait}"


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
