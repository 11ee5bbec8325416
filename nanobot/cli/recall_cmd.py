"""``nanobot memory search`` and ``reindex``: what was said before, found from the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from nanobot.cli.context import CliContext

if TYPE_CHECKING:
    from nanobot.recall.tool import Excerpt, Recall

SHOWN = 10
_JSON = typer.Option(False, "--json", help="Print it as JSON.")


def register(memory_app: typer.Typer) -> None:
    """Add the commands to the ``memory`` group."""
    memory_app.command()(search)
    memory_app.command()(reindex)


def search(
    context: typer.Context,
    query: list[str] = typer.Argument(help="Words, a name, a date, or a question."),
    limit: int = typer.Option(SHOWN, "--limit", min=1, max=100, help="Matches to show."),
    as_json: bool = _JSON,
) -> None:
    """Search HISTORY.md and all past conversations."""
    from nanobot.cli.show import printable
    from nanobot.recall.tool import excerpt_body, heading

    found = _recall(context.obj).search_now(" ".join(query), limit=limit, tokens=400 * limit)
    if as_json:
        record = [_record(excerpt) for excerpt in found.results.excerpts]
        typer.echo(json.dumps(record, ensure_ascii=False, indent=2))
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


def reindex(context: typer.Context, as_json: bool = _JSON) -> None:
    """Make the search index anew from HISTORY.md and the conversations."""
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
    """Recall over this home; any process may read and write its index, gateway or not."""
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
