"""What commands do before they run the assistant themselves: read the config, set up logs."""

from __future__ import annotations

import sys

from nanobot.cli.context import CliContext
from nanobot.config.loader import LoadedConfig, load_config


def load(cli: CliContext) -> LoadedConfig:
    """The configuration of this home; its warnings go to stderr."""
    loaded = load_config(cli.home.config_file, cli.environ)
    for warning in loaded.warnings:
        print(f"nanobot: {warning}", file=sys.stderr)
    return loaded


def set_up_logs(loaded: LoadedConfig, *, logs: bool) -> None:
    """Log lines to stderr when asked for, else nowhere."""
    from nanobot.config.masking import all_secrets
    from nanobot.logs import log_nowhere, log_to_stderr

    if logs:
        log_to_stderr(all_secrets(loaded.config))
    else:
        log_nowhere()
