"""What counts as a standing task, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nanobot.agent.turn import TurnResult
from nanobot.bus.answers import answer_messages
from nanobot.bus.bus import MessageBus
from nanobot.config.schema import HeartbeatConfig
from nanobot.core.messages import AnswerKind, AnswerRule, InboundMessage, Role
from nanobot.heartbeat.service import KEPT_BEATS, SESSION, HeartbeatService, has_tasks
from nanobot.session.log import free_for_next
from nanobot.store.database import Database
from nanobot.store.home import workspace_templates_dir

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\ufeff\n \n",
        "# Heartbeat\n\n## Tasks\n",
        "<!-- one -->\n<!-- two\nlines -->",
        "<!-- never closed\n- [ ] hidden",
        "- [ ]\n* [x]\n+ []\n1. [ ]\n-\n---",
        "- [ ] <!-- to be filled -->",
    ],
)
def test_headings_comments_and_empty_boxes_are_nothing_to_do(text: str) -> None:
    assert not has_tasks(text)


def test_the_shipped_template_is_nothing_to_do_until_a_box_is_filled() -> None:
    template = (workspace_templates_dir() / "HEARTBEAT.md").read_text(encoding="utf-8")

    filled = template.rstrip() + " Look at the weather\n"

    assert (has_tasks(template), has_tasks(filled)) == (False, True)


@pytest.mark.parametrize(
    "text", ["- [ ] water the plants", "Look at the news.", "#5 is urgent", "1. x"]
)
def test_anything_else_is_something_to_do(text: str) -> None:
    assert has_tasks(f"# Heartbeat\n\n{text}\n")


@dataclass
class Bench:
    root: Path
    now: datetime = NOON
    databases: list[Database] = field(default_factory=list)

    def service(self, **settings: object) -> HeartbeatService:
        if not self.databases:
            self.databases.append(Database(self.root / "state.db"))
        self.bus = MessageBus(self.databases[0], lambda: self.now)
        return HeartbeatService(
            HeartbeatConfig.model_validate(settings),
            self.root / "HEARTBEAT.md",
            self.bus,
            lambda: self.now,
            lambda connection: free_for_next(connection, SESSION, KEPT_BEATS),
            frozenset({"telegram"}),
        )

    async def greet(self) -> None:
        """Have the owner write in a chat, and be answered."""
        hello = InboundMessage("telegram", "42", "42", "hello", id="hello", role=Role.OWNER)
        await self.bus.post(hello)
        done = TurnResult(session=hello.session_key, consumed=("hello",), answer="")
        await self.bus.settle(done)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    (tmp_path / "HEARTBEAT.md").write_text("- [ ] one\n- [ ] two\n")
    yield made
    for database in made.databases:
        database.close()


async def test_one_turn_holds_all_tasks_and_a_slot_has_one(bench: Bench) -> None:
    service = bench.service()
    await bench.greet()

    began = [await service.beat(), await service.beat()]

    (pending,) = await bench.bus.inbox.pending()
    assert began == [True, False]
    assert "- [ ] one\n- [ ] two" in pending.message.content
    assert (pending.message.session_key, pending.message.profile) == ("heartbeat", "heartbeat")
    assert pending.message.answer == AnswerRule(AnswerKind.REPLY_UNLESS_SILENT, "telegram", "42")


async def test_a_long_file_says_what_is_left_out_and_keeps_what_is_important(bench: Bench) -> None:
    tasks = [f"- [ ] task {number} of very many" for number in range(2000)]
    file = bench.root / "HEARTBEAT.md"
    file.write_text("\n".join([*tasks, "## Important", "- [ ] the boiler"]))

    service = bench.service()
    hello = InboundMessage("telegram", "42", "42", "hello", id="hello", role=Role.OWNER)
    await bench.bus.post(hello)
    await bench.bus.settle(TurnResult(session=hello.session_key, consumed=("hello",), answer=""))

    await service.beat()

    (pending,) = await bench.bus.inbox.pending()
    assert "## Important\n- [ ] the boiler\n" in pending.message.content
    assert f"of {file.stat().st_size:,} characters shown" in pending.message.content


async def test_a_heartbeat_waits_for_the_former_one(bench: Bench) -> None:
    service = bench.service()
    await bench.greet()
    await service.beat()
    bench.now += timedelta(minutes=30)
    while_it_runs = await service.beat()
    (pending,) = await bench.bus.inbox.pending()
    done = TurnResult(session=SESSION, consumed=(pending.message.id,), answer="Rain!")
    await bench.bus.settle(done, answer_messages(pending.message, done)[0])
    while_it_is_delivered = await service.beat()
    await bench.bus.outbox.nothing_to_send(f"{pending.message.id}/answer")

    assert (while_it_runs, while_it_is_delivered, await service.beat()) == (False, False, True)


async def test_a_chat_on_a_channel_that_is_not_served_any_more_is_no_chat(bench: Bench) -> None:
    service = bench.service()
    await bench.bus.post(InboundMessage("irc", "42", "42", "hello", role=Role.OWNER))

    assert await service.beat() is False


@pytest.mark.parametrize(
    ("hours", "zone", "beats"),
    [
        ("08:00-22:00", "UTC", True),
        ("08:00-12:00", "UTC", False),
        ("22:00-06:00", "UTC", False),
        ("22:00-06:00", "Asia/Tokyo", False),
        ("20:00-06:00", "Asia/Tokyo", True),
        ("06:00-08:00", "America/New_York", True),
    ],
)
async def test_nothing_happens_outside_the_active_hours(
    bench: Bench, hours: str, zone: str, beats: bool
) -> None:
    service = bench.service(activeHours=hours, tz=zone)
    await bench.greet()

    assert await service.beat() is beats


@pytest.mark.parametrize(
    ("answer", "sent"),
    [("**heartbeat ok**", []), ("`HEARTBEAT_OK`.", []), ("Rain!", ["Rain!"])],
)
async def test_the_answer_goes_to_the_last_used_chat_unless_it_is_the_token(
    bench: Bench, answer: str, sent: list[str]
) -> None:
    service = bench.service()
    await bench.bus.post(InboundMessage("telegram", "42", "42", "hello", role=Role.OWNER))
    await service.beat()
    _, pending = await bench.bus.inbox.pending()

    done = TurnResult(session=SESSION, consumed=(pending.message.id,), answer=answer)
    outbounds = answer_messages(pending.message, done)[0]

    assert [outbound.content for outbound in outbounds] == sent
    assert {outbound.chat_id for outbound in outbounds} <= {"42"}


@pytest.mark.parametrize(
    "change", [lambda path: path.unlink(), lambda path: path.write_text("# x")]
)
async def test_no_file_and_no_tasks_post_nothing(
    bench: Bench, change: Callable[[Path], object]
) -> None:
    change(bench.root / "HEARTBEAT.md")

    assert await bench.service().beat() is False
