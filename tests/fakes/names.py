"""Name servers that fail, put into a process as its ``sitecustomize``."""

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


_NOTING = """
import pathlib, socket

_ask = socket.getaddrinfo

def getaddrinfo(host, *arguments, **options):
    if host in ("127.0.0.1", "localhost"):
        return _ask(host, *arguments, **options)
    with pathlib.Path(__file__).with_name("asked").open("a") as asked:
        print(host, file=asked)
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

socket.getaddrinfo = getaddrinfo
"""


def noted_names(folder: Path) -> dict[str, str]:
    """The environment of a process that can look up no name; it notes them in ``folder/asked``."""
    return _site(folder, _NOTING)


def silent_names(folder: Path) -> dict[str, str]:
    """The environment of a process for which ``SILENT`` and the search engines never resolve."""
    return _site(folder, _CODE)


def _site(folder: Path, code: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{before}" if before else str(folder)}
