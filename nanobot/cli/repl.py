"""A conversation in the terminal."""

from __future__ import annotations

import shutil
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import TypeAlias

from nanobot import __version__
from nanobot.channels.socket_protocol import Question, Reply
from nanobot.cli.agent_cmd import offline_hint
from nanobot.cli.context import EXIT_INTERRUPTED, CliContext
from nanobot.cli.show import StderrProgress, moves, printable, styled
from nanobot.cli.talk import SocketTalk, Talk, open_talk
from nanobot.core.errors import GatewayError, NanobotError
from nanobot.core.events import Event

LEAVE = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
HINT = "(exit or Ctrl-D leaves; Ctrl-C stops a turn while it runs)"
GREETING = "nanobot {version}{where}. /help lists the commands; exit or Ctrl-D leaves."
KEYS = "Ctrl-C stops a turn; Alt-Enter starts a new line."
GONE = "nanobot: {error}. What was asked last is not asked again by itself."
PROMPT = "you> "
RUNS_HERE = "nanobot: the assistant now runs in this terminal."
RUNS_THERE = "nanobot: connected again, to the {holder}."

Asked: TypeAlias = Callable[[str], Question]
"""Makes a question of what was typed."""


def converse(
    cli: CliContext, *, session: str, model: str | None, markdown: bool, logs: bool
) -> int:
    """Ask and answer until the person leaves; returns the exit code."""
    with Connection(cli, logs=logs) as connection:
        connection.open()

        def asked(text: str) -> Question:
            return Question(text, session, model, attended=True)

        try:
            if sys.stdin.isatty() and sys.stdout.isatty() and moves(cli.environ):
                _in_a_terminal(cli, connection, asked, markdown=markdown, logs=logs)
            else:
                _line_by_line(connection, asked)
        except _Leave:
            return EXIT_INTERRUPTED
    return 0


class Connection:
    """The way to the assistant: the process that holds the home, or this one where none does.

    When the holder dies it is made anew, with whoever has the home then.
    """

    def __init__(self, cli: CliContext, *, logs: bool) -> None:
        self._cli = cli
        self._logs = logs
        self._stack = ExitStack()
        self._talk: Talk | None = None
        self.commands: Callable[[], Sequence[tuple[str, str]]] = tuple

    def open(self) -> Talk:
        """A way that works now; raises GatewayError (and others) when there is none."""
        if isinstance(self._talk, SocketTalk):
            try:
                self._talk.status()  # it may have gone while nobody typed
            except GatewayError:
                self.drop()
                self._connect()
                self._say_where()
            except BaseException:
                self.drop()
                raise
        return self._talk or self._connect()

    @contextmanager
    def mended(self) -> Iterator[None]:
        """Where the holder dies within: say so, connect to the next one or take over."""
        try:
            yield
        except GatewayError as error:
            print(GONE.format(error=printable(str(error))), file=sys.stderr)
            self.drop()
            self._connect()
            self._say_where()

    def drop(self) -> None:
        """Hang up, so that the next question finds a new way."""
        self._talk = None
        self._stack.close()

    @property
    def where(self) -> str:
        """Where the assistant runs, as the greeting has it."""
        talk = self._talk
        return f" through the {talk.holder}" if isinstance(talk, SocketTalk) else ""

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()

    def _connect(self) -> Talk:
        talk = open_talk(self._cli, "REPL", logs=self._logs)
        self._stack.enter_context(talk)
        if isinstance(talk, SocketTalk):
            listed = talk.status().get("commands", ())
            found = tuple((str(name), str(meaning)) for name, meaning in listed)
            self.commands = lambda: found
        else:
            self.commands = talk.app.commands.menu
            if talk.is_offline:
                print(offline_hint(self._cli), file=sys.stderr)
        self._talk = talk
        return talk

    def _say_where(self) -> None:
        talk = self._talk
        there = RUNS_THERE.format(holder=talk.holder) if isinstance(talk, SocketTalk) else ""
        print(there or RUNS_HERE, file=sys.stderr)


def _in_a_terminal(
    cli: CliContext, connection: Connection, asked: Asked, *, markdown: bool, logs: bool
) -> None:
    """With a line editor, and answers that are laid out while they come."""
    from nanobot.cli.prompt import Editor
    from nanobot.cli.turn_view import TurnView

    is_styled = styled(cli.environ)
    history = cli.home.private(cli.home.cache) / "history"
    editor = Editor(PROMPT, history, lambda: connection.commands(), styled=is_styled)
    print(f"{_greeting(connection)}\n{KEYS}\n")
    for text in _messages(editor.read):
        with _spoken():
            talk = connection.open()
            # Log lines come from other threads and would be painted over.
            view = TurnView(
                markdown=markdown and is_styled,
                styled=is_styled,
                live=not logs,
                write=_write,
                size=shutil.get_terminal_size,
            )
            with connection.mended(), _unechoed_keys(), view:
                view.conclude(_ask(talk, asked(text), view.show))
            if view.failure is not None:
                print(f"nanobot: the answer could not be laid out: {view.failure!r}")
                print(printable(view.answer))
        print()


def _line_by_line(connection: Connection, asked: Asked) -> None:
    """Without a terminal that can do more: prompts on stderr, answers on stdout."""

    def read() -> str:
        print(PROMPT, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    print(_greeting(connection), file=sys.stderr)
    for text in _messages(read):
        with _spoken():
            talk = connection.open()
            with connection.mended():
                reply = _ask(talk, asked(text), StderrProgress())
                if reply.failure:
                    print(f"nanobot: {printable(reply.answer)}", file=sys.stderr)
                else:
                    print(printable(reply.answer) if sys.stdout.isatty() else reply.answer)
                sys.stdout.flush()


def _ask(talk: Talk, question: Question, show: Callable[[Event], None]) -> Reply:
    """Ask and wait; the first Ctrl-C stops the turn, a second one meanwhile leaves."""
    with _second_interrupt_leaves():
        try:
            return talk.ask(question, show)
        except KeyboardInterrupt:
            return Reply("stopped", failure="stopped")


def _messages(read: Callable[[], str]) -> Iterator[str]:
    """What the person writes, until they leave; empty messages are none."""
    while True:
        try:
            text = read()
        except EOFError:
            return
        except KeyboardInterrupt:
            print(HINT, file=sys.stderr)
            continue
        if text.strip().lower() in LEAVE:
            return
        if text.strip():
            yield text


def _greeting(connection: Connection) -> str:
    return GREETING.format(version=__version__, where=connection.where)


@contextmanager
def _spoken() -> Iterator[None]:
    """Say what went wrong with one message and go on; Ctrl-C gives up waiting for a way."""
    try:
        yield
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
    except NanobotError as error:
        print(f"nanobot: {printable(str(error))}", file=sys.stderr)


class _Leave(BaseException):
    """The person pressed Ctrl-C again before the turn had stopped."""


@contextmanager
def _second_interrupt_leaves() -> Iterator[None]:
    interrupts = 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third must not kill who is leaving
        raise _Leave

    former = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        if interrupts < 2:
            signal.signal(signal.SIGINT, former)


@contextmanager
def _unechoed_keys() -> Iterator[None]:
    """Keys typed while the answer comes do not appear in it; they wait for the next prompt."""
    terminal = sys.stdin.fileno()
    former = termios.tcgetattr(terminal)
    quiet = list(former)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, former)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
