"""``nanobot agent``: one question and its answer, or a conversation in the terminal."""

from __future__ import annotations

import sys

import typer

from nanobot.cli.context import CliContext

DEFAULT_SESSION = "cli:direct"


def agent(
    context: typer.Context,
    message: str = typer.Option(
        None,
        "--message",
        "-m",
        metavar="TEXT",
        help="Ask this and print the answer; - reads stdin.",
    ),
    session: str = typer.Option(
        DEFAULT_SESSION, "--session", "-s", metavar="KEY", help="The conversation to continue."
    ),
    model: str = typer.Option(None, "--model", metavar="NAME", help="Use this model."),
    image: list[str] = typer.Option(
        [], "--image", metavar="PATH", help="Show a picture with -m; repeatable."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print the answer, the tools used and the usage as JSON."
    ),
    markdown: bool = typer.Option(
        True, "--markdown/--no-markdown", help="Render Markdown on a terminal."
    ),
    logs: bool = typer.Option(False, "--logs/--no-logs", help="Show the log on stderr."),
) -> None:
    """Ask the assistant: one question with -m, a conversation without."""
    cli: CliContext = context.obj
    text = _question(message)
    if text is None:
        if image:
            raise typer.BadParameter("--image goes with a question; write one after -m")
        from nanobot.cli.repl import converse

        raise typer.Exit(converse(cli, session=session, model=model, markdown=markdown, logs=logs))
    if not text.strip():
        raise typer.BadParameter("there is no message; write one after -m or on stdin")
    from nanobot.channels.socket_protocol import Question
    from nanobot.cli.one_shot import ask_once

    attended = sys.stdin.isatty() or sys.stderr.isatty()
    question = Question(text, session, model, attended)
    if image:
        from nanobot.cli.one_shot import with_pictures

        question = with_pictures(question, image, cli.home)
    raise typer.Exit(ask_once(cli, question, as_json=as_json, markdown=markdown, logs=logs))


def _question(message: str | None) -> str | None:
    """The message of -m, or of stdin where that is ``-`` or piped, or None for a conversation."""
    if message is not None and message != "-":
        return message
    if message == "-" or not sys.stdin.isatty():
        return sys.stdin.read()
    return None
