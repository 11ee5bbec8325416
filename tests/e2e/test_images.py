"""Pictures from outside: the whole way from a file to a model that sees, or does not."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from tests.e2e.conftest import Nanobot, eventually, model_config
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer, Request
from tests.fakes.pdf import pdf

READ = Reply.tool_calls([("read_file", {"path": "photo.jpg"})])


def use(nanobot: Nanobot, model: ModelServer, *, vision: bool) -> None:
    config = model_config(model.url)
    config["providers"]["custom"]["models"] = {"fake-model": {"vision": vision}}
    nanobot.configure(config)
    nanobot.workspace.mkdir()
    Pillow.new("RGB", (4000, 3000), "red").save(nanobot.workspace / "photo.jpg")


def pictures(request: Request) -> list[str]:
    """The data URLs in a request."""
    parts: list[dict[str, Any]] = [
        part
        for message in request.messages
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def test_a_model_that_sees_is_shown_the_picture_in_one_turn_only(
    nanobot: Nanobot, model: ModelServer
) -> None:
    use(nanobot, model, vision=True)
    model.script(READ, Reply.text("It is red."), Reply.text("It was red."))

    first = nanobot.run("agent", "-m", "What is in photo.jpg?")
    second = nanobot.run("agent", "-m", "And what was it?")

    before, during, after = model.requests
    (url,) = pictures(during)
    head, _, data = url.partition(",")
    shown = Pillow.open(io.BytesIO(base64.b64decode(data)))
    assert (first.stdout, second.stdout) == ("It is red.\n", "It was red.\n")
    assert (head, shown.format, shown.size) == ("data:image/jpeg;base64", "JPEG", (1238, 928))
    assert during.tool_results == [
        "photo.jpg: a JPEG picture of 4,000 × 3,000 pixels, shown at 1,238 × 928 pixels."
    ]
    assert pictures(before) == pictures(after) == []
    assert "read_file" in after.tool_results[0].splitlines()[1]
    assert data[:40].encode() not in (nanobot.home / "state.db").read_bytes()


def test_the_picture_named_afterwards_can_be_looked_at_again(
    nanobot: Nanobot, model: ModelServer
) -> None:
    use(nanobot, model, vision=True)
    model.script(READ, Reply.text("Red."))
    nanobot.run("agent", "-m", "What is in photo.jpg?")
    (nanobot.workspace / "photo.jpg").unlink()
    (kept,) = (nanobot.home / "media" / "cli%3Adirect").iterdir()
    model.script(Reply.tool_calls([("read_file", {"path": str(kept)})]), Reply.text("Red again."))

    done = nanobot.run("agent", "-m", "Look again")

    assert done.stdout == "Red again.\n", done.stderr
    assert str(kept) in model.requests[2].tool_results[0]
    assert pictures(model.requests[3]) == pictures(model.requests[1])


def test_a_model_that_does_not_see_is_told_plainly(nanobot: Nanobot, model: ModelServer) -> None:
    use(nanobot, model, vision=False)
    model.script(READ, Reply.text("I cannot see it."))

    done = nanobot.run("agent", "-m", "What is in photo.jpg?")

    assert done.stdout == "I cannot see it.\n"
    assert pictures(model.requests[1]) == []
    assert (
        model.requests[1]
        .tool_results[0]
        .endswith(
            "[Picture not delivered: the model fake-model cannot see pictures. "
            "Say so; do not guess what it shows.]"
        )
    )


@contextmanager
def running_gateway(nanobot: Nanobot) -> Iterator[None]:
    gateway = nanobot.start("gateway")
    try:
        eventually(lambda: "running: gateway" in nanobot.run("status").stdout, "the gateway")
        yield
    finally:
        gateway.terminate()
        gateway.communicate(timeout=10)


@pytest.mark.parametrize("place", ["alone", "beside a gateway"])
def test_a_picture_on_the_command_line_is_shown_with_the_question(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path, place: str
) -> None:
    use(nanobot, model, vision=True)
    model.default = Reply.text("Blue.")
    path = tmp_path / "a photo.webp"
    Pillow.new("RGB", (4000, 300), "blue").save(path)

    with running_gateway(nanobot) if place == "beside a gateway" else nullcontext():
        first = nanobot.run("agent", "-m", "What is it?", "--image", str(path))
        path.unlink()
        second = nanobot.run("agent", "-m", "And now?")

    during, after = model.requests
    (url,) = pictures(during)
    shown = Pillow.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert (first.stdout, first.stderr, second.stdout) == ("Blue.\n", "", "Blue.\n")
    assert (shown.format, shown.size) == ("JPEG", (1568, 117))
    assert during.last_user.endswith("What is it?")
    assert pictures(after) == []
    modes = [one.stat().st_mode & 0o777 for one in (nanobot.home, nanobot.home / "media")]
    assert modes == [0o700, 0o700]


def test_a_picture_for_a_model_that_does_not_see_is_said_to_who_asks(
    nanobot: Nanobot, model: ModelServer
) -> None:
    use(nanobot, model, vision=False)
    model.default = Reply.text("I cannot see it.")

    done = nanobot.run(
        "agent", "-m", "What is it?", "--image", str(nanobot.workspace / "photo.jpg")
    )

    (request,) = model.requests
    assert (done.stdout, pictures(request)) == ("I cannot see it.\n", [])
    assert "fake-model cannot see pictures" in done.stderr
    assert "[Picture not delivered" in request.last_user


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("-m", "x", "--image", "nowhere.png"), "nowhere.png: No such file or directory."),
        (("-m", "x", "--image", "/dev/null"), "/dev/null: It is not a PNG, JPEG, GIF or WebP"),
        (("-m", "x", "--image", "/"), "/: Is a directory."),
        (("-m", "x", "--image", "~nobody-here/a.png"), "~nobody-here/a.png: Could not determine"),
    ],
)
def test_what_cannot_be_shown_is_said_before_anything_is_asked(
    nanobot: Nanobot, model: ModelServer, arguments: tuple[str, ...], error: str
) -> None:
    use(nanobot, model, vision=True)

    done = nanobot.run("agent", *arguments)

    assert (done.returncode, done.stdout, model.requests) == (2, "", [])
    assert done.stderr.splitlines()[-1].startswith(f"nanobot: {error}")


def test_a_pdf_is_read_as_text(nanobot: Nanobot, model: ModelServer) -> None:
    use(nanobot, model, vision=False)
    (nanobot.workspace / "report.pdf").write_bytes(pdf("Sales rose", "Costs fell", title=""))
    arguments = {"path": "report.pdf", "offset": 2}
    model.script(Reply.tool_calls([("read_file", arguments)]), Reply.text("They fell."))

    nanobot.run("agent", "-m", "What about the costs?")

    assert model.requests[1].tool_results == [
        "[page 2]\nCosts fell\n[pages 2-2 of 2; offset and limit count pages]"
    ]


def test_a_tool_of_an_installed_package_is_called_and_a_broken_one_is_reported(
    nanobot: Nanobot, model: ModelServer, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    info = site / "nanobot_dice-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nanobot-dice\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[nanobot.tools]\ndice = nanobot_dice:Dice\nbroken = nanobot_dice:Missing\n"
    )
    (site / "nanobot_dice.py").write_text(
        "from nanobot.core.tool import Effect, Tool, ToolArguments, ToolOutput\n"
        "class Throw(ToolArguments):\n    sides: int = 6\n"
        "class Dice(Tool[Throw]):\n"
        "    name, description, effect = 'dice', 'Throws a die.', Effect.READ\n"
        "    arguments = Throw\n"
        "    def __init__(self, host):\n        self.host = host\n"
        "    async def run(self, args, context):\n        return ToolOutput(f'{args.sides} up')\n"
    )
    nanobot.environ["PYTHONPATH"] = str(site)
    use(nanobot, model, vision=False)
    model.script(Reply.tool_calls([("dice", {"sides": 4})]), Reply.text("Four."))

    done = nanobot.run("agent", "-m", "Throw", "--logs")

    assert done.stdout == "Four.\n", done.stderr
    assert model.requests[0].tools[-1] == "dice"
    assert model.requests[1].tool_results == ["4 up"]
    assert "a tool is left out: broken of nanobot-dice: AttributeError" in done.stderr
    assert json.loads(nanobot.run("status", "--json").stdout)["gateway"].startswith("not running")
