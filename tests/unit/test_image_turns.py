"""Pictures in turns: shown in the one that brought them, named afterwards, told of to the blind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import Image as Pillow

from nanobot.agent.context import ContextBuilder
from nanobot.agent.loop import BLIND, AgentLoop
from nanobot.agent.window import Spill
from nanobot.core.chat import Image, ToolMessage, UserMessage
from nanobot.core.errors import ContextOverflow, StoreUnavailable
from nanobot.core.events import Event, Notice
from nanobot.core.messages import InboundMessage, Media, Role
from nanobot.internet.reading import DocumentReader
from nanobot.prompts import render
from nanobot.safety.paths import PathResolver
from nanobot.session.entries import violations
from nanobot.session.log import SessionLog
from nanobot.skills.loader import SkillsLoader
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.tools.files import ReadFile
from nanobot.tools.images import Pictures
from nanobot.tools.registry import ToolRegistry
from tests.fakes.scripted_model import Request, ScriptedModel, calls, says

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
READ = calls(("c1", "read_file", '{"path": "red.png"}'))


@dataclass(slots=True)
class Bench:
    """An agent loop with read_file, and two pictures in the workspace."""

    home: Home
    loop: AgentLoop
    model: ScriptedModel
    sessions: SessionLog
    events: list[Event] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.home.default_workspace

    def message(self, name: str, text: str, *pictures: str) -> InboundMessage:
        media = tuple(Media("image", str(self.workspace / picture)) for picture in pictures)
        return InboundMessage("cli", "owner", "direct", text, media, id=name, role=Role.OWNER)

    async def turn(self, inbound: InboundMessage, *steering: InboundMessage) -> None:
        arrivals = list(steering)

        def drain() -> tuple[InboundMessage, ...]:
            # What steers comes after the first request.
            taken = tuple(arrivals) if self.model.requests else ()
            del arrivals[: len(taken)]
            return taken

        result = await self.loop.run_turn(inbound, drain=drain, emit=self.events.append)
        await self.sessions.append(result.session, result.entries)


def shown(request: Request) -> list[str]:
    """The words of a request's users and tools after the header, each with how many pictures."""
    assert violations(request.messages) == []
    return [
        f"{message.content.rpartition('/>')[2].strip()} +{len(message.images)}"
        for message in request.messages
        if isinstance(message, UserMessage | ToolMessage)
    ]


def images(request: Request) -> Iterator[Image]:
    for message in request.messages:
        if isinstance(message, UserMessage | ToolMessage):
            yield from message.images


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    database = Database(tmp_path / "state.db")
    home = Home(tmp_path.resolve() / "home")
    workspace = home.default_workspace
    workspace.mkdir(parents=True)
    for colour in ("red", "green"):
        Pillow.new("RGB", (40, 30), colour).save(workspace / f"{colour}.png")
    (tmp_path / "none").mkdir()
    sessions = SessionLog(database, lambda: NOW)
    model = ScriptedModel(vision=True)
    pictures = Pictures(home)
    read_file = ReadFile(PathResolver(home, restrict=False), pictures, DocumentReader())
    loop = AgentLoop(
        sessions=sessions,
        models=model,
        context=ContextBuilder(workspace, SkillsLoader(workspace, tmp_path / "none")),
        tools=ToolRegistry([read_file]),
        spill=Spill(home, cap=1000),
        pictures=pictures,
        clock=lambda: NOW,
    )
    yield Bench(home, loop, model, sessions)
    database.close()


def past(bench: Bench, request: Request) -> str:
    """The line that stands for the one picture of ``request`` later on."""
    (image,) = images(request)
    assert Path(image.path).parent == bench.home.media_of("cli:direct")
    return render.picture_past(Path(image.path))


SAID = "red.png: a PNG picture of 40 × 30 pixels."


async def test_a_picture_sent_is_shown_in_its_turn_and_named_afterwards(bench: Bench) -> None:
    bench.model.answers = [READ, says("red"), says("still red")]

    await bench.turn(bench.message("in-1", "What is it?", "red.png"))
    await bench.turn(bench.message("in-2", "And now?"))

    first, second, third = bench.model.requests
    line = past(bench, first)
    assert shown(first) == ["What is it? +1"]
    assert shown(second) == ["What is it? +1", f"{SAID} +1"]
    assert shown(third) == [f"What is it?\n{line} +0", f"{SAID}\n{line} +0", "And now? +0"]
    assert second.messages[: len(first.messages)] == first.messages
    assert bench.events.count(Notice(BLIND.format(model="scripted"))) == 0


