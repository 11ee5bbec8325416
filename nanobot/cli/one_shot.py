"""One question, one answer on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import typer

from nanobot.channels.socket_protocol import Question, Reply
from nanobot.cli.context import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_PROVIDER,
    EXIT_USAGE,
    CliContext,
)
from nanobot.cli.show import StderrProgress, printable, styled
from nanobot.cli.talk import SocketTalk, Talk
from nanobot.core.errors import ToolError
from nanobot.store.files import disk_errors
from nanobot.store.home import Home
from nanobot.tools.images import Pictures, read_picture


def with_pictures(question: Question, paths: Iterable[str], home: Home) -> Question:
    """The question with its pictures, kept among its session's media.

    A gateway may see other files than the person does, but it sees those. Raises BadParameter,
    naming the file, for one that cannot be shown, StoreUnavailable where nothing can be kept.
    """
    with disk_errors(home.media):
        home.private(home.root)
        kept = asyncio.run(_kept(question.session_key, paths, home))
    return replace(question, pictures=kept)


async def _kept(session_key: str, paths: Iterable[str], home: Home) -> tuple[str, ...]:
    pictures = Pictures(home)
    kept = []
    for path in paths:
        try:
            data = read_picture(Path(path).expanduser())
            image, _ = await pictures.keep(data, session_key)
        except (ToolError, RuntimeError) as error:  # RuntimeError: ~somebody who does not exist
            raise typer.BadParameter(f"{path}: {error}") from error
        kept.append(image.path)
    return tuple(kept)


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


def ask_once(
    cli: CliContext, question: Question, *, as_json: bool, markdown: bool, logs: bool
) -> int:
    """Ask, print the answer or one line on stderr; returns the exit code."""
    talk = SocketTalk.connect(cli.home)
    if talk is not None:
        with talk:
            return _ask(cli, talk, question, as_json=as_json, markdown=markdown)
    from nanobot.cli.local import LocalTalk, take_over
    from nanobot.cli.setup import load, set_up_logs

    loaded = load(cli)
    set_up_logs(loaded, logs=logs)
    with take_over(cli, loaded, "one-shot") as taken:
        if isinstance(taken, LocalTalk) and question.model is None and taken.app.models.is_offline:
            print(offline_hint(cli), file=sys.stderr)
        return _ask(cli, taken, question, as_json=as_json, markdown=markdown)


def _ask(cli: CliContext, talk: Talk, question: Question, *, as_json: bool, markdown: bool) -> int:
    reply = talk.ask(question, StderrProgress())
    if reply.failure:
        print(f"nanobot: {printable(reply.answer)}", file=sys.stderr)
    else:
        text = _as_json(reply) if as_json else reply.answer
        is_markdown = markdown and not as_json and styled(cli.environ)
        print(_for_eyes(text, markdown=is_markdown) if sys.stdout.isatty() else text)
    return _EXITS[reply.failure]


def _for_eyes(text: str, *, markdown: bool) -> str:
    """An answer as a terminal is sent it: harmless, and laid out where it can be."""
    if not markdown:
        return printable(text)
    from nanobot.cli.markdown_view import rendered

    return rendered(printable(text), shutil.get_terminal_size().columns)


def offline_hint(cli: CliContext) -> str:
    """How to connect a real model: the one that runs here already, or one with a key."""
    from nanobot.cli.onboard_plan import look_around

    found = look_around(cli.environ)
    if not found.ollama:
        return OFFLINE.format(how=WITH_KEY)
    return OFFLINE.format(how=WITH_OLLAMA.format(model=found.ollama[0], address=found.ollama_at))


def _as_json(reply: Reply) -> str:
    return json.dumps(
        {
            "reply": reply.answer,
            "model": reply.model,
            "tools": list(reply.tools),
            "usage": {
                "inputTokens": reply.usage.input_tokens,
                "outputTokens": reply.usage.output_tokens,
                "cachedTokens": reply.usage.cached_tokens,
            },
        },
        ensure_ascii=False,
    )
