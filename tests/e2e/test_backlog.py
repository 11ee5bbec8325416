"""What waits in the boxes: sent once, and never in the way of people and of /stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from nanobot.bus.bus import MessageBus
from nanobot.core.messages import (
    AnswerKind,
    AnswerRule,
    InboundMessage,
    Origin,
    OutboundMessage,
    Role,
)
from nanobot.store.database import Database
from tests.e2e.conftest import OWNER, Nanobot, Telegram, eventually
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import Request

OTHER = 43


def fill(nanobot: Nanobot, queue: Callable[[MessageBus], Awaitable[object]], at: datetime) -> None:
    """Put messages into the boxes of a home that no gateway holds, as a former one would."""

    async def work() -> None:
        database = Database(nanobot.home / "state.db")
        await queue(MessageBus(database, lambda: at))
        database.close()

    asyncio.run(work())


def outbound(name: str, chat: int) -> OutboundMessage:
    return OutboundMessage("telegram", str(chat), name, id=name)


def test_what_waits_at_the_start_is_sent_once_although_some_of_it_ends_at_once(
    telegram: Telegram,
) -> None:
    now = datetime.now(UTC)
    expired = [outbound(f"old {number}", 1000 + number) for number in range(201)]
    waiting = [outbound(f"new {number}", 2000 + number) for number in range(12)]
    fill(telegram.nanobot, lambda bus: bus.queue(*expired), now - timedelta(hours=72))
    fill(telegram.nanobot, lambda bus: bus.queue(*waiting), now)

    gateway = telegram.start()
    telegram.api.wait_for_sent(len(waiting), timeout=30)
    assert gateway.terminate() == 0

    assert sorted(sent.text for sent in telegram.api.sent) == sorted(
        message.content for message in waiting
    )


def test_runs_of_a_service_that_pile_up_deafen_nobody(telegram: Telegram) -> None:
    config = telegram.config()
    config["bus"] = {"maxQueued": 3}
    telegram.nanobot.configure(config)
    runs = [
        InboundMessage(
            "cron",
            "cron",
            "slow",
            f"run {number}",
            id=f"cron:slow:{number}",
            origin=Origin.CRON,
            role=Role.OWNER,
            profile="job",
            answer=AnswerRule(AnswerKind.NOTHING),
            session="cron:slow",
        )
        for number in range(6)
    ]

    async def post(bus: MessageBus) -> None:
        for run in runs:
            await bus.post(run)

    fill(telegram.nanobot, post, datetime.now(UTC))
    gate = telegram.model.gate()

    def answer(request: Request) -> Reply:
        if "run " in request.last_user:
            return Reply.text("ran", gate=gate)
        return Reply.text("here I am")

    telegram.model.answer_with(answer)
    telegram.start()
    gate.wait_reached()

    telegram.api.inject("are you there?", chat_id=OWNER)
    telegram.api.wait_for_sent(1, OWNER)
    telegram.api.inject("/stop", chat_id=OWNER)
    telegram.api.wait_for_sent(2, OWNER)

    gate.release()
    assert telegram.texts() == ["here I am", "Nothing is running here."]


def test_a_chat_with_more_than_fits_deafens_neither_stop_nor_other_chats(
    telegram: Telegram,
) -> None:
    config = telegram.config(allowFrom=[str(OWNER), str(OTHER)])
    config["bus"] = {"maxQueued": 3}
    config["agents"]["defaults"]["queue"] = "followup"
    telegram.nanobot.configure(config)
    gate = telegram.model.gate()

    def answer(request: Request) -> Reply:
        words = request.last_user.partition("\n")[2]
        return Reply.text(f"echo {words}", gate=gate if words == "m0" else None)

    telegram.model.answer_with(answer)
    telegram.start()
    for number in range(8):
        telegram.api.inject(f"m{number}", chat_id=OWNER)
    gate.wait_reached()

    telegram.api.inject("hello", chat_id=OTHER)
    (hello,) = telegram.api.wait_for_sent(1, OTHER)
    telegram.api.inject("/stop", chat_id=OWNER)
    telegram.api.wait_for_sent(8, OWNER)
    gate.release()

    assert hello.text == "echo hello"
    assert telegram.texts() == ["Stopped.", *(f"echo m{number}" for number in range(1, 8))]
    eventually(lambda: not telegram.api.pending, "all to be acknowledged")
