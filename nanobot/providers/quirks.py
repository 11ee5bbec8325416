"""What models and endpoints demand of a request: known quirks, and what they have refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from loguru import logger

from nanobot.core.ports import Clock
from nanobot.providers.catalogue import bare, reasons, sees
from nanobot.providers.failures import Failure
from nanobot.store.files import write_atomic

if TYPE_CHECKING:
    from nanobot.config.schema import ModelOverride
    from nanobot.providers.wire import Wire

_NOTHING: Mapping[str, ModelOverride] = {}


class ReasoningBack(StrEnum):
    """The field in which a model's earlier reasoning has to be sent back to it, if any."""

    NONE = "none"
    CONTENT = "reasoning_content"
    DETAILS = "reasoning_details"
    BLOCKS = "thinking_blocks"
    TAGS = "think tags at the beginning of the content"


@dataclass(frozen=True, slots=True)
class Quirks:
    """How requests to one model at one endpoint differ from the common form.

    ``temperature``: the only one it accepts. ``effort_off``: the reasoning effort that switches
    reasoning off (None: send nothing). ``effort_room``: an effort is sent only if the answer may
    have more tokens than this, and then without a temperature (Anthropic counts thinking into the
    answer and fixes the temperature). ``sees``: it takes pictures. ``short_call_ids``: tool call
    ids have nine letters or digits and no user message follows a tool message (Mistral).
    ``long_call_ids``: ids go back unchanged, since litellm keeps Gemini's signatures in them.
    ``cache_roles``: the roles whose messages may carry cache markers. ``asks_for_cost``: the
    endpoint tells the price of a call on request. ``litellm_facts``: facts of the model that
    litellm's own table, frozen at its release, lacks.
    """

    takes_max_completion_tokens: bool = False
    takes_temperature: bool = True
    temperature: float | None = None
    takes_effort: bool = True
    effort_off: str | None = None
    effort_room: int | None = None
    reasoning_back: ReasoningBack = ReasoningBack.NONE
    sees: bool = True
    short_call_ids: bool = False
    long_call_ids: bool = False
    cache_roles: frozenset[str] = frozenset()
    asks_for_cost: bool = False
    litellm_facts: frozenset[str] = frozenset()


QuirksOf: TypeAlias = Callable[[str], Quirks]
"""Gives the quirks of a model's name."""

_TABLE: tuple[tuple[re.Pattern[str], Quirks], ...] = (
    (
        re.compile(r"gpt-5\.\d"),
        Quirks(takes_max_completion_tokens=True, takes_temperature=False, effort_off="none"),
    ),
    (
        re.compile(r"gpt-5"),
        Quirks(takes_max_completion_tokens=True, takes_temperature=False, effort_off="minimal"),
    ),
    (
        re.compile(r"o[134](-|$)"),
        Quirks(takes_max_completion_tokens=True, takes_temperature=False),
    ),
    (
        # From Opus 4.7 on: no temperature, and thinking by effort instead of a budget.
        re.compile(r"claude-([a-z]+-)?([5-9]|4[-.][7-9]|\d\d)(\D|$)"),
        Quirks(
            takes_temperature=False,
            litellm_facts=frozenset(
                {"supports_reasoning", "supports_adaptive_thinking", "supports_output_config"}
            ),
        ),
    ),
    (
        re.compile(r"kimi-(k2-thinking|k2\.[5-9]|k[3-9]|thinking)"),
        Quirks(takes_temperature=False, reasoning_back=ReasoningBack.CONTENT),
    ),
    (
        re.compile(r"deepseek-(reasoner|v3\.2|v[4-9])|glm-(4\.[5-9]|[5-9])"),
        Quirks(reasoning_back=ReasoningBack.CONTENT),
    ),
    (re.compile(r"minimax-m\d"), Quirks(reasoning_back=ReasoningBack.TAGS)),
)


_CLAUDE = re.compile(r"(^|[^a-z])claude-")
_SMALL_THOUGHTS = 4096


def quirks_of(model: str) -> Quirks:
    """The quirks of ``model`` by its name, whatever gateway prefix it has."""
    name = bare(model)
    return next((quirks for pattern, quirks in _TABLE if pattern.match(name)), Quirks())


