"""One home with its fakes, the gateway that is killed in it, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nanobot.bus.bus import MessageBus
from nanobot.core.messages import OutboundMessage
from nanobot.cron.jobs import JobFile, Payload, ScheduleRequest
from nanobot.store.database import Database
from tests.crash.jobs import Job, Kind, Ledger, marks_in, reply_to
from tests.crash.wire import refusals
from tests.fakes.bot_api import FAKE_TOKEN, BlockingBotApi, BotApi
from tests.fakes.model_replies import Gate, Reply
from tests.fakes.model_server import ModelServer, Request

NANOBOT = Path(sys.executable).with_name("nanobot")
PATIENCE_S = 60.0
"""How long something that must happen may take on a machine that is busy with other things."""
REPETITION = "↻"
HOUR_S = 3600
CHATS = tuple(range(101, 113))
CROWD = tuple(range(1001, 1101))
"""Further chats, for what is too much for the few: a chat takes one message a second."""
INTERRUPTED = "Interrupted:"
NOT_RUN = "Not run:"


@dataclass(slots=True)
class Figures:
    """What a campaign has come to."""

    kills: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    answered: int = 0
    lost: int = 0
    doubled: int = 0
    """Texts that stood in a chat twice without a mark."""
    marked: int = 0
    """Texts that carry the mark of a possible repetition."""
    repeated: int = 0
    """Marked texts whose first copy had arrived, too."""
    tool_runs: int = 0
    interrupted: int = 0
    ran_twice: int = 0
    requests: int = 0
    illegal: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    """From each start after a kill until nothing was left to answer."""

    def lines(self) -> Iterator[str]:
        """The figures for people."""
        times = sorted(self.recoveries_s) or [0.0]
        yield f"kills                  {self.kills.total()}"
        for name, count in sorted(self.kills.items()):
            yield f"  {name:<20} {count}"
        yield f"messages               {self.messages}"
        yield f"answered               {self.answered}"
        yield f"lost                   {self.lost}"
        yield f"doubled, not marked    {self.doubled}"
        yield f"marked as repetitions  {self.marked} ({self.repeated} of them had arrived before)"
        yield f"tool runs              {self.tool_runs}"
        yield f"cut off, told as such  {self.interrupted}"
        yield f"run twice              {self.ran_twice}"
        yield f"requests to the model  {self.requests}"
        yield f"illegal requests       {self.illegal}"
        yield (
            f"from start to all answered  median {times[len(times) // 2]:.1f} s, "
            f"longest {times[-1]:.1f} s"
        )


class World:
    """A home, a fake model, a fake Bot API, and at most one gateway."""

    def __init__(self, root: Path, model: ModelServer, api: BlockingBotApi) -> None:
        self.root = root
        self.model = model
        self.api = api
        self.home = root / ".nanobot"
        self.figures = Figures()
        self.jobs: dict[str, Job] = {}
        self.faults: list[str] = []
        self.in_window: set[str] = set()
        """Marks of the texts that may have been sent when a gateway was killed."""
        self.hold: Callable[[Job], Gate | None] = lambda job: None
        self.stream_hold: Gate | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_traced = False
        self._starts = 0
        self._checked: set[str] = set()
        self._ledger = Ledger(str(root / "ledger"), str(root / "pipe"))
        os.mkfifo(self._ledger.pipe)
        Path(self._ledger.path).touch()
        self._configure()
        model.answer_with(self._answer)

    # What happens

    @property
    def next_token(self) -> str:
        """The token of the job that is sent next."""
        return f"m{len(self.jobs) + 1}"

    def _made(self, kind: Kind) -> Job:
        job = Job(kind, self.next_token)
        self.jobs[job.token] = job
        self.figures.messages += 1
        return job

    def send(self, kind: Kind, chat: int) -> Job:
        """Somebody writes a job into a chat."""
        job = self._made(kind)
        self.api.inject(job.text, chat_id=chat)
        return job

    def fill_outbox(self, count: int) -> None:
        """Leave messages in the outbox of a home that is down; the first renders to nothing."""
        assert self.is_down(), "a gateway holds the home"
        nothing = OutboundMessage("telegram", str(CROWD[0]), "", id=f"nothing-{self.next_token}")
        jobs = [self._made(Kind.TALK) for _ in range(count)]
        outbounds = [
            OutboundMessage("telegram", str(CROWD[n % len(CROWD)]), job.marks[0], id=job.token)
            for n, job in enumerate(jobs)
        ]

        async def queue() -> None:
            database = Database(self.home / "state.db")
            await MessageBus(database, lambda: datetime.now(UTC)).queue(nothing, *outbounds)
            database.close()

        asyncio.run(queue())

    def schedule(self, count: int) -> list[Job]:
        """Have the gateway take up hourly jobs: reminders and tasks in turns."""
        file = JobFile(self.home / "cron" / "jobs.json")
        jobs = [self._made(Kind.TALK) for _ in range(count)]
        for n, job in enumerate(jobs):
            is_task = n % 2 == 0
            payload = Payload(
                kind="agent_turn" if is_task else "reminder",
                message=job.text if is_task else job.marks[0],
                deliver=True,
                channel="telegram",
                to=str(CHATS[n]),
            )
            when = ScheduleRequest(every_seconds=HOUR_S)
            file.add(job.token, job.token, when, payload, datetime.now(UTC))
        deadline = time.monotonic() + PATIENCE_S
        while self._read("SELECT count(*) FROM job_state WHERE job = ?", jobs[-1].token) == 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the gateway did not take the jobs up:\n{self.log()}")
            time.sleep(0.02)
        return jobs

    def let_fall_due(self, jobs: Sequence[Job], times: int) -> None:
        """Have the time pass in which hourly jobs fall due so many times; nobody runs them."""
        assert self.is_down(), "a gateway holds the home"
        with closing(sqlite3.connect(self.home / "state.db")) as state, state:
            state.executemany(
                "UPDATE job_state SET due = due - ? WHERE job = ?",
                [(times * HOUR_S, job.token) for job in jobs],
            )

    def start(self, *wrapped_in: str) -> bool:
        """Start the gateway and wait until it polls; False when it died before that."""
        assert self._process is None, "a gateway is running"
        self._starts += 1
        polls = len(self.api.polls)
        self._process = self._spawn(*wrapped_in)
        deadline = time.monotonic() + PATIENCE_S
        while len(self.api.polls) == polls:
            if self._process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"no gateway within {PATIENCE_S} s:\n{self.log()}")
            time.sleep(0.01)
        return True

    def launch(self, *wrapped_in: str) -> None:
        """Start the gateway and wait for nothing."""
        assert self._process is None, "a gateway is running"
        self._starts += 1
        self._process = self._spawn(*wrapped_in)

    def kill(self, point: str) -> None:
        """SIGKILL, now."""
        assert self._process is not None, "there is nothing to kill"
        self._signal(signal.SIGKILL)
        self.died(point)

    def died(self, point: str, timeout: float = PATIENCE_S) -> None:
        """Wait for the death of the gateway and note it under ``point``."""
        assert self._process is not None, "there is nothing to die"
        code = self._process.wait(timeout)
        assert code == -signal.SIGKILL, f"it was not killed but left with {code}: {self.log()}"
        self._process = None
        self.figures.kills[point] += 1
        self._forget_holds()

    def _forget_holds(self) -> None:
        self._note_window()
        self.hold = lambda job: None
        self.stream_hold = None
        self.api.heal()

    def leave(self, point: str) -> None:
        """SIGTERM, which the gateway obeys with 0; noted under ``point``."""
        self.stop()
        self.figures.kills[point] += 1
        self._forget_holds()

    def is_down(self) -> bool:
        """Whether no gateway was started."""
        return self._process is None

    def is_dead(self) -> bool:
        """Whether the gateway that was started has ended."""
        return self._process is not None and self._process.poll() is not None

    def ask_to_leave(self) -> None:
        """SIGTERM, and no wait for what comes of it."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGTERM; the gateway leaves with 0."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        code = self._process.wait(PATIENCE_S)
        self._process = None
        if code != 0:
            self.faults.append(f"SIGTERM ended in exit code {code}:\n{self.log()}")

    def abandon(self) -> None:
        """End whatever runs, without a look at it."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def recover(self) -> None:
        """Start afresh after a kill, wait until nothing is left to do, and check."""
        began = time.monotonic()
        self.start()
        self.settle()
        self.figures.recoveries_s.append(time.monotonic() - began)
        self.check()

    # What must hold

    def settle(self) -> None:
        """Wait until all that was sent is answered and nothing waits; then a fault is no delay."""
        sent, deadline = 0, 0.0
        while not self._is_settled():
            if len(self.api.sent) > sent or not deadline:
                sent, deadline = len(self.api.sent), time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline or self.is_dead():
                return  # what is missing is said by ``check``
            time.sleep(0.02)

    def check(self) -> None:
        """Look at the chats, the ledger, the log and the boxes; what is wrong is in ``faults``."""
        with self._state() as state:
            self._check_boxes(state)
            self._check_chats()
            self._check_ledger(_calls(state))
            self._check_log(state)
        self._checked = set(self.jobs)

    def _is_settled(self) -> bool:
        open_rows = self._read(
            "SELECT (SELECT count(*) FROM inbox WHERE state = 'pending') + "
            "(SELECT count(*) FROM outbox WHERE state = 'pending')"
        )
        if open_rows or self.api.pending:
            return False
        seen = self._copies()
        return all(seen[mark] for job in self._new() for mark in job.marks)

    def _read(self, query: str, *values: str) -> int:
        """A number from the state of a gateway that may run."""
        path = f"{(self.home / 'state.db').as_uri()}?mode=ro"
        with closing(sqlite3.connect(path, uri=True, timeout=5)) as state:
            (number,) = state.execute(query, values).fetchone()
        return int(number)

    def _new(self) -> list[Job]:
        # The fake model asks from its thread while jobs are added: ``copy`` runs in one step.
        return [job for token, job in self.jobs.copy().items() if token not in self._checked]

    def _copies(self) -> dict[str, list[bool]]:
        """For each mark whether its copies in the chats were marked as repetitions."""
        copies: dict[str, list[bool]] = {
            mark: [] for job in self.jobs.values() for mark in job.marks
        }
        for message in self.api.sent:
            for mark in marks_in(message.text):
                copies.setdefault(mark, []).append(message.text.startswith(REPETITION))
        return copies

    def _check_chats(self) -> None:
        copies = self._copies()
        for job in self._new():
            self.figures.answered += all(copies[mark] for mark in job.marks)
            for mark in job.marks:
                plain, marked = copies[mark].count(False), copies[mark].count(True)
                self.figures.marked += marked
                self.figures.repeated += marked if plain else max(0, marked - 1)
                if not plain and not marked:
                    self.figures.lost += 1
                    self.faults.append(f"lost: {mark} of {job.text!r}")
                if plain > 1:
                    self.figures.doubled += plain - 1
                    self.faults.append(f"{plain} unmarked copies of {mark}")
                if marked and mark not in self.in_window:
                    self.faults.append(f"{mark} is marked, but was not being sent at a kill")
        for message in self.api.sent:
            if not marks_in(message.text):
                self.faults.append(f"what nobody asked for: {message.text!r}")

    def _check_boxes(self, state: sqlite3.Connection) -> None:
        for box, good in (("inbox", "done"), ("outbox", "sent")):
            for name, found, error in state.execute(
                f"SELECT id, state, error FROM {box} WHERE state <> ?", (good,)
            ):
                self.faults.append(f"{box}: {name} is {found} ({error})")
        for (name,) in state.execute("SELECT outbound_id FROM piece WHERE state <> 'sent'"):
            self.faults.append(f"a piece of {name} is not noted as sent")

    def _check_ledger(self, calls: Sequence[_Call]) -> None:
        lines = Counter(Path(self._ledger.path).read_text().split())
        ran: Counter[str] = Counter()
        cut: Counter[str] = Counter()
        for call in calls:
            for line in (line for job in self.jobs.values() for line in job.lines):
                if self._ledger.add(line) in call.arguments:
                    if call.result.startswith(INTERRUPTED):
                        cut[line] += 1
                    elif not call.result.startswith(NOT_RUN):
                        ran[line] += 1
        self.figures.tool_runs = sum(lines.values())
        self.figures.interrupted = sum(cut.values())
        for line, count in lines.items():
            if count > 1:
                self.figures.ran_twice += 1
                self.faults.append(f"{line} was counted {count} times")
        for line in {*ran, *lines}:
            if not ran[line] <= lines[line] <= ran[line] + cut[line]:
                self.faults.append(
                    f"{line}: {lines[line]} in the ledger, {ran[line]} run and {cut[line]} cut off "
                    "by the log"
                )

    def _check_log(self, state: sqlite3.Connection) -> None:
        said = Counter(
            state.execute("SELECT session, inbound_id FROM log WHERE kind = 'user'").fetchall()
        )
        for (_, inbound), count in said.items():
            if count > 1:
                self.faults.append(f"the history holds {inbound} {count} times")
        asked: dict[tuple[str, str], int] = {}
        for session, kind, payload in state.execute(
            "SELECT session, kind, payload FROM log ORDER BY seq"
        ):
            record = json.loads(payload)
            for identity, *_ in record.get("tool_calls", ()) if kind == "assistant" else ():
                asked[session, identity] = 0
            if kind == "tool":
                asked[session, record["call_id"]] += 1
        for (session, identity), results in asked.items():
            if results != 1:
                self.faults.append(f"the call {identity} of {session} has {results} results")

    # The rest

    def log(self) -> str:
        """What the last gateway said."""
        return (self.root / f"gateway-{self._starts}.log").read_text(errors="replace")

    def ledger_holds(self, line: str) -> bool:
        """Whether a tool has counted ``line``."""
        return line in Path(self._ledger.path).read_text().split()

    def _answer(self, request: Request) -> Reply:
        self.figures.requests += 1
        if wrong := refusals(request.body):
            self.figures.illegal += 1
            self.faults.append(f"an illegal request: {'; '.join(wrong)}")
        reply = reply_to(request.messages, self._ledger)
        for job in self._new():
            if job.text in request.last_user and (gate := self.hold(job)) is not None:
                return reply.but(gate=gate)
        if self.stream_hold is not None:
            return reply.but(stream_gate=self.stream_hold)
        return reply

    def _configure(self) -> None:
        self.home.mkdir(mode=0o700, parents=True)
        config = self.home / "config.json"
        config.write_text(
            json.dumps(
                {
                    "agents": {"defaults": {"model": "fake-model", "provider": "custom"}},
                    "providers": {
                        "custom": {"apiKey": "sk-fake-owner-key-0000", "apiBase": self.model.url}
                    },
                    "channels": {
                        "telegram": {
                            "enabled": True,
                            "token": FAKE_TOKEN,
                            "allowFrom": [str(chat) for chat in (*CHATS, *CROWD)],
                            "apiBase": self.api.root,
                        }
                    },
                    # The sandbox has tests of its own, and is not to be had everywhere.
                    "tools": {"exec": {"sandbox": "off"}},
                }
            )
        )
        config.chmod(0o600)

    def _spawn(self, *wrapped_in: str) -> subprocess.Popen[bytes]:
        self._is_traced = bool(wrapped_in)
        passed = ("PATH", "LANG", "PYTHONPATH")
        environ = {name: os.environ[name] for name in passed if name in os.environ}
        with (self.root / f"gateway-{self._starts}.log").open("wb") as log:
            return subprocess.Popen(
                [*wrapped_in, str(NANOBOT), "gateway"],
                env={**environ, "HOME": str(self.root), "NANOBOT_HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @contextmanager
    def _state(self) -> Iterator[sqlite3.Connection]:
        """A copy of the state database: looking must not mend what a crash has left."""
        with tempfile.TemporaryDirectory() as folder:
            for suffix in ("", "-wal"):
                file = self.home / f"state.db{suffix}"
                if file.exists():
                    shutil.copy(file, folder)
            with closing(sqlite3.connect(Path(folder) / "state.db")) as state:
                yield state

    def _signal(self, number: signal.Signals) -> None:
        """Signal the gateway itself: a tracer killed in its stead would let it run on."""
        assert self._process is not None
        pid = self._process.pid
        with suppress(ProcessLookupError, IndexError, FileNotFoundError):  # it died meanwhile
            if self._is_traced:
                children = Path(f"/proc/{pid}/task/{pid}/children")
                pid = int(children.read_text().split()[0])
            os.kill(pid, number)

    def _note_window(self) -> None:
        """Remember which texts were being sent when the gateway died."""
        with self._state() as state:
            if not state.execute("SELECT 1 FROM sqlite_master WHERE name = 'piece'").fetchone():
                return  # it died before the database was made
            for (payload,) in state.execute("SELECT payload FROM piece WHERE state = 'attempting'"):
                self.in_window |= {*marks_in(payload)}


@dataclass(frozen=True, slots=True)
class _Call:
    """A tool call of the log with its result."""

    arguments: str
    result: str


def _calls(state: sqlite3.Connection) -> list[_Call]:
    asked: dict[tuple[str, str], str] = {}
    found = []
    for session, kind, payload in state.execute(
        "SELECT session, kind, payload FROM log ORDER BY seq"
    ):
        record: dict[str, Any] = json.loads(payload)
        if kind == "assistant":
            for identity, _, arguments in record.get("tool_calls", ()):
                asked[session, identity] = arguments
        elif kind == "tool":
            found.append(_Call(asked.get((session, record["call_id"]), ""), record["content"]))
    return found


@contextmanager
def open_world() -> Iterator[World]:
    """A new world in a directory of its own; nothing of it is left."""
    with (
        tempfile.TemporaryDirectory(prefix="nanobot-crash-") as folder,
        ModelServer.in_thread() as model,
        BotApi.in_thread() as api,
    ):
        world = World(Path(folder), model, api)
        try:
            yield world
        finally:
            world.abandon()
