"""GC tuning for start-up and exit."""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_STARTING = 200_000
"""Allocations between two collections; starting a command makes about as many."""


def starting() -> None:
    """Collect seldom: collections took a fifth of a short command's time."""
    gc.set_threshold(_STARTING)


def started() -> None:
    """Collect as usual from now on, except for the objects that exist already."""
    gc.freeze()
    gc.set_threshold(*_USUAL)


def ending() -> None:
    """Skip the collection at the end of the process."""
    gc.freeze()
