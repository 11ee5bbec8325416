"""Asks the process that holds the home about memory and sessions, or answers in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import typer

from nanobot.cli.context import CliContext
from nanobot.core.errors import NanobotError

Ask: TypeAlias = Callable[..., dict[str, Any]]
"""Takes what to do and its values; raises NanobotError with what went wrong."""


@contextmanager
def desk(cli: CliContext) -> Iterator[Ask]:
    """The gateway's or conversation's desk; with nobody there our own, under the home's lock."""
    from nanobot.cli.talk import SocketTalk
    from nanobot.store.lock import HomeLock

    talk = SocketTalk.connect(cli.home)
    if talk is not None:
        with talk:
            yield lambda do, **values: _checked(talk.request("admin", {"do": do, **values}))
        return
    with HomeLock(cli.home, "memory command") as lock:
        lock.take()
        with _own(cli) as ask:
            yield ask


@contextmanager
def _own(cli: CliContext) -> Iterator[Ask]:
    from nanobot import runtime
    from nanobot.app import open_app
    from nanobot.cli.setup import load, say, set_up_logs

    loaded = load(cli)
    set_up_logs(loaded, logs=False)
    opening = open_app(loaded, cli.home, cli.environ, offline_allowed=True, lasting=False)
    with runtime.runner() as runner:
        app = runner.run(opening.__aenter__())
        say(app.notice)
        try:
            yield lambda do, **values: _checked(runner.run(app.admin.answer({"do": do, **values})))
        finally:
            runner.run(opening.__aexit__(None, None, None))


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if (error := answer.get("error")) is not None:
        raise NanobotError(str(error))
    return answer


def print_json(answer: object) -> None:
    """An answer for a program."""
    typer.echo(json.dumps(answer, ensure_ascii=False, indent=2))


def local_time(stamp: str) -> str:
    """An ISO time as this machine's clock shows it."""
    from datetime import datetime

    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M}"
