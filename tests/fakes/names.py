"""A name server that never answers for some names, put into a process as its ``sitecustomize``."""

from __future__ import annotations

import os
from pathlib import Path

SILENT = "silent.example"
"""A host whose look-up never ends."""

_CODE = f"""
import socket, threading

_ask = socket.getaddrinfo

def getaddrinfo(host, *arguments, **options):
    if host in ({SILENT!r}, "html.duckduckgo.com", "api.search.brave.com"):
        threading.Event().wait()
    return _ask(host, *arguments, **options)

socket.getaddrinfo = getaddrinfo
"""


def silent_names(folder: Path) -> dict[str, str]:
    """The environment of a process for which ``SILENT`` and the search engines never resolve."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_CODE, encoding="utf-8")
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{before}" if before else str(folder)}
