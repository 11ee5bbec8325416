"""``nanobot bus``: messages that could not be handled or delivered, and what to do with them."""

from __future__ import annotations

import json
from typing import Any

import typer

from nanobot.cli.context import EXIT_FAILURE, CliContext

bus_app = typer.Typer(
    help="Show, retry or drop messages that could not be handled or delivered.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)
_NAMES = typer.Argument(None, metavar="NAME…", help="As `list` shows them, such as in-12.")
_ALL = typer.Option(False, "--all", help="All dead letters.")
_JSON = typer.Option(False, "--json", help="Print it as JSON.")


@bus_app.command(name="list")
def list_dead_letters(context: typer.Context, as_json: bool = _JSON) -> None:
    """Show what waits, and the dead letters: what will not be tried again by itself."""
    answer = _ask(context.obj, {"do": "list"})
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    for letter in answer["dead"]:
        typer.echo(_sentence(letter))
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
    as_json: bool = _JSON,
) -> None:
    """Try dead letters again, with all their attempts."""
    _change(context, "retry", names, everything, as_json)


@bus_app.command()
def drop(
    context: typer.Context,
    names: list[str] = _NAMES,
    everything: bool = _ALL,
    as_json: bool = _JSON,
) -> None:
    """Forget dead letters."""
    _change(context, "drop", names, everything, as_json)


def _change(
    context: typer.Context, what: str, names: list[str] | None, everything: bool, as_json: bool
) -> None:
    from nanobot.bus.dead_letters import ALL

    if bool(names) == everything:
        raise typer.BadParameter("name the letters as `nanobot bus list` does, or say --all")
    answer = _ask(context.obj, {"do": what, "names": [ALL] if everything else names})
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False, indent=2))
    else:
        done = "is tried again" if what == "retry" else "is dropped"
        for name in answer["changed"]:
            typer.echo(f"{name} {done}")
        for name, reason in answer["refused"].items():
            typer.echo(f"nanobot: {_clean(name)}: {reason}", err=True)
    if answer["refused"]:
        raise typer.Exit(EXIT_FAILURE)


def _ask(cli: CliContext, request: dict[str, Any]) -> dict[str, Any]:
    """Have whoever holds the home answer, else answer from the state database under its lock."""
    from nanobot.cli.talk import SocketTalk
    from nanobot.store.lock import HomeLock

    talk = SocketTalk.connect(cli.home)
    if talk is not None:
        with talk:
            return talk.request("dead_letters", request)
    with HomeLock(cli.home, "bus command") as lock:
        lock.take()
        return _from_disk(cli, request)


def _from_disk(cli: CliContext, request: dict[str, Any]) -> dict[str, Any]:
    import asyncio
    from contextlib import closing

    from nanobot.app import now
    from nanobot.bus.bus import MessageBus
    from nanobot.store.database import Database

    async def answer() -> dict[str, Any]:
        with closing(Database(cli.home.database)) as database:
            return await MessageBus(database, now).dead_letters.answer(request)

    return asyncio.run(answer())


def _sentence(letter: dict[str, Any]) -> str:
    """A dead letter in a line."""
    from datetime import datetime

    at = f"{datetime.fromisoformat(letter['at']).astimezone():%Y-%m-%d %H:%M}"
    where = letter["session"] or letter["channel"]
    text = f" “{_clean(letter['text'])}”" if letter["text"] else ""
    return f"{letter['name']}  {at}  {_clean(where)}{text}: {_clean(letter['error'])}"


def _clean(text: str) -> str:
    from nanobot.cli.show import printable
    from nanobot.core.text import one_line

    return one_line(printable(text), 200)
