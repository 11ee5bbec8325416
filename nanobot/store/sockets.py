"""A name for a Unix socket that fits into the system's limit, however deep its directory is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_NAME = 100
"""Bytes of a socket's path that every system takes (Linux 107, BSD and macOS 103)."""


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """``path``, or while the block lasts a shorter name of the same place, to bind or connect to.

    The shorter one leads through a link in a private temporary directory.
    """
    if len(os.fsencode(path)) <= LONGEST_NAME:
        yield str(path)
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="nanobot-") as folder:
        link = Path(folder, "run")
        link.symlink_to(path.parent.absolute(), target_is_directory=True)
        yield str(link / path.name)
