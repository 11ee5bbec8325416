"""What all commands share: context, groups and options, exit codes, loading of the config."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from nanobot.store.home import Home

if TYPE_CHECKING:
    import sqlite3
    from contextlib import AbstractContextManager

    from nanobot.cli.talk import Request
    from nanobot.config.load import LoadedConfig

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_PROVIDER = 4
EXIT_NO_GATEWAY = 5
EXIT_TIME_OUT = 124
EXIT_INTERRUPTED = 130

JSON = typer.Option(False, "--json", help="Print it as JSON.")


@dataclass(frozen=True, slots=True)
class CliContext:
    """The home that ``--home`` or the environment names, and that environment."""

    home: Home
    environ: Mapping[str, str]


def group(text: str) -> typer.Typer:
    """A group of commands, with this help text."""
    return typer.Typer(
        help=text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        add_completion=False,
    )


def admin(cli: CliContext) -> AbstractContextManager[Request]:
    """Requests about memory and sessions, as ``nanobot.admin`` answers them."""
    from nanobot.cli.talk import open_requests, own_app

    return open_requests(
        cli, "admin", lambda cli: own_app(cli, "admin", lasting=False), purpose="memory command"
    )


def load(cli: CliContext, *, again: bool = False) -> LoadedConfig:
    """Read the config; its warnings go to stderr, once for as long as the file stays the same.

    ``again``: show warnings that were shown before, too.
    """
    from nanobot.config.load import load_config

    loaded = load_config(cli.home.config_file, cli.environ)
    if loaded.warnings and (not _were_shown(cli, loaded) or again):
        for warning in loaded.warnings:
            print(f"nanobot: {warning}", file=sys.stderr)
    return loaded


def _were_shown(cli: CliContext, loaded: LoadedConfig) -> bool:
    """Whether these warnings about this file were shown; records them as shown."""
    import hashlib

    shown = cli.home.cache / "config-warnings"
    digest = hashlib.sha256("\n".join(loaded.warnings).encode())
    with contextlib.suppress(OSError):
        digest.update(loaded.path.read_bytes())
        if shown.exists() and shown.read_bytes() == digest.digest():
            return True
        cli.home.private(cli.home.cache)
        shown.write_bytes(digest.digest())
    return False


def read_only(cli: CliContext) -> AbstractContextManager[sqlite3.Connection]:
    """A read-only connection to the state database, which must exist; safe beside its writer."""
    import sqlite3

    return contextlib.closing(sqlite3.connect(f"{cli.home.database.as_uri()}?mode=ro", uri=True))


def say(notice: str) -> None:
    """Print what opening the home did, if its owner should know."""
    if notice:
        print(f"nanobot: {notice}", file=sys.stderr)


def set_up_logs(loaded: LoadedConfig, *, logs: bool) -> None:
    """Send log lines to stderr if ``logs``, else nowhere."""
    from nanobot.config.show import all_secrets
    from nanobot.logs import log_nowhere, log_to_stderr

    if logs:
        log_to_stderr(all_secrets(loaded.config))
    else:
        log_nowhere()
