"""``nanobot memory``: what the assistant remembers."""

from __future__ import annotations

import typer

from nanobot.cli.recall_cmd import register

memory_app = typer.Typer(
    help="Search what was said before, and look after what is remembered.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)
register(memory_app)
