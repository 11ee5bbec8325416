"""``nanobot status``: what is configured, what runs, what is broken and how to mend it."""

from __future__ import annotations

import json
from typing import Any

import typer

from nanobot.cli.context import CliContext


def status(
    context: typer.Context,
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
) -> None:
    """Show what is configured, running and broken."""
    from nanobot.cli.setup import load
    from nanobot.cli.talk import SocketTalk
    from nanobot.config.hints import config_hints

    cli: CliContext = context.obj
    loaded = load(cli)
    facts: dict[str, Any] = {
        "home": str(cli.home.root),
        "config": str(cli.home.config_file) + ("" if loaded.exists else " (none yet: defaults)"),
        "workspace": str(loaded.workspace),
        **_model(cli, loaded),
    }
    talk = SocketTalk.connect(cli.home)
    if talk is None:
        facts["gateway"] = "not running"
        facts |= _stored(cli)
    else:
        with talk:
            facts["gateway"] = f"running: {talk.holder}"
            facts |= talk.status()
    if hints := config_hints(loaded.config):
        facts["hints"] = hints
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        lines = value if isinstance(value, list) else [value]
        for line in lines or ["none"]:
            typer.echo(f"{name:<{width}}  {line}")


def _model(cli: CliContext, loaded: Any) -> dict[str, str]:
    """Which model would answer, through which provider and why."""
    from nanobot.core.errors import ProviderError
    from nanobot.providers import registry

    defaults, providers = loaded.config.agents.defaults, loaded.config.providers
    if defaults.model is None:
        if any(registry.configured(providers, {})):
            return {"model": "none chosen: `nanobot config set agents.defaults.model MODEL`"}
        return {
            "model": "offline (built in; to connect a real one: "
            "`nanobot config set providers.NAME.apiKey KEY`)"
        }
    try:
        choice = registry.choose(defaults.model, providers, cli.environ, explicit=defaults.provider)
    except ProviderError as error:
        return {"model": f"{defaults.model}: {error}"}
    return {
        "model": defaults.model,
        "provider": f"{choice.spec.name}, by {choice.why}"
        + (f", at {choice.base}" if choice.base else ""),
    }


def _stored(cli: CliContext) -> dict[str, Any]:
    """What waits and what is dead, read from the state database without touching it."""
    import sqlite3

    if not cli.home.database.exists():
        return {"messages": "none yet"}
    try:
        connection = sqlite3.connect(f"{cli.home.database.as_uri()}?mode=ro", uri=True)
        try:
            waiting, dead = (
                sum(
                    connection.execute(
                        f"SELECT count(*) FROM {box} WHERE state = ?", (state,)
                    ).fetchone()[0]
                    for box in ("inbox", "outbox")
                )
                for state in ("pending", "dead")
            )
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        return {"messages": f"the state database cannot be read: {error}"}
    return {"messages": f"{waiting} waiting, {dead} dead letters"}
