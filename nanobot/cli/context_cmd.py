"""``nanobot status --context``: where the tokens of a session's requests go."""

from __future__ import annotations

import json
from typing import Any

import typer

from nanobot.cli.context import CliContext
from nanobot.cli.exits import EXIT_PROVIDER
from nanobot.core.messages import whole_key


def show_context(cli: CliContext, session: str, *, as_json: bool) -> None:
    """Print the report of one session, as a table or as JSON."""
    report = _asked(cli, whole_key(session))
    if "error" in report:
        typer.echo(f"nanobot: {report['error']}", err=True)
        raise typer.Exit(EXIT_PROVIDER)
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False, indent=2))
        return
    for line in _lines(report):
        typer.echo(line)


def _asked(cli: CliContext, session: str) -> dict[str, Any]:
    """Have whoever holds the home answer, else open it under its lock."""
    from nanobot.cli.talk import SocketTalk

    talk = SocketTalk.connect(cli.home)
    if talk is not None:
        with talk:
            return talk.request("context", {"session": session})
    from nanobot.cli.setup import load, say, set_up_logs
    from nanobot.store.lock import HomeLock

    loaded = load(cli)
    set_up_logs(loaded, logs=False)
    with HomeLock(cli.home, "status command") as lock:
        lock.take()

        import asyncio

        from nanobot.app import open_app

        async def answer() -> dict[str, Any]:
            async with open_app(loaded, cli.home, cli.environ, offline_allowed=True) as app:
                say(app.notice)
                return {**await app.context_of({"session": session})}

        return asyncio.run(answer())


def _lines(report: dict[str, Any]) -> list[str]:
    """The report as a person reads it."""
    from nanobot.cli.show import printable

    room = report["window"] - report["reserve"]
    how = (
        "corrected by what the provider reports"
        if report["calibrated"]
        else "estimated; nothing is known of this model's own count yet"
    )
    parts = [
        *((name, count) for name, count in report["fixed"].items()),
        ("the fixed part", sum(report["fixed"].values())),
        *((f"history: {name}", count) for name, count in report["history"].items()),
        ("all together", report["used"]),
    ]
    return [
        f"{printable(report['session'])}, {printable(report['model'])}",
        f"window {report['window']:,} tokens, {report['reserve']:,} of them for the answer: "
        f"{report['percent']} % of {room:,} used",
        "",
        *(f"{count:>9,}  {printable(name)}" for name, count in parts),
        "",
        f"Tokens are {how}.",
    ]
