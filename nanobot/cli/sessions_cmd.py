"""``nanobot sessions``: conversations listed, shown, exported, imported and deleted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from nanobot.cli.context import JSON, admin, group
from nanobot.cli.show import local_time, print_json, printable
from nanobot.core.text import one_line

if TYPE_CHECKING:
    from nanobot.cli.talk import Request

sessions_app = group("List, show, export, import and delete conversations.")
_KEY = typer.Argument(..., metavar="KEY", help="As `list` shows it, such as cli:direct.")
_PAGE = 500


@sessions_app.command(name="list")
def list_sessions(context: typer.Context, as_json: bool = JSON) -> None:
    """List all sessions, the last used first."""
    with admin(context.obj) as ask:
        answer = ask(do="sessions")
    if as_json:
        print_json(answer)
        return
    for session in answer["sessions"]:
        typer.echo(
            f"{printable(session['key'])}  {local_time(session['updated'])}  "
            f"{session['entries']:,} entries, {session['live']:,} in view"
        )


@sessions_app.command()
def show(
    context: typer.Context,
    key: str = _KEY,
    last: int = typer.Option(50, "--last", min=1, help="How many of the last entries."),
    as_json: bool = JSON,
) -> None:
    """Show the last messages of a session."""
    from collections import deque

    with admin(context.obj) as ask:
        lines = deque(_lines(ask, key), maxlen=last)
    if as_json:
        print_json({"key": key, "entries": list(lines)})
        return
    for line in lines:
        who = line.get("role") or f"({line.get('_type', '')})"
        name = f" {line['name']}" if line.get("name") else ""
        calls = [call["function"]["name"] for call in line.get("tool_calls", ())]
        words = " ".join(filter(None, (line.get("content", ""), *(f"[{one}]" for one in calls))))
        text = printable(one_line(words, 1000))
        typer.echo(f"{local_time(line['timestamp'])} {who}{printable(name)}: {text}")


@sessions_app.command()
def export(
    context: typer.Context,
    key: str = _KEY,
    file: str = typer.Argument("-", help="Where to; `-` is stdout."),
) -> None:
    """Write a session as JSON Lines, for `import` here or for other programs."""
    from pathlib import Path

    from nanobot.store.files import write_atomic

    with admin(context.obj) as ask:
        first = ask(do="page", session=key, after=0, limit=1)["metadata"]
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
    as_json: bool = JSON,
) -> None:
    """Import a session from JSON Lines, also of compatible programs; known entries are skipped."""
    from pathlib import Path

    with admin(context.obj) as ask:
        answer = ask(do="import", path=str(Path(file).expanduser().absolute()), session=session)
    if as_json:
        print_json(answer)
        return
    skipped = f", {answer['skipped']} lines are no messages" if answer["skipped"] else ""
    typer.echo(
        f"{printable(answer['session'])}: {answer['added']} entries added, "
        f"{answer['present']} were there{skipped}"
    )


@sessions_app.command()
def delete(
    context: typer.Context,
    key: str = _KEY,
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    as_json: bool = JSON,
) -> None:
    """Delete a session for good: log, media and long results."""
    if not yes and not (
        sys.stdin.isatty() and typer.confirm(f"Delete {printable(key)} for good?", err=True)
    ):
        raise typer.BadParameter("this needs a yes: add --yes")
    with admin(context.obj) as ask:
        answer = ask(do="delete", session=key)
    if as_json:
        print_json(answer)
        return
    typer.echo(f"{printable(key)} is deleted, {answer['deleted']} entries")
    if answer["history"]:
        typer.echo(
            f"nanobot: {answer['path']} still has what was written of it; remove there what "
            "shall not stay:",
            err=True,
        )
        for paragraph in answer["history"]:
            typer.echo(printable(paragraph))


def _lines(ask: Request, key: str) -> Iterator[dict[str, Any]]:
    after: int | None = 0
    while after is not None:
        page = ask(do="page", session=key, after=after, limit=_PAGE)
        yield from page["lines"]
        after = page["after"]