async def test_a_picture_that_steers_is_shown_too(bench: Bench) -> None:
    bench.model.answers = [READ, says("both"), says("later")]
    steering = bench.message("in-2", "This as well", "green.png")

    await bench.turn(bench.message("in-1", "Look at it"), steering)
    await bench.turn(bench.message("in-3", "Well?"))

    assert shown(bench.model.requests[1])[-2:] == [f"{SAID} +1", "This as well +1"]
    assert list(images(bench.model.requests[2])) == []


async def test_a_turn_taken_up_again_shows_its_pictures(bench: Bench) -> None:
    bench.model.answers = [READ, RuntimeError("a defect"), says("red")]
    inbound = bench.message("in-1", "What is it?", "red.png")
    with pytest.raises(RuntimeError):
        await bench.turn(inbound)
    (bench.workspace / "red.png").unlink()

    await bench.turn(inbound)

    assert bench.model.requests[2].messages == bench.model.requests[1].messages
    assert shown(bench.model.requests[2]) == ["What is it? +1", f"{SAID} +1"]


async def test_a_full_window_leaves_the_pictures_of_the_turn(bench: Bench) -> None:
    bench.model.answers = [says("one"), says("two"), ContextOverflow("full")]
    bench.model.answers += [says("A summary."), says("red")]
    await bench.turn(bench.message("in-1", "word " * 500, "green.png"))
    await bench.turn(bench.message("in-2", "word " * 500))

    await bench.turn(bench.message("in-3", "What is it?", "red.png"))

    assert shown(bench.model.requests[4])[-1] == "What is it? +1"
    assert len(list(images(bench.model.requests[4]))) == 1


async def test_a_model_that_cannot_see_is_told_and_so_is_who_asks(bench: Bench) -> None:
    bench.model.vision = False
    bench.model.answers = [READ, says("I cannot see it."), says("Still not.")]

    await bench.turn(bench.message("in-1", "What is it?", "red.png", "green.png"))
    await bench.turn(bench.message("in-2", "And now?"))

    unseen = render.picture_unseen("scripted")
    first, second, third = bench.model.requests
    assert shown(first) == [f"What is it?\n{unseen}\n{unseen} +0"]
    assert shown(second) == [*shown(first), f"{SAID}\n{unseen} +0"]
    assert list(images(third)) == []
    notices = [event for event in bench.events if isinstance(event, Notice)]
    assert notices == [Notice(BLIND.format(model="scripted"))]


async def test_a_picture_that_cannot_be_shown_is_said_to_the_model(bench: Bench) -> None:
    (bench.workspace / "cat.heic").write_bytes(b"\0\0\0\x18ftypheic")
    bench.model.answers = [says("I cannot open it.")]

    await bench.turn(bench.message("in-1", "What is it?", "cat.heic", "red.png"))

    note = render.picture_failed("cat.heic", "It is not a PNG, JPEG, GIF or WebP picture.")
    assert shown(bench.model.requests[0]) == [f"What is it?\n{note} +1"]


async def test_the_log_holds_paths_and_never_a_picture(bench: Bench, tmp_path: Path) -> None:
    bench.model.answers = [READ, says("red")]

    await bench.turn(bench.message("in-1", "What is it?", "red.png"))

    entries = await bench.sessions.entries("cli:direct")
    (kept,) = bench.home.media_of("cli:direct").iterdir()
    stored = [
        entry.message.images
        for entry in entries
        if isinstance(entry.message, UserMessage | ToolMessage)
    ]
    assert stored == [(Image(str(kept), "image/png"),)] * 2
    assert b"iVBOR" not in b"".join(
        file.read_bytes() for file in tmp_path.iterdir() if file.name.startswith("state.db")
    )


async def test_a_picture_that_a_full_disk_cannot_keep_waits_for_room(bench: Bench) -> None:
    bench.home.media.parent.mkdir(exist_ok=True)
    bench.home.media.touch()
    message = bench.message("in-1", "What is it?", "red.png")

    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await bench.turn(message)
    bench.home.media.unlink()
    bench.model.answers = [says("red")]
    await bench.turn(message)

    assert shown(bench.model.requests[0]) == ["What is it? +1"]
