"""What every command is given: the home and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nanobot.store.home import Home


@dataclass(frozen=True, slots=True)
class CliContext:
    """The home that ``--home`` or the environment names, and that environment."""

    home: Home
    environ: Mapping[str, str]
