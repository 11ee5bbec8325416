"""``nanobot bus``: messages that could not be handled or delivered, and what to do with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import typer

from nanobot.cli.context import EXIT_FAILURE, JSON, CliContext, group
from nanobot.cli.show import clean, local_time, print_json

if TYPE_CHECKING:
    from nanobot.channels.console import RequestHandler
    from nanobot.cli.talk import Request

bus_app = group("Show, retry or drop messages that could not be handled or delivered.")
_NAMES = typer.Argument(None, metavar="NAME…", help="As `list` shows them, such as in-12.")
_ALL = typer.Option(False, "--all", help="All dead letters.")


@bus_app.command(name="list")
def list_dead_letters(context: typer.Context, as_json: bool = JSON) -> None:
    """Show what waits, and the dead letters: what will not be tried again by itself."""
    with _requests(context.obj) as request:
        answer = request(do="list")
    if as_json:
        print_json(answer)
        return
    for letter in answer["dead"]:
        where = letter["session"] or letter["channel"]
        text = f" “{clean(letter['text'], 200)}”" if letter["text"] else ""
        typer.echo(
            f"{letter['name']}  {local_time(letter['at'])}  {clean(where, 200)}{text}: "
            f"{clean(letter['error'], 200)}"
        )
    waiting = answer["waiting"]
    typer.echo(
        f"{waiting['inbox']} messages wait to be answered, {waiting['outbox']} to be delivered, "
        f"{len(answer['dead'])} dead letters"
    )


@bus_app.command()
def retry(
    context: typer.Context,
    names: list[str] = _NAMES,
    everything: bool = _ALL,
    as_json: bool = JSON,
) -> None:
    """Try dead letters again, with all their attempts."""
    _change(context.obj, "retry", names, everything, as_json)


@bus_app.command()
def drop(
    context: typer.Context,
    names: list[str] = _NAMES,
    everything: bool = _ALL,
    as_json: bool = JSON,
) -> None:
    """Forget dead letters."""
    _change(context.obj, "drop", names, everything, as_json)


def _change(
    cli: CliContext, what: str, names: list[str] | None, everything: bool, as_json: bool
) -> None:
    from nanobot.bus.dead_letters import ALL

    if bool(names) == everything:
        raise typer.BadParameter("name the letters as `nanobot bus list` shows them, or say --all")
    with _requests(cli) as request:
        answer = request(do=what, names=[ALL] if everything else names)
    if as_json:
        print_json(answer)
    else:
        done = "is tried again" if what == "retry" else "is dropped"
        for name in answer["changed"]:
            typer.echo(f"{name} {done}")
        for name, reason in answer["refused"].items():
            typer.echo(f"nanobot: {clean(name, 200)}: {reason}", err=True)
    if answer["refused"]:
        raise typer.Exit(EXIT_FAILURE)


def _requests(cli: CliContext) -> AbstractContextManager[Request]:
    from nanobot.cli.talk import open_requests

    return open_requests(cli, "dead_letters", _own_bus, purpose="bus command")


@asynccontextmanager
async def _own_bus(cli: CliContext) -> AsyncIterator[RequestHandler]:
    """The bus alone: dead letters can be seen to while the config is invalid."""
    from contextlib import closing

    from nanobot.app import now
    from nanobot.bus.bus import MessageBus
    from nanobot.store.database import Database

    with closing(Database(cli.home.database)) as database:
        yield MessageBus(database, now).dead_letters.answer
