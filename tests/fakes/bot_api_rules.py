"""What the fake Bot API records of requests, and what it checks in them as the real one does."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.fakes.bot_api_http import Json, Upload

TEXT_LIMIT: Final = 4096
CAPTION_LIMIT: Final = 1024
ENTITY_LIMIT: Final = 100

_ENTITY_KINDS: Final = frozenset(
    {
        *("mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number"),
        *("bold", "italic", "underline", "strikethrough", "spoiler", "blockquote"),
        *("expandable_blockquote", "code", "pre", "text_link", "text_mention"),
        *("custom_emoji", "date_time"),
    }
)
_QUOTES: Final = frozenset({"blockquote", "expandable_blockquote"})
_CODE: Final = frozenset({"pre", "code"})
_FOUND_ENTITIES: Final = (
    ("bot_command", re.compile(r"(?<![\w/])/[A-Za-z0-9_]{1,32}(?:@\w{3,32})?")),
    ("mention", re.compile(r"(?<!\w)@\w{3,32}")),
    ("url", re.compile(r"https?://[^\s<>]+")),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One request that reached the API; ``at`` is monotonic seconds, ``method`` as it was sent."""

    method: str
    params: Json
    files: tuple[Upload, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Poll:
    """One getUpdates request; ``allowed_updates`` None when it was not given."""

    offset: int | None
    limit: int
    timeout: float
    allowed_updates: tuple[str, ...] | None
    at: float


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message of the bot as it stands now; ``history`` has the texts that edits replaced.

    ``kind`` is text, rich, or the kind of file; ``text`` is the caption of a file, the Markdown of
    a rich message; ``buttons`` the rows of its inline keyboard; ``at`` monotonic seconds.
    """

    chat_id: int | str
    message_id: int
    kind: str
    text: str
    entities: tuple[Json, ...]
    reply_to: int | None
    thread_id: int | None
    buttons: tuple[tuple[Json, ...], ...]
    files: tuple[Upload, ...]
    params: Json
    at: float
    history: tuple[str, ...] = ()
    is_deleted: bool = False


class Refusal(Exception):
    """The API answers with an error."""

    def __init__(self, status: int, description: str, parameters: Json | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = parameters


def as_json(value: Any) -> Json:
    """A call or message for /control, with the sizes of files instead of their bytes."""
    fields = asdict(value)
    for upload in fields["files"]:
        upload["content"] = len(upload["content"])
    return fields


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def chat_id_of(params: Json) -> int | str | None:
    value = params.get("chat_id")
    if value in (None, ""):
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return str(value)


def required_chat(call: Call) -> int | str:
    chat_id = chat_id_of(call.params)
    if chat_id is None:
        raise Refusal(400, "Bad Request: chat_id is empty")
    if isinstance(chat_id, str) and not chat_id.startswith("@"):
        raise Refusal(400, "Bad Request: chat not found")
    return chat_id


def int_of(call: Call, name: str) -> int | None:
    value = call.params.get(name)
    if value in (None, ""):
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise Refusal(400, f"Bad Request: invalid {name}") from None


def _json(call: Call, name: str) -> Any:
    """A parameter that is JSON, which is a string in a form; None when there is none."""
    value = call.params.get(name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else None
    except ValueError:
        raise Refusal(400, f"Bad Request: can't parse {name} JSON object") from None


def object_of(call: Call, name: str) -> Json:
    value = _json(call, name)
    if value is not None and not isinstance(value, dict):
        raise Refusal(400, f"Bad Request: can't parse {name}: Object expected")
    return value or {}


def array_of(call: Call, name: str) -> list[Any]:
    value = _json(call, name)
    if value is not None and not isinstance(value, list):
        raise Refusal(400, f"Bad Request: can't parse {name}: Array expected")
    return value or []


def scope_of(call: Call) -> tuple[str, str]:
    scope = object_of(call, "scope")
    name = "" if scope.get("type", "default") == "default" else json.dumps(scope, sort_keys=True)
    return name, str(call.params.get("language_code", ""))


def read_poll(call: Call) -> Poll:
    allowed = call.params.get("allowed_updates")
    kinds = array_of(call, "allowed_updates")
    limit, timeout = int_of(call, "limit"), int_of(call, "timeout")
    return Poll(
        int_of(call, "offset"),
        100 if limit is None else limit,
        timeout or 0,
        None if allowed in (None, "") else tuple(kinds),
        call.at,
    )


def read_text(call: Call, name: str, entities: str, limit: int) -> tuple[str, tuple[Json, ...]]:
    """The text as the server keeps it (trimmed), with its entities; refuses what it refuses."""
    if call.params.get("parse_mode"):
        raise Refusal(400, "Bad Request: unsupported parse_mode")
    raw = str(call.params.get(name) or "")
    try:
        given = array_of(call, entities)
    except Refusal as refusal:
        raise Refusal(400, f"Bad Request: can't parse entities: {refusal.description}") from None
    kept = _checked_entities(raw, given)[:ENTITY_LIMIT]
    first = min((entity["offset"] for entity in kept), default=units(raw))
    start = 0
    while start < min(first, len(raw)) and raw[start].isspace():
        start += 1
    text = raw[start:].rstrip()
    end = units(text)
    if end > limit:
        what = "message is too long" if name == "text" else "message caption is too long"
        raise Refusal(400, f"Bad Request: {what}")
    trimmed = []
    for entity in kept:
        offset = entity["offset"] - start
        length = min(entity["length"], end - offset)
        if length > 0:
            trimmed.append(entity | {"offset": offset, "length": length})
    return text, tuple(trimmed)


def _checked_entities(text: str, entities: list[Any]) -> list[Json]:
    """The entities in order; refuses those that the text or each other cannot bear."""

    def refuse(reason: str) -> Refusal:
        return Refusal(400, f"Bad Request: can't parse entities: {reason}")

    if not entities:
        return []
    size = units(text)
    inside_pair = set()
    place = 0
    for character in text:
        place += 1
        if character > "\uffff":
            inside_pair.add(place)
            place += 1
    for entity in entities:
        if not isinstance(entity, dict):
            raise refuse("an entity must be an Object")
        if entity.get("type") not in _ENTITY_KINDS:
            raise refuse(f"unsupported type {entity.get('type')!r}")
        offset, length = entity.get("offset"), entity.get("length")
        if type(offset) is not int or type(length) is not int:
            raise refuse("offset and length must be of type Number")
        if offset < 0 or length <= 0 or offset + length > size:
            raise refuse(f"{offset}+{length} is outside of the text of {size} units")
        if offset in inside_pair or offset + length in inside_pair:
            raise refuse(f"{offset}+{length} cuts a surrogate pair")
        if entity["type"] == "text_link" and not entity.get("url"):
            raise refuse("a text_link needs a url")
    ordered = sorted(entities, key=lambda entity: (entity["offset"], -entity["length"]))
    around: list[Json] = []
    for entity in ordered:
        while around and around[-1]["offset"] + around[-1]["length"] <= entity["offset"]:
            around.pop()
        for outer in around:
            if entity["offset"] + entity["length"] > outer["offset"] + outer["length"]:
                raise refuse(f"{entity['type']} crosses {outer['type']}")
            kinds = {entity["type"], outer["type"]}
            if (
                (kinds & _CODE and not kinds & _QUOTES)
                or outer["type"] in _CODE
                or kinds <= _QUOTES
            ):
                raise refuse(f"{entity['type']} is not allowed within {outer['type']}")
        around.append(entity)
    return ordered


def buttons_of(call: Call) -> tuple[tuple[Json, ...], ...]:
    rows = object_of(call, "reply_markup").get("inline_keyboard", [])
    for row in rows:
        for button in row:
            if not button.get("text"):
                raise Refusal(400, "Bad Request: text buttons must be non-empty")
            if len(button.get("callback_data", "-").encode()) not in range(1, 65):
                raise Refusal(400, "Bad Request: BUTTON_DATA_INVALID")
    return tuple(tuple(row) for row in rows)


def upload_of(call: Call, value: Any, name: str) -> Upload | None:
    """The file that a parameter names or that came in its own field; None for a file_id."""
    wanted = str(value).removeprefix("attach://") if value else name
    for upload in call.files:
        if upload.field == wanted:
            if not upload.content:
                raise Refusal(400, "Bad Request: file must be non-empty")
            return upload
    if not value or str(value).startswith("attach://"):
        raise Refusal(400, f"Bad Request: there is no {name} in the request")
    return None


def content_of(message: SentMessage) -> Json:
    """The fields of a message's JSON that an edit replaces."""
    is_text = message.kind in ("text", "rich")
    fields: Json = {}
    if message.text:
        fields["text" if is_text else "caption"] = message.text
    fields["entities" if is_text else "caption_entities"] = list(message.entities)
    if message.buttons:
        fields["reply_markup"] = {"inline_keyboard": [list(row) for row in message.buttons]}
    return fields


def found_entities(text: str) -> list[Json]:
    """The entities that clients add by themselves: commands, mentions, addresses."""
    found = [
        {
            "type": kind,
            "offset": units(text[: match.start()]),
            "length": units(match[0]),
        }
        for kind, pattern in _FOUND_ENTITIES
        for match in pattern.finditer(text)
    ]
    return sorted(found, key=lambda entity: int(entity["offset"]))
