"""``nanobot sessions``: conversations listed, shown, exported, imported and deleted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import typer

from nanobot.cli.desk import Ask, desk, local_time, print_json

sessions_app = typer.Typer(
    help="List, show, export, import and delete conversations.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)
_JSON = typer.Option(False, "--json", help="Print it as JSON.")
_KEY = typer.Argument(..., metavar="KEY", help="As `list` shows it, such as cli:direct.")
_PAGE = 500


@sessions_app.command(name="list")
def list_sessions(context: typer.Context, as_json: bool = _JSON) -> None:
    """List all sessions, the last used first."""
    with desk(context.obj) as ask:
        answer = ask("sessions")
    if as_json:
        print_json(answer)
        return
    for session in answer["sessions"]:
        typer.echo(
            f"{_clean(session['key'])}  {local_time(session['updated'])}  "
            f"{session['entries']:,} entries, {session['live']:,} in view"
        )


@sessions_app.command()
def show(
    context: typer.Context,
    key: str = _KEY,
    last: int = typer.Option(50, "--last", min=1, help="How many of the last entries."),
    as_json: bool = _JSON,
) -> None:
    """Show the last messages of a session."""
    from collections import deque

    with desk(context.obj) as ask:
        lines = deque(_lines(ask, key), maxlen=last)
    if as_json:
        print_json({"key": key, "entries": list(lines)})
        return
    for line in lines:
        who = line.get("role") or f"({line.get('_type', '')})"
        name = f" {line['name']}" if line.get("name") else ""
        calls = [call["function"]["name"] for call in line.get("tool_calls", ())]
        words = " ".join(filter(None, (line.get("content", ""), *(f"[{one}]" for one in calls))))
        typer.echo(f"{local_time(line['timestamp'])} {who}{_clean(name)}: {_shown(words)}")


@sessions_app.command()
def export(
    context: typer.Context,
    key: str = _KEY,
    file: str = typer.Argument("-", help="Where to; `-` is stdout."),
) -> None:
    """Write a session as JSON Lines, for `import` here or for other programs."""
    from pathlib import Path

    from nanobot.store.files import write_atomic

    with desk(context.obj) as ask:
        first = ask("page", session=key, after=0, limit=1)["metadata"]
        texts = (json.dumps(line, ensure_ascii=False) + "\n" for line in (first, *_lines(ask, key)))
        if file == "-":
            for text in texts:
                sys.stdout.write(text)
            return
        write_atomic(Path(file), "".join(texts).encode())
    typer.echo(f"{key} is written to {file}", err=True)


@sessions_app.command(name="import")
def import_session(
    context: typer.Context,
    file: str = typer.Argument(..., help="A session's .jsonl file."),
    session: str = typer.Option(None, "--session", "-s", help="Its key here."),
    as_json: bool = _JSON,
) -> None:
    """Read a session from JSON Lines, ours or the family's; what is there already is left."""
    from pathlib import Path

    with desk(context.obj) as ask:
        answer = ask("import", path=str(Path(file).expanduser().absolute()), session=session)
    if as_json:
        print_json(answer)
        return
    skipped = f", {answer['skipped']} lines are no messages" if answer["skipped"] else ""
    typer.echo(
        f"{_clean(answer['session'])}: {answer['added']} entries added, "
        f"{answer['present']} were there{skipped}"
    )


@sessions_app.command()
def delete(
    context: typer.Context,
    key: str = _KEY,
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    as_json: bool = _JSON,
) -> None:
    """Delete a session for good: log, media and long results."""
    if not yes and not (
        sys.stdin.isatty() and typer.confirm(f"Delete {_clean(key)} for good?", err=True)
    ):
        raise typer.BadParameter("this needs a yes: add --yes")
    with desk(context.obj) as ask:
        answer = ask("delete", session=key)
    if as_json:
        print_json(answer)
        return
    typer.echo(f"{_clean(key)} is deleted, {answer['deleted']} entries")
    if answer["history"]:
        typer.echo(
            f"nanobot: {answer['path']} still has what was written of it; remove there what "
            "shall not stay:",
            err=True,
        )
        for paragraph in answer["history"]:
            typer.echo(_clean(paragraph))


def _lines(ask: Ask, key: str) -> Iterator[dict[str, Any]]:
    after: int | None = 0
    while after is not None:
        page = ask("page", session=key, after=after, limit=_PAGE)
        yield from page["lines"]
        after = page["after"]


def _clean(text: str) -> str:
    from nanobot.cli.show import printable

    return printable(text)


def _shown(text: str) -> str:
    from nanobot.core.text import one_line

    return _clean(one_line(text, 1000))
