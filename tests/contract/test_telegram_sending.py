"""What the Telegram channel sends and shows, over real HTTP to the fake Bot API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from nanobot.channels.telegram.channel import TelegramChannel
from nanobot.channels.telegram.connections import Limits
from nanobot.channels.telegram.sending import REPETITION, Payload
from nanobot.channels.text import Entity, EntityKind, utf16_length
from nanobot.core.errors import ChannelRetryLater, Undeliverable
from nanobot.core.events import TextDelta
from nanobot.core.messages import InboundMessage, OutboundMessage
from tests.fakes.bot_api import BotApi
from tests.fakes.telegram_channel import (
    OWNER,
    FakeInbox,
    Hurry,
    Stepped,
    build,
    eventually,
    log_lines,
)

INBOUND = InboundMessage("telegram", str(OWNER), str(OWNER), "hello", id="telegram:123456:1")


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    async with BotApi() as api:
        yield api


@pytest.fixture
async def channel(api: BotApi) -> AsyncIterator[TelegramChannel]:
    """A channel that only sends."""
    channel = build(api, FakeInbox(), limits=Limits(call_s=0.3))
    yield channel
    await channel.aclose()


def outbound(content: str, chat_id: int = OWNER, **fields: str) -> OutboundMessage:
    return OutboundMessage("telegram", str(chat_id), content, **fields)  # type: ignore[arg-type]


async def deliver(channel: TelegramChannel, message: OutboundMessage) -> list[str]:
    """Send all pieces of a message; gives their platform ids."""
    return [
        await channel.send(message, piece, again=False)
        for piece in await asyncio.to_thread(channel.pieces, message)
    ]


# --- messages ------------------------------------------------------------------------------------


async def test_markdown_is_sent_as_text_with_entities_and_without_link_previews(
    api: BotApi, channel: TelegramChannel
) -> None:
    ids = await deliver(channel, outbound("**Hi** [you](https://example.org)"))

    (sent,) = api.sent
    assert ids == [str(sent.message_id)]
    assert (sent.chat_id, sent.text) == (OWNER, "Hi you")
    assert sent.entities == (
        {"type": "bold", "offset": 0, "length": 2},
        {"type": "text_link", "offset": 3, "length": 3, "url": "https://example.org"},
    )
    assert sent.params["link_preview_options"] == '{"is_disabled": true}'
    assert set(sent.params) == {"chat_id", "text", "entities", "link_preview_options"}


async def test_a_long_answer_arrives_whole_in_valid_messages(
    api: BotApi, channel: TelegramChannel
) -> None:
    section = (
        "## Héading 🎉\n\n- **bold** and `code` and ||secret||\n  1. _nested_ item\n\n"
        "```python\nprint('x' * 3)\n```\n\n| a | b |\n|---|---|\n| 1 | 🎉 |\n\n> quoted\n\n"
        f"{'Words and words. ' * 40}\n\n"
    )
    markdown = (section * 20)[:10_000]

    ids = await deliver(channel, outbound(markdown))

    assert [str(message.message_id) for message in api.sent] == ids and len(ids) >= 3
    assert max(utf16_length(message.text) for message in api.sent) <= 4096
    text = "".join(message.text for message in api.sent)
    for word in ("Héading", "nested", "print('x' * 3)", "secret", "quoted"):
        assert text.count(word) == markdown.count(word)


async def test_a_reply_refers_to_the_message_with_its_first_piece_alone(
    api: BotApi, channel: TelegramChannel
) -> None:
    api.inject("question", chat_id=OWNER, message_id=77)

    await deliver(channel, outbound(f"{'a' * 4000}\n\n{'b' * 4000}", reply_to="77"))

    assert [message.reply_to for message in api.sent] == [77, None]


@pytest.mark.parametrize("reply_to", ["4711", "not-a-number"])
async def test_a_reply_to_what_is_gone_is_sent_all_the_same(
    api: BotApi, channel: TelegramChannel, reply_to: str
) -> None:
    await deliver(channel, outbound("answer", reply_to=reply_to))

    assert [(message.text, message.reply_to) for message in api.sent] == [("answer", None)]


async def test_an_answer_goes_to_its_topic(api: BotApi, channel: TelegramChannel) -> None:
    await deliver(channel, outbound("answer", thread_id="12"))

    assert [message.thread_id for message in api.sent] == [12]


async def test_a_possible_repetition_is_marked(api: BotApi, channel: TelegramChannel) -> None:
    message = outbound(f"**{'x' * 4071}**")
    (piece,) = channel.pieces(message)

    await channel.send(message, piece, again=True)

    (sent,) = api.sent
    shift = utf16_length(REPETITION)
    assert sent.text == REPETITION + "x" * 4071
    assert sent.entities == ({"type": "bold", "offset": shift, "length": 4071},)


async def test_what_shows_nothing_is_not_sent(channel: TelegramChannel) -> None:
    assert channel.pieces(outbound(" \n ")) == ()


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "retry_after", "description", "after", "maybe_sent", "told"),
    [
        (429, 23, None, 23.0, False, "Too Many Requests: retry after 23"),
        (401, None, None, 60.0, False, "the token is refused: Unauthorized"),
        (404, None, None, 60.0, False, "the token is refused: Not Found"),
        (500, None, None, None, True, "Internal Server Error"),
        (502, None, None, None, True, "HTTP 502 Bad Gateway"),
        (503, None, "later", None, True, "later"),
        (409, None, "odd", None, False, "odd"),
    ],
)
async def test_what_may_be_taken_later(
    api: BotApi,
    channel: TelegramChannel,
    status: int,
    retry_after: int | None,
    description: str | None,
    after: float | None,
    maybe_sent: bool,
    told: str,
) -> None:
    api.fail("sendMessage", status, retry_after=retry_after, description=description)

    with pytest.raises(ChannelRetryLater) as error:
        await deliver(channel, outbound("answer"))

    raised = error.value
    assert (raised.after, raised.maybe_sent, str(raised)) == (after, maybe_sent, told)
    assert len(api.calls_to("sendMessage")) == 1


@pytest.mark.parametrize(
    ("status", "description"),
    [
        (403, "Forbidden: bot was blocked by the user"),
        (403, "Forbidden: user is deactivated"),
        (400, "Bad Request: chat not found"),
        (400, "Bad Request: PEER_ID_INVALID"),
        (400, "Bad Request: message is too long"),
        (400, "Bad Request: message text is empty"),
        (400, "Bad Request: not enough rights to send text messages to the chat"),
        (400, "Bad Request: CHAT_WRITE_FORBIDDEN"),
        (413, "Request Entity Too Large"),
    ],
)
async def test_what_will_never_be_taken(
    api: BotApi, channel: TelegramChannel, status: int, description: str
) -> None:
    api.fail("sendMessage", status, description=description)

    with pytest.raises(Undeliverable, match=f"^{description}$"):
        await deliver(channel, outbound("**answer**"))

    assert len(api.calls_to("sendMessage")) == 1


@pytest.mark.parametrize(
    "description",
    [
        "Bad Request: can't parse entities: unsupported type",
        "Bad Request: ENTITY_BOUNDS_INVALID",
        "Bad Request: of a later day",
    ],
)
async def test_formatting_that_is_refused_is_left_out(
    api: BotApi, channel: TelegramChannel, description: str
) -> None:
    api.fail("sendMessage", 400, description=description)

    await deliver(channel, outbound("**answer**"))

    assert [(message.text, message.entities) for message in api.sent] == [("answer", ())]


async def test_a_plain_text_that_is_refused_is_not_sent_again(
    api: BotApi, channel: TelegramChannel
) -> None:
    api.fail("sendMessage", 400, description="Bad Request: of a later day", times=None)

    with pytest.raises(Undeliverable):
        await deliver(channel, outbound("plain"))
    once = len(api.calls_to("sendMessage"))
    with pytest.raises(Undeliverable):
        await deliver(channel, outbound("**bold**"))

    assert (once, len(api.calls_to("sendMessage"))) == (1, 3)


async def test_entities_that_the_server_cannot_bear_are_left_out(
    api: BotApi, channel: TelegramChannel
) -> None:
    piece = Payload("short", (Entity(EntityKind.BOLD, 0, 99),)).to_json()

    await channel.send(outbound("short"), piece, again=False)

    assert [(message.text, message.entities) for message in api.sent] == [("short", ())]


async def test_without_a_connection_the_message_was_certainly_not_sent(
    api: BotApi, channel: TelegramChannel
) -> None:
    api.offline()

    with pytest.raises(ChannelRetryLater) as error:
        await deliver(channel, outbound("answer"))

    assert (error.value.maybe_sent, str(error.value)) == (
        False,
        "no connection to 127.0.0.1: Connection refused",
    )


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda api: api.hang("sendMessage"), "127.0.0.1 did not answer within 0.3 s"),
        (
            lambda api: api.gate("sendMessage", "after"),
            "127.0.0.1 did not answer within 0.3 s",
        ),
        (
            lambda api: api.reset("sendMessage", when="after"),
            "the connection to 127.0.0.1 broke: Connection reset by peer",
        ),
        (
            lambda api: api.garble("sendMessage", when="after"),
            "127.0.0.1: an answer that is not of the Bot API",
        ),
        (
            lambda api: api.garble("sendMessage", body=b'{"ok":true,"result":[]}', when="after"),
            "the server's answer names no message",
        ),
        (
            lambda api: api.garble(
                "sendMessage", body=b'{"ok":true,"result":{"message_id":null}}', when="after"
            ),
            "the server's answer names no message",
        ),
    ],
)
async def test_without_an_answer_the_message_may_have_been_sent(
    api: BotApi, channel: TelegramChannel, fault: Callable[[BotApi], object], told: str
) -> None:
    fault(api)

    with pytest.raises(ChannelRetryLater) as error:
        await deliver(channel, outbound("answer"))

    assert (error.value.maybe_sent, str(error.value)) == (True, told)
    api.heal()


async def test_a_web_page_in_the_place_of_the_server_buries_nothing(
    api: BotApi, channel: TelegramChannel
) -> None:
    api.garble("sendMessage", body=b"<html>Access denied</html>", status=403)

    with pytest.raises(ChannelRetryLater) as error:
        await deliver(channel, outbound("answer"))

    assert (error.value.maybe_sent, str(error.value)) == (
        False,
        "127.0.0.1 is no Bot API server: HTTP 403 Forbidden",
    )


async def test_a_row_of_the_outbox_that_cannot_be_read_is_undeliverable(
    api: BotApi, channel: TelegramChannel
) -> None:
    with pytest.raises(Undeliverable, match="cannot be read any more"):
        await channel.send(outbound("answer"), "<html>", again=False)

    assert api.calls == []


async def test_after_closing_nothing_is_sent(api: BotApi, channel: TelegramChannel) -> None:
    await deliver(channel, outbound("before"))
    await channel.aclose()

    with pytest.raises(ChannelRetryLater) as error:
        await deliver(channel, outbound("after"))

    assert (error.value.maybe_sent, str(error.value)) == (False, "the channel is closed")


# --- many at once --------------------------------------------------------------------------------


async def test_a_chat_that_hangs_delays_no_other(api: BotApi) -> None:
    channel = build(api, FakeInbox())
    gate = api.hang("sendMessage", chat_id=1)
    slow = asyncio.create_task(deliver(channel, outbound("slow", 1)))
    await gate.wait_reached()

    await asyncio.gather(*(deliver(channel, outbound("quick", chat)) for chat in range(2, 102)))
    was_done = slow.done()
    gate.release()
    await slow
    await channel.aclose()

    assert not was_done
    assert len(api.sent) == 101


async def test_answers_leave_while_the_poll_waits(api: BotApi) -> None:
    channel = build(api, FakeInbox(), limits=Limits(pools=1, pool_connections=1))
    run = asyncio.create_task(channel.run())
    await api.wait_until(lambda: api.is_polled)

    await deliver(channel, outbound("answer"))

    assert api.is_polled and len(api.connections) == 2
    await channel.aclose()
    await run


async def test_a_pool_whose_connections_are_all_stuck_is_replaced(api: BotApi) -> None:
    limits = Limits(pools=1, pool_connections=1, free_connection_s=0.05)
    channel = build(api, FakeInbox(), limits=limits)
    gate = api.hang("sendMessage", chat_id=1)
    stuck = asyncio.create_task(deliver(channel, outbound("stuck", 1)))
    await gate.wait_reached()

    with pytest.raises(ChannelRetryLater) as error:
        await deliver(channel, outbound("second", 2))
    await deliver(channel, outbound("third", 3))
    gate.release()
    await stuck

    assert (error.value.maybe_sent, str(error.value)) == (
        False,
        "no connection to 127.0.0.1 became free",
    )
    assert [message.text for message in api.sent] == ["third", "stuck"]
    await api.wait_until(lambda: len(api.connections) == 1)
    await channel.aclose()


async def test_one_chat_is_sent_a_burst_and_then_a_message_a_second(api: BotApi) -> None:
    time = Hurry()
    channel = build(api, FakeInbox(), time=time)

    for number in range(12):
        await deliver(channel, outbound(f"{number}"))
    for chat in range(1, 51):
        await deliver(channel, outbound("other", chat))

    assert time.slept == [1.0, 1.0]
    assert len(api.sent) == 62
    await channel.aclose()


# --- typing --------------------------------------------------------------------------------------


async def test_typing_is_shown_at_once_and_renewed_every_four_seconds(api: BotApi) -> None:
    time = Stepped()
    channel = build(api, FakeInbox(), time=time)

    channel.began(INBOUND)(TextDelta("ignored"))
    await time.sleeps(1)
    shown = [len(api.calls_to("sendChatAction"))]
    time.pass_by(3.9)
    await asyncio.sleep(0)
    shown.append(len(api.calls_to("sendChatAction")))
    time.pass_by(0.1)
    await time.sleeps(2)
    shown.append(len(api.calls_to("sendChatAction")))

    assert shown == [1, 1, 2]
    assert api.calls_to("sendChatAction")[0].params == {
        "chat_id": str(OWNER),
        "action": "typing",
    }
    assert api.sent == []
    await channel.aclose()


async def test_typing_in_a_topic_is_shown_there(api: BotApi) -> None:
    channel = build(api, FakeInbox(), time=Stepped())

    channel.began(InboundMessage("telegram", "1001", "1001", "x", id="t", thread_id="12"))
    (call,) = await api.wait_for_calls("sendChatAction")

    assert call.params["message_thread_id"] == "12"
    await channel.aclose()


async def test_typing_ends_with_the_turn(api: BotApi) -> None:
    time = Stepped()
    channel = build(api, FakeInbox(), time=time)
    channel.began(INBOUND)
    await time.sleeps(1)

    channel.ended(INBOUND)
    channel.ended(INBOUND)

    await eventually(lambda: not typing_tasks())
    assert len(api.calls_to("sendChatAction")) == 1
    await channel.aclose()


async def test_typing_never_lasts_longer_than_five_minutes(api: BotApi) -> None:
    channel = build(api, FakeInbox(), time=Hurry())

    channel.began(INBOUND)
    await eventually(lambda: not typing_tasks())

    assert len(api.calls_to("sendChatAction")) == 75
    await channel.aclose()


async def test_typing_makes_way_for_a_message_and_comes_back_if_the_turn_goes_on(
    api: BotApi,
) -> None:
    time = Stepped()
    # So long that an action which hangs can only end by making way.
    channel = build(api, FakeInbox(), time=time, limits=Limits(typing_every_s=100))
    gate = api.hang("sendChatAction", times=1)
    channel.began(INBOUND)
    await gate.wait_reached()

    await deliver(channel, outbound("a word in between"))
    await time.sleeps(1)
    methods = [call.method for call in api.calls]
    time.pass_by(100)
    await time.sleeps(2)

    assert methods == ["sendMessage"]
    assert [call.method for call in api.calls] == ["sendMessage", "sendChatAction"]
    await channel.aclose()


async def test_a_message_to_one_chat_leaves_the_typing_in_another(api: BotApi) -> None:
    channel = build(api, FakeInbox(), time=Stepped())
    gate = api.hang("sendChatAction")
    channel.began(INBOUND)
    await gate.wait_reached()

    await deliver(channel, outbound("elsewhere", 5))
    api.heal()

    await api.wait_for_calls("sendChatAction")
    await channel.aclose()


async def test_a_typing_indicator_that_fails_is_not_worth_a_word(api: BotApi) -> None:
    api.fail("sendChatAction", 429, retry_after=9)
    api.fail("sendChatAction", 403)
    api.reset("sendChatAction")
    time = Stepped()
    channel = build(api, FakeInbox(), time=time)

    with log_lines("INFO") as lines:
        channel.began(INBOUND)
        for count in (1, 2, 3):
            await time.sleeps(count)
            time.pass_by(time.slept[-1])
        await time.sleeps(4)

    assert (time.slept, lines) == ([9.0, 4.0, 4.0, 4.0], [])
    assert channel.state().last_error == ""
    await channel.aclose()


def typing_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("typing")]
