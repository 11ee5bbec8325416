"""``nanobot cron``: list and change the jobs, with or without a running gateway."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from typing import Any

import typer

from nanobot.cli.context import EXIT_FAILURE, CliContext

cron_app = typer.Typer(no_args_is_help=True, help="Reminders and scheduled tasks.")


@cron_app.command("list")
def list_(
    context: typer.Context,
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
) -> None:
    """List the jobs, their next runs and how the last one went."""
    from nanobot.cron.jobs import described

    cli: CliContext = context.obj
    now = datetime.now(UTC)
    content = _jobs(cli).read()
    last, places = _stored(cli)
    if as_json:
        records = [
            {
                **job.model_dump(mode="json", by_alias=True, exclude={"state"}),
                "nextRuns": _next_runs(job, now),
                "lastRun": last.get(job.id),
            }
            for job in content.jobs
        ]
        typer.echo(json.dumps(records, ensure_ascii=False, indent=2))
        return
    for job in content.jobs:
        run = last.get(job.id)
        ended = f"; last run {run['status']} {run['error']}".rstrip() if run else ""
        typer.echo(described(job, now) + places.note(job) + ended)
    if not content.jobs:
        typer.echo("There are no jobs.")
    for problem in content.problems:
        typer.echo(f"nanobot: {problem}", err=True)
    for path in _jobs(cli).quarantined():
        typer.echo(f"A damaged job file is kept as {path}.", err=True)


@cron_app.command()
def add(
    context: typer.Context,
    message: str = typer.Option(..., "--message", "-m", metavar="TEXT", help="What to do or say."),
    name: str = typer.Option("", "--name", metavar="NAME", help="What to call it."),
    every: int = typer.Option(None, "--every", metavar="SECONDS", help="Repeat at this interval."),
    cron: str = typer.Option(None, "--cron", metavar="EXPR", help="By a cron expression."),
    at: str = typer.Option(None, "--at", metavar="ISO", help="Once, at this time."),
    tz: str = typer.Option(None, "--tz", metavar="ZONE", help="Time zone of --cron or --at."),
    deliver: bool = typer.Option(False, "--deliver", help="Send the result of a task to a chat."),
    channel: str = typer.Option(None, "--channel", metavar="NAME", help="Channel of that chat."),
    to: str = typer.Option(None, "--to", metavar="CHAT", help="That chat; unset: the last used."),
    reminder: bool = typer.Option(False, "--reminder", help="Send TEXT itself, as it is."),
) -> None:
    """Add a job: a task for the assistant, or a reminder."""
    from nanobot.core.errors import JobError
    from nanobot.cron.jobs import NOT_RUNNING, Payload, ScheduleRequest, described

    cli: CliContext = context.obj
    if (channel is None) != (to is None):
        raise typer.BadParameter("--channel and --to go together")
    if channel is not None and channel not in (served := _served(cli)):
        there = ", ".join(sorted(served)) or "none that is enabled"
        raise typer.BadParameter(f"there is no channel {channel!r}; there is {there}")
    payload = Payload(
        kind="reminder" if reminder else "agent_turn",
        message=message,
        deliver=deliver or reminder,
        channel=channel,
        to=to,
    )
    now = datetime.now(UTC)
    try:
        job = _jobs(cli).add(
            secrets.token_hex(4), name, ScheduleRequest(every, cron, at, tz), payload, now
        )
    except JobError as error:
        text = str(error).replace("every_seconds", "--every").replace("cron_expr", "--cron")
        raise typer.BadParameter(text) from error
    typer.echo(described(job, now) + _stored(cli)[1].note(job))
    if not _gateway_runs(cli):
        typer.echo(NOT_RUNNING, err=True)


@cron_app.command()
def remove(context: typer.Context, job: str = typer.Argument(metavar="ID")) -> None:
    """Remove a job."""
    removed = _jobs(context.obj).remove(job)
    typer.echo(f"Removed {job} “{removed.title}”.")


@cron_app.command()
def enable(context: typer.Context, job: str = typer.Argument(metavar="ID")) -> None:
    """Let a job run again."""
    _switch(context.obj, job, enabled=True)


@cron_app.command()
def disable(context: typer.Context, job: str = typer.Argument(metavar="ID")) -> None:
    """Keep a job without running it."""
    _switch(context.obj, job, enabled=False)


@cron_app.command()
def run(context: typer.Context, job: str = typer.Argument(metavar="ID")) -> None:
    """Run a job now, wait for it, and print its result."""
    from nanobot.channels.socket_protocol import Question
    from nanobot.cli.one_shot import ask_once
    from nanobot.cron.jobs import find

    cli: CliContext = context.obj
    find(_jobs(cli).load(), job)
    question = Question(f"/cron run {job}", "cli:cron")
    raise typer.Exit(ask_once(cli, question, as_json=False, markdown=False, logs=False))


def _switch(cli: CliContext, job: str, *, enabled: bool) -> None:
    from nanobot.cron.jobs import described

    now = datetime.now(UTC)
    typer.echo(described(_jobs(cli).update(job, now, enabled=enabled), now))


def _jobs(cli: CliContext) -> Any:
    from nanobot.cron.jobs import JobFile

    return JobFile(cli.home.cron_jobs)


def _gateway_runs(cli: CliContext) -> bool:
    from nanobot.cli.talk import SocketTalk

    talk = SocketTalk.connect(cli.home)
    if talk is None:
        return False
    with talk:
        return talk.holder.startswith("gateway")


def _served(cli: CliContext) -> frozenset[str]:
    from nanobot.channels.registry import enabled_channels
    from nanobot.cli.setup import load

    return enabled_channels(load(cli).config.channels)


def _next_runs(job: Any, now: datetime) -> list[str]:
    from nanobot.core.errors import JobError
    from nanobot.cron.schedule import upcoming

    try:
        return [due.isoformat() for due in upcoming(job.when(), now)]
    except JobError:
        return []


def _stored(cli: CliContext) -> tuple[dict[str, dict[str, Any]], Any]:
    """The last run of each job and where jobs deliver to; reads the state database only."""
    import sqlite3
    from dataclasses import asdict

    from nanobot.bus.inbox import last_chat_in
    from nanobot.cron.jobs import Places
    from nanobot.store import job_runs

    served = _served(cli)
    if not cli.home.database.exists():
        return {}, Places(served, None)
    try:
        connection = sqlite3.connect(f"{cli.home.database.as_uri()}?mode=ro", uri=True)
        try:
            found = job_runs.runs(connection, limit=10_000)
            last = last_chat_in(connection, served)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        typer.echo(f"nanobot: the state database cannot be read: {error}", err=True)
        raise typer.Exit(EXIT_FAILURE) from error
    return {run.job: asdict(run) for run in reversed(found)}, Places(served, last)