def quirks_at(
    provider: str, *, through_litellm: bool, overrides: Mapping[str, ModelOverride] = _NOTHING
) -> QuirksOf:
    """The quirks of a provider's models: by model, then by endpoint, then as configured.

    ``overrides``: by the name the provider is sent.
    """

    def quirks(model: str) -> Quirks:
        quirks = quirks_of(model)
        is_claude = bool(_CLAUDE.search(model.lower()))
        if through_litellm:
            quirks = _behind_litellm(quirks, model.lower(), is_claude=is_claude)
        elif provider == "openrouter":
            roles = frozenset({"system", "user"} if is_claude else ())
            quirks = replace(
                quirks,
                reasoning_back=ReasoningBack.DETAILS,
                cache_roles=roles,
                asks_for_cost=True,
            )
        if provider == "mistral" or model.startswith("mistral/"):
            quirks = replace(quirks, short_call_ids=True)
        override = overrides.get(model)
        quirks = replace(
            quirks,
            sees=sees(model, override),
            takes_effort=reasons(model, override) is not False,
        )
        return quirks if override is None else overridden(quirks, override)

    return quirks


def overridden(quirks: Quirks, override: ModelOverride) -> Quirks:
    """``quirks`` with the model's own configuration."""
    changes: dict[str, Any] = {}
    if override.max_tokens_field is not None:
        newer = override.max_tokens_field == "max_completion_tokens"
        changes["takes_max_completion_tokens"] = newer
    if override.temperature == "omit":
        changes["takes_temperature"] = False
    elif override.temperature is not None:
        changes |= {"takes_temperature": True, "temperature": override.temperature}
    return replace(quirks, **changes)


def _behind_litellm(quirks: Quirks, model: str, *, is_claude: bool) -> Quirks:
    """``quirks`` for litellm, which translates to the providers' own protocols."""
    if is_claude:
        return replace(
            quirks,
            effort_room=_SMALL_THOUGHTS,
            reasoning_back=ReasoningBack.BLOCKS,
            cache_roles=frozenset({"system", "user", "tool"}),
        )
    if "gemini" in model:
        can_be_calmed = re.search(r"gemini-(2\.5-flash|[3-9])", model)
        return replace(
            quirks,
            long_call_ids=True,
            effort_off="none" if can_be_calmed else None,
            litellm_facts=frozenset(
                {"supports_reasoning"} if re.search(r"gemini-[3-9]", model) else ()
            ),
        )
    return quirks


FEWEST_TOKENS = 256
"""With less room than this for an answer the request counts as too large."""

USAGE = "stream_options"
EFFORT = "reasoning_effort"
TEMPERATURE = "temperature"
LIMIT = "max_tokens"
COMPLETION_LIMIT = "max_completion_tokens"

