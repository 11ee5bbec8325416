"""The line editor of the conversation; loads prompt_toolkit, so it is imported late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.color_depth import ColorDepth

from nanobot.store.files import write_atomic

CONTINUATION = "...> "
HISTORY_LIMIT = 512 * 1024
"""Bytes of the history file from which on its older half is dropped."""

Commands = Callable[[], Sequence[tuple[str, str]]]
"""The slash commands there are, without the slash, and what they do."""


class Editor:
    """Reads messages: history, completion of commands, pasted lines kept as one message."""

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
            # The Ctrl-C may have been meant for a turn that has just ended: ↑ brings the text back.
            buffer.append_to_history()
            buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return bindings


def prepare_history(history: Path) -> None:
    """Have a history file that only its owner reads and that does not grow for ever."""
    history.touch(mode=0o600)
    history.chmod(0o600)
    if history.stat().st_size > HISTORY_LIMIT:
        # FileHistory begins each entry with a line "# <time>".
        younger = history.read_bytes()[-HISTORY_LIMIT // 2 :]
        start = younger.find(b"\n# ")
        write_atomic(history, younger[start + 1 :] if start >= 0 else b"", durable=False)
