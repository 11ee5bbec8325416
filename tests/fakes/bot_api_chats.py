"""The chats of the fake Bot API: what the bot sent, edited and deleted, its files and its menu."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tests.fakes.bot_api_http import Json, Upload
from tests.fakes.bot_api_rules import (
    CAPTION_LIMIT,
    TEXT_LIMIT,
    Call,
    Refusal,
    SentMessage,
    array_of,
    buttons_of,
    content_of,
    int_of,
    object_of,
    read_text,
    required_chat,
    scope_of,
    units,
    upload_of,
)

RICH_TEXT_LIMIT: Final = 32_768
DOWNLOAD_LIMIT: Final = 20 * 1024 * 1024
_FILE_FIELDS: Final = {
    "sendphoto": "photo",
    "senddocument": "document",
    "sendvoice": "voice",
    "sendaudio": "audio",
    "sendvideo": "video",
    "sendanimation": "animation",
    "sendsticker": "sticker",
}
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")


class Chats:
    """Every method that is about messages; ``methods`` has them by name in lower case.

    ``sent`` are the bot's messages as they stand now, ``counts`` their number by chat, ``known``
    everybody's messages as JSON by chat and id. ``callbacks`` tells of each button press whether
    it was answered, ``files`` are path and content by id, ``menus`` the commands by scope and
    language.
    """

    def __init__(
        self, bot_id: int, username: str, rich_messages: bool, changed: Callable[[], None]
    ) -> None:
        self._bot_id = bot_id
        self._username = username
        self._rich_messages = rich_messages
        self._changed = changed
        self._next_message_id = 1
        self._places: dict[tuple[int | str, int], int] = {}
        self.sent: list[SentMessage] = []
        self.counts: Counter[int | str] = Counter()
        self.known: dict[tuple[int | str, int], Json] = {}
        self.callbacks: dict[str, bool] = {}
        self.menus: dict[tuple[str, str], list[Json]] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.methods: dict[str, Callable[[Call], Any]] = {
            "getme": self._get_me,
            "setmycommands": self._set_my_commands,
            "getmycommands": self._get_my_commands,
            "deletemycommands": self._delete_my_commands,
            "sendmessage": self._send_message,
            "sendmessagedraft": self._send_message_draft,
            "sendrichmessage": self._send_rich_message,
            "sendrichmessagedraft": self._send_rich_message_draft,
            "editmessagetext": self._edit_message_text,
            "editmessagereplymarkup": self._edit_message_reply_markup,
            "deletemessage": self._delete_message,
            "sendchataction": self._send_chat_action,
            "answercallbackquery": self._answer_callback_query,
            "setmessagereaction": self._set_message_reaction,
            "sendmediagroup": self._send_media_group,
            "getfile": self._get_file,
            "getchat": self._get_chat,
            **dict.fromkeys(_FILE_FIELDS, self._send_file),
        }

    def remember(self, update: Any) -> None:
        """Let the message of a raw update be replied to, if it is one."""
        match update:
            case {"message": {"message_id": int(number), "chat": {"id": int(chat)}}}:
                self.known[chat, number] = update["message"]

    def content_at(self, path: str) -> bytes | None:
        """The content of the file that getFile said is at ``path``."""
        contents = (content for known, content in self.files.values() if known == path)
        return next(contents, None)

    # Methods

    def _get_me(self, call: Call) -> Json:
        return self._bot() | {
            "can_join_groups": True,
            "can_read_all_group_messages": False,
            "supports_inline_queries": False,
            "can_connect_to_business": False,
            "has_main_web_app": False,
        }

    def _bot(self) -> Json:
        return {
            "id": self._bot_id,
            "is_bot": True,
            "first_name": "Fake bot",
            "username": self._username,
        }

    def _set_my_commands(self, call: Call) -> bool:
        commands = array_of(call, "commands")
        if len(commands) > 100:
            raise Refusal(400, "Bad Request: BOT_COMMANDS_TOO_MUCH")
        for command in commands:
            if _COMMAND.fullmatch(command.get("command", "")) is None:
                raise Refusal(400, "Bad Request: BOT_COMMAND_INVALID")
            if not 1 <= len(command.get("description", "")) <= 256:
                raise Refusal(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        self.menus[scope_of(call)] = commands
        return True

    def _get_my_commands(self, call: Call) -> list[Json]:
        return self.menus.get(scope_of(call), [])

    def _delete_my_commands(self, call: Call) -> bool:
        self.menus.pop(scope_of(call), None)
        return True

    def _send_message(self, call: Call) -> Json:
        text, entities = read_text(call, "text", "entities", TEXT_LIMIT)
        if not text:
            raise Refusal(400, "Bad Request: message text is empty")
        return self._send(call, "text", text, entities)

    def _send_message_draft(self, call: Call) -> bool:
        required_chat(call)
        if int_of(call, "draft_id") in (None, 0):
            raise Refusal(400, "Bad Request: RANDOM_ID_INVALID")
        read_text(call, "text", "entities", TEXT_LIMIT)
        return True

    def _send_rich_message(self, call: Call) -> Json:
        return self._send(call, "rich", self._rich_text(call), ())

    def _send_rich_message_draft(self, call: Call) -> bool:
        self._rich_text(call)
        return True

    def _rich_text(self, call: Call) -> str:
        if not self._rich_messages:
            raise Refusal(404, "Not Found")
        text = str(object_of(call, "rich_message").get("markdown", ""))
        if not text.strip():
            raise Refusal(400, "Bad Request: message text is empty")
        if units(text) > RICH_TEXT_LIMIT:
            raise Refusal(400, "Bad Request: message is too long")
        return text

    def _edit_message_text(self, call: Call) -> Json:
        place, message = self._own_message(call, "edit")
        text, entities = read_text(call, "text", "entities", TEXT_LIMIT)
        if not text:
            raise Refusal(400, "Bad Request: message text is empty")
        buttons = buttons_of(call)
        return self._edit(
            place,
            replace(message, text=text, entities=entities, buttons=buttons, params=call.params),
        )

    def _edit_message_reply_markup(self, call: Call) -> Json:
        place, message = self._own_message(call, "edit")
        return self._edit(place, replace(message, buttons=buttons_of(call)))

    def _edit(self, place: int, edited: SentMessage) -> Json:
        message = self.sent[place]
        before = (message.text, message.entities, message.buttons)
        if before == (edited.text, edited.entities, edited.buttons):
            raise Refusal(
                400,
                "Bad Request: message is not modified: specified new message content and reply "
                "markup are exactly the same as a current content and reply markup of the message",
            )
        if edited.text != message.text:
            edited = replace(edited, history=(*message.history, message.text))
        self.sent[place] = edited
        known = self.known[message.chat_id, message.message_id]
        known |= {"edit_date": int(time.time())} | content_of(edited)
        self._changed()
        return known

    def _delete_message(self, call: Call) -> bool:
        key = (required_chat(call), int_of(call, "message_id") or 0)
        if key not in self.known:
            raise Refusal(400, "Bad Request: message to delete not found")
        del self.known[key]
        if key in self._places:
            place = self._places[key]
            self.sent[place] = replace(self.sent[place], is_deleted=True)
        self._changed()
        return True

    def _send_chat_action(self, call: Call) -> bool:
        required_chat(call)
        if not call.params.get("action"):
            raise Refusal(400, "Bad Request: wrong parameter action in request")
        return True

    def _answer_callback_query(self, call: Call) -> bool:
        query_id = str(call.params.get("callback_query_id", ""))
        if self.callbacks.get(query_id, True):
            raise Refusal(
                400,
                "Bad Request: query is too old and response timeout expired or query ID is invalid",
            )
        self.callbacks[query_id] = True
        return True

    def _set_message_reaction(self, call: Call) -> bool:
        key = (required_chat(call), int_of(call, "message_id") or 0)
        if key not in self.known:
            raise Refusal(400, "Bad Request: message to react not found")
        array_of(call, "reaction")
        return True

    def _send_file(self, call: Call) -> Json:
        name = _FILE_FIELDS[call.method.lower()]
        upload = upload_of(call, call.params.get(name), name)
        text, entities = read_text(call, "caption", "caption_entities", CAPTION_LIMIT)
        return self._send(call, name, text, entities, upload, call.params.get(name))

    def _send_media_group(self, call: Call) -> list[Json]:
        media = array_of(call, "media")
        if not 2 <= len(media) <= 10:
            raise Refusal(400, "Bad Request: wrong number of messages in the album")
        album = []
        for item in media:
            caption = Call(call.method, item, (), call.at)
            text, entities = read_text(caption, "caption", "caption_entities", CAPTION_LIMIT)
            upload = upload_of(call, item.get("media"), "media")
            album.append((str(item.get("type")), text, entities, upload, item.get("media")))
        return [self._send(call, *part) for part in album]

    def _get_file(self, call: Call) -> Json:
        file_id = str(call.params.get("file_id", ""))
        if file_id not in self.files:
            raise Refusal(400, "Bad Request: invalid file_id")
        path, content = self.files[file_id]
        if len(content) > DOWNLOAD_LIMIT:
            raise Refusal(400, "Bad Request: file is too big")
        return {
            "file_id": file_id,
            "file_unique_id": f"u{file_id}",
            "file_size": len(content),
            "file_path": path,
        }

    def _get_chat(self, call: Call) -> Json:
        chat_id = required_chat(call)
        return self._chat(chat_id) | {"accent_color_id": 0, "max_reaction_count": 11}

    # Messages

    def _send(
        self,
        call: Call,
        kind: str,
        text: str,
        entities: tuple[Json, ...],
        upload: Upload | None = None,
        file_id: Any = None,
    ) -> Json:
        chat_id = required_chat(call)
        reply = object_of(call, "reply_parameters")
        reply_to = reply.get("message_id") or int_of(call, "reply_to_message_id")
        replied = None if reply_to is None else self.known.get((chat_id, int(reply_to)))
        if reply_to is not None and replied is None:
            if not reply.get("allow_sending_without_reply"):
                raise Refusal(400, "Bad Request: message to be replied not found")
            reply_to = None
        object_of(call, "link_preview_options")
        message = SentMessage(
            chat_id=chat_id,
            message_id=self.take_message_id(),
            kind=kind,
            text=text,
            entities=entities,
            reply_to=None if reply_to is None else int(reply_to),
            thread_id=int_of(call, "message_thread_id"),
            buttons=buttons_of(call),
            files=() if upload is None else (upload,),
            params=call.params,
            at=time.monotonic(),
        )
        answer: Json = {
            "message_id": message.message_id,
            "date": int(time.time()),
            "chat": self._chat(chat_id),
            "from": self._bot(),
        } | content_of(message)
        if message.thread_id is not None:
            answer |= {"message_thread_id": message.thread_id, "is_topic_message": True}
        if kind not in ("text", "rich"):
            answer[kind] = self._sent_file(kind, upload, str(file_id))
        self.known[chat_id, message.message_id] = dict(answer)
        if replied is not None:
            answer["reply_to_message"] = replied
        self._places[chat_id, message.message_id] = len(self.sent)
        self.counts[chat_id] += 1
        self.sent.append(message)
        self._changed()
        return answer

    def _sent_file(self, kind: str, upload: Upload | None, file_id: str) -> Any:
        name = upload.name if upload is not None else "file"
        if upload is not None:
            stored = self.add_file(name, upload.content)
        else:
            stored = {"file_id": file_id, "file_unique_id": f"u{file_id}", "file_size": 1}
        match kind:
            case "photo":
                return [stored | {"width": 1, "height": 1}]
            case "document":
                return stored | {"file_name": name, "mime_type": "application/octet-stream"}
            case "voice" | "audio":
                return stored | {"duration": 1}
            case "sticker":
                flags = {"is_animated": False, "is_video": False, "type": "regular"}
                return stored | {"width": 1, "height": 1} | flags
        return stored | {"width": 1, "height": 1, "duration": 1}

    def _own_message(self, call: Call, verb: str) -> tuple[int, SentMessage]:
        key = (required_chat(call), int_of(call, "message_id") or 0)
        if key not in self.known:
            raise Refusal(400, f"Bad Request: message to {verb} not found")
        if key not in self._places:
            raise Refusal(400, "Bad Request: message can't be edited")
        return self._places[key], self.sent[self._places[key]]

    def _chat(self, chat_id: int | str) -> Json:
        if isinstance(chat_id, str):
            return {"id": -100, "type": "channel", "title": chat_id, "username": chat_id[1:]}
        if chat_id < 0:
            return {"id": chat_id, "type": "supergroup", "title": "A group"}
        return {"id": chat_id, "type": "private", "first_name": "Ada"}

    def take_message_id(self) -> int:
        self._next_message_id += 1
        return self._next_message_id - 1

    def add_file(self, name: str, content: bytes) -> Json:
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = (f"documents/{len(self.files) + 1}/{name}", content)
        return {
            "file_id": file_id,
            "file_unique_id": f"u{file_id}",
            "file_size": len(content),
        }

    def add_photo(self, name: str, content: bytes) -> list[Json]:
        small = self.add_file(f"small-{name}", content[: max(len(content) // 2, 1)])
        large = self.add_file(name, content)
        return [small | {"width": 90, "height": 90}, large | {"width": 800, "height": 800}]
