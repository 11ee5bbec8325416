"""Tests that the fake Bot API behaves as the real one, seen by python-telegram-bot and by httpx."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from telegram import (
    Bot,
    BotCommand,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputMediaPhoto,
    LinkPreviewOptions,
    MessageEntity,
    ReactionTypeEmoji,
    ReplyParameters,
)
from telegram.error import (
    BadRequest,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
)
from telegram.error import TimedOut as TelegramTimedOut
from telegram.ext import ExtBot

from tests.fakes.bot_api import FAKE_TOKEN, BotApi, Upload

ROOT = Path(__file__).resolve().parents[2]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[BotApi]:
    async with BotApi() as api:
        yield api


@pytest_asyncio.fixture(params=[Bot, ExtBot])
async def bot(request: pytest.FixtureRequest, api: BotApi) -> AsyncIterator[Bot]:
    make: Callable[..., Bot] = request.param
    async with make(api.token, base_url=api.base_url, base_file_url=api.base_file_url) as bot:
        yield bot


@pytest_asyncio.fixture
async def raw(api: BotApi) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=500)
    address = f"{api.base_url}{api.token}/"
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=20) as client:
        yield client


async def result(response: httpx.Response) -> Any:
    body = response.json()
    assert (response.status_code, body["ok"]) == (200, True), body
    return body["result"]


async def call(raw: httpx.AsyncClient, method: str, **params: Any) -> tuple[int, str]:
    """The status and, of a refusal, the description."""
    response = await raw.post(method, json=params)
    return response.status_code, response.json().get("description", "")


async def get_updates(raw: httpx.AsyncClient, **params: Any) -> list[Any]:
    updates: list[Any] = await result(await raw.post("getUpdates", json=params))
    return updates


# --- Polling ------------------------------------------------------------------------------------


async def test_the_bot_is_known_by_its_token(bot: Bot, api: BotApi) -> None:
    assert (bot.id, bot.username) == (api.bot_id, "fake_bot")


async def test_updates_come_as_messages(bot: Bot, api: BotApi) -> None:
    first = api.inject("/start@fake_bot 🎉 @ada https://a.example", chat_id=7, username="ada")
    api.inject("hi all", chat_id=-5, user_id=7, title="Us", thread_id=3, reply_to=None)

    private, group = await bot.get_updates()

    assert [private.update_id, group.update_id] == [first, first + 1]
    message = private.message
    assert message is not None and message.from_user is not None
    assert (message.chat_id, message.chat.type, message.from_user.username) == (7, "private", "ada")
    assert message.parse_entities() == {
        MessageEntity("bot_command", 0, 15): "/start@fake_bot",
        MessageEntity("mention", 19, 4): "@ada",
        MessageEntity("url", 24, 17): "https://a.example",
    }
    assert group.message is not None and group.message.from_user is not None
    assert (group.message.chat.type, group.message.chat.title) == ("supergroup", "Us")
    assert (group.message.message_thread_id, group.message.from_user.id) == (3, 7)


async def test_files_edits_replies_and_presses_come_as_updates(bot: Bot, api: BotApi) -> None:
    buttons = InlineKeyboardMarkup([[InlineKeyboardButton("Yes", callback_data="y")]])
    asked = await bot.send_message(7, "Sure?", reply_markup=buttons)
    api.inject("see", chat_id=7, photo=b"picture", media_group_id="g")
    api.inject(chat_id=7, document=b"words", file_name="a.md", mime_type="text/markdown")
    api.inject(chat_id=7, voice=b"sound")
    api.inject("better", chat_id=7, edited=True, message_id=2)
    api.inject("why?", chat_id=7, reply_to=asked.message_id)
    api.inject(chat_id=7, extra={"location": {"latitude": 1.0, "longitude": 2.0}})
    api.inject_callback("y", chat_id=7)

    photo, document, voice, edited, reply, location, press = await bot.get_updates()

    assert photo.message is not None and photo.message.caption == "see"
    assert photo.message.media_group_id == "g"
    large = await photo.message.photo[-1].get_file()
    assert bytes(await large.download_as_bytearray()) == b"picture"
    assert document.message is not None and document.message.document is not None
    assert document.message.document.file_name == "a.md"
    assert voice.message is not None and voice.message.voice is not None
    assert voice.message.voice.mime_type == "audio/ogg"
    assert edited.edited_message is not None and edited.edited_message.text == "better"
    assert reply.message is not None and reply.message.reply_to_message is not None
    assert reply.message.reply_to_message.text == "Sure?"
    assert location.message is not None and location.message.location is not None
    assert press.callback_query is not None and press.callback_query.message is not None
    assert press.callback_query.data == "y"
    assert press.callback_query.message.message_id == asked.message_id


async def test_an_offset_confirms_what_precedes_it(api: BotApi, raw: httpx.AsyncClient) -> None:
    first, second, third = api.inject("a"), api.inject("b"), api.inject("c")

    again = [await get_updates(raw), await get_updates(raw, limit=2)]
    before = api.pending
    rest = await get_updates(raw, offset=second + 1)

    ids = [[update["update_id"] for update in batch] for batch in again]
    assert ids == [[first, second, third], [first, second]]
    assert before == [first, second, third]
    assert ([update["update_id"] for update in rest], api.pending) == ([third], [third])
    assert [poll.offset for poll in api.polls] == [None, None, second + 1]


async def test_a_negative_offset_keeps_the_newest(api: BotApi, raw: httpx.AsyncClient) -> None:
    api.inject("a")
    last = api.inject("b")

    assert [update["update_id"] for update in await get_updates(raw, offset=-1)] == [last]
    assert api.pending == [last]


async def test_a_poll_waits_until_something_comes(api: BotApi, bot: Bot) -> None:
    polling = asyncio.create_task(bot.get_updates(timeout=20))
    await api.wait_for_poll()
    waiting = (api.is_polled, polling.done())

    number = api.inject("now")

    assert waiting == (True, False)
    assert [update.update_id for update in await polling] == [number]
    await api.wait_until(lambda: not api.is_polled)


async def test_a_poll_that_times_out_is_empty(api: BotApi, raw: httpx.AsyncClient) -> None:
    assert await get_updates(raw, timeout=1) == []
    assert api.polls[0].timeout == 1


async def test_a_second_poll_ends_the_first_with_a_conflict(
    api: BotApi, bot: Bot, raw: httpx.AsyncClient
) -> None:
    first = asyncio.create_task(bot.get_updates(timeout=20))
    await api.wait_for_poll()
    second = asyncio.create_task(get_updates(raw, timeout=20))
    await api.wait_for_poll(after=1)

    with pytest.raises(Conflict, match="terminated by other getUpdates request"):
        await first
    number = api.inject("for the second")
    assert [update["update_id"] for update in await second] == [number]


async def test_a_poll_whose_client_has_gone_makes_no_conflict(
    api: BotApi, raw: httpx.AsyncClient
) -> None:
    polling = asyncio.create_task(raw.post("getUpdates", json={"timeout": 20}))
    await api.wait_for_poll()
    polling.cancel()
    await asyncio.wait([polling])
    await api.wait_until(lambda: not api.is_polled)

    number = api.inject("hello")

    assert [update["update_id"] for update in await get_updates(raw)] == [number]


async def test_only_allowed_updates_are_kept(api: BotApi, raw: httpx.AsyncClient) -> None:
    await get_updates(raw, allowed_updates=["message"])
    api.inject("edited", edited=True, message_id=1)
    number = api.inject("new")
    await get_updates(raw)

    assert api.pending == [number]
    assert [poll.allowed_updates for poll in api.polls] == [("message",), None]


async def test_ids_may_begin_anew_and_a_stale_offset_is_ignored(
    api: BotApi, raw: httpx.AsyncClient
) -> None:
    old = api.inject("old")
    with pytest.raises(ValueError, match="unconfirmed"):
        api.reset_update_ids(5)
    await get_updates(raw, offset=old + 1)
    api.reset_update_ids(5)
    api.inject("new")

    updates = await get_updates(raw, offset=old + 1)

    assert [update["update_id"] for update in updates] == [5]
    assert await get_updates(raw, offset=6) == []


async def test_anything_can_be_an_update(api: BotApi, raw: httpx.AsyncClient) -> None:
    first = api.inject_raw({"message": "?"})
    api.inject_raw(["noise", None])
    api.inject_raw({"message": {}}, add_id=False)
    given = api.inject_raw({"update_id": 12, "poll": {}})

    updates = await get_updates(raw)

    assert updates == [
        {"update_id": first, "message": "?"},
        ["noise", None],
        {"message": {}},
        {"update_id": 12, "poll": {}},
    ]
    assert (given, api.inject("next")) == (12, 13)


async def test_a_webhook_forbids_polling_until_it_is_deleted(api: BotApi, bot: Bot) -> None:
    api.set_webhook("https://a.example/hook")

    with pytest.raises(Conflict, match="webhook is active"):
        await bot.get_updates()
    assert (await bot.get_webhook_info()).url == "https://a.example/hook"
    with pytest.raises(BadRequest, match="Bad webhook"):
        await bot.set_webhook("https://b.example/hook")
    api.inject("kept")
    await bot.delete_webhook()
    assert len(await bot.get_updates()) == 1
    await bot.delete_webhook(drop_pending_updates=True)
    assert await bot.get_updates() == ()


# --- Sending ------------------------------------------------------------------------------------


async def test_a_message_is_recorded_with_all_that_belongs_to_it(bot: Bot, api: BotApi) -> None:
    api.inject("question", chat_id=7)
    buttons = InlineKeyboardMarkup([[InlineKeyboardButton("Yes", callback_data="y")]])

    answer = await bot.send_message(
        7,
        " 🎉 bold\n",
        entities=[MessageEntity("bold", 4, 4)],
        reply_parameters=ReplyParameters(1),
        link_preview_options=LinkPreviewOptions(is_disabled=True),
        message_thread_id=9,
        reply_markup=buttons,
    )

    (sent,) = api.sent_to(7)
    assert answer.reply_to_message is not None and answer.reply_to_message.text == "question"
    assert answer.parse_entities() == {MessageEntity("bold", 3, 4): "bold"}
    assert (sent.message_id, sent.kind, sent.text) == (answer.message_id, "text", "🎉 bold")
    assert sent.entities == ({"type": "bold", "offset": 3, "length": 4},)
    assert (sent.reply_to, sent.thread_id) == (1, 9)
    assert sent.buttons == (({"text": "Yes", "callback_data": "y"},),)
    assert json.loads(sent.params["link_preview_options"]) == {"is_disabled": True}
    assert sent.at >= api.calls_to("sendmessage")[0].at


@pytest.mark.parametrize(
    ("params", "description"),
    [
        ({"chat_id": 7}, "Bad Request: message text is empty"),
        ({"chat_id": 7, "text": " \n "}, "Bad Request: message text is empty"),
        ({"text": "a"}, "Bad Request: chat_id is empty"),
        ({"chat_id": "somebody", "text": "a"}, "Bad Request: chat not found"),
        ({"chat_id": 7, "text": "a" * 4097}, "Bad Request: message is too long"),
        ({"chat_id": 7, "text": "🎉" * 2049}, "Bad Request: message is too long"),
        (
            {"chat_id": 7, "text": "a", "reply_parameters": {"message_id": 5}},
            "Bad Request: message to be replied not found",
        ),
        ({"chat_id": 7, "text": "a", "parse_mode": "HTML"}, "Bad Request: unsupported parse_mode"),
        (
            {
                "chat_id": 7,
                "text": "a",
                "reply_markup": {"inline_keyboard": [[{"text": "b", "callback_data": "é" * 33}]]},
            },
            "Bad Request: BUTTON_DATA_INVALID",
        ),
        (
            {"chat_id": 7, "text": "a", "link_preview_options": "{"},
            "Bad Request: can't parse link_preview_options JSON object",
        ),
    ],
)
async def test_impossible_messages_are_refused(
    api: BotApi, raw: httpx.AsyncClient, params: dict[str, Any], description: str
) -> None:
    assert await call(raw, "sendMessage", **params) == (400, description)
    assert api.sent == []


async def test_the_limit_counts_utf16_units_of_the_trimmed_text(
    api: BotApi, raw: httpx.AsyncClient
) -> None:
    texts = [" " + "a" * 4096 + "\n", "🎉" * 2048]

    for text in texts:
        assert await call(raw, "sendMessage", chat_id=7, text=text) == (200, "")

    assert [sent.text for sent in api.sent] == [text.strip() for text in texts]


@pytest.mark.parametrize(
    "entities",
    [
        "{",
        '{"type":"bold"}',
        "[1]",
        '[{"type":"loud","offset":0,"length":1}]',
        '[{"type":"bold","offset":0,"length":99}]',
        '[{"type":"bold","offset":-1,"length":2}]',
        '[{"type":"bold","offset":0,"length":0}]',
        '[{"type":"bold","offset":"0","length":1}]',
        '[{"type":"bold","offset":1,"length":3}]',
        '[{"type":"text_link","offset":0,"length":2}]',
        '[{"type":"bold","offset":0,"length":4},{"type":"italic","offset":3,"length":3}]',
        '[{"type":"pre","offset":0,"length":4},{"type":"bold","offset":0,"length":2}]',
        '[{"type":"bold","offset":0,"length":4},{"type":"code","offset":0,"length":2}]',
        '[{"type":"blockquote","offset":0,"length":4},{"type":"blockquote","offset":0,"length":2}]',
    ],
)
async def test_impossible_entities_are_refused(
    api: BotApi, raw: httpx.AsyncClient, entities: str
) -> None:
    form = {"chat_id": "7", "text": "🎉 some text", "entities": entities}

    response = await raw.post("sendMessage", data=form)

    assert response.status_code == 400
    assert response.json()["description"].startswith("Bad Request: can't parse entities: ")
    assert api.sent == []


async def test_nested_entities_are_accepted_and_those_beyond_a_hundred_dropped(
    api: BotApi, raw: httpx.AsyncClient
) -> None:
    nested = [
        {"type": "blockquote", "offset": 0, "length": 4},
        {"type": "code", "offset": 0, "length": 2},
        {"type": "bold", "offset": 2, "length": 2},
    ]
    many = [{"type": "bold", "offset": place, "length": 1} for place in range(0, 300, 2)]

    await call(raw, "sendMessage", chat_id=7, text="text", entities=nested)
    await call(raw, "sendMessage", chat_id=7, text="a " * 150, entities=many)

    assert [list(sent.entities) for sent in api.sent] == [nested, many[:100]]


async def test_edits_replace_and_refuse_what_changes_nothing(bot: Bot, api: BotApi) -> None:
    sent = await bot.send_message(7, "draft")
    api.inject("mine", chat_id=7)

    await bot.edit_message_text("final", 7, sent.message_id)

    with pytest.raises(BadRequest, match="not modified"):
        await bot.edit_message_text(" final ", 7, sent.message_id)
    with pytest.raises(BadRequest, match="to edit not found"):
        await bot.edit_message_text("x", 7, 99)
    with pytest.raises(BadRequest, match="can't be edited"):
        await bot.edit_message_text("x", 7, sent.message_id + 1)
    with pytest.raises(BadRequest, match="too long"):
        await bot.edit_message_text("x" * 4097, 7, sent.message_id)
    buttons = InlineKeyboardMarkup([[InlineKeyboardButton("Yes", callback_data="y")]])
    await bot.edit_message_reply_markup(7, sent.message_id, reply_markup=buttons)
    with pytest.raises(BadRequest, match="not modified"):
        await bot.edit_message_reply_markup(7, sent.message_id, reply_markup=buttons)
    (message,) = api.sent
    assert (message.text, message.history, len(message.buttons)) == ("final", ("draft",), 1)


async def test_a_deleted_message_is_gone(bot: Bot, api: BotApi) -> None:
    sent = await bot.send_message(7, "oops")

    assert await bot.delete_message(7, sent.message_id)

    assert [message.is_deleted for message in api.sent] == [True]
    with pytest.raises(BadRequest, match="to delete not found"):
        await bot.delete_message(7, sent.message_id)
    with pytest.raises(BadRequest, match="to edit not found"):
        await bot.edit_message_text("x", 7, sent.message_id)
    reply = ReplyParameters(sent.message_id, allow_sending_without_reply=True)
    await bot.send_message(7, "anyway", reply_parameters=reply)
    assert api.sent[-1].reply_to is None


async def test_a_press_is_answered_once(bot: Bot, api: BotApi) -> None:
    buttons = InlineKeyboardMarkup([[InlineKeyboardButton("Yes", callback_data="y")]])
    await bot.send_message(7, "Sure?", reply_markup=buttons)
    api.inject_callback("y", chat_id=7)
    (update,) = await bot.get_updates()
    assert update.callback_query is not None

    assert await update.callback_query.answer()

    for query_id in (update.callback_query.id, "unknown"):
        with pytest.raises(BadRequest, match="Query is too old"):
            await bot.answer_callback_query(query_id)


async def test_files_are_sent_and_fetched(bot: Bot, api: BotApi) -> None:
    api.inject("q", chat_id=7)
    content = bytes(range(256)) * 20

    document = await bot.send_document(7, content, filename="a b.bin", caption="see")
    await bot.send_photo(7, b"png", filename="p.png", reply_parameters=ReplyParameters(1))
    await bot.send_voice(7, b"ogg", filename="v.ogg")
    await bot.send_media_group(
        7, [InputMediaPhoto(b"one", caption="first"), InputMediaPhoto(b"two", filename="two.png")]
    )

    assert document.document is not None
    stored = await document.document.get_file()
    assert bytes(await stored.download_as_bytearray()) == content
    assert [(sent.kind, sent.text, sent.reply_to) for sent in api.sent] == [
        ("document", "see", None),
        ("photo", "", 1),
        ("voice", "", None),
        ("photo", "first", None),
        ("photo", "", None),
    ]
    assert [upload.content for sent in api.sent for upload in sent.files] == [
        content,
        b"png",
        b"ogg",
        b"one",
        b"two",
    ]
    again = await bot.send_document(7, document.document.file_id)
    assert again.document is not None and again.document.file_id == document.document.file_id
    with pytest.raises(BadRequest, match="Invalid file_id"):
        await bot.get_file("unknown")
    with pytest.raises(BadRequest, match="caption is too long"):
        await bot.send_document(7, b"x", caption="x" * 1025)
    with pytest.raises(BadRequest, match="must be non-empty"):
        await bot.send_document(7, b"")


async def test_menus_actions_reactions_and_chats(bot: Bot, api: BotApi) -> None:
    commands = [BotCommand("help", "What you can say")]
    api.inject("hi", chat_id=7)

    assert await bot.set_my_commands(commands)
    assert await bot.get_my_commands() == tuple(commands)
    assert api.commands == [{"command": "help", "description": "What you can say"}]
    assert await bot.delete_my_commands()
    assert api.commands == []
    with pytest.raises(BadRequest, match=r"(?i)BOT_COMMAND_INVALID"):
        await bot.set_my_commands([BotCommand("No-good", "x")])
    assert await bot.send_chat_action(7, "typing")
    assert await bot.set_message_reaction(7, 1, ReactionTypeEmoji("👍"))
    with pytest.raises(BadRequest, match="to react not found"):
        await bot.set_message_reaction(7, 99, "👍")
    assert (await bot.get_chat(-5)).type == "supergroup"
    assert await bot.send_message_draft(7, 3, "so far")


async def test_rich_messages_are_unknown_unless_they_are_asked_for() -> None:
    body = {"chat_id": 7, "rich_message": {"markdown": "# Title"}}
    for is_rich, status in ((False, 404), (True, 200)):
        async with BotApi(rich_messages=is_rich) as api, httpx.AsyncClient() as client:
            response = await client.post(f"{api.base_url}{api.token}/sendRichMessage", json=body)

            sent = [(message.kind, message.text) for message in api.sent]
            assert response.status_code == status
            assert sent == ([("rich", "# Title")] if is_rich else [])


# --- HTTP ---------------------------------------------------------------------------------------


async def test_parameters_come_in_any_form(api: BotApi, raw: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for part in (b'{"chat_id": 7,', b' "text": "chunked"}'):
            yield part

    await raw.get("sendMessage", params={"chat_id": "7", "text": "query ü"})
    await raw.post("SENDMESSAGE", data={"chat_id": "7", "text": "form ü&="})
    await raw.post("sendMessage", json={"chat_id": 7, "text": "json ü"})
    await raw.post(
        "sendMessage", data={"chat_id": "7", "text": "parts ü"}, files={"x": ("n.txt", b"\r\n--")}
    )
    headers = {"Content-Type": "application/json"}
    await raw.post("sendMessage", content=chunks(), headers=headers)

    texts = ["query ü", "form ü&=", "json ü", "parts ü", "chunked"]
    assert [sent.text for sent in api.sent] == texts
    assert api.calls[3].files == (Upload("x", "n.txt", b"\r\n--"),)


async def test_connections_are_kept_and_requests_on_one_are_answered_in_order(api: BotApi) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    path = f"/bot{api.token}/sendMessage?chat_id=7&text="
    gate = api.gate("sendMessage", times=1)

    for text in ("one", "two"):
        writer.write(f"GET {path}{text} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await gate.wait_reached()
    gate.release()
    answers = await reader.readuntil(b'"two", "entities": []}}')

    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert [sent.text for sent in api.sent] == ["one", "two"]
    writer.write(b"nonsense\r\n\r\n")
    assert b"400 Bad Request" in await reader.read()
    writer.close()


async def test_unknown_tokens_methods_and_paths_are_refused(
    api: BotApi, raw: httpx.AsyncClient
) -> None:
    file_id = api.add_file("a.txt", b"words")
    path = (await result(await raw.get("getFile", params={"file_id": file_id})))["file_path"]

    statuses = [
        (await raw.get(address)).status_code
        for address in (
            f"{api.base_url}1:wrong/getMe",
            f"{api.base_file_url}1:wrong/{path}",
            f"{api.base_file_url}{api.token}/nothing",
            f"{api.base_url}{api.token}/noSuchMethod",
            f"{api.root}/",
            f"{api.base_file_url}{api.token}/{path}",
        )
    ]

    assert statuses == [401, 401, 404, 404, 404, 200]
    async with httpx.AsyncClient() as client:
        broken = await client.post(
            f"{api.base_url}{api.token}/getMe",
            content=b"{",
            headers={"Content-Type": "application/json"},
        )
    assert broken.status_code == 400
    with pytest.raises(InvalidToken):
        async with Bot("1:wrong", base_url=api.base_url):
            pass


async def test_hundreds_of_requests_at_once_are_answered(
    api: BotApi, raw: httpx.AsyncClient
) -> None:
    gate = api.gate("sendMessage", "after")
    sending = [
        asyncio.create_task(raw.post("sendMessage", json={"chat_id": chat, "text": "x"}))
        for chat in range(1, 301)
    ]
    await gate.wait_reached(300, timeout=60)
    gate.release()

    statuses = {response.status_code for response in await asyncio.gather(*sending)}

    assert statuses == {200}
    assert sorted(str(sent.chat_id) for sent in api.sent) == sorted(map(str, range(1, 301)))


# --- Faults -------------------------------------------------------------------------------------


async def test_failures_come_as_often_as_asked(
    bot: Bot, api: BotApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without it python-telegram-bot warns of a change to come whenever it reads the seconds.
    monkeypatch.setenv("PTB_TIMEDELTA", "1")
    api.fail("sendMessage", 429, retry_after=3, times=2)

    for _ in range(2):
        with pytest.raises(RetryAfter) as caught:
            await bot.send_message(7, "x")
        assert caught.value.retry_after == timedelta(seconds=3)
    await bot.send_message(7, "x")

    assert (len(api.sent), len(api.calls_to("sendMessage"))) == (1, 3)


@pytest.mark.parametrize(
    ("status", "description", "error", "text"),
    [
        (400, "Bad Request: chat not found", BadRequest, "Chat not found"),
        (401, None, InvalidToken, "Unauthorized"),
        (403, None, Forbidden, "bot was blocked by the user"),
        (409, None, Conflict, "terminated by other getUpdates"),
        (500, None, NetworkError, "Internal Server Error"),
        (502, None, NetworkError, "Bad Gateway"),
    ],
)
async def test_each_failure_is_recognised(
    bot: Bot, api: BotApi, status: int, description: str | None, error: type[Exception], text: str
) -> None:
    api.fail("*", status, description=description, times=None, chat_id=7)

    with pytest.raises(error, match=text):
        await bot.send_message(7, "x")
    await bot.send_message(8, "x")
    api.heal()
    await bot.send_message(7, "x")
    assert [sent.chat_id for sent in api.sent] == [8, 7]


async def test_a_failure_may_come_after_the_effect(bot: Bot, api: BotApi) -> None:
    api.fail("sendMessage", 502, when="after")

    with pytest.raises(NetworkError):
        await bot.send_message(7, "x")
    assert [sent.text for sent in api.sent] == ["x"]


async def test_answers_may_be_garbage(bot: Bot, api: BotApi) -> None:
    api.garble("sendMessage")

    with pytest.raises(TelegramError, match="Invalid server response"):
        await bot.send_message(7, "x")
    assert api.sent == []


@pytest.mark.parametrize(("when", "count"), [("before", 0), ("after", 1)])
async def test_connections_may_be_reset(
    api: BotApi, raw: httpx.AsyncClient, when: Any, count: int
) -> None:
    api.reset("sendMessage", when=when)

    with pytest.raises(httpx.ReadError):
        await raw.post("sendMessage", json={"chat_id": 7, "text": "x"})
    assert len(api.sent) == count


async def test_offline_refuses_connections_and_ends_those_there_are(
    api: BotApi, raw: httpx.AsyncClient
) -> None:
    polling = asyncio.create_task(raw.post("getUpdates", json={"timeout": 20}))
    await api.wait_for_poll()

    api.offline()

    with pytest.raises(httpx.ReadError):
        await polling
    with pytest.raises(httpx.ConnectError):
        await raw.get("getMe")
    api.online()
    assert (await raw.get("getMe")).status_code == 200


async def test_a_method_that_hangs_is_timed_out_by_the_client(bot: Bot, api: BotApi) -> None:
    hang = api.hang("sendMessage")

    with pytest.raises(TelegramTimedOut):
        await bot.send_message(7, "x", read_timeout=0.05)
    await hang.wait_reached()
    await api.wait_until(lambda: not api.connections)
    hang.release()
    await bot.send_message(7, "y")
    assert [sent.text for sent in api.sent] == ["y"]


@pytest.mark.parametrize(("when", "held"), [("before", []), ("after", ["x"])])
async def test_a_gate_holds_a_request_before_or_after_its_effect(
    api: BotApi, raw: httpx.AsyncClient, when: Any, held: list[str]
) -> None:
    gate = api.gate("sendMessage", when, chat_id=7)
    sending = asyncio.create_task(raw.post("sendMessage", json={"chat_id": 7, "text": "x"}))
    await gate.wait_reached()
    await raw.post("sendMessage", json={"chat_id": 8, "text": "other"})

    meanwhile = [sent.text for sent in api.sent_to(7)]
    is_answered = sending.done()
    gate.release()

    assert (meanwhile, is_answered) == (held, False)
    assert (await sending).status_code == 200
    assert [sent.text for sent in api.sent_to(7)] == ["x"]


async def test_a_request_whose_client_dies_at_a_gate_has_its_effect_or_not(
    api: BotApi, raw: httpx.AsyncClient
) -> None:
    before, after = api.gate("sendMessage", chat_id=7), api.gate("sendMessage", "after", chat_id=8)
    sending = [
        asyncio.create_task(raw.post("sendMessage", json={"chat_id": chat, "text": "x"}))
        for chat in (7, 8)
    ]
    await before.wait_reached()
    await after.wait_reached()

    for task in sending:
        task.cancel()
    await asyncio.wait(sending)
    await api.wait_until(lambda: not api.connections)
    api.heal()

    assert [sent.chat_id for sent in api.sent] == [8]
    assert (await raw.get("getMe")).status_code == 200


async def test_waiting_in_vain_says_what_was_seen(bot: Bot, api: BotApi) -> None:
    await bot.send_message(7, "x")

    with pytest.raises(TimeoutError, match=r"2 messages to 7; 1 messages sent.*getMe, sendMessage"):
        await api.wait_for_sent(2, chat_id=7, timeout=0.01)
    assert [sent.text for sent in await api.wait_for_sent(1, chat_id=7)] == ["x"]
    assert len(await api.wait_for_calls("sendMessage")) == 1


# --- Beside the test ----------------------------------------------------------------------------


def test_in_a_thread_it_is_steered_and_waited_for_without_a_loop() -> None:
    with BotApi.in_thread() as api, httpx.Client(base_url=f"{api.base_url}{api.token}/") as client:
        number = api.inject("hello", chat_id=7)
        updates = client.post("getUpdates", json={"timeout": 5}).json()["result"]
        gate = api.gate("sendMessage", "after")
        program = (
            "import sys, urllib.request as r\n"
            "r.urlopen(sys.argv[1] + 'sendMessage?chat_id=7&text=hi', timeout=30).read()"
        )
        process = subprocess.Popen([sys.executable, "-c", program, str(client.base_url)])
        gate.wait_reached(timeout=30)
        held = process.poll()
        gate.release()
        sent = api.wait_for_sent(1, chat_id=7)
        exit_code = process.wait(30)
        api.offline()
        with pytest.raises(httpx.TransportError):
            client.get("getMe")
        api.online()
        answer = client.get("getMe")
        poll = api.wait_for_poll()
        with pytest.raises(TimeoutError, match="5 calls of getMe"):
            api.wait_for_calls("getMe", 5, timeout=0.01)

    assert [update["update_id"] for update in updates] == [number]
    assert (held, exit_code, [message.text for message in sent]) == (None, 0, ["hi"])
    assert (answer.status_code, poll.timeout) == (200, 5)


def test_a_port_that_is_taken_is_said() -> None:
    with BotApi.in_thread() as api:
        with pytest.raises(OSError, match="in use"):
            with BotApi.in_thread(port=api.port):
                pass


def test_from_a_shell_it_serves_and_is_steered_over_http() -> None:
    command = [sys.executable, "-m", "tests.fakes.bot_api", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        root = process.stdout.readline().strip()
        with httpx.Client(base_url=root, timeout=30) as client:
            number = client.post("/control/inject", json={"text": "hi", "chat_id": 7}).json()
            updates = client.get(f"/bot{FAKE_TOKEN}/getUpdates").json()["result"]
            client.post(f"/bot{FAKE_TOKEN}/sendMessage", json={"chat_id": 7, "text": "yes"})
            waited = client.get("/control/wait_for_sent?n=1&chat_id=7&timeout=5").json()
            late = client.get("/control/wait_for_sent?n=9&timeout=0.01")
            calls = client.get("/control/calls").json()["result"]
            unknown = client.get("/control/nothing")
            wrong = client.post("/control/inject", json={"nonsense": 1})
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(30)

    assert [update["update_id"] for update in updates] == [number["result"]]
    assert [message["text"] for message in waited["result"]] == ["yes"]
    assert [one["method"] for one in calls] == ["getUpdates", "sendMessage"]
    assert (late.status_code, unknown.status_code, wrong.status_code) == (504, 404, 500)
    assert exit_code == 0


def test_it_needs_the_standard_library_alone() -> None:
    program = (
        "import sys, tests.fakes.bot_api\n"
        "print([name for name in ('nanobot', 'httpx', 'telegram') if name in sys.modules])"
    )

    output = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert output.stdout == "[]\n"
