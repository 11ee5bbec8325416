"""Finds an Ollama that runs on this machine, to be offered where no model is configured."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

PORT = 11434
_WAIT_S = 0.3


def address(environ: Mapping[str, str]) -> str:
    """``host:port`` of the local Ollama: ``OLLAMA_HOST``, else its usual port on loopback."""
    host, port = _where(environ)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def base(environ: Mapping[str, str]) -> str:
    """Its Chat Completions address."""
    return f"http://{address(environ)}/v1"


def running_models(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The models of the local Ollama; empty when none runs at ``address``.

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
    """Host and port, as far as ``OLLAMA_HOST`` says them; what cannot be read says nothing."""
    said = environ.get("OLLAMA_HOST", "").strip()
    try:
        parts = urlsplit(said if "//" in said else f"//{said}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    # What it listens on everywhere is reached on loopback.
    return ("127.0.0.1" if host in (None, "0.0.0.0", "::") else host), port or PORT
