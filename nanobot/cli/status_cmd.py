"""nanobot status: what is configured, what runs, where the tokens go."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from nanobot.cli.context import EXIT_PROVIDER, CliContext
from nanobot.core.messages import whole_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nanobot.config.load import LoadedConfig
    from nanobot.config.schema import ExecConfig


def show_context(cli: CliContext, session: str, *, as_json: bool) -> None:
    """Print the report of one session, as a table or as JSON."""
    report = _asked(cli, whole_key(session))
    if "error" in report:
        typer.echo(f"nanobot: {report['error']}", err=True)
        raise typer.Exit(EXIT_PROVIDER)
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False, indent=2))
        return
    for line in _context_lines(report):
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


def _context_lines(report: dict[str, Any]) -> list[str]:
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


_DEAD_SHOWN = 5
_PROBE_LIMIT_S = 3.0
_WAITING = """
SELECT (SELECT count(*) FROM inbox WHERE state = 'pending')
     + (SELECT count(*) FROM outbox WHERE state = 'pending')
"""
# What failed at a terminal was said there: it is nothing anybody has to look after.
_DEAD = """
SELECT id, channel, error, coalesce(settled_at, received_at) AS at
    FROM inbox WHERE state = 'dead' AND channel <> 'cli'
UNION ALL
SELECT id, channel, error, coalesce(settled_at, created_at) AS at
    FROM outbox WHERE state = 'dead'
ORDER BY at DESC
"""
_FOR_PROGRAMS = frozenset({"configExists", "workspaceExists", "commands", "deadLetters"})
"""Facts without a line of their own."""


def status(
    context: typer.Context,
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
    tokens: bool = typer.Option(
        False, "--context", help="Show where the tokens of a session's requests go."
    ),
    session: str = typer.Option("cli:direct", "--session", "-s", help="Of --context."),
) -> None:
    """Show what is configured, running and broken, and how to mend it."""
    if tokens:
        show_context(context.obj, session, as_json=as_json)
        return
    from nanobot.cli.channels_cmd import channel_rows
    from nanobot.cli.setup import load
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
        "hints": [*config_warnings(loaded.config), *_overrides(loaded), *_long_files(loaded)],
    }
    if as_json:
        facts["channels"] = [row.document() for row in facts["channels"]]
        facts.pop("commands", None)
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    for line in _lines(facts):
        typer.echo(line)


_NO_FILE = " (none yet: `nanobot onboard` makes it)"
_NO_WORKSPACE = " (none yet: `nanobot onboard` makes it, or the first question)"
_NOT_RUNNING = "not running: `nanobot gateway` starts it"


def _holder(cli: CliContext) -> dict[str, Any]:
    """Who holds the home, and what it says of itself."""
    from nanobot.cli.talk import SocketTalk
    from nanobot.core.errors import GatewayError

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
    from nanobot.core.errors import ProviderError
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
    """Whether commands are sandboxed here: tried out, since a program that exists may not work."""
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
        reason = _clean(tried.stderr.decode(errors="replace")) or f"code {tried.returncode}"
        return f"bubblewrap does not work here ({reason}), {otherwise}"
    return "bubblewrap works: commands run in it"


def _stored(cli: CliContext) -> dict[str, Any]:
    """What waits and what is dead, read from the state database without touching it."""
    import sqlite3

    if not cli.home.database.exists():
        return {"messages": "none yet", "deadLetters": []}
    try:
        connection = sqlite3.connect(f"{cli.home.database.as_uri()}?mode=ro", uri=True)
        try:
            (waiting,) = connection.execute(_WAITING).fetchone()
            letters = connection.execute(_DEAD).fetchall()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        return {"messages": f"the state database cannot be read: {error}", "deadLetters": []}
    return {
        "messages": f"{waiting} waiting, {len(letters)} dead letters",
        "deadLetters": [
            {"id": id_, "channel": channel, "error": error or "", "at": at}
            for id_, channel, error, at in letters[:_DEAD_SHOWN]
        ],
    }


def _overrides(loaded: LoadedConfig) -> list[str]:
    return [
        f"{variable} in the environment overrides {key}"
        for key, variable in loaded.overrides.items()
    ]


def _long_files(loaded: LoadedConfig) -> Iterator[str]:
    """The files of which conversations see only a part."""
    from nanobot.prompts.excerpt import BOOTSTRAP_FILES, MEMORY, too_long

    cap = loaded.config.agents.defaults.bootstrap_file_chars
    for path in (loaded.workspace / name for name in (MEMORY, *BOOTSTRAP_FILES)):
        if path.is_file() and path.stat().st_size > cap:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            if warning := too_long(path.name, len(text), cap):
                yield warning


def _lines(facts: dict[str, Any]) -> list[str]:
    """The facts as a person reads them: a name and its lines, aligned."""
    shown = {
        name: [_clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))]
        for name, value in facts.items()
        if name not in _FOR_PROGRAMS and name not in ("channels", "hints")
    }
    if not facts["configExists"]:
        shown["config"][0] += _NO_FILE
    if not facts["workspaceExists"]:
        shown["workspace"][0] += _NO_WORKSPACE
    shown["messages"].extend(
        f"{datetime.fromtimestamp(letter['at']):%Y-%m-%d %H:%M} {letter['channel']} "
        f"{letter['id']}: {_clean(letter['error'])}"
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


def _clean(text: str) -> str:
    from nanobot.cli.show import printable
    from nanobot.core.text import one_line

    return one_line(printable(text), 400)
