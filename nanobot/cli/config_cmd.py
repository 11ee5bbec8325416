"""``nanobot config``: show, check and change the configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from nanobot.cli.context import CliContext
from nanobot.core.errors import ConfigError

config_app = typer.Typer(
    help="Show, check and change the configuration.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)

_Key = Annotated[str, typer.Argument(help="Dotted key, such as agents.defaults.model.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
_Reveal = Annotated[bool, typer.Option("--reveal", help="Print secrets as they are.")]


@config_app.command()
def path(ctx: typer.Context) -> None:
    """Print the path of the config file."""
    typer.echo(_context(ctx).home.config_file)


@config_app.command()
def show(
    ctx: typer.Context,
    all_keys: Annotated[bool, typer.Option("--all", help="Also keys that have their default.")] = (
        False
    ),
    as_json: _Json = False,
) -> None:
    """Print what is set, with secrets masked."""
    from nanobot.config.load import load_config
    from nanobot.config.show import displayed, displayed_changes

    context = _context(ctx)
    loaded = load_config(context.home.config_file, context.environ)
    _warn(loaded.warnings)
    shown = displayed(loaded.config) if all_keys else displayed_changes(loaded.config)
    typer.echo(_json(shown, indent=None if as_json else 2))


@config_app.command()
def get(ctx: typer.Context, key: _Key, reveal: _Reveal = False, as_json: _Json = False) -> None:
    """Print the value of one key."""
    from nanobot.config.keys import resolve, split
    from nanobot.config.load import load_config
    from nanobot.config.show import lookup

    context = _context(ctx)
    names = split(key)
    loaded = load_config(context.home.config_file, context.environ)
    value = lookup(loaded.config, names, reveal=reveal)
    if value is None:
        resolve(names)  # an unset key prints null, an unknown one is an error
    typer.echo(value if isinstance(value, str) and not as_json else _json(value, indent=2))


@config_app.command(name="set")
def set_(
    ctx: typer.Context,
    key: _Key,
    value: Annotated[
        str, typer.Argument(help="JSON or text; - reads it from stdin; null is the default.")
    ],
) -> None:
    """Change one key, keeping a copy of the file."""
    from nanobot.cli.config_file import set_values

    context = _context(ctx)
    raw = sys.stdin.read().strip() if value == "-" else value
    change = set_values(context.home.config_file, [(key, raw)], context.environ)
    _warn(change.warnings)
    typer.echo(f"{change.keys[0]} is set in {context.home.config_file}")
    if change.backup is not None:
        typer.echo(f"former file: {change.backup}")


@config_app.command()
def check(ctx: typer.Context, as_json: _Json = False) -> None:
    """Say whether all is valid (else exit code 2)."""
    from nanobot.config.compat import config_warnings
    from nanobot.config.load import load_config

    context = _context(ctx)
    file = context.home.config_file
    try:
        loaded = load_config(file, context.environ)
    except ConfigError as error:
        if not as_json:
            raise
        report = {"ok": False, "path": str(file), "problems": str(error).splitlines()}
        typer.echo(_json(report, indent=2))
        raise typer.Exit(2) from None
    hints = config_warnings(loaded.config)
    if as_json:
        report = {
            "ok": True,
            "path": str(file),
            "exists": loaded.exists,
            "problems": [],
            "warnings": list(loaded.warnings),
            "hints": hints,
        }
        typer.echo(_json(report, indent=2))
        return
    verdict = "is valid" if loaded.exists else "does not exist: all keys have their defaults"
    typer.echo(f"{file} {verdict}")
    for line in (*loaded.warnings, *hints):
        typer.echo(f"- {line}")


def _context(ctx: typer.Context) -> CliContext:
    context = ctx.obj
    assert isinstance(context, CliContext)
    return context


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(f"warning: {line}", err=True)


def _json(value: Any, *, indent: int | None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
