"""``nanobot status``: what is configured, what runs, where the tokens go."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from nanobot.cli.context import JSON, CliContext, load, read_only
from nanobot.cli.show import clean, print_json, printable
from nanobot.core.errors import GatewayError, ProviderError
from nanobot.core.messages import whole_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nanobot.config.load import LoadedConfig
    from nanobot.config.schema import ExecConfig


_DEAD_SHOWN = 5
_PROBE_LIMIT_S = 3.0
_WAITING = """
SELECT (SELECT count(*) FROM inbox WHERE state = 'pending')
     + (SELECT count(*) FROM outbox WHERE state = 'pending')
"""
# Failures at a terminal were shown there; nobody has to see to them.
_DEAD = """
SELECT id, channel, error, coalesce(settled_at, received_at) AS at
    FROM inbox WHERE state = 'dead' AND channel <> 'cli'
UNION ALL
SELECT id, channel, error, coalesce(settled_at, created_at) AS at
    FROM outbox WHERE state = 'dead'
ORDER BY at DESC
"""
_FOR_PROGRAMS = frozenset({"configExists", "workspaceExists", "commands", "deadLetters"})
"""Facts without a line of their own in the table."""
_NO_FILE = " (none yet: `nanobot onboard` makes it)"
_NO_WORKSPACE = " (none yet: `nanobot onboard` makes it, or the first question)"
_NOT_RUNNING = "not running: `nanobot gateway` starts it"


def status(
    context: typer.Context,
    as_json: bool = JSON,
    tokens: bool = typer.Option(
        False, "--context", help="Show where the tokens of a session's requests go."
    ),
    session: str = typer.Option("cli:direct", "--session", "-s", help="Of --context."),
) -> None:
    """Show what is configured, running and broken, and how to mend it."""
    if tokens:
        _show_context(context.obj, session, as_json=as_json)
        return
    from nanobot.cli.channels_cmd import channel_rows
    from nanobot.config.compat import config_warnings

    cli: CliContext = context.obj
    loaded = load(cli, again=True)
    from_holder = _holder(cli)
    facts: dict[str, Any] = {
        "home": str(cli.home.root),
        "config": str(cli.home.config_file),
        "configExists": loaded.exists,
        "workspace": str(loaded.workspace),
        "workspaceExists": loaded.workspace.is_dir(),
        **_model(cli, loaded),
        "sandbox": _sandbox(cli, loaded.config.tools.exec),
        **from_holder,
        **_stored(cli),
        "channels": channel_rows(loaded.config.channels, from_holder.get("channels", ())),
        "hints": [
            *config_warnings(loaded.config),
            *(
                f"{variable} in the environment overrides {key}"
                for key, variable in loaded.overrides.items()
            ),
            *_long_files(loaded),
        ],
    }
    if as_json:
        facts["channels"] = [row.document() for row in facts["channels"]]
        facts.pop("commands", None)
        print_json(facts)
        return
    for line in _lines(facts):
        typer.echo(line)


def _holder(cli: CliContext) -> dict[str, Any]:
    """Which process holds the home, and its status."""
    from nanobot.cli.talk import SocketTalk

    try:
        talk = SocketTalk.connect(cli.home)
        if talk is None:
            return {"gateway": _NOT_RUNNING}
        with talk:
            return {"gateway": f"running: {talk.holder}", **talk.status()}
    except GatewayError as error:
        return {"gateway": f"cannot be used: {error}"}


def _model(cli: CliContext, loaded: LoadedConfig) -> dict[str, str]:
    """Which model would answer, through which provider and why."""
    from nanobot.providers import catalogue

    defaults, providers = loaded.config.agents.defaults, loaded.config.providers
    if defaults.model is None:
        if any(catalogue.configured(providers, {})):
            return {"model": "none chosen: `nanobot config set agents.defaults.model MODEL`"}
        return {"model": "offline (built in): `nanobot onboard` connects a real one"}
    try:
        choice = catalogue.choose(
            defaults.model, providers, cli.environ, explicit=defaults.provider
        )
    except ProviderError as error:
        return {"model": defaults.model, "provider": f"none: {error}"}
    fallbacks = ", ".join(defaults.fallback_models)
    return {
        "model": defaults.model + (f" (then {fallbacks})" if fallbacks else ""),
        "provider": f"{choice.spec.name}, by {choice.why}"
        + (f", at {choice.base}" if choice.base else ""),
    }


def _sandbox(cli: CliContext, settings: ExecConfig) -> str:
    """Whether commands are sandboxed here; runs bubblewrap, because it may exist and not work."""
    import shutil
    import subprocess

    if settings.sandbox == "off":
        return "off: commands run as you; `nanobot config set tools.exec.sandbox auto` puts it on"
    otherwise = (
        "commands are refused"
        if settings.sandbox == "require"
        else "commands are asked for at a terminal and refused elsewhere"
    )
    program = shutil.which("bwrap", path=cli.environ.get("PATH"))
    if program is None:
        return f"none, {otherwise}: install bubblewrap (`apt install bubblewrap`)"
    command = [program, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"]
    try:
        tried = subprocess.run(
            [*command, "--proc", "/proc", "--dev", "/dev", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not work here ({error}), {otherwise}"
    if tried.returncode:
        reason = clean(tried.stderr.decode(errors="replace")) or f"code {tried.returncode}"
        return f"bubblewrap does not work here ({reason}), {otherwise}"
    return "bubblewrap works: commands run in it"


def _stored(cli: CliContext) -> dict[str, Any]:
    """Counts of waiting and dead messages, read beside the process that holds the home."""
    import sqlite3

    if not cli.home.database.exists():
        return {"messages": "none yet", "deadLetters": []}
    try:
        with read_only(cli) as connection:
            (waiting,) = connection.execute(_WAITING).fetchone()
            dead = connection.execute(_DEAD).fetchall()
    except sqlite3.DatabaseError as error:
        return {"messages": f"the state database cannot be read: {error}", "deadLetters": []}
    return {
        "messages": f"{waiting} waiting, {len(dead)} dead letters",
        "deadLetters": [
            {"id": id_, "channel": channel, "error": error or "", "at": at}
            for id_, channel, error, at in dead[:_DEAD_SHOWN]
        ],
    }


def _long_files(loaded: LoadedConfig) -> Iterator[str]:
    """A warning for each workspace file that is too long for the prompt to hold whole."""
    from nanobot.prompts.excerpt import BOOTSTRAP_FILES, MEMORY, too_long

    cap = loaded.config.agents.defaults.bootstrap_file_chars
    for path in (loaded.workspace / name for name in (MEMORY, *BOOTSTRAP_FILES)):
        if path.is_file() and path.stat().st_size > cap:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            if warning := too_long(path.name, len(text), cap):
                yield warning


def _lines(facts: dict[str, Any]) -> list[str]:
    """The facts for a person: aligned names, each with its lines."""
    shown = {
        name: [clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))]
        for name, value in facts.items()
        if name not in _FOR_PROGRAMS and name not in ("channels", "hints")
    }
    if not facts["configExists"]:
        shown["config"][0] += _NO_FILE
    if not facts["workspaceExists"]:
        shown["workspace"][0] += _NO_WORKSPACE
    shown["messages"].extend(
        f"{datetime.fromtimestamp(letter['at']):%Y-%m-%d %H:%M} {letter['channel']} "
        f"{letter['id']}: {clean(letter['error'])}"
        for letter in facts["deadLetters"]
    )
    if facts["deadLetters"]:
        shown["messages"].append(
            "`nanobot bus list` shows them, `nanobot bus retry ID` tries again"
        )
    shown["channels"] = [f"{row.name}: {row.sentence()}" for row in facts["channels"]]
    shown["hints"] = facts["hints"]
    width = max(map(len, shown))
    return [
        f"{'' if place else name:<{width}}  {line}"
        for name, lines in shown.items()
        for place, line in enumerate(lines)
    ]


def _show_context(cli: CliContext, session: str, *, as_json: bool) -> None:
    """Print where the tokens of a session's requests go, as a table or as JSON."""
    from nanobot.cli.talk import open_requests, own_app

    with open_requests(
        cli,
        "context",
        lambda cli: own_app(cli, "context", lasting=True),
        purpose="status command",
        error=ProviderError,
    ) as request:
        report = request(session=whole_key(session))
    if as_json:
        print_json(report)
        return
    room = report["window"] - report["reserve"]
    how = (
        "corrected by what the provider reports"
        if report["calibrated"]
        else "estimated; nothing is known of this model's own count yet"
    )
    parts = (
        *report["fixed"].items(),
        ("the fixed part", sum(report["fixed"].values())),
        *((f"history: {name}", count) for name, count in report["history"].items()),
        ("all together", report["used"]),
    )
    typer.echo(
        f"{printable(report['session'])}, {printable(report['model'])}\n"
        f"window {report['window']:,} tokens, {report['reserve']:,} of them for the answer: "
        f"{report['percent']} % of {room:,} used\n"
    )
    for name, count in parts:
        typer.echo(f"{count:>9,}  {printable(name)}")
    typer.echo(f"\nTokens are {how}.")
