"""How single models and endpoints depart from the common form of a request."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class ReasoningBack(StrEnum):
    """The field in which a model's earlier reasoning has to be sent back to it, if any."""

    NONE = "none"
    CONTENT = "reasoning_content"
    DETAILS = "reasoning_details"


@dataclass(frozen=True, slots=True)
class Quirks:
    """One model's departures at one endpoint.

    ``effort_off`` is the reasoning effort that switches reasoning off (None: say nothing).
    ``short_call_ids``: tool call ids must be nine letters or digits, as Mistral's API wants.
    """

    takes_max_completion_tokens: bool = False
    takes_temperature: bool = True
    effort_off: str | None = None
    reasoning_back: ReasoningBack = ReasoningBack.NONE
    short_call_ids: bool = False


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
        re.compile(r"kimi-(k2-thinking|k2\.[5-9]|k[3-9]|thinking)"),
        Quirks(takes_temperature=False, reasoning_back=ReasoningBack.CONTENT),
    ),
    (
        re.compile(r"deepseek-(reasoner|v3\.2|v[4-9])"),
        Quirks(reasoning_back=ReasoningBack.CONTENT),
    ),
)


def quirks_of(model: str) -> Quirks:
    """The quirks of ``model`` by its name, whatever gateway prefix it has."""
    name = model.rsplit("/", 1)[-1].lower()
    return next((quirks for pattern, quirks in _TABLE if pattern.match(name)), Quirks())
