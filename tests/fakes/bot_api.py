"""A fake Telegram Bot API server over real HTTP, for tests and benchmarks.

It speaks HTTP/1.1 with keep-alive on 127.0.0.1, needs the standard library alone and keeps
everything in memory. It behaves like the real server where a bot could notice: long polling with
offsets, conflicts between two polls, limits and refusals of messages, entities, edits, callback
queries, files; and it fails on demand. It differs on purpose in two places: entities that the
real server would silently repair are refused, so that a test sees them, and a ``parse_mode`` is
refused because nothing here parses it.

Within a test's event loop::

    async with BotApi() as api:
        api.inject("hello", chat_id=7)
        await api.wait_for_sent(1, chat_id=7)

Beside a process or a synchronous test::

    with BotApi.in_thread() as api:
        api.inject("hello", chat_id=7)
        api.wait_for_sent(1, chat_id=7)

From a shell: ``python -m tests.fakes.bot_api --port 8081``, steered over ``/control/…``
(``inject`` and ``inject_callback`` take the arguments of the methods as a JSON object, ``sent`` and
``calls`` answer with lists, ``wait_for_sent`` takes ``n``, ``chat_id``, ``timeout``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future as ThreadFuture
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote

from tests.fakes.bot_api_chats import Chats
from tests.fakes.bot_api_http import (
    REASONS,
    Connection,
    Json,
    Request,
    Response,
    Upload,
    error_response,
    read_parameters,
    success,
)
from tests.fakes.bot_api_rules import (
    Call,
    Poll,
    Refusal,
    SentMessage,
    as_json,
    chat_id_of,
    found_entities,
    read_poll,
)

__all__ = [
    "FAKE_TOKEN",
    "FIRST_UPDATE_ID",
    "BlockingBotApi",
    "BlockingGate",
    "BotApi",
    "Call",
    "Gate",
    "Poll",
    "SentMessage",
    "Upload",
]

FAKE_TOKEN: Final = "123456:fake-token-of-the-fake-bot-api"
FIRST_UPDATE_ID: Final = 700_000_001
LONGEST_POLL_S: Final = 50

_PATH = re.compile(r"/bot([^/]+)/(\w+)")
_FILE_PATH = re.compile(r"/file/bot([^/]+)/(.+)")

When: TypeAlias = Literal["before", "after"]
ValueT = TypeVar("ValueT")


# --- Faults and gates ---------------------------------------------------------------------------


_DESCRIPTIONS: Final = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden: bot was blocked by the user",
    404: "Not Found",
    409: "Conflict: terminated by other getUpdates request; "
    "make sure that only one bot instance is running",
    500: "Internal Server Error",
    502: "Bad Gateway",
}


@dataclass(slots=True)
class _Fault:
    """What goes wrong with the next ``remaining`` requests that match (None: with all)."""

    method: str
    chat_id: int | str | None
    when: When
    remaining: int | None
    response: Response | None

    def matches(self, method: str, params: Json) -> bool:
        return _matches(self.method, self.chat_id, method, params)


def _matches(wanted: str, chat_id: int | str | None, method: str, params: Json) -> bool:
    return wanted in ("*", method) and (chat_id is None or chat_id_of(params) == chat_id)


class _Gate:
    """Holds requests until it is released; the requests it has held are counted."""

    def __init__(
        self, api: _Api, method: str, when: When, chat_id: int | str | None, times: int | None
    ) -> None:
        self._api = api
        self._method = method.lower()
        self.when = when
        self._chat_id = chat_id
        self._remaining = times
        self._opened: list[asyncio.Future[None]] = []
        self._is_open = False
        self.reached = 0

    def release(self) -> None:
        """Let the held requests go, and all that follow."""
        self._api.on_loop(self._release)

    def _release(self) -> None:
        self._is_open = True
        for future in self._opened:
            if not future.done():
                future.set_result(None)
        self._opened.clear()

    def matches(self, method: str, params: Json) -> bool:
        return (
            not self._is_open
            and self._remaining != 0
            and _matches(self._method, self._chat_id, method, params)
        )

    async def hold(self) -> None:
        """Keep the calling request here until the gate is released."""
        if self._remaining is not None:
            self._remaining -= 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened.append(future)
        self.reached += 1
        self._api.changed()
        await future

    def _has_reached(self, n: int) -> bool:
        return self.reached >= n

    def __str__(self) -> str:
        return f"gate {self.when} {self._method} to hold a request (it held {self.reached})"


class Gate(_Gate):
    """A gate of ``BotApi``."""

    async def wait_reached(self, n: int = 1, timeout: float = 10) -> None:
        """Wait until ``n`` requests have been held; raises TimeoutError."""
        await self._api.until(lambda: self._has_reached(n), timeout, f"the {self}")


class BlockingGate(_Gate):
    """A gate of ``BlockingBotApi``."""

    def wait_reached(self, n: int = 1, timeout: float = 10) -> None:
        """Block until ``n`` requests have been held; raises TimeoutError."""
        self._api.block_until(lambda: self._has_reached(n), timeout, f"the {self}")


# --- The API ------------------------------------------------------------------------------------


class _Api:
    """The state and the behaviour; lives on one event loop, may be steered from any thread."""

    def __init__(
        self,
        token: str = FAKE_TOKEN,
        *,
        port: int = 0,
        username: str = "fake_bot",
        rich_messages: bool = False,
        first_update_id: int = FIRST_UPDATE_ID,
    ) -> None:
        self.token = token
        self.port = port
        self.bot_id = int(token.partition(":")[0])
        self.username = username
        self.connections: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_waking = False
        self._waiting: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self._gates: list[_Gate] = []
        self._faults: list[_Fault] = []
        self._calls: list[Call] = []
        self._polls: list[Poll] = []
        self._updates: deque[tuple[int, Any]] = deque()
        self._next_update_id = first_update_id
        self._allowed: tuple[str, ...] = ()
        self._poll: asyncio.Future[bool] | None = None
        self._webhook = ""
        self._chats = Chats(self.bot_id, username, rich_messages, self.changed)
        self._methods: dict[str, Callable[[Call], Any]] = {
            "deletewebhook": self._delete_webhook,
            "setwebhook": self._set_webhook,
            "getwebhookinfo": self._get_webhook_info,
            **self._chats.methods,
        }

    # Addresses

    @property
    def root(self) -> str:
        """What nanobot calls ``apiBase``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What python-telegram-bot calls ``base_url``."""
        return f"{self.root}/bot"

    @property
    def base_file_url(self) -> str:
        """What python-telegram-bot calls ``base_file_url``."""
        return f"{self.root}/file/bot"

    # What happened

    @property
    def calls(self) -> list[Call]:
        """Every request that was let in, getUpdates among them, in order."""
        return list(self._calls)

    def calls_to(self, method: str) -> list[Call]:
        """The requests for one method; its case does not matter."""
        return [call for call in list(self._calls) if call.method.lower() == method.lower()]

    @property
    def polls(self) -> list[Poll]:
        """Every getUpdates request, in order."""
        return list(self._polls)

    @property
    def sent(self) -> list[SentMessage]:
        """Every message of the bot as it stands now, in the order of sending."""
        return list(self._chats.sent)

    def sent_to(self, chat_id: int | str) -> list[SentMessage]:
        """The messages to one chat, in the order of sending."""
        return [message for message in list(self._chats.sent) if message.chat_id == chat_id]

    @property
    def pending(self) -> list[int]:
        """The ids of the updates that no poll has confirmed yet."""
        return [update_id for update_id, _ in list(self._updates)]

    @property
    def commands(self) -> list[Json]:
        """The commands menu of the default scope."""
        return self._chats.menus.get(("", ""), [])

    @property
    def is_polled(self) -> bool:
        """Whether a getUpdates request is waiting for updates at this moment."""
        return self._poll is not None

    # Updates

    def inject(
        self,
        text: str = "",
        *,
        chat_id: int = 1001,
        user_id: int | None = None,
        username: str = "",
        first_name: str = "Ada",
        chat_type: str = "",
        title: str = "A group",
        thread_id: int | None = None,
        reply_to: int | None = None,
        message_id: int | None = None,
        edited: bool = False,
        date: int | None = None,
        photo: bytes | None = None,
        document: bytes | None = None,
        voice: bytes | None = None,
        file_name: str = "",
        mime_type: str = "",
        media_group_id: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> int:
        """Somebody writes to the bot; gives the update's id.

        A negative ``chat_id`` is a group, whose sender ``user_id`` (default 1001) names; ``text``
        is the caption where there is a file. ``edited`` with ``message_id`` edits that message.
        ``extra`` is merged into the message (forward_origin, location, sticker, …).
        """
        sender = user_id or (chat_id if chat_id > 0 else 1001)
        user = {"id": sender, "is_bot": False, "first_name": first_name, "language_code": "en"}
        kind = chat_type or ("private" if chat_id > 0 else "supergroup")
        chat: Json = {"id": chat_id, "type": kind}
        if kind == "private":
            chat["first_name"] = first_name
        else:
            chat["title"] = title
        if username:
            user["username"] = username
            if kind == "private":
                chat["username"] = username

        def build() -> int:
            number = self._chats.take_message_id() if message_id is None else message_id
            now = int(time.time())
            message: Json = {"message_id": number, "date": date or now, "chat": chat, "from": user}
            if edited:
                message["edit_date"] = now
            if thread_id is not None:
                chat["is_forum"] = True
                message |= {"message_thread_id": thread_id, "is_topic_message": True}
            if reply_to is not None:
                message["reply_to_message"] = self._chats.known[chat_id, reply_to]
            if media_group_id:
                message["media_group_id"] = media_group_id
            is_file = True
            if photo is not None:
                message["photo"] = self._chats.add_photo("photo.jpg", photo)
            elif document is not None:
                name = file_name or "file.txt"
                message["document"] = self._chats.add_file(name, document) | {
                    "file_name": name,
                    "mime_type": mime_type or "text/plain",
                }
            elif voice is not None:
                message["voice"] = self._chats.add_file("voice.oga", voice) | {
                    "duration": 1,
                    "mime_type": mime_type or "audio/ogg",
                }
            else:
                is_file = False
            if text:
                message["caption" if is_file else "text"] = text
                if entities := found_entities(text):
                    message["caption_entities" if is_file else "entities"] = entities
            message |= extra or {}
            self._chats.known[chat_id, number] = {
                key: value for key, value in message.items() if key != "reply_to_message"
            }
            return self._queue("edited_message" if edited else "message", message)

        return self.on_loop(build)

    def inject_callback(
        self,
        data: str,
        *,
        chat_id: int = 1001,
        message_id: int | None = None,
        user_id: int | None = None,
        username: str = "",
        first_name: str = "Ada",
    ) -> int:
        """Somebody presses a button (of the chat's last message with buttons); gives the id."""

        def build() -> int:
            number = message_id
            if number is None:
                number = next(
                    sent.message_id for sent in reversed(self.sent_to(chat_id)) if sent.buttons
                )
            query_id = str(4_000_000_000 + self._next_update_id)
            self._chats.callbacks[query_id] = False
            user = {"id": user_id or chat_id, "is_bot": False, "first_name": first_name}
            if username:
                user["username"] = username
            query = {
                "id": query_id,
                "from": user,
                "message": self._chats.known[chat_id, number],
                "chat_instance": "-1",
                "data": data,
            }
            return self._queue("callback_query", query)

        return self.on_loop(build)

    def inject_raw(self, update: Any, *, add_id: bool = True) -> int:
        """Queue anything at all as an update; gives its id.

        A dict without an update_id gets one unless ``add_id`` is false. What has none is confirmed
        by the id it would have had.
        """

        def build() -> int:
            value = update
            if isinstance(value, dict) and add_id:
                value = {"update_id": self._next_update_id} | value
            given = value.get("update_id") if isinstance(value, dict) else None
            if type(given) is int:
                self._next_update_id = given
            self._chats.remember(value)
            return self._append(value)

        return self.on_loop(build)

    def reset_update_ids(self, start: int) -> None:
        """Number the updates from ``start`` on, as the real server does after an idle week.

        Raises ValueError while updates are unconfirmed.
        """

        def build() -> None:
            if self._updates:
                raise ValueError(f"updates are unconfirmed: {self.pending}")
            self._next_update_id = start

        self.on_loop(build)

    def add_file(self, name: str, content: bytes) -> str:
        """Store a file that getFile and the file address serve; gives its file_id."""
        return self.on_loop(lambda: str(self._chats.add_file(name, content)["file_id"]))

    # Faults

    def fail(
        self,
        method: str,
        status: int,
        *,
        times: int | None = 1,
        retry_after: int | None = None,
        description: str | None = None,
        chat_id: int | str | None = None,
        when: When = "before",
    ) -> None:
        """Answer the next ``times`` requests for ``method`` with an error.

        ``times`` None is for ever, ``method`` ``*`` is any. With ``when="after"`` the request has
        its effect and the error comes nevertheless. A 502 or 504 without description is a proxy's
        HTML page.
        """
        text = description or _DESCRIPTIONS.get(status, REASONS.get(status, "Error"))
        parameters: Json | None = None
        if retry_after is not None:
            parameters = {"retry_after": retry_after}
            text = description or f"Too Many Requests: retry after {retry_after}"
        if status in (502, 504) and description is None:
            page = f"<html><head><title>{status} {REASONS[status]}</title></head></html>"
            response = Response(status, page.encode(), "text/html")
        else:
            response = error_response(status, text, parameters)
        self._add_fault(method, chat_id, when, times, response)

    def garble(
        self,
        method: str,
        *,
        body: bytes = b'{"ok":tru',
        status: int = 200,
        times: int | None = 1,
        chat_id: int | str | None = None,
        when: When = "before",
    ) -> None:
        """Answer with ``body``, which is not what the API would say."""
        self._add_fault(method, chat_id, when, times, Response(status, body))

    def reset(
        self,
        method: str,
        *,
        times: int | None = 1,
        chat_id: int | str | None = None,
        when: When = "before",
    ) -> None:
        """Reset the connection instead of answering."""
        self._add_fault(method, chat_id, when, times, None)

    def heal(self) -> None:
        """Forget all faults and release all gates."""

        def act() -> None:
            self._faults.clear()
            for gate in self._gates:
                gate.release()
            self._gates.clear()

        self.on_loop(act)

    def offline(self) -> None:
        """Refuse connections and reset those that exist, until ``online``."""

        def act() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None
            for connection in list(self.connections):
                connection.abort()

        self.on_loop(act)

    def online(self) -> None:
        """Accept connections again, at the same address."""

        def act() -> None:
            if self._server is None:
                sock = self._listening_socket()
                loop = asyncio.get_running_loop()
                self._starting = loop.create_task(self._serve(sock))

        self.on_loop(act)

    def set_webhook(self, url: str) -> None:
        """Let a webhook be set, which makes getUpdates a conflict until it is deleted."""

        def act() -> None:
            self._webhook = url

        self.on_loop(act)

    def _add_fault(
        self,
        method: str,
        chat_id: int | str | None,
        when: When,
        times: int | None,
        response: Response | None,
    ) -> None:
        fault = _Fault(method.lower(), chat_id, when, times, response)
        self.on_loop(lambda: self._faults.append(fault))

    # Life

    async def open(self) -> None:
        """Start to listen; ``port`` tells where."""
        self._loop = asyncio.get_running_loop()
        await self._serve(self._listening_socket())

    async def close(self) -> None:
        """Stop, and end whatever is still being answered."""
        if self._starting is not None:
            await self._starting
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.until(lambda: not self.connections, 5, "the connections to end")

    def _listening_socket(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", self.port))
            sock.listen(1024)
        except OSError:
            sock.close()
            raise
        self.port = sock.getsockname()[1]
        return sock

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=sock, backlog=1024)

    # Waiting

    def on_loop(self, action: Callable[[], ValueT]) -> ValueT:
        """Run ``action`` on the server's loop, whatever thread calls, and give its result."""
        assert self._loop is not None, "the fake is not running"
        try:
            if asyncio.get_running_loop() is self._loop:
                return action()
        except RuntimeError:
            pass
        done: ThreadFuture[ValueT] = ThreadFuture()

        def run() -> None:
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(10)

    def changed(self) -> None:
        """Something happens: wake, once it has, those for whom it is what they wait for."""
        if self._waiting and not self._is_waking and self._loop is not None:
            self._is_waking = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        for future, predicate in list(self._waiting.items()):
            if future.done():
                continue
            try:
                value = predicate()
            except Exception as error:
                future.set_exception(error)
            else:
                if value:
                    future.set_result(value)

    async def until(self, predicate: Callable[[], ValueT], timeout: float, what: str) -> ValueT:
        """The first true value of ``predicate``; raises TimeoutError."""
        if value := predicate():
            return value
        future: asyncio.Future[ValueT] = asyncio.get_running_loop().create_future()
        self._waiting[future] = predicate
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            methods = [call.method for call in self._calls[-10:]]
            raise TimeoutError(
                f"waited {timeout} s for {what}; {len(self._chats.sent)} messages sent, "
                f"last calls: {', '.join(methods) or 'none'}"
            ) from None
        finally:
            del self._waiting[future]

    def block_until(self, predicate: Callable[[], ValueT], timeout: float, what: str) -> ValueT:
        """``until`` for another thread."""
        assert self._loop is not None, "the fake is not running"
        waiting = asyncio.run_coroutine_threadsafe(self.until(predicate, timeout, what), self._loop)
        return waiting.result(timeout + 10)

    def _sent_so_far(self, n: int, chat_id: int | str | None) -> list[SentMessage]:
        """The messages, or none while there are fewer than ``n``."""
        if chat_id is None:
            return self.sent if len(self._chats.sent) >= n else []
        return self.sent_to(chat_id) if self._chats.counts[chat_id] >= n else []

    def _calls_so_far(self, method: str, n: int) -> list[Call]:
        calls = self.calls_to(method)
        return calls if len(calls) >= n else []

    def _poll_with(self, offset: int | None, after: int) -> Poll | None:
        for poll in self._polls[after:]:
            if offset is None or (poll.offset or 0) >= offset:
                return poll
        return None

    # Requests

    def handle(self, request: Request, connection: Connection) -> None:
        """Answer ``request`` on ``connection``, now or later."""
        if request.path.startswith("/control/"):
            self._later(self._control(request, connection), connection)
            return
        path = unquote(request.path)
        if match := _FILE_PATH.fullmatch(path):
            connection.reply(self._download(match[1], match[2]))
            return
        match = _PATH.fullmatch(path)
        if match is None:
            connection.reply(error_response(404, "Not Found"))
            return
        if match[1] != self.token:
            connection.reply(error_response(401, "Unauthorized"))
            return
        try:
            params, files = read_parameters(request)
        except (ValueError, KeyError):
            connection.reply(error_response(400, "Bad Request: can't parse the request"))
            return
        call = Call(match[2], params, files, time.monotonic())
        if self._gates or self._faults or call.method.lower() == "getupdates":
            self._later(self._handle_slowly(call, connection), connection)
        else:
            self._record(call)
            connection.reply(self._execute(call))

    def _later(self, answering: Coroutine[Any, Any, None], connection: Connection) -> None:
        assert self._loop is not None
        task = self._loop.create_task(answering)
        connection.task = task
        self._tasks.add(task)

        def finish(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                connection.reply(error_response(500, f"the fake failed: {error!r}"))

        task.add_done_callback(finish)

    async def _handle_slowly(self, call: Call, connection: Connection) -> None:
        """A request that may be held, fail or wait; cancelled when its connection is lost."""
        method = call.method.lower()
        await self._pass_gates(method, call, "before")
        fault = self._take_fault(method, call, "before")
        self._record(call)
        if fault is None:
            if method == "getupdates":
                response = await self._get_updates(call)
            else:
                response = self._execute(call)
            fault = self._take_fault(method, call, "after")
            await self._pass_gates(method, call, "after")
        if fault is not None:
            if fault.response is None:
                connection.abort()
                return
            response = fault.response
        connection.reply(response)

    async def _pass_gates(self, method: str, call: Call, when: When) -> None:
        for gate in list(self._gates):
            if gate.when == when and gate.matches(method, call.params):
                await gate.hold()

    def _take_fault(self, method: str, call: Call, when: When) -> _Fault | None:
        for fault in self._faults:
            if fault.when == when and fault.matches(method, call.params):
                if fault.remaining is not None:
                    fault.remaining -= 1
                    if fault.remaining == 0:
                        self._faults.remove(fault)
                return fault
        return None

    def _record(self, call: Call) -> None:
        self._calls.append(call)
        self.changed()

    def _execute(self, call: Call) -> Response:
        method = self._methods.get(call.method.lower())
        self.changed()
        try:
            if method is None:
                raise Refusal(404, "Not Found")
            return success(method(call))
        except Refusal as refusal:
            return error_response(refusal.status, refusal.description, refusal.parameters)
        except Exception as error:
            # A defect of the fake must not look like a server that hangs.
            return error_response(500, f"the fake failed: {error!r}")

    def _download(self, token: str, path: str) -> Response:
        if token != self.token:
            return error_response(401, "Unauthorized")
        content = self._chats.content_at(path)
        if content is None:
            return error_response(404, "Not Found")
        return Response(200, content, "application/octet-stream")

    # Polling

    def _queue(self, kind: str, value: Json) -> int:
        update = {"update_id": self._next_update_id, kind: value}
        if self._allowed and kind not in self._allowed:
            # The real server does not keep what the bot has not asked for either.
            return self._take_update_id()
        return self._append(update)

    def _append(self, update: Any) -> int:
        update_id = self._take_update_id()
        self._updates.append((update_id, update))
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(True)
        self.changed()
        return update_id

    async def _get_updates(self, call: Call) -> Response:
        try:
            poll = read_poll(call)
        except Refusal as refusal:
            return error_response(refusal.status, refusal.description)
        self._polls.append(poll)
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(False)
        if self._webhook:
            self.changed()
            return error_response(
                409,
                "Conflict: can't use getUpdates method while webhook is active; "
                "use deleteWebhook to delete the webhook first",
            )
        if poll.allowed_updates is not None:
            self._allowed = poll.allowed_updates
        self._confirm(poll.offset)
        if not self._updates and poll.timeout > 0:
            waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._poll = waiting
            self.changed()
            try:
                async with asyncio.timeout(min(poll.timeout, LONGEST_POLL_S)):
                    is_ours = await waiting
            except TimeoutError:
                is_ours = True
            finally:
                if self._poll is waiting:
                    self._poll = None
                    self.changed()
            if not is_ours:
                return error_response(409, _DESCRIPTIONS[409])
        else:
            self.changed()
        batch = list(self._updates)[: max(1, min(poll.limit, 100))]
        return success([update for _, update in batch])

    def _confirm(self, offset: int | None) -> None:
        """Forget what precedes ``offset``.

        As in TDLib's queue: an offset far beyond the newest id means that the ids began anew, and
        is ignored; a negative one keeps so many of the newest.
        """
        if offset is None or offset > self._next_update_id + 10:
            return
        if offset < 0:
            while len(self._updates) > -offset:
                self._updates.popleft()
            return
        while self._updates and self._updates[0][0] < offset:
            self._updates.popleft()

    # Webhooks

    def _delete_webhook(self, call: Call) -> bool:
        self._webhook = ""
        if str(call.params.get("drop_pending_updates", "")).lower() == "true":
            self._updates.clear()
        return True

    def _set_webhook(self, call: Call) -> bool:
        raise Refusal(400, "Bad Request: bad webhook: an HTTPS URL must be provided for webhook")

    def _get_webhook_info(self, call: Call) -> Json:
        return {
            "url": self._webhook,
            "has_custom_certificate": False,
            "pending_update_count": len(self._updates),
        }

    def _take_update_id(self) -> int:
        self._next_update_id += 1
        return self._next_update_id - 1

    # Steering over HTTP

    async def _control(self, request: Request, connection: Connection) -> None:
        params = dict(parse_qsl(request.query))
        body = json.loads(request.body) if request.body else {}
        answer: Any
        match request.path.removeprefix("/control/"):
            case "inject":
                answer = self.inject(**body)
            case "inject_callback":
                answer = self.inject_callback(**body)
            case "sent":
                answer = [as_json(message) for message in self._chats.sent]
            case "calls":
                answer = [as_json(call) for call in self._calls]
            case "wait_for_sent":
                chat_id = int(params["chat_id"]) if "chat_id" in params else None
                n, timeout = int(params.get("n", 1)), float(params.get("timeout", 10))
                try:
                    messages = await self.until(
                        lambda: self._sent_so_far(n, chat_id), timeout, f"{n} messages"
                    )
                except TimeoutError as error:
                    connection.reply(error_response(504, str(error)))
                    return
                answer = [as_json(message) for message in messages]
            case other:
                connection.reply(error_response(404, f"no such control: {other}"))
                return
        connection.reply(success(answer))


class BotApi(_Api):
    """The fake within the event loop of a test; waiting is awaiting."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @staticmethod
    def in_thread(token: str = FAKE_TOKEN, **options: Any) -> BlockingBotApi:
        """The same fake in a thread of its own, with waits that block."""
        return BlockingBotApi(token, **options)

    def gate(
        self,
        method: str,
        when: When = "before",
        *,
        chat_id: int | str | None = None,
        times: int | None = None,
    ) -> Gate:
        """Hold requests for ``method`` before they take effect, or after it and unanswered."""
        gate = Gate(self, method, when, chat_id, times)
        self.on_loop(lambda: self._gates.append(gate))
        return gate

    def hang(
        self, method: str, *, chat_id: int | str | None = None, times: int | None = None
    ) -> Gate:
        """Never answer requests for ``method``; the gate's ``release`` ends it."""
        return self.gate(method, "before", chat_id=chat_id, times=times)

    async def wait_until(
        self, predicate: Callable[[], ValueT], timeout: float = 10, what: str = "a condition"
    ) -> ValueT:
        """The first true value of ``predicate``, asked after each event; raises TimeoutError."""
        return await self.until(predicate, timeout, what)

    async def wait_for_sent(
        self, n: int = 1, chat_id: int | str | None = None, timeout: float = 10
    ) -> list[SentMessage]:
        """The messages sent (to ``chat_id``), once there are ``n``; raises TimeoutError."""
        what = f"{n} messages to {chat_id or 'anybody'}"
        return await self.until(lambda: self._sent_so_far(n, chat_id), timeout, what)

    async def wait_for_calls(self, method: str, n: int = 1, timeout: float = 10) -> list[Call]:
        """The requests for ``method``, once there are ``n``; raises TimeoutError."""
        what = f"{n} calls of {method}"
        return await self.until(lambda: self._calls_so_far(method, n), timeout, what)

    async def wait_for_poll(
        self, offset: int | None = None, *, after: int = 0, timeout: float = 10
    ) -> Poll:
        """The first poll with at least ``offset`` among those from the ``after``-th on."""
        poll = await self.until(
            lambda: self._poll_with(offset, after), timeout, f"a poll with offset {offset}"
        )
        assert poll is not None
        return poll


class BlockingBotApi(_Api):
    """The fake in a thread of its own; waiting blocks."""

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fake Bot API", daemon=True)
        self._thread.start()
        self._ready.wait(10)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.on_loop(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        async def serve() -> None:
            self._stop = asyncio.Event()
            try:
                await self.open()
            except OSError as failure:
                self._failure = failure
                return
            finally:
                self._ready.set()
            await self._stop.wait()
            await self.close()

        asyncio.run(serve())

    def gate(
        self,
        method: str,
        when: When = "before",
        *,
        chat_id: int | str | None = None,
        times: int | None = None,
    ) -> BlockingGate:
        """Hold requests for ``method`` before they take effect, or after it and unanswered."""
        gate = BlockingGate(self, method, when, chat_id, times)
        self.on_loop(lambda: self._gates.append(gate))
        return gate

    def hang(
        self, method: str, *, chat_id: int | str | None = None, times: int | None = None
    ) -> BlockingGate:
        """Never answer requests for ``method``; the gate's ``release`` ends it."""
        return self.gate(method, "before", chat_id=chat_id, times=times)

    def wait_until(
        self, predicate: Callable[[], ValueT], timeout: float = 10, what: str = "a condition"
    ) -> ValueT:
        """The first true value of ``predicate``, asked after each event; raises TimeoutError."""
        return self.block_until(predicate, timeout, what)

    def wait_for_sent(
        self, n: int = 1, chat_id: int | str | None = None, timeout: float = 10
    ) -> list[SentMessage]:
        """The messages sent (to ``chat_id``), once there are ``n``; raises TimeoutError."""
        what = f"{n} messages to {chat_id or 'anybody'}"
        return self.block_until(lambda: self._sent_so_far(n, chat_id), timeout, what)

    def wait_for_calls(self, method: str, n: int = 1, timeout: float = 10) -> list[Call]:
        """The requests for ``method``, once there are ``n``; raises TimeoutError."""
        what = f"{n} calls of {method}"
        return self.block_until(lambda: self._calls_so_far(method, n), timeout, what)

    def wait_for_poll(
        self, offset: int | None = None, *, after: int = 0, timeout: float = 10
    ) -> Poll:
        """The first poll with at least ``offset`` among those from the ``after``-th on."""
        poll = self.block_until(
            lambda: self._poll_with(offset, after), timeout, f"a poll with offset {offset}"
        )
        assert poll is not None
        return poll


# --- Command line -------------------------------------------------------------------------------


async def _serve_until_stopped(token: str, port: int, rich_messages: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with BotApi(token, port=port, rich_messages=rich_messages) as api:
        print(api.root, flush=True)
        await stopped.wait()


def main() -> None:
    """Serve until a signal; the first line on stdout is the address."""
    parser = argparse.ArgumentParser(description="A fake Telegram Bot API server on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--token", default=FAKE_TOKEN)
    parser.add_argument("--rich", action="store_true", help="serve sendRichMessage")
    options = parser.parse_args()
    asyncio.run(_serve_until_stopped(options.token, options.port, options.rich))


if __name__ == "__main__":
    main()