# Servers that count the answer's room into the window tell the size of window and prompt,
_WINDOW = re.compile(
    r"maximum context length is (?P<window>\d+) tokens.{0,120}?"
    r"(?:\((?P<messages>\d+) in the messages|(?P<input>\d+) input tokens)"
    r"|exceed context limit: (?P<prompt>\d+) \+ \d+ > (?P<limit>\d+)",
    re.IGNORECASE | re.DOTALL,
)
# others the longest answer of the model.
_LONGEST = re.compile(
    r"supports at most (\d+) completion tokens"
    r"|max_tokens: \d+ > (\d+)"
    r"|max_tokens`? must be less than or equal to `?(\d+)"
    r"|valid range of max_tokens is \[\d+, ?(\d+)\]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one request; ``refused``: the parameters and message orders to avoid."""

    max_tokens: int
    temperature: float
    reasoning_effort: str | None
    quirks: Quirks
    refused: frozenset[str] = frozenset()

    def fields(self) -> dict[str, Any]:
        """The fields of the request, in a fixed order."""
        quirks = self.quirks
        fields: dict[str, Any] = {"stream": True}
        if USAGE not in self.refused:
            fields[USAGE] = {"include_usage": True}
        if self._limit_field not in self.refused:
            fields[self._limit_field] = self.max_tokens
        effort = self._effort
        alone = effort is not None and quirks.effort_room is not None
        if quirks.takes_temperature and not alone and TEMPERATURE not in self.refused:
            fixed = quirks.temperature
            fields[TEMPERATURE] = self.temperature if fixed is None else fixed
        if effort is not None:
            fields[EFFORT] = effort
        if quirks.asks_for_cost:
            fields["usage"] = {"include": True}
        return fields

    @property
    def _effort(self) -> str | None:
        """The reasoning effort to be sent, or None."""
        quirks = self.quirks
        if EFFORT in self.refused or not quirks.takes_effort:
            return None
        if quirks.effort_room is not None and self.max_tokens <= quirks.effort_room:
            return None
        return quirks.effort_off if self.reasoning_effort == "off" else self.reasoning_effort

    @property
    def _limit_field(self) -> str:
        instead = self.quirks.takes_max_completion_tokens or LIMIT in self.refused
        return COMPLETION_LIMIT if instead else LIMIT


def without_refused(options: Options, failure: Failure) -> Options | None:
    """``options`` changed to what the endpoint may accept; None where they are not at fault."""
    if (order := refused_order(failure, options.refused)) is not None:
        return replace(options, refused=options.refused | {order})
    if failure.status not in {400, 422}:
        return None
    if (fewer := _fitting(failure.body, options.max_tokens)) is not None:
        return replace(options, max_tokens=fewer)
    if failure.is_overflow:
        return None
    sent = options.fields()
    for field in (USAGE, LIMIT, COMPLETION_LIMIT, EFFORT, TEMPERATURE):
        if field in sent and re.search(rf"\b{field}\b", failure.body):
            return replace(options, refused=options.refused | {field})
    return None


def _fitting(said: str, max_tokens: int) -> int | None:
    """A smaller limit that fits the sizes in the server's error text, if there is one."""
    if match := _WINDOW.search(said):
        window = int(match["window"] or match["limit"])
        prompt = int(match["messages"] or match["input"] or match["prompt"])
        fewer = window - prompt
        if "at least" in said:
            # The server stopped counting the prompt: its figure is only a lower bound.
            fewer = min(fewer, max_tokens // 2)
    elif match := _LONGEST.search(said):
        fewer = next(int(group) for group in match.groups() if group)
    else:
        return None
    return fewer if FEWEST_TOKENS <= fewer < max_tokens else None


USER_AFTER_TOOL = "user after tool"
SAME_ROLE_TWICE = "same role twice"
SYSTEM_ROLE = "system role"
TOOL_ROLE = "tool role"
LONG_CALL_IDS = "long call ids"

# Error texts of servers and what each may mean, the likelier first.
_REFUSALS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"unexpected role '?user'? after role '?tool", re.IGNORECASE), (USER_AFTER_TOOL,)),
    (
        # Chat templates of Gemma, Llama 2 and Mistral; Anthropic, Gemini, Perplexity, DeepSeek
        re.compile(r"(roles must|should|requests) alternate|successive user or assistant"),
        (SAME_ROLE_TWICE, TOOL_ROLE),
    ),
    (
        re.compile(
            r"system (role|message)s? (is |are )?not supported|does not support 'system'"
            r"|developer instruction is not enabled",
            re.IGNORECASE,
        ),
        (SYSTEM_ROLE,),
    ),
    (re.compile(r"only user.{1,20}assistant roles are supported", re.I), (SYSTEM_ROLE, TOOL_ROLE)),
    (re.compile(r"must be a-z, A-Z, 0-9, with a length of 9"), (LONG_CALL_IDS,)),
)
_STATUS = {0, 400, 422, 500}
"""llama.cpp answers with 500 where a chat template raises."""

_BRIDGE: Wire = {"role": "assistant", "content": "I have read the results."}


def refused_order(failure: Failure, refused: Set[str]) -> str | None:
    """The message order or role that a server refuses, unless it is in ``refused`` already."""
    if failure.status not in _STATUS:
        return None
    for pattern, meant in _REFUSALS:
        if pattern.search(failure.body):
            return next((name for name in meant if name not in refused), None)
    return None


