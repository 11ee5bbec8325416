"""``nanobot gateway``: the daemon."""

from __future__ import annotations

import typer

from nanobot.cli.context import CliContext


def gateway(
    context: typer.Context,
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log more."),
) -> None:
    """Serve the channels until SIGTERM."""
    from nanobot.cli.gateway_run import run

    cli: CliContext = context.obj
    run(cli, verbose=verbose)
