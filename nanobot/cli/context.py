"""What every command is given, and the exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nanobot.store.home import Home

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_PROVIDER = 4
EXIT_NO_GATEWAY = 5
EXIT_TIME_OUT = 124
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class CliContext:
    """The home that ``--home`` or the environment names, and that environment."""

    home: Home
    environ: Mapping[str, str]
