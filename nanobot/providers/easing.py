"""The optional part of a request, and what to change when an endpoint refuses some of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from nanobot.providers.failures import Failure
from nanobot.providers.orders import refused_order
from nanobot.providers.quirks import Quirks

FEWEST_TOKENS = 256
"""Less room than this for an answer means that the request is too large."""

USAGE = "stream_options"
EFFORT = "reasoning_effort"
TEMPERATURE = "temperature"
LIMIT = "max_tokens"
COMPLETION_LIMIT = "max_completion_tokens"

# Servers which count the answer's room into the window say how large window and prompt are …
_WINDOW = re.compile(
    r"maximum context length is (?P<window>\d+) tokens.{0,120}?"
    r"(?:\((?P<messages>\d+) in the messages|(?P<input>\d+) input tokens)"
    r"|exceed context limit: (?P<prompt>\d+) \+ \d+ > (?P<limit>\d+)",
    re.IGNORECASE | re.DOTALL,
)
# … others how long an answer of this model can be.
_LONGEST = re.compile(
    r"supports at most (\d+) completion tokens"
    r"|max_tokens: \d+ > (\d+)"
    r"|max_tokens`? must be less than or equal to `?(\d+)"
    r"|valid range of max_tokens is \[\d+, ?(\d+)\]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Options:
    """How an answer is asked for; ``refused`` names the fields and the orders of messages that
    this endpoint does not take.
    """

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


def eased(options: Options, failure: Failure) -> Options | None:
    """Options that the endpoint may take after this refusal; None where they are not at fault."""
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
    """A smaller limit that fits what the server says of its window, if there is one."""
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