def ordered(messages: Sequence[Wire], refused: Set[str]) -> list[Wire]:
    """``messages`` without the ``refused`` orders and roles.

    An assistant message separates a user message from a tool message before it; neighbouring user
    messages become one; parallel calls become consecutive ones; a refused role is replaced.
    """
    if SYSTEM_ROLE in refused and messages[0]["role"] == "system":
        system = {**messages[0], "role": "user"}
        messages = [_joined(system, messages[1]), *messages[2:]]
    if TOOL_ROLE in refused:
        messages = _without_tool_role(messages)
    alternates = SAME_ROLE_TWICE in refused
    if alternates:
        messages = _one_call_each(messages)
    result: list[Wire] = []
    for message in messages:
        before = result[-1]["role"] if result else ""
        if message["role"] == "user":
            if before == "tool" and (alternates or USER_AFTER_TOOL in refused):
                result.append(_BRIDGE)
            elif before == "user" and alternates:
                message = _joined(result.pop(), message)
        result.append(message)
    return result


def _one_call_each(messages: Sequence[Wire]) -> list[Wire]:
    """Each call followed by its result: some templates count a result as a user message."""
    split: list[Wire] = []
    for at, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        results = {one.get("tool_call_id"): one for one in messages[at + 1 : at + 1 + len(calls)]}
        for place, call in enumerate(calls):
            asks = message if place == 0 else {"role": "assistant", "content": None}
            split += [{**asks, "tool_calls": [call]}, results[call["id"]]]
        if not calls and message["role"] != "tool":
            split.append(message)
    return split


def _without_tool_role(messages: Sequence[Wire]) -> list[Wire]:
    """``messages`` with calls and results as text, the results in user messages."""
    told: list[Wire] = []
    names: dict[str, str] = {}
    for message in messages:
        if message["role"] == "tool":
            name = names[message["tool_call_id"]]
            told.append({"role": "user", "content": f"[result of {name}]\n{message['content']}"})
        elif "tool_calls" in message:
            words = [message["content"]] if message["content"] else []
            for call in message["tool_calls"]:
                function = call["function"]
                names[call["id"]] = function["name"]
                words.append(f"[called {function['name']} with {function['arguments']}]")
            told.append({"role": "assistant", "content": "\n".join(words)})
        else:
            told.append(message)
    return told


def _joined(first: Wire, second: Wire) -> Wire:
    """Two user messages as one."""
    contents = first["content"], second["content"]
    if all(isinstance(content, str) for content in contents):
        return {"role": "user", "content": "\n\n".join(contents)}
    parts = [
        part
        for content in contents
        for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]
    return {"role": "user", "content": parts}


REMEMBERED = timedelta(days=30)
"""How long a refusal counts: the server, or our request, may change."""
EVERY_MODEL = "*"

_Known: TypeAlias = dict[str, dict[str, dict[str, datetime]]]


def _now() -> datetime:
    return datetime.now(UTC)


class Refusals:
    """The parameters and message orders that each endpoint refuses, by model.

    All adapters of an app share one. The file at ``path`` is a cache that may be deleted; a damaged
    one counts as empty. Without ``path`` refusals are kept in memory only.
    """

    def __init__(self, path: Path | None = None, *, now: Clock = _now) -> None:
        self._path = path
        self._now = now
        self._known: _Known | None = None

    def of(self, endpoint: str, model: str) -> frozenset[str]:
        """Everything ``endpoint`` refused for ``model``, or any model, in the last 30 days."""
        since = self._now() - REMEMBERED
        models = self._loaded().get(endpoint, {})
        learned = {**models.get(EVERY_MODEL, {}), **models.get(model, {})}
        return frozenset(name for name, at in learned.items() if at > since)

    def add(self, endpoint: str, model: str, refused: Iterable[str]) -> None:
        """Remember what ``endpoint`` has just refused for ``model`` (or ``EVERY_MODEL``)."""
        known = self._loaded()
        known.setdefault(endpoint, {}).setdefault(model, {}).update(
            dict.fromkeys(refused, self._now())
        )
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = json.dumps(known, default=datetime.isoformat, indent=1).encode()
            write_atomic(self._path, data, durable=False)
        except OSError as error:
            logger.warning("refusals of {} not saved: {}", endpoint, error)

    def _loaded(self) -> _Known:
        if self._known is None:
            from pydantic import AwareDatetime, TypeAdapter, ValidationError  # takes 0.1 s

            form = TypeAdapter(dict[str, dict[str, dict[str, AwareDatetime]]])
            try:
                self._known = form.validate_json(self._path.read_bytes()) if self._path else {}
            except (OSError, ValidationError):
                self._known = {}
        return self._known
