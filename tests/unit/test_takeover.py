"""What another nanobot of the family left: read in its formats, and taken over whole or resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nanobot.cron.jobs import Job, JobFile
from nanobot.memory.store import MemoryStore
from nanobot.session.transfer import SessionTransfer
from nanobot.store.database import Database
from nanobot.store.home import Home
from nanobot.takeover import take_over

FAMILY = Path(__file__).parents[1] / "family"


def now() -> datetime:
    return datetime(2026, 12, 1, tzinfo=UTC)


class Scene:
    """A home with the family's files in it."""

    def __init__(self, root: Path, database: Database) -> None:
        self.home, self.workspace, self.database = Home(root), root / "workspace", database
        self.jobs = JobFile(self.home.cron_jobs)
        self.sessions = SessionTransfer(database, now)
        self.memory = MemoryStore(self.home, self.workspace, now)

    async def take_over(self) -> str:
        return await take_over(
            self.home,
            self.workspace,
            self.database,
            jobs=self.jobs,
            sessions=self.sessions,
            memory=self.memory,
        )

    def change_actions(self, *lines: dict[str, object]) -> None:
        """Let further lines follow the one that the family wrote."""
        file = self.workspace / "cron" / "action.jsonl"
        with file.open("a", encoding="utf-8") as actions:
            actions.writelines(f"{json.dumps(line)}\n" for line in lines)

    def written(self) -> dict[str, object]:
        """The job as the family wrote it."""
        line = (self.workspace / "cron" / "action.jsonl").read_text("utf-8").splitlines()[0]
        record: dict[str, object] = json.loads(line)["params"]
        return record


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    shutil.copytree(FAMILY / "home-0.3.5", tmp_path, dirs_exist_ok=True)
    database = Database(tmp_path / "state.db")
    yield Scene(tmp_path, database)
    database.close()


async def test_a_job_is_delivered_to_the_chat_that_set_it(scene: Scene) -> None:
    record = scene.written()
    payload = {"origin_channel": "telegram", "origin_chat_id": "42", "message": "Drink tea"}
    scene.change_actions({"action": "update", "params": {**record, "payload": payload}})

    await scene.take_over()

    (job,) = scene.jobs.load()
    assert (job.payload.channel, job.payload.to, job.payload.deliver) == ("telegram", "42", True)
    assert job.payload.message == "Drink tea"


async def test_a_job_that_the_family_removed_is_not_taken_over(scene: Scene) -> None:
    scene.change_actions({"action": "del", "params": {"job_id": scene.written()["id"]}})

    await scene.take_over()

    assert scene.jobs.load() == ()


async def test_a_job_that_cannot_be_read_is_named_and_the_others_are_taken(scene: Scene) -> None:
    odd = {**scene.written(), "id": "odd", "schedule": {"kind": "whenever"}}
    scene.change_actions({"action": "add", "params": odd}, {"action": "add"})

    line = await scene.take_over()

    assert len(scene.jobs.load()) == 1
    assert "; not taken over: job odd; its files stay as they are" in line


async def test_a_damaged_job_file_is_named_and_kept(scene: Scene) -> None:
    damaged = scene.workspace / "cron" / "jobs.json"
    damaged.write_text('{"version": 1, "jobs": [', "utf-8")

    line = await scene.take_over()

    assert f"not taken over: {damaged};" in line
    assert damaged.exists()


async def test_a_job_that_is_here_already_stays_as_it_is(scene: Scene) -> None:
    mine = Job.model_validate({**scene.written(), "name": "mine"})
    scene.jobs.change(lambda jobs: (*jobs, mine))

    await scene.take_over()

    assert [job.name for job in scene.jobs.load()] == ["mine"]


async def test_a_start_that_was_cut_off_is_made_up_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(self: MemoryStore, block: str, place: int) -> None:
        raise OSError("the process ends here")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "append_history", cut)
        with pytest.raises(OSError, match="ends here"):
            await scene.take_over()
    await scene.take_over()

    (session,) = await scene.sessions.overview()
    assert len(scene.jobs.load()) == 1
    assert session.entries == 6
    assert await scene.memory.history_events() == 1
    assert await scene.take_over() == ""


async def test_a_history_that_leads_out_of_the_workspace_is_not_written(
    scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "notes.md"
    outside.write_text("mine", "utf-8")
    (scene.workspace / "memory" / "HISTORY.md").symlink_to(outside)

    line = await scene.take_over()

    assert f"not taken over: {scene.workspace / 'memory' / 'history.jsonl'};" in line
    assert outside.read_text("utf-8") == "mine"
    assert len(scene.jobs.load()) == 1


async def test_a_home_that_the_family_never_used_is_opened_in_silence(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    scene = Scene(tmp_path, database)

    assert await scene.take_over() == ""

    assert scene.jobs.load() == ()
    database.close()
