"""``nanobot onboard``: makes the config file and the workspace, and says what to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nanobot.cli.context import EXIT_INTERRUPTED, CliContext
from nanobot.store.home import Home

if TYPE_CHECKING:
    from nanobot.cli.onboard_plan import Additions, Answers, Found, Present

STDIN = "-"


def onboard(
    context: typer.Context,
    yes: bool = typer.Option(
        False, "--yes", "-y", help="Ask nothing: take the flags and what is found here."
    ),
    provider: str = typer.Option("", "--provider", metavar="NAME", help="Who serves the model."),
    api_key: str = typer.Option(
        "", "--api-key", metavar="KEY", help="The provider's key; - reads it from stdin."
    ),
    model: str = typer.Option("", "--model", metavar="NAME", help="The model."),
    api_base: str = typer.Option(
        "", "--api-base", metavar="URL", help="The provider's address, if it is not its own."
    ),
    telegram_token: str = typer.Option(
        "", "--telegram-token", metavar="TOKEN", help="Bot token; - reads it from stdin."
    ),
    allow_from: list[str] = typer.Option(
        [], "--allow-from", metavar="ID", help="A Telegram id that is let in; repeatable."
    ),
    check: bool = typer.Option(
        True, "--check/--no-check", help="Ask the provider for its models (5 s at most)."
    ),
) -> None:
    """Set up nanobot: the config file and the workspace. What exists is never overwritten."""
    from nanobot.cli.onboard_plan import Answers, split_ids

    if api_key == telegram_token == STDIN:
        raise typer.BadParameter(
            "only one of --api-key and --telegram-token can be read from stdin"
        )
    given = Answers(
        provider=provider.strip().lower(),
        model=model.strip(),
        api_key=_secret(api_key),
        api_base=api_base.strip(),
        telegram_token=_secret(telegram_token),
        allow_from=tuple(each for text in allow_from for each in split_ids(text)),
    )
    cli: CliContext = context.obj
    asks = not yes and sys.stdin.isatty() and sys.stdout.isatty()
    _set_up(cli, given, asks=asks, check=check)


def _secret(value: str) -> str:
    return (sys.stdin.readline() if value == STDIN else value).strip()


def _set_up(cli: CliContext, given: Answers, *, asks: bool, check: bool) -> None:
    from nanobot.cli.onboard_answers import from_flags, from_person
    from nanobot.cli.onboard_plan import Present, additions, look_around
    from nanobot.cli.setup import load
    from nanobot.config.load import load_config

    present = Present.of(load(cli), cli.environ)
    found = look_around(cli.environ)
    if asks:
        print(f"This sets up nanobot in {cli.home.root}.\nCtrl-C leaves everything as it is.\n")
        try:
            answers = from_person(given, found, present, check=check)
        except (EOFError, KeyboardInterrupt):
            print("\nnanobot: given up; nothing was changed", file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        print()
    else:
        answers = from_flags(given, found, present, check=check)
    plan = additions(answers, present)
    changed = _write_config(cli, present, plan)
    changed |= _write_workspace(cli)
    if not changed:
        print("Nothing to change: the config file and the workspace are complete.")
    now = Present.of(load_config(cli.home.config_file, cli.environ), cli.environ)
    _say_what_is(cli, now, answers, found, plan)
    _say_what_next(cli, now)


def _write_config(cli: CliContext, present: Present, plan: Additions) -> bool:
    """Add to the config file; whether that changed anything."""
    from nanobot.cli.config_file import set_values

    if not plan.changes:
        return False
    file = cli.home.config_file
    change = set_values(file, plan.changes, cli.environ)
    print(f"{'Added to' if present.loaded.exists else 'Created'} {file}:")
    print(f"  {', '.join(change.keys)}")
    if change.backup is not None:
        print(f"  (the former file: {change.backup})")
    for warning in change.warnings:
        if warning not in present.loaded.warnings:
            print(f"nanobot: {warning}", file=sys.stderr)
    return True


def _write_workspace(cli: CliContext) -> bool:
    """Create the files the workspace lacks; whether there were any."""
    from nanobot.config.load import load_config
    from nanobot.core.errors import StoreUnavailable
    from nanobot.store.home import seed, workspace_templates_dir

    workspace = load_config(cli.home.config_file, cli.environ).workspace
    try:
        cli.home.private(cli.home.root)
        created = seed(workspace, workspace_templates_dir())
    except OSError as error:
        raise StoreUnavailable(f"{workspace}: cannot be written: {error.strerror}") from error
    if created:
        print(f"Created in the workspace {workspace}:")
        print(f"  {', '.join(str(path.relative_to(workspace)) for path in created)}")
    return bool(created)


def _say_what_is(
    cli: CliContext, present: Present, answers: Answers, found: Found, plan: Additions
) -> None:
    """Where things stand now: the model, the keys that stayed, what may surprise."""
    from nanobot.config.compat import config_warnings
    from nanobot.core.errors import ProviderError

    print()
    if not present.model:
        print("Model: none; the small offline model answers (`agent -m help` says what it knows).")
    else:
        try:
            print(f"Model: {present.model}, through {present.explain_model()}.")
        except ProviderError as error:
            print(f"Model: {present.model}, but {error}.")
    provider = answers.provider
    if provider in found.keys and not answers.api_key:
        print(
            f"Its key stays in {found.keys[provider]}; the config needs none. A gateway that is "
            "started elsewhere, as a service, needs the variable too."
        )
    for key in plan.kept:
        print(f"{key} had a value already and keeps it: `{_command(cli, 'config', 'set', key)} …`")
    for hint in config_warnings(present.loaded.config):
        print(hint)


def _say_what_next(cli: CliContext, present: Present) -> None:
    config = present.loaded.config
    # The offline model understands a few forms only.
    question = "What is in my workspace?" if present.model else "list ."
    lines = [
        (_command(cli, "agent", "-m", question), "one question"),
        (_command(cli, "agent"), "a conversation"),
    ]
    if config.channels.telegram.enabled:
        lines.append((_command(cli, "gateway"), "serves Telegram while it runs"))
    if not present.model:
        lines.append((_command(cli, "onboard"), "connects a real model, when you have one"))
    width = max(len(command) for command, _ in lines)
    print("\nType next:")
    for command, meaning in lines:
        print(f"  {command:<{width}}   {meaning}")


def _command(cli: CliContext, *words: str) -> str:
    """A command line as this person has to type it."""
    from nanobot.cli.onboard_plan import program

    found = shutil.which("nanobot")
    name = program(sys.argv[0], None if found is None else Path(found))
    home = [] if cli.home == Home.locate(None, os.environ) else ["--home", str(cli.home.root)]
    return shlex.join([name, *home, *words])
