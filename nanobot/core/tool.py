"""The base of every tool: validated arguments and the turn's facts in, text for the model out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from nanobot.core.chat import Image, ToolSpec
from nanobot.core.events import Emit, ignore
from nanobot.core.messages import Origin, Principal, Trust


class Effect(StrEnum):
    """Whether a call may change anything; reads run concurrently, writes in order."""

    READ = "read"
    WRITE = "write"


class ToolArguments(BaseModel):
    """Base of every tool's arguments; the JSON Schema the model sees is made from it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The facts of one call's turn, so that tools hold no state about chats.

    ``trust`` is untrusted once the turn has read anything from outside. ``attended`` means the
    owner sits at the terminal that asks. ``environment`` holds variables for commands of this
    turn alone (skills' keys). ``call_id`` together with ``inbound_id`` names the call for good.
    """

    session_key: str
    inbound_id: str
    call_id: str
    channel: str
    chat_id: str
    thread_id: str | None
    sender_id: str
    principal: Principal
    trust: Trust
    origin: Origin
    profile: str
    attended: bool
    workspace: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    emit: Emit = ignore


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a call: ``text`` for the model, untrusted if it came from outside.

    ``delivered`` is what the call has said to the turn's own chat; the answer does not repeat it.
    """

    text: str
    trust: Trust = Trust.TRUSTED
    images: tuple[Image, ...] = ()
    delivered: str = ""


DEFAULT_TIMEOUT_S = 60.0
"""Time limit of a tool without its own, unless ``agents.defaults.toolTimeoutS`` sets another."""

ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


class Tool(ABC, Generic[ArgumentsT]):
    """One tool; subclasses set the class attributes and implement ``run``.

    ``timeout_s`` is the wall-clock limit of ``run`` (None: the tool enforces a shorter one).
    ``polls``: repeating the same call is the way to wait with this tool. ``run`` raises ToolError
    with a text that the model can act on; any other exception is a defect, logged with its
    traceback and reported to the model as a failure.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    effect: ClassVar[Effect]
    arguments: ClassVar[type[ToolArguments]]
    timeout_s: ClassVar[float | None] = DEFAULT_TIMEOUT_S
    polls: ClassVar[bool] = False

    @abstractmethod
    async def run(self, args: ArgumentsT, context: ToolContext) -> ToolOutput: ...

    async def recovered_call(self, inbound_id: str, call_id: str) -> str | None:
        """What became of a call that a crash cut off, as a result for the model; None: unknown.

        For tools whose effects have deterministic ids.
        """
        return None

    async def stopped(self, inbound_id: str) -> None:
        """End everything that the turn left running; its user stopped it."""

    @classmethod
    def spec(cls) -> ToolSpec:
        """The tool as the model sees it, with a lean JSON Schema."""
        schema = _lean(cls.arguments.model_json_schema(by_alias=True))
        schema.pop("description", None)
        return ToolSpec(cls.name, cls.description, schema)


def _lean(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without keywords that cost tokens in every request and tell a model nothing.

    Those are pydantic's titles, ``null`` as an alternative, ``additionalProperties: false`` (the
    registry's error names the nearest property), minimum lengths of 1, minimums of 0 or 1 and
    empty defaults. A property *named* title stays.
    """

    def clean(node: Any, *, names: bool) -> Any:
        if isinstance(node, list):
            return [clean(item, names=False) for item in node]
        if not isinstance(node, dict):
            return node
        if not names:
            node = _without_null(node)
        return {
            key: clean(value, names=not names and key in {"properties", "$defs"})
            for key, value in node.items()
            if names or not _is_idle(key, value)
        }

    cleaned: dict[str, Any] = clean(schema, names=False)
    return cleaned


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """A choice between one schema and null, as that schema alone."""
    choices = [one for one in node.get("anyOf", ()) if one != {"type": "null"}]
    if len(choices) != 1:
        return node
    return {**choices[0], **{key: value for key, value in node.items() if key != "anyOf"}}


def _is_idle(key: str, value: object) -> bool:
    match key:
        case "title":
            return isinstance(value, str)
        case "additionalProperties":
            return value is False
        case "minLength":
            return value == 1
        case "minimum":
            return value in (0, 1)
        case "exclusiveMinimum":
            return value == 0
        case "default":
            return value is None or value is False or value == ""
    return False
