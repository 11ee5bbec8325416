"""Pictures given on the command line, made fit to be shown before the question is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import typer

from nanobot.channels.socket_protocol import Question
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
