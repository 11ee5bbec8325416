"""What the Telegram channel takes in, over real HTTP from the fake Bot API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr

from nanobot.channels.telegram.channel import TelegramChannel
from nanobot.channels.telegram.connections import Limits, Time
from nanobot.config.schema import TelegramConfig
from nanobot.core.errors import ConfigError, StoreUnavailable
from nanobot.core.messages import InboundMessage, Role
from nanobot.safety.gate import Gate
from tests.fakes.bot_api import FIRST_UPDATE_ID, BotApi
from tests.fakes.telegram_channel import (
    MENU,
    OWNER,
    FakeInbox,
    Hurry,
    Stepped,
    build,
    eventually,
    log_lines,
    no_tls,
    running,
)

QUICK = Limits(poll_s=1, poll_margin_s=0.3, call_s=0.3)
"""For tests in which an answer must be given up."""


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    async with BotApi() as api:
        yield api


@pytest.fixture
def inbox() -> FakeInbox:
    return FakeInbox()


def update_id_of(api: BotApi, number: int) -> str:
    return f"telegram:{api.bot_id}:{number}"


# --- messages ------------------------------------------------------------------------------------


async def test_a_message_of_the_owner_is_posted(api: BotApi, inbox: FakeInbox) -> None:
    number = api.inject("hello", chat_id=OWNER, username="ada", date=1_700_000_000)

    async with running(build(api, inbox)):
        (message,) = await inbox.holds(1)

    assert message == InboundMessage(
        "telegram",
        "1001",
        "1001",
        "hello",
        id=update_id_of(api, number),
        message_id="1",
        sender_name="Ada",
        username="ada",
        sent_at=datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        role=Role.OWNER,
    )


async def test_a_stranger_costs_nothing_but_a_line_in_the_log(
    api: BotApi, inbox: FakeInbox
) -> None:
    with log_lines("INFO") as lines:
        async with running(build(api, inbox)):
            for _ in range(3):
                api.inject("let me in", chat_id=666, username="eve")
            last = api.inject("the owner", chat_id=OWNER)
            await inbox.holds(1)
            await api.wait_for_poll(last + 1)

    assert inbox.contents == ["the owner"]
    assert (inbox.poison, api.sent) == ({}, [])
    assert {call.method for call in api.calls} == {"getMe", "setMyCommands", "getUpdates"}
    assert [line for line in lines if "666" in line] == [
        "INFO telegram: ignored a stranger, id 666 @eve (1 message); "
        "to let them in, add the id to channels.telegram.allowFrom"
    ]


async def test_with_an_empty_allow_list_nobody_is_let_in(api: BotApi, inbox: FakeInbox) -> None:
    number = api.inject("hello", chat_id=OWNER)

    async with running(build(api, inbox, allow=())):
        await api.wait_for_poll(number + 1)

    assert inbox.batches == []


async def test_groups_edits_and_buttons_are_left_alone(api: BotApi, inbox: FakeInbox) -> None:
    api.inject("in a group", chat_id=-100, user_id=OWNER)
    api.inject("edited", chat_id=OWNER, edited=True, message_id=1)
    number = api.inject("hello", chat_id=OWNER)

    async with running(build(api, inbox)):
        await inbox.holds(1)
        await api.wait_for_poll(number + 1)

    assert inbox.contents == ["hello"]
    assert {poll.allowed_updates for poll in api.polls} == {("message",)}


async def test_what_came_while_the_bot_was_down_is_taken_in_once_and_in_order(
    api: BotApi, inbox: FakeInbox
) -> None:
    for number in range(250):
        api.inject(f"{number}", chat_id=OWNER)

    async with running(build(api, inbox)):
        await inbox.holds(250)
        await api.wait_until(lambda: not api.pending)

    assert inbox.contents == [str(number) for number in range(250)]
    assert [len(messages) for messages, _ in inbox.batches] == [100, 100, 50]


# --- acknowledging -------------------------------------------------------------------------------


async def test_nothing_is_acknowledged_before_it_is_committed(
    api: BotApi, inbox: FakeInbox
) -> None:
    inbox.may_commit.clear()
    number = api.inject("hello", chat_id=OWNER)

    async with running(build(api, inbox)):
        await inbox.entered.wait()
        with pytest.raises(TimeoutError):
            await api.wait_for_poll(after=1, timeout=0.5)
        before = api.pending
        inbox.may_commit.set()
        poll = await api.wait_for_poll(number + 1)

    assert before == [number]
    assert poll.offset == number + 1


async def test_a_batch_is_committed_as_one_with_its_poison(api: BotApi, inbox: FakeInbox) -> None:
    first = api.inject("one", chat_id=OWNER)
    broken = api.inject_raw({"message": {"chat": {"id": OWNER, "type": "private"}, "from": 5}})
    api.inject_raw(["what", "is", "this"])
    api.inject_raw({"message": {"text": "nobody"}}, add_id=False)
    last = api.inject("two", chat_id=OWNER)

    async with running(build(api, inbox)):
        await inbox.holds(2)
        await api.wait_until(lambda: not api.pending)

    assert inbox.batches == [
        (
            (update_id_of(api, first), update_id_of(api, last)),
            tuple(inbox.poison),
        )
    ]
    assert inbox.contents == ["one", "two"]
    assert len(inbox.poison) == 3 and update_id_of(api, broken) in inbox.poison
    assert '["what", "is", "this"]' in [poison.raw for poison in inbox.poison.values()]


async def test_a_malformed_update_at_the_end_is_acknowledged_with_the_others(
    api: BotApi, inbox: FakeInbox
) -> None:
    api.inject("one", chat_id=OWNER)
    last = api.inject_raw({"message": "not even an object"})

    async with running(build(api, inbox)):
        poll = await api.wait_for_poll(last + 1)

    assert (poll.offset, list(inbox.poison)) == (last + 1, [update_id_of(api, last)])


async def test_updates_without_any_id_are_kept_and_do_not_spin(
    api: BotApi, inbox: FakeInbox
) -> None:
    api.inject_raw("noise")
    time = Stepped()
    channel = build(api, inbox, time=time)

    async with running(channel):
        await time.sleeps(1)
        state, polls = channel.state(), len(api.polls)

    assert [poison.raw for poison in inbox.poison.values()] == ['"noise"']
    assert (state.connected, state.last_error) == (
        False,
        "the server gave updates without ids, which cannot be acknowledged",
    )
    assert polls == 1


async def test_a_channel_stopped_in_mid_commit_leaves_the_update_for_the_next(
    api: BotApi, inbox: FakeInbox
) -> None:
    inbox.may_commit.clear()
    number = api.inject("hello", chat_id=OWNER)
    async with running(build(api, inbox)):
        await inbox.entered.wait()
    left = (api.pending, inbox.contents)
    inbox.may_commit.set()

    async with running(build(api, inbox)):
        await inbox.holds(1)

    assert left == ([number], [])
    assert inbox.contents == ["hello"]


async def test_a_cancelled_run_ends_its_poll(api: BotApi, inbox: FakeInbox) -> None:
    channel = build(api, inbox)
    run = asyncio.create_task(channel.run())
    await api.wait_until(lambda: api.is_polled)

    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await api.wait_until(lambda: not api.is_polled)

    await channel.aclose()
    assert [task.get_name() for task in asyncio.all_tasks() if "telegram" in task.get_name()] == []


async def test_ids_that_start_again_lower_are_taken_in(api: BotApi, inbox: FakeInbox) -> None:
    async with running(build(api, inbox, limits=QUICK)):
        number = api.inject("before", chat_id=OWNER)
        await inbox.holds(1)
        await api.wait_for_poll(number + 1)
        await api.wait_until(lambda: api.polls[-1].offset is None)
        api.reset_update_ids(40)
        api.inject("after", chat_id=OWNER)
        api.inject("and again", chat_id=OWNER)
        await inbox.holds(3)
        await api.wait_until(lambda: not api.pending)

    assert list(inbox.messages) == [
        update_id_of(api, number) for number in (FIRST_UPDATE_ID, 40, 41)
    ]


async def test_ids_that_start_again_within_a_batch_are_acknowledged(
    api: BotApi, inbox: FakeInbox
) -> None:
    message = {"message_id": 1, "date": 1, "chat": {"id": OWNER, "type": "private"}}
    message |= {"from": {"id": OWNER}}
    api.inject_raw({"update_id": 900, "message": message | {"text": "old"}})
    api.inject_raw({"update_id": 7, "message": message | {"text": "new"}})

    async with running(build(api, inbox)):
        await inbox.holds(2)
        await api.wait_until(lambda: len(api.polls) > 1)

    assert api.polls[1].offset == 8


async def test_when_the_disk_is_full_the_update_waits_at_the_server(
    api: BotApi, inbox: FakeInbox
) -> None:
    inbox.failures = [StoreUnavailable("the disk is full")] * 2
    number = api.inject("hello", chat_id=OWNER)
    time = Stepped()
    channel = build(api, inbox, time=time)

    with log_lines("WARNING") as lines:
        async with running(channel):
            await time.sleeps(1)
            state, pending = channel.state(), api.pending
            time.pass_by(1)
            await time.sleeps(2)
            time.pass_by(2)
            await inbox.holds(1)
            await api.wait_until(lambda: not api.pending)

    assert pending == [number]
    assert (state.connected, state.last_error) == (
        False,
        "messages wait, the inbox cannot be written: the disk is full",
    )
    assert inbox.contents == ["hello"]
    assert lines == [f"WARNING telegram: {state.last_error}"]


async def test_a_defect_behind_the_inbox_does_not_make_the_channel_deaf(
    api: BotApi, inbox: FakeInbox
) -> None:
    inbox.failures = [RuntimeError("a listener fell over"), RuntimeError("again")]
    api.inject("hello", chat_id=OWNER)
    time = Hurry()
    channel = build(api, inbox, time=time)

    with log_lines("ERROR") as lines:
        async with running(channel):
            await inbox.holds(1)

    assert channel.state().last_error == "taking updates in failed: RuntimeError('again')"
    assert [line for line in lines if line.startswith("ERROR ")] == [lines[0]]
    assert time.slept == [1.0, 2.0]


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "retry_after", "told", "wait_s"),
    [
        (401, None, "the token is refused: Unauthorized", 60.0),
        (404, None, "the token is refused: Not Found", 60.0),
        (409, None, "somebody else takes this bot's messages", 1.0),
        (429, 17, "Too Many Requests", 17.0),
        (429, None, "Too Many Requests", 1.0),
        (500, None, "Internal Server Error", 1.0),
        (502, None, "HTTP 502 Bad Gateway", 1.0),
        (400, None, "Bad Request", 1.0),
    ],
)
async def test_a_refused_poll_is_said_and_waited_out(
    api: BotApi,
    inbox: FakeInbox,
    status: int,
    retry_after: int | None,
    told: str,
    wait_s: float,
) -> None:
    api.fail("getUpdates", status, retry_after=retry_after)
    time = Stepped()
    channel = build(api, inbox, time=time)

    async with running(channel):
        await time.sleeps(1)
        down, slept = channel.state(), list(time.slept)
        api.inject("hello", chat_id=OWNER)
        time.pass_by(wait_s)
        await inbox.holds(1)
        await eventually(lambda: channel.state().connected)
        up = channel.state()

    assert not down.connected and told in down.last_error and slept == [wait_s]
    assert down.error_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert (up.detail, up.last_error) == ("@fake_bot", down.last_error)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"ok":true}', b'{"ok":true,"result":{}}', b"[" * 100_000]
)
@pytest.mark.parametrize("method", ["getUpdates", "getMe"])
async def test_a_garbled_answer_is_survived(
    api: BotApi, inbox: FakeInbox, method: str, body: bytes
) -> None:
    api.garble(method, body=body, times=2)
    api.inject("hello", chat_id=OWNER)
    time = Hurry()

    async with running(build(api, inbox, time=time)):
        await inbox.holds(1)

    assert time.slept == [1.0, 2.0]


@pytest.mark.parametrize("status", [200, 302, 403, 404])
async def test_a_web_page_in_the_place_of_the_server_is_survived(
    api: BotApi, inbox: FakeInbox, status: int
) -> None:
    api.garble("*", body=b"<html>Log in to the hotel's network</html>", status=status, times=2)
    api.inject("hello", chat_id=OWNER)
    time = Hurry()

    async with running(build(api, inbox, time=time)):
        await inbox.holds(1)

    assert time.slept == [1.0, 2.0]


async def test_a_connection_that_is_reset_is_made_anew(api: BotApi, inbox: FakeInbox) -> None:
    api.reset("getUpdates", times=3)
    api.inject("hello", chat_id=OWNER)
    time = Hurry()

    async with running(build(api, inbox, time=time)):
        await inbox.holds(1)

    assert time.slept == [1.0, 2.0, 4.0]


async def test_after_an_unreadable_answer_the_connection_is_replaced(
    api: BotApi, inbox: FakeInbox
) -> None:
    api.garble("getUpdates", when="after")
    gate = api.gate("getUpdates", "after", times=1)
    api.inject("hello", chat_id=OWNER)

    async with running(build(api, inbox, time=Hurry())):
        await gate.wait_reached()
        await api.wait_until(lambda: api.commands)
        before = set(api.connections)
        gate.release()
        await api.wait_until(lambda: api.is_polled)
        after = set(api.connections)

    # The connection that set the menu is still the same.
    assert (len(before), len(after), len(before & after)) == (2, 2, 1)


async def test_a_poll_that_hangs_is_given_up_and_the_connection_replaced(
    api: BotApi, inbox: FakeInbox
) -> None:
    gate = api.hang("getUpdates", times=1)
    time = Hurry()
    channel = build(api, inbox, time=time, limits=QUICK)

    async with running(channel):
        await gate.wait_reached()
        await api.wait_until(lambda: api.commands)
        before = set(api.connections)
        api.inject("hello", chat_id=OWNER)
        await inbox.holds(1)
        after, last_error = set(api.connections), channel.state().last_error

    assert last_error == "127.0.0.1 did not answer within 1.3 s"
    # The connection that set the menu is still good; the deaf one was replaced.
    assert (len(before), len(after), len(before & after)) == (2, 2, 1)


def test_in_production_a_deaf_connection_is_replaced_within_two_minutes() -> None:
    limits = Limits()

    assert limits.poll_s + limits.poll_margin_s + limits.backoff_most_s / 2 < 120


async def test_an_hour_without_network_is_survived_with_one_line_in_the_log(
    api: BotApi, inbox: FakeInbox
) -> None:
    class Outage(Hurry):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            if self.now >= 3600:
                api.online()

    time = Outage()
    channel = build(api, inbox, time=time)
    with log_lines("INFO") as lines:
        async with running(channel):
            await api.wait_until(lambda: api.is_polled)
            api.offline()
            api.inject("sent meanwhile", chat_id=OWNER)
            await inbox.holds(1)

    assert inbox.contents == ["sent meanwhile"]
    assert time.slept[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert 60 <= len(time.slept) <= 80 and max(time.slept) == 60.0
    assert [line for line in lines if "WARNING" in line] == [
        "WARNING telegram: the connection to 127.0.0.1 broke: Connection reset by peer",
        "WARNING telegram: no connection to 127.0.0.1: Connection refused",
    ]
    assert lines[-1] == "INFO telegram works again: @fake_bot"


async def test_another_poller_is_named_once_however_long_it_polls(
    api: BotApi, inbox: FakeInbox
) -> None:
    api.fail("getUpdates", 409, times=30)
    api.inject("hello", chat_id=OWNER)
    time = Hurry()

    with log_lines("WARNING") as lines:
        async with running(build(api, inbox, time=time)):
            await inbox.holds(1)

    assert len(lines) == 1 and "somebody else takes this bot's messages" in lines[0]
    assert len(time.slept) == 30


async def test_a_webhook_that_is_in_the_way_is_named(api: BotApi, inbox: FakeInbox) -> None:
    api.set_webhook("https://example.org/hook")
    time = Stepped()
    channel = build(api, inbox, time=time)

    async with running(channel):
        await time.sleeps(1)

    assert "use deleteWebhook to delete the webhook first" in channel.state().last_error


async def test_after_an_outage_a_short_poll_tells_at_once_that_it_is_over(
    api: BotApi, inbox: FakeInbox
) -> None:
    api.reset("getUpdates")

    async with running(channel := build(api, inbox, time=Hurry())):
        await api.wait_until(lambda: len(api.polls) >= 2)
        await eventually(lambda: channel.state().connected)

    assert [poll.timeout for poll in api.polls[:2]] == [0, 50]


# --- start and end -------------------------------------------------------------------------------


async def test_ready_when_the_bot_is_known(api: BotApi, inbox: FakeInbox) -> None:
    channel = build(api, inbox)
    before = channel.state()

    async with running(channel):
        await channel.wait_ready()
        after = channel.state()

    assert (before.connected, after.connected, after.detail) == (False, True, "@fake_bot")


async def test_ready_when_the_first_failure_is_reported(api: BotApi, inbox: FakeInbox) -> None:
    time = Stepped()
    channel = build(api, inbox, time=time, token="1:fake-and-wrong")

    with log_lines("WARNING") as lines:
        async with running(channel):
            await channel.wait_ready()
            state = channel.state()
            await time.sleeps(1)
            time.pass_by(60)
            await time.sleeps(2)

    assert state.last_error == (
        "the token is refused: Unauthorized; "
        "put the one that @BotFather shows into channels.telegram.token"
    )
    assert (state.connected, time.slept) == (False, [60.0, 60.0])
    assert lines == [f"WARNING telegram: {state.last_error}"]


async def test_a_start_without_network_is_reported_and_made_good(
    api: BotApi, inbox: FakeInbox
) -> None:
    api.offline()
    time = Stepped()
    channel = build(api, inbox, time=time)

    async with running(channel):
        await channel.wait_ready()
        state = channel.state()
        api.online()
        api.inject("hello", chat_id=OWNER)
        await time.sleeps(1)
        time.pass_by(1)
        await inbox.holds(1)

    assert (state.connected, state.last_error) == (
        False,
        "no connection to 127.0.0.1: Connection refused",
    )


async def test_a_getme_that_hangs_is_given_up(api: BotApi, inbox: FakeInbox) -> None:
    api.hang("getMe", times=1)
    api.inject("hello", chat_id=OWNER)

    async with running(channel := build(api, inbox, time=Hurry(), limits=QUICK)):
        await inbox.holds(1)

    assert channel.state().last_error == "127.0.0.1 did not answer within 0.3 s"


def test_a_channel_without_a_token_is_a_mistake_in_the_config(inbox: FakeInbox) -> None:
    with pytest.raises(ConfigError, match=r"channels\.telegram\.token is empty"):
        TelegramChannel(
            TelegramConfig(enabled=True, token=SecretStr("")),
            gate=Gate([]),
            intake=inbox,
            menu=tuple,
            tls=no_tls,
            time=Time(Hurry().clock),
        )


async def test_the_menu_is_set(api: BotApi, inbox: FakeInbox) -> None:
    menu = [*MENU, ("long", "x" * 300), ("bare", "")]

    async with running(build(api, inbox, menu=menu)):
        await api.wait_for_calls("setMyCommands")

    assert api.commands == [
        {"command": "new", "description": "Start over"},
        {"command": "help", "description": "What you can say"},
        {"command": "long", "description": "x" * 255 + "…"},
        {"command": "bare", "description": "bare"},
    ]


async def test_a_menu_that_is_not_taken_is_tried_again_and_keeps_nobody_waiting(
    api: BotApi, inbox: FakeInbox
) -> None:
    api.fail("setMyCommands", 500, times=2)
    time = Stepped()
    channel = build(api, inbox, time=time)

    async with running(channel):
        await time.sleeps(1)
        state = channel.state()
        api.inject("hello", chat_id=OWNER)
        await inbox.holds(1)
        time.pass_by(60)
        await time.sleeps(2)
        time.pass_by(120)
        await api.wait_until(lambda: api.commands)

    assert (state.connected, state.last_error) == (
        True,
        "the commands menu is not set: Internal Server Error",
    )
    assert time.slept == [60.0, 120.0]


async def test_a_menu_that_is_refused_as_it_stands_is_not_sent_again(
    api: BotApi, inbox: FakeInbox
) -> None:
    time = Hurry()
    channel = build(api, inbox, time=time, menu=[("Not-A-Name", "x")])

    async with running(channel):
        await eventually(lambda: channel.state().last_error)
        api.inject("hello", chat_id=OWNER)
        await inbox.holds(1)

    assert channel.state().last_error == (
        "the commands menu is not set: Bad Request: BOT_COMMAND_INVALID"
    )
    assert (len(api.calls_to("setMyCommands")), time.slept) == (1, [])


async def test_closing_ends_everything_within_its_time(api: BotApi, inbox: FakeInbox) -> None:
    api.hang("sendChatAction")
    channel = build(api, inbox)
    api.inject("hello", chat_id=OWNER)
    async with running(channel):
        (message,) = await inbox.holds(1)
        channel.began(message)
        await api.wait_until(lambda: api.is_polled)
        async with asyncio.timeout(Limits().close_s):
            await channel.aclose()

    await api.wait_until(lambda: not api.connections)
    assert not [task for task in asyncio.all_tasks() if "telegram" in task.get_name()]


# --- secrets -------------------------------------------------------------------------------------


async def test_the_token_is_in_no_log_and_no_state(
    api: BotApi, inbox: FakeInbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = api.token.partition(":")[2]
    api.fail("getMe", 500, description=f"no route for /bot{api.token}/getMe")
    api.fail("getUpdates", 400, description=f"{secret} is odd")
    api.garble("getUpdates", body=f'"{api.token}"'.encode())
    api.inject("hello", chat_id=OWNER)
    channel = build(api, inbox, time=Hurry())

    with log_lines() as lines:
        async with running(channel):
            await inbox.holds(1)

    text = "\n".join([*lines, caplog.text, str(channel.state())])
    assert "<secret>" in text and secret not in text
