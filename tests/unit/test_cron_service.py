"""What the cron service posts, over a simulated clock and a real state database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.turn import TurnResult
from nanobot.bus.bus import MessageBus
from nanobot.core.errors import JobError, ToolError
from nanobot.core.messages import InboundMessage, Role, Trust
from nanobot.cron.jobs import Content, JobFile, Payload, ScheduleRequest
from nanobot.cron.schedule import next_after
from nanobot.cron.service import CronService
from nanobot.cron.tool import Cron, CronArguments
from nanobot.session.log import SessionLog
from nanobot.store.database import Database
from tests.fakes.tool_turns import tool_turn

START = datetime(2026, 3, 27, 12, 0, tzinfo=UTC)
REMINDER = Payload(kind="reminder", message="Tea!", deliver=True, channel="telegram", to="42")
TASK = Payload(message="count", deliver=True, channel="telegram", to="42")


@dataclass
class Bench:
    """A service that can be killed and started again, over one home."""

    root: Path
    now: datetime = START
    opened: list[Database] = field(default_factory=list)

    def start(self) -> CronService:
        """A new process: nothing but the disk is left of the former one."""
        for database in self.opened:
            database.close()
        self.opened.append(Database(self.root / "state.db"))
        self.bus = MessageBus(self.opened[-1], lambda: self.now)
        self.service = CronService(
            self.file, self.opened[-1], self.bus, lambda: self.now, served=frozenset({"telegram"})
        )
        return self.service

    @property
    def file(self) -> JobFile:
        return JobFile(self.root / "cron" / "jobs.json")

    async def finish(self) -> None:
        """Have all that was posted and queued done and delivered."""
        for pending in await self.bus.inbox.pending():
            message = pending.message
            done = TurnResult(session=message.session_key, consumed=(message.id,), answer="")
            await self.bus.settle(done)
        for undelivered in await self.bus.outbox.undelivered("telegram"):
            await self.bus.outbox.nothing_to_send(undelivered.message.id)

    async def posted(self) -> list[str]:
        """The ids of all runs, in order of arrival."""
        return await self.opened[-1].read(
            lambda connection: [
                row[0]
                for row in connection.execute(
                    "SELECT id, received_at AS at, seq FROM inbox WHERE id LIKE 'cron:%' "
                    "UNION SELECT id, created_at, seq FROM outbox ORDER BY at, seq"
                )
            ]
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for database in made.opened:
        database.close()


def run_id(job: str, due: datetime) -> str:
    return f"cron:{job}:{round(due.timestamp() * 1000)}"


async def test_each_due_time_over_a_change_of_clocks_is_posted_once_despite_restarts(
    bench: Bench,
) -> None:
    bench.file.add(
        "a", "", ScheduleRequest(cron_expr="30 2 * * *", tz="Europe/Berlin"), REMINDER, START
    )
    bench.file.add("b", "", ScheduleRequest(every_seconds=5000), TASK, START)
    expected = []
    for job in bench.file.load():
        due: datetime | None = START
        while (due := next_after(job.when(), due or START)) and due < START + timedelta(days=4):
            expected.append(run_id(job.id, due))

    bench.start()
    for minute in range(4 * 24 * 60):
        bench.now = START + timedelta(minutes=minute)
        if minute % 700 == 699:
            bench.start()
        await bench.service.tick()
        await bench.finish()

    posted = await bench.posted()
    assert (sorted(posted), len(set(posted))) == (sorted(expected), len(posted))


async def test_three_days_down_make_one_late_run_of_each_job(bench: Bench) -> None:
    bench.file.add("once", "", ScheduleRequest(at="2026-03-28T09:00+00:00"), REMINDER, START)
    bench.file.add("often", "", ScheduleRequest(every_seconds=60), TASK, START)
    await bench.start().tick()

    bench.now = START + timedelta(days=3, seconds=30)
    await bench.start().tick()
    await bench.service.tick()

    (reminder,) = await bench.bus.outbox.undelivered("telegram")
    assert reminder.message.content.startswith("Tea!\n\n(Late: this was due on Sat 2026-03-28")
    (task,) = await bench.bus.inbox.pending()
    assert (task.message.session_key, task.message.content) == ("cron:often", "count")
    assert task.message.answer.note.startswith("(Late:")
    assert [job.id for job in bench.file.load()] == ["often"]
    assert bench.service.wait_s() <= 30


async def test_a_one_time_job_is_gone_even_when_the_process_died_before_removing_it(
    bench: Bench,
) -> None:
    bench.file.add("once", "", ScheduleRequest(at="2026-03-27T12:01+00:00"), REMINDER, START)
    before = bench.file.path.read_bytes()
    await bench.start().tick()
    bench.now += timedelta(minutes=1)
    await bench.service.tick()
    bench.file.path.write_bytes(before)

    await bench.start().tick()

    assert (bench.file.load(), len(await bench.posted())) == ((), 1)


@pytest.mark.parametrize("damage", ["", "[]", '{"version": 1, "jobs": [{"id"', '{"version": 2}'])
async def test_a_damaged_file_leaves_the_jobs_as_they_were_until_it_is_mended_or_changed(
    bench: Bench, damage: str
) -> None:
    bench.file.add("a", "", ScheduleRequest(every_seconds=60), REMINDER, START)
    bench.file.add("b", "", ScheduleRequest(every_seconds=60), REMINDER, START)
    await bench.start().tick()
    bench.file.path.write_text(damage)

    await bench.start().tick()
    bench.now += timedelta(minutes=1)
    await bench.service.tick()
    untouched = bench.file.path.read_text(), bench.file.quarantined()
    listed = await Cron(bench.service).run(arguments(action="list"), tool_turn(bench.root))
    bench.file.remove("b")

    assert [run.partition(":1")[0] for run in await bench.posted()] == ["cron:a", "cron:b"]
    assert (untouched, len(bench.service.problems)) == ((damage, ()), 1)
    assert listed.text.endswith(bench.service.problems[0])
    (aside,) = bench.file.quarantined()
    assert (aside.read_text(), [job.id for job in bench.file.load()]) == (damage, ["a"])


async def test_a_file_damaged_together_with_its_copy_holds_no_jobs_and_stops_nothing(
    bench: Bench,
) -> None:
    bench.file.add("a", "", ScheduleRequest(every_seconds=60), REMINDER, START)
    for path in bench.file.path.parent.glob("*.json"):
        path.write_text("{")

    await bench.start().tick()
    bench.file.add("b", "", ScheduleRequest(every_seconds=60), REMINDER, START)
    await bench.service.tick()

    assert ([job.id for job in bench.file.load()], bench.service.problems) == (["b"], ())


async def test_a_run_is_left_out_while_the_last_one_is_open_but_never_the_only_one(
    bench: Bench,
) -> None:
    bench.file.add("often", "", ScheduleRequest(every_seconds=60), TASK, START)
    once = bench.file.add("once", "", ScheduleRequest(at="2026-03-27T12:03+00:00"), TASK, START)
    await bench.start().tick()
    await bench.service.run_now(once)

    for minute in (1, 2, 3, 4):
        bench.now = START + timedelta(minutes=minute)
        await bench.service.tick()
    open_ = await bench.posted()
    await bench.finish()
    bench.now = START + timedelta(minutes=5)
    await bench.service.tick()

    assert open_[1:] == [
        run_id("often", START + timedelta(minutes=1)),
        run_id("once", START + timedelta(minutes=3)),
    ]
    assert (await bench.posted())[3:] == [run_id("often", START + timedelta(minutes=5))]


async def test_a_schedule_that_cannot_be_is_told_of_after_every_start_until_it_is_mended(
    bench: Bench,
) -> None:
    job = bench.file.add("a", "", ScheduleRequest(every_seconds=60), REMINDER, START)
    absurd = job.schedule.model_copy(update={"every_ms": 10**18})
    bench.file.change(lambda jobs: (job.model_copy(update={"schedule": absurd}),))
    told = []

    for _ in range(2):
        await bench.start().tick()
        told.append(bench.service.problems)
    bench.file.change(lambda jobs: (job,))
    await bench.service.tick()

    assert told == [("the job 'a' does not run: " + ABSURD,)] * 2
    assert bench.service.problems == ()


ABSURD = "its interval must be between a second and ten years"


async def test_a_job_that_fails_to_run_is_told_of_and_stops_no_other(bench: Bench) -> None:
    broken = Payload(kind="reminder", message="x", deliver=True, channel="telegram", to="\ud83d")
    bench.file.add("a", "", ScheduleRequest(every_seconds=60), REMINDER, START)
    service = bench.start()
    await service.tick()
    bench.file.add("b", "", ScheduleRequest(every_seconds=60), REMINDER, START)
    await service.tick()
    service._jobs["a"] = service._jobs["a"].model_copy(update={"payload": broken})

    for minute in (1, 2):
        bench.now = START + timedelta(minutes=minute)
        await service.tick()
        await bench.finish()

    assert [run.partition(":1")[0] for run in await bench.posted()] == ["cron:b", "cron:b"]
    assert service.problems[0].startswith("the job 'a' does not run:")


FAMILY: dict[str, Any] = {
    "version": 1,
    "jobs": [
        {
            "id": "1a2b3c4d",
            "name": "standup",
            "enabled": True,
            "schedule": {
                "kind": "every",
                "atMs": None,
                "everyMs": 3600000,
                "expr": None,
                "tz": None,
            },
            "payload": {
                "kind": "agent_turn",
                "message": "Is there a standup?",
                "deliver": True,
                "channel": "telegram",
                "to": "42",
            },
            "state": {
                "nextRunAtMs": 1774609200000,
                "lastRunAtMs": 1774605600000,
                "lastStatus": "ok",
                "lastError": None,
            },
            "createdAtMs": 1774602000000,
            "updatedAtMs": 1774602000000,
            "deleteAfterRun": False,
        },
        {"id": "broken", "schedule": {"kind": "never"}},
    ],
}


async def test_a_file_of_the_family_loads_and_what_cannot_be_read_is_kept(bench: Bench) -> None:
    bench.file.path.parent.mkdir()
    bench.file.path.write_text(json.dumps(FAMILY))
    bench.now = datetime.fromtimestamp(1774609000, UTC)
    await bench.start().tick()
    before = await bench.posted()

    bench.now = datetime.fromtimestamp(1774609200, UTC)
    await bench.service.tick()
    bench.file.add("new", "", ScheduleRequest(every_seconds=60), REMINDER, START)

    assert (before, await bench.posted()) == ([], ["cron:1a2b3c4d:1774609200000"])
    kept = json.loads(bench.file.path.read_text())["jobs"]
    assert [job["id"] for job in kept] == ["1a2b3c4d", "new", "broken"]
    assert kept[0]["state"]["lastStatus"] == "ok"


async def test_both_sides_may_add_at_the_same_time(bench: Bench) -> None:
    def add(name: str) -> None:
        bench.file.add(name, "", ScheduleRequest(every_seconds=60), REMINDER, START)

    names = [f"j{number}" for number in range(20)]
    await asyncio.gather(*(asyncio.to_thread(add, name) for name in names))

    assert sorted(job.id for job in bench.file.load()) == sorted(names)


async def test_a_job_of_the_terminal_waits_for_a_chat_and_goes_to_the_last_used(
    bench: Bench,
) -> None:
    bench.file.add(
        "a",
        "",
        ScheduleRequest(at="2026-03-27T12:01+00:00"),
        Payload(kind="reminder", message="x"),
        START,
    )
    bench.start()
    bench.now += timedelta(minutes=1)
    await bench.service.tick()
    before = await bench.posted()
    for chat, role in (("41", Role.OWNER), ("42", Role.OWNER), ("666", Role.GUEST)):
        await bench.bus.post(InboundMessage("telegram", chat, chat, "hello", role=role))

    bench.now += timedelta(seconds=31)
    await bench.service.tick()

    (reminder,) = await bench.bus.outbox.undelivered("telegram")
    assert (before, reminder.message.chat_id, reminder.message.content) == ([], "42", "x")


async def test_a_disabled_job_keeps_still_and_an_enabled_one_keeps_its_phase(
    bench: Bench,
) -> None:
    bench.file.add("a", "", ScheduleRequest(every_seconds=600), REMINDER, START)
    await bench.start().tick()
    bench.file.update("a", START, enabled=False)
    bench.now += timedelta(minutes=25)
    await bench.service.tick()
    silent = await bench.posted()

    bench.file.update("a", bench.now, enabled=True)
    await bench.service.tick()
    bench.now += timedelta(minutes=5)
    await bench.service.tick()

    assert (silent, await bench.posted()) == ([], [run_id("a", START + timedelta(minutes=30))])


async def test_a_thousand_idle_jobs_are_neither_read_nor_looked_up_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        {
            "id": f"j{number}",
            "schedule": {"kind": "cron", "expr": f"{number % 60} 3 * * *", "tz": "Europe/Berlin"},
            "payload": {"message": "x", "deliver": True, "channel": "telegram", "to": "1"},
            "createdAtMs": 1774602000000,
        }
        for number in range(1000)
    ]
    bench.file.path.parent.mkdir()
    bench.file.path.write_text(json.dumps({"version": 1, "jobs": records}))
    reads: list[Path] = []
    read = JobFile.read

    def counted(file: JobFile, **options: Any) -> Content:
        reads.append(file.path)
        return read(file, **options)

    monkeypatch.setattr(JobFile, "read", counted)
    service = bench.start()
    await service.tick()
    bench.opened[-1].close()  # from here on each look into the database would fail

    for _ in range(5):
        bench.now += timedelta(minutes=1)
        await service.tick()

    assert len(reads) == 1
    assert service.wait_s() > 0


def arguments(**more: Any) -> CronArguments:
    return CronArguments.model_validate({"action": "add", "message": "Tea!", **more})


async def test_the_tool_echoes_the_next_runs_and_adds_a_repeated_call_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanobot.cron.jobs.local_zone", lambda: "Europe/Berlin")
    tool = Cron(bench.start())
    turn = tool_turn(bench.root, session="telegram:42")

    said = await tool.run(arguments(cron_expr="0 9 * * *", mode="reminder"), turn)
    await tool.run(arguments(cron_expr="0 9 * * *", mode="reminder"), turn)

    (job,) = bench.file.load()
    assert said.text == (
        f"Added {job.id} (reminder) “Tea!”: next runs Sat 2026-03-28 09:00:00 CET, "
        "Sun 2026-03-29 09:00:00 CEST, Mon 2026-03-30 09:00:00 CEST. "
        "No gateway is running: it fires only while `nanobot gateway` runs."
    )
    assert (job.payload.channel, job.payload.to) == ("telegram", "42")
    assert await tool.recovered_call(turn.inbound_id, turn.call_id) is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cron_expr": "9 o'clock"}, "five fields"),
        ({"at": "tomorrow"}, "ISO form"),
        ({"at": "2020-01-01T00:00"}, "has passed"),
        ({"every_seconds": 0}, "at least 1"),
        ({"cron_expr": "0 9 * * *", "tz": "Mars/Olympus"}, "Europe/Berlin"),
        ({"every_seconds": 60, "at": "2030-01-01T00:00"}, "exactly one"),
        ({}, "exactly one"),
        ({"every_seconds": 60, "message": " "}, "message is empty"),
        ({"action": "remove", "job_id": "nope"}, "There is no job 'nope'"),
    ],
)
async def test_what_cannot_be_is_refused_with_what_to_mend(
    bench: Bench, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ToolError, match=words):
        await Cron(bench.start()).run(arguments(**given), tool_turn(bench.root))

    assert bench.file.load() == ()


async def test_guests_have_reminders_of_their_own_alone(bench: Bench) -> None:
    bench.file.add("owners", "", ScheduleRequest(every_seconds=60), REMINDER, START)
    tool = Cron(bench.start())
    guest = tool_turn(bench.root, session="telegram:7", role=Role.GUEST)

    await tool.run(arguments(every_seconds=60, mode="reminder"), guest)
    listed = await tool.run(arguments(action="list"), guest)

    assert ("owners" in listed.text, listed.text.count("Tea!")) == (False, 1)
    for refused in (
        arguments(every_seconds=60),
        arguments(action="remove", job_id="owners"),
    ):
        with pytest.raises(ToolError):
            await tool.run(refused, guest)


async def test_words_of_a_job_are_logged_on_the_authority_and_with_the_trust_they_were_set_with(
    bench: Bench,
) -> None:
    tool = Cron(bench.start())
    guest = replace(
        tool_turn(bench.root, session="telegram:7", role=Role.GUEST), trust=Trust.UNTRUSTED
    )
    owner = replace(tool_turn(bench.root, session="telegram:42"), trust=Trust.UNTRUSTED)
    await tool.run(arguments(every_seconds=60, mode="reminder"), guest)
    await tool.run(arguments(every_seconds=60, mode="task"), replace(owner, call_id="call_2"))
    bench.now += timedelta(minutes=1)

    await bench.service.tick()

    (sent,) = (await SessionLog(bench.opened[-1], lambda: bench.now).live("telegram:7")).entries
    assert (sent.principal, sent.trust) == ("guest:telegram:1", Trust.UNTRUSTED)
    (task,) = await bench.bus.inbox.pending()
    assert task.message.trust is Trust.UNTRUSTED


async def test_a_run_beside_the_schedule_needs_a_chat_and_is_recorded(bench: Bench) -> None:
    bench.start()
    nowhere = bench.file.add(
        "a", "", ScheduleRequest(every_seconds=60), Payload(message="x", deliver=True), START
    )
    with pytest.raises(JobError, match="write to nanobot"):
        await bench.service.run_now(nowhere)
    quiet = bench.file.add("b", "", ScheduleRequest(every_seconds=60), Payload(message="x"), START)

    posted = await bench.service.run_now(quiet)

    assert await bench.posted() == [posted]
