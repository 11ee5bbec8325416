"""``nanobot agent``: one question and its answer on stdout, or a conversation in the terminal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from nanobot.cli.context import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_PROVIDER,
    EXIT_USAGE,
    CliContext,
)
from nanobot.cli.show import StderrProgress, printable, styled

if TYPE_CHECKING:
    from nanobot.channels.socket_protocol import Question, Reply
    from nanobot.store.home import Home

DEFAULT_SESSION = "cli:direct"
OFFLINE = (
    "nanobot: no model is configured, so the built-in offline model answers "
    "(`nanobot agent -m help` lists what it understands). To connect a real one: {how}"
)
WITH_OLLAMA = "`nanobot onboard --yes` (it takes {model} of the Ollama that runs at {address})."
WITH_KEY = "`nanobot onboard` (it asks for a provider, its key and a model)."
_EXITS = {
    "": 0,
    "provider": EXIT_PROVIDER,
    "config": EXIT_USAGE,
    "stopped": EXIT_INTERRUPTED,
    "failed": EXIT_FAILURE,
}


def agent(
    context: typer.Context,
    message: str | None = typer.Option(
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
    if message is None and sys.stdin.isatty():
        if image:
            raise typer.BadParameter("--image goes with a question; write one after -m")
        from nanobot.cli.repl import converse

        raise typer.Exit(converse(cli, session=session, model=model, markdown=markdown, logs=logs))
    text = sys.stdin.read() if message is None or message == "-" else message
    if not text.strip():
        raise typer.BadParameter("there is no message; write one after -m or on stdin")
    from nanobot.channels.socket_protocol import Question

    attended = sys.stdin.isatty() or sys.stderr.isatty()
    question = Question(text, session, model, attended)
    if image:
        question = _with_pictures(question, image, cli.home)
    raise typer.Exit(ask_once(cli, question, as_json=as_json, markdown=markdown, logs=logs))


def ask_once(
    cli: CliContext, question: Question, *, as_json: bool, markdown: bool, logs: bool
) -> int:
    """Ask, print the answer or one line on stderr; returns the exit code."""
    from nanobot.cli.talk import open_talk

    with open_talk(cli, "one-shot", logs=logs) as talk:
        if question.model is None and talk.is_offline:
            print(offline_hint(cli), file=sys.stderr)
        reply = talk.ask(question, StderrProgress())
        if reply.failure:
            print(f"nanobot: {printable(reply.answer)}", file=sys.stderr)
        else:
            text = json.dumps(_document(reply), ensure_ascii=False) if as_json else reply.answer
            is_markdown = markdown and not as_json and styled(cli.environ)
            print(_for_terminal(text, markdown=is_markdown) if sys.stdout.isatty() else text)
        return _EXITS[reply.failure]


def _for_terminal(text: str, *, markdown: bool) -> str:
    if not markdown:
        return printable(text)
    from nanobot.cli.markdown_view import rendered

    return rendered(printable(text), shutil.get_terminal_size().columns)


def offline_hint(cli: CliContext) -> str:
    """How to connect a real model: one that runs on this machine, else one with a key."""
    from nanobot.cli.onboard_plan import look_around

    found = look_around(cli.environ)
    if not found.ollama:
        return OFFLINE.format(how=WITH_KEY)
    return OFFLINE.format(how=WITH_OLLAMA.format(model=found.ollama[0], address=found.ollama_at))


def _with_pictures(question: Question, paths: Iterable[str], home: Home) -> Question:
    """The question with its pictures, stored among its session's media.

    The gateway may not see the files that the person sees, but it sees those. Raises BadParameter,
    naming the file, for one that cannot be shown, StoreUnavailable where nothing can be stored.
    """
    import asyncio
    from dataclasses import replace
    from pathlib import Path

    from nanobot.core.errors import ToolError
    from nanobot.store.files import disk_errors
    from nanobot.tools.images import Pictures, read_picture

    async def stored(path: str) -> str:
        try:
            data = read_picture(Path(path).expanduser())
            picture, _ = await pictures.keep(data, question.session_key)
        except (ToolError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
            raise typer.BadParameter(f"{path}: {error}") from error
        return picture.path

    async def all_stored() -> tuple[str, ...]:
        return tuple([await stored(path) for path in paths])

    pictures = Pictures(home)
    with disk_errors(home.media):
        home.private(home.root)
        return replace(question, pictures=asyncio.run(all_stored()))


def _document(reply: Reply) -> dict[str, object]:
    return {
        "reply": reply.answer,
        "model": reply.model,
        "tools": list(reply.tools),
        "usage": {
            "inputTokens": reply.usage.input_tokens,
            "outputTokens": reply.usage.output_tokens,
            "cachedTokens": reply.usage.cached_tokens,
        },
    }
