"""A conversation in the terminal, and its line editor; loads prompt_toolkit, so import it late."""

from __future__ import annotations

import shutil
import signal
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.color_depth import ColorDepth

from nanobot import __version__
from nanobot.channels.socket_protocol import Question, Reply
from nanobot.cli.agent_cmd import offline_hint
from nanobot.cli.context import EXIT_INTERRUPTED, CliContext
from nanobot.cli.show import StderrProgress, moves, printable, styled
from nanobot.cli.talk import SocketTalk, Talk, open_talk
from nanobot.cli.turn_view import TurnView
from nanobot.core.errors import GatewayError, NanobotError
from nanobot.core.events import Event
from nanobot.store.files import write_atomic

LEAVE = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
HINT = "(exit or Ctrl-D leaves; Ctrl-C stops a turn while it runs)"
GREETING = "nanobot {version}{where}. /help lists the commands; exit or Ctrl-D leaves."
KEYS = "Ctrl-C stops a turn; Alt-Enter starts a new line."
GONE = "nanobot: {error}. What was asked last is not asked again by itself."
PROMPT = "you> "
RUNS_HERE = "nanobot: the assistant now runs in this terminal."
RUNS_THERE = "nanobot: connected again, to the {holder}."

CONTINUATION = "...> "
HISTORY_LIMIT = 512 * 1024
"""Size in bytes above which the older half of the history file is dropped."""

Commands: TypeAlias = Callable[[], Sequence[tuple[str, str]]]
"""Gives the slash commands, without the slash, and what they do."""

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
    """A connection to the assistant in the process that holds the home, else in this process.

    If the holder dies, it connects to the next holder or takes the home over.
    """

    def __init__(self, cli: CliContext, *, logs: bool) -> None:
        self._cli = cli
        self._logs = logs
        self._stack = ExitStack()
        self._talk: Talk | None = None
        self.commands: Commands = tuple

    def open(self) -> Talk:
        """A talk that works now; raises GatewayError (and others) when there is none."""
        if isinstance(self._talk, SocketTalk):
            try:
                self._talk.status()  # the holder may have ended while nobody typed
            except GatewayError:
                self.drop()
                self._connect()
                self._say_where()
            except BaseException:
                self.drop()
                raise
        return self._talk or self._connect()

    @contextmanager
    def reconnecting(self) -> Iterator[None]:
        """If the holder dies in this block, say so, and connect to the next one or take over."""
        try:
            yield
        except GatewayError as error:
            print(GONE.format(error=printable(str(error))), file=sys.stderr)
            self.drop()
            self._connect()
            self._say_where()

    def drop(self) -> None:
        """Hang up; the next question connects anew."""
        self._talk = None
        self._stack.close()

    @property
    def where(self) -> str:
        """Where the assistant runs, as a part of the greeting; "" for this process."""
        talk = self._talk
        return f" through the {talk.holder}" if isinstance(talk, SocketTalk) else ""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
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
    """Converse with a line editor and with answers that are laid out while they stream."""
    is_styled = styled(cli.environ)
    history = cli.home.private(cli.home.cache) / "history"
    editor = Editor(PROMPT, history, lambda: connection.commands(), styled=is_styled)
    print(f"{_greeting(connection)}\n{KEYS}\n")
    for text in _messages(editor.read):
        with _errors_shown():
            talk = connection.open()
            # Repainting would erase log lines, which other threads write.
            view = TurnView(
                markdown=markdown and is_styled,
                styled=is_styled,
                live=not logs,
                write=_write,
                size=shutil.get_terminal_size,
            )
            with connection.reconnecting(), _unechoed_keys(), view:
                view.conclude(_ask(talk, asked(text), view.show))
            if view.failure is not None:
                print(f"nanobot: the answer could not be laid out: {view.failure!r}")
                print(printable(view.answer))
        print()


def _line_by_line(connection: Connection, asked: Asked) -> None:
    """Converse on a dumb terminal or a pipe: prompts on stderr, answers on stdout."""

    def read() -> str:
        print(PROMPT, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    print(_greeting(connection), file=sys.stderr)
    for text in _messages(read):
        with _errors_shown():
            talk = connection.open()
            with connection.reconnecting():
                reply = _ask(talk, asked(text), StderrProgress())
                if reply.failure:
                    print(f"nanobot: {printable(reply.answer)}", file=sys.stderr)
                else:
                    print(printable(reply.answer) if sys.stdout.isatty() else reply.answer)
                sys.stdout.flush()


def _ask(talk: Talk, question: Question, show: Callable[[Event], None]) -> Reply:
    """Ask and wait; Ctrl-C stops the turn, and pressed again before it has stopped, leaves."""
    with _second_interrupt_leaves():
        try:
            return talk.ask(question, show)
        except KeyboardInterrupt:
            return Reply("stopped", failure="stopped")


def _messages(read: Callable[[], str]) -> Iterator[str]:
    """The messages that the person types, except empty ones, until they leave."""
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
def _errors_shown() -> Iterator[None]:
    """Print what went wrong with a message, so that the conversation goes on."""
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third one must not interrupt leaving
        raise _Leave

    former = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        if interrupts < 2:
            signal.signal(signal.SIGINT, former)


@contextmanager
def _unechoed_keys() -> Iterator[None]:
    """Do not echo keys typed while an answer streams; the next prompt receives them."""
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


class Editor:
    """Reads messages, with a history and completion of commands; pasted lines are one message."""

    def __init__(self, prompt: str, history: Path, commands: Commands, *, styled: bool) -> None:
        prepare_history(history)
        self._session: PromptSession[str] = PromptSession(
            FormattedText([("bold" if styled else "", prompt)]),
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=FileHistory(str(history)),
            completer=_SlashCommands(commands),
            complete_while_typing=True,
            reserve_space_for_menu=4,
            key_bindings=_bindings(),
            color_depth=None if styled else ColorDepth.DEPTH_1_BIT,
        )

    def read(self) -> str:
        """The next message; raises KeyboardInterrupt (Ctrl-C) and EOFError (Ctrl-D)."""
        return self._session.prompt()


class _SlashCommands(Completer):
    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if not typed.startswith("/") or document.text != typed or typed.split() != [typed]:
            return
        for name, meaning in self._commands():
            if f"/{name}".startswith(typed):
                yield Completion(f"/{name}", -len(typed), display_meta=meaning)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def _give_up(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.text:
            # The Ctrl-C may have been meant for a turn that has just ended: ↑ restores the text.
            buffer.append_to_history()
            buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return bindings


def prepare_history(history: Path) -> None:
    """Make the history file private to its owner, and halve it when it has grown too long."""
    history.touch(mode=0o600)
    history.chmod(0o600)
    if history.stat().st_size > HISTORY_LIMIT:
        # FileHistory begins each entry with a line "# <time>".
        younger = history.read_bytes()[-HISTORY_LIMIT // 2 :]
        start = younger.find(b"\n# ")
        write_atomic(history, younger[start + 1 :] if start >= 0 else b"", durable=False)
