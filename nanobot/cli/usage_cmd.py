"""``nanobot usage``: tokens and costs by model, read from the state database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from nanobot.cli.context import JSON, CliContext, read_only
from nanobot.cli.show import columns, print_json, printable

if TYPE_CHECKING:
    from datetime import date

    from nanobot.session.usage import UsageLine

_HEADINGS = ("MODEL", "PROVIDER", "CALLS", "TOKENS IN", "OF THEM CACHED", "OUT", "COST")


def usage(
    context: typer.Context,
    days: int = typer.Option(7, "--days", min=1, max=36_500, help="How many, today included."),
    session: str = typer.Option(None, "--session", "-s", metavar="KEY", help="Of one session."),
    as_json: bool = JSON,
) -> None:
    """Show what the models used and cost, by model."""
    from datetime import datetime, timedelta

    first = datetime.now().astimezone().date() - timedelta(days=days - 1)
    lines = _lines(context.obj, first, session)
    if as_json:
        print_json(_document(lines, first, session))
        return
    where = f" in {session}" if session else ""
    if not lines:
        typer.echo(f"No model was asked{where} since {first}.")
        return
    for row in _table(lines):
        typer.echo(row)
    typer.echo(f"\nSince {first}{where}.")


def _lines(cli: CliContext, first: date, session: str | None) -> Sequence[UsageLine]:
    """The usage since a day, read beside the process that holds the home."""
    import sqlite3

    from nanobot.core.errors import StoreUnavailable
    from nanobot.core.messages import whole_key
    from nanobot.session.usage import lines_in

    if not cli.home.database.exists():
        return ()
    try:
        with read_only(cli) as connection:
            found = lines_in(connection, first, session)
            return found or lines_in(connection, first, session and whole_key(session))
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(f"{cli.home.database}: cannot be read: {error}") from error


def _table(lines: Sequence[UsageLine]) -> list[str]:
    from nanobot.session.usage import added_up, cost_in_words

    rows = [_HEADINGS]
    for line in lines if len(lines) == 1 else (*lines, added_up(lines)):
        rows.append(
            (
                printable(line.model) or "together",
                printable(line.provider),
                f"{line.calls:,}",
                f"{line.usage.input_tokens:,}",
                f"{line.usage.cached_tokens:,}",
                f"{line.usage.output_tokens:,}",
                cost_in_words(line),
            )
        )
    return columns(rows, right=range(2, 6))


def _document(lines: Sequence[UsageLine], first: date, session: str | None) -> dict[str, Any]:
    from nanobot.session.usage import added_up

    return {
        "since": first.isoformat(),
        "session": session,
        "total": _fields(added_up(lines)),
        "models": [
            {"model": line.model, "provider": line.provider, **_fields(line)} for line in lines
        ],
    }


def _fields(line: UsageLine) -> dict[str, Any]:
    """``costUsd`` is that of the ``pricedCalls`` alone; null where no price is known."""
    return {
        "calls": line.calls,
        "pricedCalls": line.priced,
        "inputTokens": line.usage.input_tokens,
        "cachedTokens": line.usage.cached_tokens,
        "outputTokens": line.usage.output_tokens,
        "costUsd": line.usage.cost_usd,
    }
