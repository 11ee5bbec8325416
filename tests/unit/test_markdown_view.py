"""Answers laid out while they stream: whatever comes, the end is as if it had come at once."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.channels.socket_protocol import Reply
from nanobot.cli.markdown_view import Lines, MarkdownLines, PlainLines, columns_of, rendered
from nanobot.cli.show import printable
from nanobot.cli.turn_view import ONCE_MORE, TAKEN_BACK, Frame, Screen, TurnPage, TurnView
from nanobot.core.chat import Usage
from nanobot.core.events import (
    Notice,
    TextDelta,
    TextDiscarded,
    ToolFinished,
    ToolStarted,
    UsageReported,
)

SGR = re.compile(r"\x1b\[[\d;]*m")
MARKDOWN = st.text(alphabet="ab1 .-*_#>`|~[]()!<&;\n\n\n\t+=é字", max_size=120)
ANYTHING = st.text(max_size=80)


@pytest.fixture(autouse=True)
def _coloured_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def plain(text: str) -> str:
    return SGR.sub("", text)


class Paper:
    """A terminal that understands what ``Screen`` writes; fails on anything else."""

    _TOKEN = re.compile(r"\x1b\[(\?7[lh]|\d*[A-Za-z])|\x1b\[[\d;]*m|([^\x1b\n\r]+)|(\n)|(\r)")

    def __init__(self, columns: int, rows: int) -> None:
        self.size = os.terminal_size((columns, rows))
        self.lines = [""]
        self._row = 0

    def write(self, text: str) -> None:
        place = 0
        for token in self._TOKEN.finditer(SGR.sub("", text)):
            assert token.start() == place, f"not understood: {text[place : token.start()]!r}"
            place = token.end()
            self._take(token)
        assert place == len(SGR.sub("", text))

    def _take(self, token: re.Match[str]) -> None:
        command, words, new_line, _ = token.groups()
        if command and command.endswith("A"):
            self._row -= int(command[:-1])
            assert self._row >= max(0, len(self.lines) - self.size.lines), "beyond the screen"
        elif command == "2K":
            self.lines[self._row] = ""
        elif command == "J":
            del self.lines[self._row + 1 :]
            self.lines[self._row] = ""
        elif words:
            self.lines[self._row] += words
        elif new_line:
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")

    def narrow(self, columns: int) -> None:
        """Have fewer columns, and reflow as most terminals do."""
        self.size = os.terminal_size((columns, self.size.lines))
        self.lines = [
            line[start : start + columns]
            for line in self.lines
            for start in range(0, max(len(line), 1), columns)
        ]
        self._row = len(self.lines) - 1

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip("\n")


class Display:
    """A page, its screen and the paper it ends up on."""

    def __init__(self, lines: Lines, *, columns: int = 40, rows: int = 12) -> None:
        self.paper = Paper(columns, rows)
        self.page = TurnPage(lines, styled=False, now=0.0)
        self._screen = Screen(self.paper.write, lambda: self.paper.size)

    def paint(self, now: float = 0.0) -> str:
        frame: Frame = self.page.frame(*self.paper.size, now)
        self._screen.paint(frame.final, frame.live)
        return self.paper.text

    def stream(self, text: str, *, piece: int = 7) -> None:
        for start in range(0, len(text), piece):
            self.page.apply(TextDelta(text[start : start + piece]), 0.0)
            self.paint()

    def conclude(self, answer: str, failure: str = "") -> str:
        self.page.conclude(Reply(answer, failure=failure))
        return self.paint()


def at_once(lines: Lines, text: str, columns: int = 40, rows: int = 12) -> str:
    return Display(lines, columns=columns, rows=rows).conclude(text)


LONG = "\n\n".join(
    f"## Part {n}\n\nSome *words* of part {n}.\n\n```python\n"
    + f"print({n})\n" * 9
    + f"```\n\n| a | b |\n|---|---|\n| 1 | {n} |\n\n- one\n- two {n}"
    for n in range(6)
)


# ------------------------------------------------------------------------------- streaming


@pytest.mark.parametrize("rows", [5, 12, 200])
@pytest.mark.parametrize("lines", [MarkdownLines, PlainLines])
def test_what_is_longer_than_the_screen_stands_there_once(
    lines: type[MarkdownLines | PlainLines], rows: int
) -> None:
    display = Display(lines(), rows=rows)

    display.stream(LONG)
    shown = display.conclude(LONG)

    assert shown == at_once(lines(), LONG, rows=rows)
    assert [shown.count(f"two {n}\n") + shown.endswith(f"two {n}") for n in range(6)] == [1] * 6


@settings(max_examples=150, deadline=None)
@given(MARKDOWN, st.integers(1, 30), st.integers(4, 15), st.booleans())
def test_streamed_is_in_the_end_as_if_it_had_come_at_once(
    text: str, piece: int, rows: int, markdown: bool
) -> None:
    lines = MarkdownLines() if markdown else PlainLines()
    answer = text.strip()
    display = Display(lines, columns=20, rows=rows)

    display.stream(answer, piece=piece)

    assert display.conclude(answer) == at_once(lines, answer, 20, rows)


@settings(max_examples=300, deadline=None)
@given(MARKDOWN, st.data())
def test_a_block_is_final_once_the_next_has_a_whole_line(text: str, data: st.DataObject) -> None:
    lines = MarkdownLines()
    cut = data.draw(st.integers(0, len(text)))

    *begun, last = lines.blocks(text[:cut]) or [""]

    final = begun if "\n" in last else begun[:-1]
    assert final == list(lines.blocks(text)[: len(final)])


def test_text_appears_while_it_comes() -> None:
    display = Display(MarkdownLines())

    display.stream("Hello **wor")

    assert display.paint() == "Hello **wor"
    display.stream("ld**")
    assert display.paint() == "Hello world"


def test_discarded_text_is_taken_back() -> None:
    display = Display(MarkdownLines())
    display.stream("Half an ans")

    display.page.apply(TextDiscarded(), 0.0)
    after = display.paint()
    display.stream("Whole.")

    assert (after, display.conclude("Whole.")) == ("", "Whole.")


def test_discarded_text_beyond_the_screen_is_said_to_be_void() -> None:
    display = Display(MarkdownLines(), rows=6)
    display.stream("\n\n".join(f"line {n}" for n in range(9)))

    display.page.apply(TextDiscarded(), 0.0)
    shown = display.conclude("Whole.")

    assert shown.endswith(f"{TAKEN_BACK}\n\nWhole.")
    assert "line 0" in shown


def test_only_the_broken_part_of_a_continued_answer_is_taken_back() -> None:
    display = Display(MarkdownLines())
    display.stream("The first half, ")
    display.page.apply(UsageReported(Usage(1, 1), "m"), 0.0)
    display.stream("bro")

    display.page.apply(TextDiscarded(), 0.0)
    display.stream("and the second.")

    assert display.conclude("The first half, and the second.") == "The first half, and the second."


def test_an_answer_that_was_not_streamed_is_shown() -> None:
    assert Display(MarkdownLines()).conclude("- /help: help\n- /new: new") == (
        " • /help: help\n • /new: new"
    )


def test_an_answer_that_differs_from_what_is_final_is_shown_whole() -> None:
    display = Display(MarkdownLines(), rows=6)
    display.stream("\n\n".join(f"line {n}" for n in range(9)))

    shown = display.conclude("Something else.")

    assert shown.endswith(f"{ONCE_MORE}\n\nSomething else.")


def test_an_answer_that_went_elsewhere_leaves_what_was_streamed() -> None:
    display = Display(MarkdownLines())
    display.stream("I have sent it.")

    assert display.conclude("") == "I have sent it."


# ------------------------------------------------------------------------- tools and notices


def test_tools_are_one_line_each_and_stand_apart_from_the_text() -> None:
    display = Display(MarkdownLines(), columns=60)
    display.stream("Let me look.")
    display.page.apply(ToolStarted("1", "exec", "ls\n-l"), 0.0)
    running = display.paint(now=2.0)
    display.page.apply(ToolFinished("1", "exec", True, 2.04), 2.0)
    display.page.apply(ToolStarted("2", "read_file", "a.txt"), 2.0)
    display.page.apply(ToolFinished("2", "read_file", False, 0.1), 2.1)
    display.page.apply(Notice("slow"), 2.1)
    display.stream("Two files.")

    shown = display.conclude("Two files.")

    assert running == "Let me look.\n\n· exec ls -l 2 s"
    assert shown == (
        "Let me look.\n\n· exec ls -l (2.0 s)\n· read_file a.txt\n· read_file failed after 0.1 s\n"
        "nanobot: slow\n\nTwo files."
    )


def test_silence_is_said_and_leaves_no_trace() -> None:
    display = Display(MarkdownLines())

    thinking = display.paint(now=3.2)
    shown = display.conclude("Hello.")

    assert (thinking, shown) == ("· thinking, 3 s (Ctrl-C stops)", "Hello.")


@pytest.mark.parametrize("lines", [PlainLines(), MarkdownLines()], ids=["plain", "markdown"])
def test_an_answer_in_several_parts_is_shown_once(lines: Lines) -> None:
    """Its subagents report while a question at the terminal is open: see ``Dispatcher.ask``."""
    display = Display(lines)

    display.stream("Begun.")
    display.page.apply(ToolStarted("1", "spawn", "look"), 0.0)
    display.page.apply(ToolFinished("1", "spawn", True, 0.1), 0.1)
    display.stream("I wait.")
    display.page.apply(Notice("waiting for 1 more"), 0.2)
    display.page.apply(ToolStarted("2", "exec", "date"), 0.2)
    display.page.apply(ToolFinished("2", "exec", True, 0.1), 0.3)
    display.stream("It is 7.")
    shown = display.conclude("I wait.\n\nIt is 7.")

    assert shown.count("It is 7.") == 1
    assert ONCE_MORE not in shown


@pytest.mark.parametrize(
    ("failure", "end"), [("stopped", "Stopped."), ("provider", "nanobot: no model")]
)
def test_a_turn_that_fails_keeps_what_it_said(failure: str, end: str) -> None:
    display = Display(MarkdownLines())
    display.stream("So far")

    assert display.conclude("no model", failure) == f"So far\n\n{end}"


def test_more_running_tools_than_rows_still_fit() -> None:
    display = Display(MarkdownLines(), rows=6)
    for number in range(20):
        display.page.apply(ToolStarted(str(number), "grep", f"n{number}"), 0.0)

    display.paint()
    shown = display.conclude("Done.")

    assert [shown.count(f"· grep n{number}\n") for number in range(20)] == [1] * 20


def test_a_resized_terminal_is_painted_anew() -> None:
    display = Display(PlainLines(), columns=40)
    display.stream("one two three four five six seven")
    display.paper.narrow(20)

    shown = display.paint()

    assert shown == "one two three four\nfive six seven"


# ------------------------------------------------------------------------------ the thread


def test_events_from_any_thread_are_painted_in_their_order() -> None:
    paper = Paper(40, 12)
    view = TurnView(
        markdown=True, styled=False, live=True, write=paper.write, size=lambda: paper.size
    )

    def send() -> None:
        for number in range(50):
            view.show(TextDelta(f"{number} "))

    with view:
        sender = Thread(target=send)
        sender.start()
        sender.join()
        view.conclude(Reply("".join(f"{n} " for n in range(50))))

    assert paper.text.split() == [str(n) for n in range(50)]
    assert view.failure is None


def test_beside_log_lines_nothing_is_painted_over() -> None:
    written: list[str] = []
    size = os.terminal_size((40, 12))
    view = TurnView(
        markdown=True, styled=False, live=False, write=written.append, size=lambda: size
    )

    with view:
        view.show(TextDelta("one\n\ntwo\n\nthree"))
        view.conclude(Reply("one\n\ntwo\n\nthree"))

    assert plain("".join(written)).replace("\x1b[2K", "") == "\none\n\ntwo\n\nthree\n"


def test_a_terminal_that_has_gone_leaves_the_answer_to_the_caller() -> None:
    def write(text: str) -> None:
        raise OSError("gone")

    size = os.terminal_size((40, 12))
    view = TurnView(markdown=False, styled=False, live=True, write=write, size=lambda: size)

    with view:
        view.show(TextDelta("Hello."))
        view.conclude(Reply("Hello."))

    assert (str(view.failure), view.answer) == ("gone", "Hello.")


# ------------------------------------------------------------------------------- rendering


def test_markdown_is_rendered_without_markup() -> None:
    text = "# Title\n\nSome **bold**, `code`\nand <b>tags</b>.\n\n> quoted\n\n1. one\n2. two"

    assert plain(rendered(text, 40)) == (
        "Title\n\nSome bold, code\nand <b>tags</b>.\n\n▌ quoted\n\n 1 one\n 2 two"
    )


def test_code_is_not_indented_so_that_it_can_be_copied() -> None:
    assert plain(rendered("```sh\nls -l\n  cd\n```", 40)) == "```sh\nls -l\n  cd\n```"


def test_links_pictures_and_definitions_keep_their_addresses() -> None:
    text = "[here](http://a.b) <http://c.d> ![alt](http://e.f)\n\n[1]: http://g.h"

    assert plain(rendered(text, 80)) == (
        "here (http://a.b) http://c.d alt (http://e.f)\n\n[1]: http://g.h"
    )


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mred\x1b[0m",
        "\x1b]0;owned\x07",
        "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
        "\x9b31m",
        "a\rb\x08c\x7f",
        "&#27;[31m &#x9b;31m",
        "`\x1b[2J`",
        "```\x1b[2J\n\x1b[2J\n```",
        "[\x1b[2J](\x1b[2J)",
        "safe \u202eevil\u202c &#x202e;evil",
    ],
)
def test_a_model_cannot_command_the_terminal(text: str) -> None:
    clean = printable(text)

    laid_out = plain(rendered(clean, 40))

    for each in (clean, laid_out):
        assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", each) is None


@settings(max_examples=200, deadline=None)
@given(ANYTHING | MARKDOWN, st.integers(4, 60))
def test_any_text_becomes_lines_that_fit_and_command_nothing(text: str, width: int) -> None:
    clean = printable(text)

    for lines in (MarkdownLines(), PlainLines()):
        for block in lines.blocks(clean):
            for line in lines.lines(block, width):
                assert not set(plain(line)) & {"\x1b", "\n", "\r", "\x9b"}
                assert columns_of(line) <= width


def test_printable_leaves_ordinary_text_alone() -> None:
    text = "Größe 字 🎉\n\ttab — “quotes” שלום"

    assert printable(text) == text


def test_blocks_lose_nothing() -> None:
    lines = MarkdownLines()

    blocks = lines.blocks(LONG)

    assert "\n".join(blocks) == LONG
    assert all(former != later for former, later in pairwise(blocks))
