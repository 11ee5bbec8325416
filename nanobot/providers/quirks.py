"""How single models and endpoints depart from the common form of a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from nanobot.providers.catalogue import bare, reasons, sees

if TYPE_CHECKING:
    from nanobot.config.schema import ModelOverride

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
    """One model's departures at one endpoint.

    ``temperature`` is the only one it accepts. ``effort_off`` is the reasoning effort that
    switches reasoning off (None: say nothing). ``effort_room``: a reasoning effort is sent only
    where an answer may have more tokens than this, and then no temperature goes with it
    (Anthropic takes the thinking from the answer's tokens and has its temperature fixed).
    ``sees``: pictures can be shown to it.
    ``short_call_ids``: tool call ids must be nine letters or digits, and no user message may follow
    a tool's, as Mistral's API wants.
    ``long_call_ids``: they go back as they came, for litellm keeps Gemini's signatures in them.
    ``cache_roles``: the roles whose messages may carry cache markers; none for no markers.
    ``asks_for_cost``: the endpoint gives the price of a call when asked to.
    ``litellm_facts``: what litellm's own table, which is older, has to be told of the model.
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
    """The quirks of models at a provider: the model's, the endpoint's, then the configured ones.

    ``overrides`` are by the name the provider is sent.
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
    """The quirks with what the configuration says of the model."""
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
    """What litellm's translations to the providers' own protocols need or make needless."""
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
