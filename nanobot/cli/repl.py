"""A conversation in the terminal."""

from __future__ import annotations

import sys

from nanobot.channels.socket_protocol import Question
from nanobot.cli.context import CliContext
from nanobot.cli.show import StderrProgress
from nanobot.cli.talk import SocketTalk, Talk

LEAVE = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
PROMPT = "you> "


def converse(cli: CliContext, *, session: str, model: str | None, logs: bool) -> None:
    """Ask and answer until the person leaves with ``exit`` or Ctrl-D."""
    talk = SocketTalk.connect(cli.home)
    if talk is not None:
        with talk:
            _loop(talk, session, model)
        return
    from nanobot.cli.local import take_over
    from nanobot.cli.setup import load, set_up_logs

    loaded = load(cli)
    set_up_logs(loaded, logs=logs)
    with take_over(cli, loaded, "REPL") as taken:
        _loop(taken, session, model)


def _loop(talk: Talk, session: str, model: str | None) -> None:
    import readline

    readline.set_history_length(1000)
    print("nanobot. /help lists the commands; exit or Ctrl-D leaves; Ctrl-C stops a turn.")
    while True:
        try:
            text = input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if text.strip().lower() in LEAVE:
            return
        if not text.strip():
            continue
        question = Question(text, session, model, attended=True)
        try:
            reply = talk.ask(question, StderrProgress())
        except KeyboardInterrupt:
            print("\nStopped.", file=sys.stderr)
            continue
        print(f"nanobot: {reply.answer}" if reply.failure else reply.answer)
