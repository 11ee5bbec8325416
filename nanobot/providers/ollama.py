"""Finds an Ollama that runs on this machine, to be offered where no model is configured."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

DEFAULT = "http://127.0.0.1:11434"
_WAIT_S = 0.3


def running_models(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The models of the local Ollama (``OLLAMA_HOST`` or its usual port); empty when none runs.

    Follows Ollama's API: ``GET /api/tags`` lists what is installed. Blocks for at most a moment.
    """
    address = environ.get("OLLAMA_HOST") or DEFAULT
    parts = urlsplit(address if "//" in address else f"http://{address}")
    host = "127.0.0.1" if parts.hostname in (None, "0.0.0.0") else parts.hostname
    try:
        connection = http.client.HTTPConnection(host, parts.port or 11434, timeout=_WAIT_S)
        try:
            connection.request("GET", "/api/tags")
            listed = json.loads(connection.getresponse().read(1_000_000))
        finally:
            connection.close()
        return tuple(model["name"] for model in listed["models"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ()
