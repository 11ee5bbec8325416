"""What the command line says and leaves with where its surroundings are odd."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from nanobot.cli.markdown_view import rendered
from nanobot.cron.jobs import NOT_RUNNING
from tests.e2e.conftest import NANOBOT, Nanobot, Telegram
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer


def shell(nanobot: Nanobot, line: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a shell, in which ``$0`` is the program."""
    return subprocess.run(
        ["sh", "-c", line, str(NANOBOT)],
        env=nanobot.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_answer_that_stays_empty_is_a_failure(
    nanobot: Nanobot, model: ModelServer, options: tuple[str, ...]
) -> None:
    nanobot.use_model(model)
    model.answer_with(lambda asked: Reply.text(""))

    done = nanobot.run("agent", "-m", "hello", *options)

    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("nanobot: The model gave no answer.")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_leads_nowhere_and_breaks_nothing(
    nanobot: Nanobot, model: ModelServer, closed: str
) -> None:
    nanobot.use_model(model)
    model.answer_with(lambda asked: Reply.text("Here."))

    done = shell(nanobot, f'exec "$0" agent -m hello {closed}')

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (b"" if ">&-" in closed.replace("2>&-", "") else b"Here.\n")


def test_an_error_with_all_streams_closed_is_told_by_the_exit_code_alone(
    nanobot: Nanobot,
) -> None:
    assert shell(nanobot, 'exec "$0" sessions show nope <&- >&- 2>&-').returncode == 1
    assert shell(nanobot, 'exec "$0" agent <&- 2>&-').returncode == 2


def test_a_gateway_with_all_streams_closed_serves(telegram: Telegram) -> None:
    telegram.model.answer_with(lambda asked: Reply.text("Here."))
    gateway = telegram.start(wrapped_in=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))

    telegram.api.inject("hello", chat_id=42)
    telegram.api.wait_for_sent(1, 42)

    assert telegram.texts() == ["Here."]
    assert gateway.terminate() == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("agent", "-m", b"caf\xe9"),
        ("agent", "-m", "hello", "-s", b"caf\xe9"),
        ("agent", "-m", "hello", "--model", b"\xe9"),
        ("cron", "add", "--name", b"\xe9", "--message", "x", "--every", "60"),
        ("memory", "search", b"\xe9"),
        ("sessions", "show", b"\xe9"),
        ("--home", b"/\xe9", "status"),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused(
    nanobot: Nanobot, arguments: tuple[str | bytes, ...]
) -> None:
    command = [os.fsencode(NANOBOT), *map(os.fsencode, arguments)]

    done = subprocess.run(
        command, env=nanobot.variables, capture_output=True, timeout=60, check=False
    )

    (line,) = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (2, b"")
    assert line.startswith("nanobot: the argument ")
    assert line.endswith(" is not UTF-8")


COMMANDS = [
    ("agent", "-m", "hello"),
    ("gateway",),
    ("sessions", "list"),
    ("memory", "show"),
    ("bus", "list"),
    ("cron", "add", "--name", "tea", "--message", "Drink tea", "--every", "60"),
    ("skills", "new", "mine"),
    ("status", "--context"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_home_that_is_no_folder_is_said_in_one_line(
    nanobot: Nanobot, command: tuple[str, ...]
) -> None:
    nanobot.home.parent.mkdir()
    nanobot.home.write_text("a file")

    done = nanobot.run(*command)

    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert str(nanobot.home) in line
    assert "defect" not in line


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_home_that_cannot_be_written_is_said_in_one_line(
    nanobot: Nanobot, command: tuple[str, ...]
) -> None:
    nanobot.configure({})
    sealed = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]

    done = subprocess.run(
        [*sealed, str(NANOBOT), *command],
        env=nanobot.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith(f"nanobot: {nanobot.home}/")
    assert line.endswith("cannot be used: Read-only file system")


def test_what_follows_a_list_in_a_commands_answer_is_no_part_of_it(nanobot: Nanobot) -> None:
    added = nanobot.run("cron", "add", "--name", "tea", "--message", "Tea", "--every", "60")
    answer = nanobot.run("agent", "-m", "/cron").stdout

    assert added.returncode == 0, added.stderr
    said = NOT_RUNNING.partition(":")[0]
    assert any(line.startswith(said) for line in rendered(answer, 200).splitlines())
