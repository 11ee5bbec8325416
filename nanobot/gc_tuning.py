"""GC tuning for start-up and exit."""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_STARTING = 200_000
"""Objects made between two looks; a command that starts makes about as many."""


def starting() -> None:
    """Look seldom: the looks took a fifth of a short command's time."""
    gc.set_threshold(_STARTING)


def started() -> None:
    """Look as usual from now on, but not at what is there already: it stays."""
    gc.freeze()
    gc.set_threshold(*_USUAL)


def ending() -> None:
    """Leave what there is to the end of the process, unsearched."""
    gc.freeze()
