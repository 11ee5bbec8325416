"""The conversation in a real terminal, driven through tmux."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import NANOBOT, Nanobot, eventually
from tests.e2e.terminal import Terminal
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer
from tests.fakes.skills import write_skill

TALK = f"{NANOBOT} agent; echo left=$?"
ATTACK = "\x1b[2J\x1b]2;owned\x07\x1b[31mred"
LONG = "\n\n".join(
    f"## Part {n}\n\nSome *words* of part {n}.\n\n```python\nprint({n})\n```\n\n"
    f"- item {n}\n- **end {n}**"
    for n in range(15)
)


@pytest.fixture
def terminal(nanobot: Nanobot, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, nanobot.variables)
    yield opened
    opened.close()


def converse(terminal: Terminal, command: str = TALK) -> None:
    terminal.type(command, "Enter")
    terminal.wait_for_prompts(1)


def test_a_conversation_goes_on_and_is_left_with_exit(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.answer_with(lambda request: Reply.text(f"I count {len(request.messages)} messages"))
    nanobot.use_model(model)
    converse(terminal)

    terminal.type("hello", "Enter")
    terminal.wait_for("I count 2 messages")
    terminal.wait_for_prompts(2)
    terminal.type("and again", "Enter")
    terminal.wait_for("I count 4 messages")
    terminal.wait_for_prompts(3)
    terminal.type("/help", "Enter")
    terminal.wait_for("/new: ")
    terminal.wait_for_prompts(4)
    terminal.type("exit", "Enter")

    terminal.wait_for("left=0")


@pytest.mark.parametrize("word", ["quit", "/exit", "/quit", ":q", ""])
def test_other_words_leave_as_well(nanobot: Nanobot, terminal: Terminal, word: str) -> None:
    converse(terminal)

    terminal.type(word, "Enter" if word else "C-d")

    terminal.wait_for("left=0")


def test_ctrl_c_stops_the_turn_and_not_the_program(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    gate = model.gate()
    model.script(Reply.text("too late", gate=gate), Reply.text("still here"))
    nanobot.use_model(model)
    converse(terminal)

    terminal.type("think long", "Enter")
    gate.wait_reached()
    terminal.type("", "C-c")
    terminal.wait_for("Stopped.")
    gate.release()
    terminal.wait_for_prompts(2)
    terminal.type("hello?", "Enter")
    terminal.wait_for("still here")
    terminal.wait_for_prompts(3)
    terminal.type("", "C-d")

    screen = terminal.wait_for("left=0")
    assert "too late" not in screen


def test_ctrl_c_at_the_prompt_clears_the_line_and_at_an_empty_one_hints(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.script(Reply.text("heard"))
    nanobot.use_model(model)
    converse(terminal)

    terminal.type("never mind this", "C-c")
    terminal.wait_for_prompts(1)
    terminal.type("", "C-c")
    hinted = terminal.wait_for_prompts(2)
    terminal.type("", "Up", "Enter")
    terminal.wait_for("heard")

    assert "exit or Ctrl-D leaves; Ctrl-C stops a turn" in hinted
    assert model.requests[0].last_user.endswith("\nnever mind this")


def test_a_second_ctrl_c_leaves_when_the_first_does_not_help(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    gate = model.gate()
    model.script(Reply.text("never", gate=gate))
    nanobot.use_model(model)
    gateway = nanobot.start("gateway")
    try:
        eventually((nanobot.home / "run" / "gateway.sock").exists, "the gateway's socket")
        converse(terminal)
        terminal.type("think", "Enter")
        gate.wait_reached()
        os.kill(gateway.pid, signal.SIGSTOP)

        deadline = time.monotonic() + 20
        while "left=1" not in terminal.screen() and time.monotonic() < deadline:
            terminal.type("", "C-c")
            time.sleep(0.2)

        terminal.wait_for("left=130")
    finally:
        gate.release()
        os.kill(gateway.pid, signal.SIGCONT)
        gateway.terminate()
        gateway.communicate(timeout=20)


def test_markdown_longer_than_the_screen_is_shown_whole_and_once(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.script(
        Reply.tool_calls([("exec", {"command": "echo hi"})], text="Let me **look**."),
        Reply.text(LONG, chunk_latency_s=0.001),
    )
    nanobot.use_model(model)
    converse(terminal)

    terminal.type("tell me all", "Enter")
    screen = terminal.wait_for_prompts(2)

    lines = screen.splitlines()
    assert "**" not in screen
    assert lines.index("Let me look.") < lines.index("· exec echo hi") < lines.index("Part 0")
    for n in range(15):
        parts = [f"Part {n}", f"Some words of part {n}.", f"print({n})", f" • end {n}"]
        assert [lines.count(part) for part in parts] == [1, 1, 1, 1]
    shown = [line for line in lines if line.startswith("Part ")]
    assert shown == [f"Part {n}" for n in range(15)]


def test_text_appears_while_it_comes_and_is_taken_back_when_the_stream_breaks(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    gate = model.gate()
    broken = Reply.truncated(
        "Half an answer", after_chunks=3, stream_gate=gate, stream_gate_after=2
    )
    model.script(broken, Reply.text("The whole answer."))
    nanobot.use_model(model)
    converse(terminal)

    terminal.type("go", "Enter")
    terminal.wait_for("\nHalf")
    gate.release()
    screen = terminal.wait_for_prompts(2)

    assert "Half" not in screen
    assert screen.count("The whole answer.") == 1
    assert "retrying" in screen


def test_pasted_lines_are_one_message_and_alt_enter_adds_one(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.script(Reply.text("got it"))
    nanobot.use_model(model)
    converse(terminal)

    terminal.paste("first line\nsecond line\n")
    terminal.type("third", "M-Enter")
    terminal.type("fourth", "Enter")
    terminal.wait_for("got it")

    assert len(model.requests) == 1
    assert model.requests[0].last_user.endswith("\nfirst line\nsecond line\nthird\nfourth")


def test_commands_are_completed(nanobot: Nanobot, model: ModelServer, terminal: Terminal) -> None:
    nanobot.use_model(model)
    converse(terminal)

    terminal.type("/he", "Tab")
    terminal.type("", "Enter")
    terminal.wait_for("/stop: ")
    asked_nothing = model.requests == []
    write_skill(nanobot.workspace / "skills", "later", body="Do what came later.")
    terminal.type("/lat", "Tab")
    terminal.type("", "Enter")
    eventually(lambda: bool(model.requests), "the skill's turn")

    assert asked_nothing
    assert "Do what came later." in model.requests[0].last_user


def test_the_history_is_private_and_outlives_the_conversation(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.answer_with(lambda request: Reply.text(f"{len(request.messages)} messages"))
    nanobot.use_model(model)
    converse(terminal)
    terminal.type("remember me", "Enter")
    terminal.wait_for("2 messages")
    terminal.wait_for_prompts(2)
    terminal.type("", "C-d")
    terminal.wait_for("left=0")

    terminal.clear()
    converse(terminal)
    terminal.type("", "Up", "Enter")
    terminal.wait_for("4 messages")

    history = nanobot.home / "cache" / "history"
    assert model.requests[1].last_user.endswith("\nremember me")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_model_cannot_command_the_terminal(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.answer_with(lambda request: Reply.text(f"before\n\n{ATTACK} after"))
    nanobot.use_model(model)
    title = terminal.tmux("display-message", "-p", "#{pane_title}")
    converse(terminal)

    terminal.type("attack", "Enter")
    screen = terminal.wait_for_prompts(2)
    terminal.type("exit", "Enter")
    terminal.wait_for("left=0")
    terminal.clear()
    terminal.type(f"{NANOBOT} agent -m attack; {NANOBOT} agent --no-markdown -m x", "Enter")
    once = terminal.wait_for(lambda shown: shown.count("after") == 2)

    for shown in (screen, once):
        assert "before" in shown
        assert "␛[2J␛]2;owned␇␛[31mred after" in shown
    assert terminal.tmux("display-message", "-p", "#{pane_title}") == title
    assert "\x1b[31m" not in terminal.escapes()


def test_a_pipe_gets_the_answer_byte_for_byte(nanobot: Nanobot, model: ModelServer) -> None:
    model.script(Reply.text(f"**bold** {ATTACK}"))
    nanobot.use_model(model)

    done = nanobot.run("agent", "-m", "attack")

    assert (done.returncode, done.stdout) == (0, f"**bold** {ATTACK}\n"), done.stderr


def test_a_one_shot_on_a_terminal_renders_markdown_unless_told_not_to(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.answer_with(lambda request: Reply.text("some **bold** word"))
    nanobot.use_model(model)

    terminal.type(f"{NANOBOT} agent -m a; {NANOBOT} agent -m b --no-markdown", "Enter")
    screen = terminal.wait_for("some **bold** word")

    assert "some bold word\n" in screen
    assert "some \x1b[1mbold" in terminal.escapes()


@pytest.mark.parametrize("options", ["--no-markdown", ""])
def test_without_colours_or_markdown_the_answer_is_as_it_was_written(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path, options: str
) -> None:
    model.answer_with(lambda request: Reply.text("some **bold** word\nand *more*"))
    nanobot.use_model(model)
    nanobot.environ = {} if options else {"NO_COLOR": "1"}
    terminal = Terminal(tmp_path, nanobot.variables)
    try:
        converse(terminal, f"{NANOBOT} agent {options}")
        terminal.type("go", "Enter")
        screen = terminal.wait_for_prompts(2)
        escapes = terminal.escapes()
    finally:
        terminal.close()

    assert "\nsome **bold** word\nand *more*\n" in screen
    assert options or re.search(r"\x1b\[(\d+;)*([1-9]|3[0-7]|9[0-7])m", escapes) is None


def test_a_dumb_terminal_or_a_file_gets_plain_lines(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal, tmp_path: Path
) -> None:
    model.answer_with(lambda request: Reply.text("some **bold** word"))
    nanobot.use_model(model)

    converse(terminal, f"TERM=dumb {TALK}")
    terminal.type("one", "Enter")
    terminal.wait_for_prompts(2)
    terminal.type("quit", "Enter")
    terminal.wait_for("left=0")
    terminal.clear()
    converse(terminal, f"{NANOBOT} agent > {tmp_path}/answers; echo left=$?")
    terminal.type("two", "Enter")
    terminal.wait_for_prompts(2)
    terminal.type("", "C-d")
    terminal.wait_for("left=0")

    assert (tmp_path / "answers").read_text() == "some **bold** word\n"


def test_the_offline_model_says_what_it_is(nanobot: Nanobot, terminal: Terminal) -> None:
    terminal.type(f"cd /; {TALK}", "Enter")

    screen = terminal.wait_for_prompts(1)

    assert "no model is configured" in screen
    assert "nanobot onboard" in screen.replace("\n", "")


def test_a_one_shot_beside_the_conversation_goes_through_it(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.answer_with(lambda request: Reply.text(f"I count {len(request.messages)} messages"))
    nanobot.use_model(model)
    converse(terminal)
    terminal.type("hello", "Enter")
    terminal.wait_for("I count 2 messages")

    beside = nanobot.run("agent", "-m", "from beside")

    assert (beside.returncode, beside.stdout) == (0, "I count 4 messages\n"), beside.stderr
    assert "running: REPL" in nanobot.run("status").stdout


def test_the_conversation_outlives_the_gateway(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    gate = model.gate()
    model.script(Reply.text("never", gate=gate), Reply.text("back again"), Reply.text("and on"))
    nanobot.use_model(model)
    gateway = nanobot.start("gateway")
    eventually((nanobot.home / "run" / "gateway.sock").exists, "the gateway's socket")
    converse(terminal)
    terminal.type("think", "Enter")
    gate.wait_reached()

    gateway.kill()
    gateway.communicate(timeout=20)
    told = terminal.wait_for_prompts(2)
    gate.release()
    terminal.type("are you there?", "Enter")
    screen = terminal.wait_for_prompts(3)

    assert f"through the gateway (pid {gateway.pid})" in told
    assert "has ended" in told
    assert "the assistant now runs in this terminal" in told
    assert "\nback again\n" in screen


def test_a_gateway_that_went_while_nobody_typed_costs_no_question(
    nanobot: Nanobot, model: ModelServer, terminal: Terminal
) -> None:
    model.script(Reply.text("answered"))
    nanobot.use_model(model)
    gateway = nanobot.start("gateway")
    eventually((nanobot.home / "run" / "gateway.sock").exists, "the gateway's socket")
    converse(terminal)
    gateway.terminate()
    gateway.communicate(timeout=20)

    terminal.type("hello", "Enter")
    screen = terminal.wait_for_prompts(2)

    assert "\nanswered\n" in screen
    assert len(model.requests) == 1
