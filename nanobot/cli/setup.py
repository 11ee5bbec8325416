"""What commands do before they run the assistant themselves: read the config, set up logs."""

from __future__ import annotations

import contextlib
import sys

from nanobot.cli.context import CliContext
from nanobot.config.load import LoadedConfig, load_config


def load(cli: CliContext, *, again: bool = False) -> LoadedConfig:
    """The configuration of this home; its warnings go to stderr, once as long as nothing changes.

    ``again``: they are shown also where they were shown before.
    """
    loaded = load_config(cli.home.config_file, cli.environ)
    if not loaded.warnings or (_is_said_before(cli, loaded) and not again):
        return loaded
    for warning in loaded.warnings:
        print(f"nanobot: {warning}", file=sys.stderr)
    return loaded


def _is_said_before(cli: CliContext, loaded: LoadedConfig) -> bool:
    """Whether these warnings of this file were shown; from now on they were."""
    import hashlib

    said = cli.home.cache / "config-warnings"
    words = hashlib.sha256("\n".join(loaded.warnings).encode())
    with contextlib.suppress(OSError):
        words.update(loaded.path.read_bytes())
        if said.exists() and said.read_bytes() == words.digest():
            return True
        cli.home.private(cli.home.cache)
        said.write_bytes(words.digest())
    return False


def say(notice: str) -> None:
    """Tell the owner what opening the home did, if anything."""
    if notice:
        print(f"nanobot: {notice}", file=sys.stderr)


def set_up_logs(loaded: LoadedConfig, *, logs: bool) -> None:
    """Log lines to stderr when asked for, else nowhere."""
    from nanobot.config.show import all_secrets
    from nanobot.logs import log_nowhere, log_to_stderr

    if logs:
        log_to_stderr(all_secrets(loaded.config))
    else:
        log_nowhere()
