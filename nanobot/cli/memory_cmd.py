"""``nanobot memory``: what the assistant knows and finds, its versions, consolidation by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from nanobot.cli.context import EXIT_FAILURE, JSON, CliContext, admin, group
from nanobot.cli.show import local_time, print_json, printable

if TYPE_CHECKING:
    from nanobot.recall.tool import Excerpt, Recall

memory_app = group("Show, search, restore and consolidate the assistant's memory.")


@memory_app.command()
def show(
    context: typer.Context,
    version: int = typer.Option(None, "--version", help="A former text, by its number."),
    as_json: bool = JSON,
) -> None:
    """Show MEMORY.md; on stderr its size, and when conversations were last consolidated."""
    with admin(context.obj) as ask:
        answer = ask(do="memory", version=version)
    if as_json:
        print_json(answer)
        return
    typer.echo(printable(answer["text"]).rstrip())
    history, last = answer["history"], answer["consolidated"]
    when = local_time(last) if last else "never"
    waiting = f"; waiting: {', '.join(answer['waiting'])}" if answer["waiting"] else ""
    typer.echo(
        f"{answer['path']}: {len(answer['text']):,} characters, {answer['versions']} versions\n"
        f"{history['path']}: {history['paragraphs']:,} paragraphs, {history['bytes']:,} bytes\n"
        f"last consolidation: {when}{waiting}",
        err=True,
    )
    if answer["warning"]:
        typer.echo(f"nanobot: {answer['warning']}", err=True)


@memory_app.command()
def history(context: typer.Context, as_json: bool = JSON) -> None:
    """List the versions of MEMORY.md, the newest last."""
    with admin(context.obj) as ask:
        answer = ask(do="versions")
    if as_json:
        print_json(answer)
        return
    for version in answer["versions"]:
        typer.echo(
            f"{version['number']:>6}  {local_time(version['at'])}  "
            f"{version['by']:<13}  {version['bytes']:,} bytes"
        )


@memory_app.command()
def restore(
    context: typer.Context,
    number: int = typer.Argument(..., help="As `nanobot memory history` shows it."),
    as_json: bool = JSON,
) -> None:
    """Put a version of MEMORY.md back; the present text stays as a version."""
    with admin(context.obj) as ask:
        answer = ask(do="restore", version=number)
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"MEMORY.md is version {number} again")


@memory_app.command()
def consolidate(
    context: typer.Context,
    session: str = typer.Argument(None, help="One session; without it all."),
    as_json: bool = JSON,
) -> None:
    """Consolidate conversations now, all but the last ten messages; one model call a step."""
    with admin(context.obj) as ask:
        answer = ask(do="consolidate", session=session)
    failed = [one for one in answer["sessions"] if one["error"]]
    if as_json:
        print_json(answer)
    else:
        for one in answer["sessions"]:
            if one["steps"]:
                steps = "1 step" if one["steps"] == 1 else f"{one['steps']} steps"
                typer.echo(f"{printable(one['session'])}: {steps} written")
        for one in failed:
            typer.echo(f"nanobot: {printable(one['session'])}: {printable(one['error'])}", err=True)
        if not answer["sessions"]:
            typer.echo("nothing to digest")
    if failed:
        raise typer.Exit(EXIT_FAILURE)


@memory_app.command()
def search(
    context: typer.Context,
    query: list[str] = typer.Argument(help="Words, a name, a date, or a question."),
    limit: int = typer.Option(10, "--limit", min=1, max=100, help="Matches to show."),
    as_json: bool = JSON,
) -> None:
    """Search HISTORY.md and all past conversations."""
    from nanobot.recall.tool import excerpt_body, heading

    found = _recall(context.obj).search_now(" ".join(query), limit=limit, tokens=400 * limit)
    if as_json:
        print_json([_record(excerpt) for excerpt in found.results.excerpts])
        return
    for excerpt in found.results.excerpts:
        doubt = " (untrusted)" if excerpt.trust == "untrusted" else ""
        typer.echo(printable(f"{heading(excerpt, None)}{doubt}"))
        for line in excerpt_body(excerpt).splitlines():
            typer.echo(printable(f"  {line}"))
        typer.echo("")
    if not found.results.excerpts:
        typer.echo("nothing found")
    elif found.results.left_out:
        typer.echo(f"{found.results.left_out} weaker matches not shown (--limit)")


@memory_app.command()
def reindex(context: typer.Context, as_json: bool = JSON) -> None:
    """Rebuild the search index from HISTORY.md and the conversations."""
    import asyncio

    made = asyncio.run(_recall(context.obj).rebuild())
    if as_json:
        record = {
            "passages": made.chunks,
            "sessions": made.sessions,
            "paragraphs": made.paragraphs,
        }
        typer.echo(json.dumps(record))
        return
    typer.echo(
        f"the search index holds {made.chunks} passages of {made.sessions} sessions and "
        f"{made.paragraphs} paragraphs of HISTORY.md"
    )


def _recall(cli: CliContext) -> Recall:
    """Recall over this home; any process may use its index, also beside the gateway."""
    from datetime import UTC, datetime

    from nanobot.config.load import load_config
    from nanobot.recall.chunks import Sources
    from nanobot.recall.tool import Recall

    workspace = load_config(cli.home.config_file, cli.environ).workspace
    return Recall(Sources.of(cli.home, workspace), lambda: datetime.now(UTC))


def _record(excerpt: Excerpt) -> dict[str, Any]:
    return {
        "source": excerpt.source,
        "at": excerpt.at.isoformat() if excerpt.at else None,
        "trust": excerpt.trust.value,
        "guest": excerpt.guest,
        "score": round(excerpt.score, 3),
        "messages": [
            {
                "speaker": chunk.name or chunk.speaker or None,
                "at": chunk.at.isoformat() if chunk.at else None,
                "text": chunk.text,
                "found": chunk.id in excerpt.hits,
            }
            for chunk in excerpt.chunks
        ],
    }
