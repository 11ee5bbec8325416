"""The ``nanobot`` program: global options, command groups, and errors as text and exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from nanobot import gc_tuning
from nanobot.cli.agent_cmd import agent
from nanobot.cli.bus_cmd import bus_app
from nanobot.cli.channels_cmd import channels_app
from nanobot.cli.config_cmd import config_app
from nanobot.cli.context import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_NO_GATEWAY,
    EXIT_PROVIDER,
    EXIT_USAGE,
    CliContext,
)
from nanobot.cli.cron_cmd import cron_app
from nanobot.cli.gateway_cmd import gateway
from nanobot.cli.memory_cmd import memory_app
from nanobot.cli.onboard_cmd import onboard
from nanobot.cli.sessions_cmd import sessions_app
from nanobot.cli.skills_cmd import skills_app
from nanobot.cli.status_cmd import status
from nanobot.cli.usage_cmd import usage
from nanobot.core.errors import ConfigError, GatewayError, NanobotError, ProviderError
from nanobot.store.home import Home

app = typer.Typer(
    name="nanobot",
    help="A personal assistant that lives on its owner's own machine.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(onboard)
app.command()(agent)
app.command()(gateway)
app.command()(status)
app.command()(usage)
app.add_typer(bus_app, name="bus")
app.add_typer(channels_app, name="channels")
app.add_typer(config_app, name="config")
app.add_typer(cron_app, name="cron")
app.add_typer(memory_app, name="memory")
app.add_typer(sessions_app, name="sessions")
app.add_typer(skills_app, name="skills")

_EXITS = (
    (ConfigError, EXIT_USAGE),
    (ProviderError, EXIT_PROVIDER),
    (GatewayError, EXIT_NO_GATEWAY),
    (NanobotError, EXIT_FAILURE),
)


def _version(value: bool) -> None:
    if value:
        from nanobot import __version__

        typer.echo(f"nanobot {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    home: str = typer.Option(
        None, "--home", metavar="DIR", help="Where nanobot keeps everything (or NANOBOT_HOME)."
    ),
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """A personal assistant that lives on its owner's own machine."""
    context.obj = CliContext(Home.locate(home, os.environ), dict(os.environ))


def main() -> None:
    """Run the program; a failure prints one text to stderr and sets the exit code."""
    gc_tuning.starting()
    _streams()
    try:
        _check_arguments(sys.argv[1:])
        code = app(standalone_mode=False)
    except typer.Abort:
        code = EXIT_INTERRUPTED
    except TyperException as error:
        text = str(error)
        print(text if text.startswith("Usage:") else f"nanobot: {text}", file=sys.stderr)
        code = EXIT_USAGE
    except NanobotError as error:
        code = _fail(error, next(code for kind, code in _EXITS if isinstance(error, kind)))
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # Nobody reads the output any more; flushing it at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILURE
    except OSError as error:
        if os.environ.get("NANOBOT_DEBUG"):
            raise
        place = f"{os.fsdecode(error.filename)} cannot be used: " if error.filename else ""
        code = _fail(f"{place}{error.strerror or error}", EXIT_FAILURE)
    except Exception as error:
        if os.environ.get("NANOBOT_DEBUG"):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        code = _fail(f"a defect of nanobot: {reason} (NANOBOT_DEBUG=1 shows where)", EXIT_FAILURE)
    gc_tuning.ending()
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: Exception | str, code: int) -> int:
    print(f"nanobot: {error}", file=sys.stderr)
    return code


def _streams() -> None:
    """Make all three standard streams usable, in UTF-8 whatever the locale says.

    /dev/null replaces a stream that the caller closed; otherwise the next file opened would get
    its descriptor. Characters that cannot be encoded are replaced.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raises ConfigError for an argument that is not UTF-8: it could not be stored."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"the argument {argument} is not UTF-8") from None
