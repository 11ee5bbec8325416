"""``nanobot memory``: what the assistant knows and finds, its versions, consolidation by hand."""

from __future__ import annotations

import typer

from nanobot.cli.context import EXIT_FAILURE
from nanobot.cli.desk import desk, local_time, print_json
from nanobot.cli.recall_cmd import register

memory_app = typer.Typer(
    help="Show, search, restore and consolidate the assistant's memory.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)
_JSON = typer.Option(False, "--json", help="Print it as JSON.")


@memory_app.command()
def show(
    context: typer.Context,
    version: int = typer.Option(None, "--version", help="A former text, by its number."),
    as_json: bool = _JSON,
) -> None:
    """Show MEMORY.md; on stderr its size, and when conversations were last consolidated."""
    from nanobot.cli.show import printable

    with desk(context.obj) as ask:
        answer = ask("memory", version=version)
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
def history(context: typer.Context, as_json: bool = _JSON) -> None:
    """List the versions of MEMORY.md, the newest last."""
    with desk(context.obj) as ask:
        answer = ask("versions")
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
    as_json: bool = _JSON,
) -> None:
    """Put a version of MEMORY.md back; the present text stays as a version."""
    with desk(context.obj) as ask:
        answer = ask("restore", version=number)
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"MEMORY.md is version {number} again")


@memory_app.command()
def consolidate(
    context: typer.Context,
    session: str = typer.Argument(None, help="One session; without it all."),
    as_json: bool = _JSON,
) -> None:
    """Digest conversations now, all but the last ten messages; takes a model call a step."""
    from nanobot.cli.show import printable

    with desk(context.obj) as ask:
        answer = ask("consolidate", session=session)
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


register(memory_app)
