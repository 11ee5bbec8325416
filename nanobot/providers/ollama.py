"""Ollama: discovery of a local server, and the adapter, which asks for a model's context."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from nanobot.providers.failures import ConnectionBroke
from nanobot.providers.openai import OpenAIChat

PORT = 11434
_WAIT_S = 0.3


def address(environ: Mapping[str, str]) -> str:
    """``host:port`` of the local Ollama: ``OLLAMA_HOST``, else its usual port on loopback."""
    host, port = _where(environ)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def base(environ: Mapping[str, str]) -> str:
    """The Chat Completions address of the local Ollama."""
    return f"http://{address(environ)}/v1"


def running_models(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The models of the local Ollama; empty if none runs at ``address``.

    Follows Ollama's API: ``GET /api/tags`` lists what is installed. Blocks for at most a moment.
    """
    try:
        connection = http.client.HTTPConnection(*_where(environ), timeout=_WAIT_S)
        try:
            connection.request("GET", "/api/tags")
            listed = json.loads(connection.getresponse().read(1_000_000))
        finally:
            connection.close()
        return tuple(model["name"] for model in listed["models"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ()


def _where(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of ``OLLAMA_HOST``, with the defaults for a missing or malformed part."""
    said = environ.get("OLLAMA_HOST", "").strip()
    try:
        parts = urlsplit(said if "//" in said else f"//{said}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    # A server on all interfaces is reached on loopback.
    return ("127.0.0.1" if host in (None, "0.0.0.0", "::") else host), port or PORT


_USUAL_CONTEXT = 4096
_ASK_S = 5.0
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)


def is_ollama(name: str, base_url: str) -> bool:
    """Whether a provider is Ollama, by its name or the port of its address."""
    return name == "ollama" or urlsplit(base_url).port == PORT


class OllamaChat(OpenAIChat):
    """The adapter of one server.

    Ollama fixes a model's context when it loads the model, and cuts longer requests silently.
    """

    async def context(self, model: str, *, usual: str, load: bool) -> int | None:
        """The context of ``model`` in tokens; None if the server does not report it.

        Follows Ollama's API: ``/api/ps`` lists loaded models, ``/api/show`` a model's own
        parameters. If neither has it, ``load`` makes the server load the model, which fixes it.
        ``usual``: ``OLLAMA_CONTEXT_LENGTH`` or "", for servers too old to report it.
        """
        try:
            if (running := await self._running(model)) is not None:
                return running
            shown = await self._reply("POST", "/api/show", {"model": model})
            facts = shown["model_info"].items()
            trained: list[int] = [value for key, value in facts if key.endswith(".context_length")]
            if own := _NUM_CTX.search(shown.get("parameters", "")):
                return min(int(own[1]), *trained)
            if not load:
                return None
            await self._reply("POST", "/api/generate", {"model": model}, self._total_timeout_s)
            return await self._running(model) or min(int(usual or _USUAL_CONTEXT), *trained)
        except (ConnectionBroke, TimeoutError, ValueError, KeyError, TypeError, AttributeError):
            return None  # no Ollama, or a fault that the request itself will show

    async def _running(self, model: str) -> int | None:
        """The context of a loaded model; None if it is not loaded or not reported."""
        full_name = model if ":" in model else f"{model}:latest"
        loaded = (await self._reply("GET", "/api/ps"))["models"]
        lengths: Iterator[int | None] = (
            one.get("context_length") for one in loaded if one["model"] == full_name
        )
        return next((length for length in lengths if length), None)

    async def _reply(
        self, method: str, path: str, body: Any = None, wait_s: float = _ASK_S
    ) -> dict[str, Any]:
        """The JSON document that the server answers; raises ValueError for an error status."""
        content = b"" if body is None else json.dumps(body).encode()
        url = urljoin(self._endpoint.url, path)
        async with (
            asyncio.timeout(wait_s),
            self._connections.send(method, url, self._all_headers, content) as response,
        ):
            if not response.is_success:
                raise ValueError(f"{path}: {response.status_code}")
            reply: dict[str, Any] = json.loads(await response.aread())
        return reply
