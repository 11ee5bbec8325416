"""The values a turn is made of and ends in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from nanobot.core.chat import Usage
from nanobot.core.messages import InboundMessage, Trust
from nanobot.session.entries import Draft

Drain: TypeAlias = Callable[[], tuple[InboundMessage, ...]]
"""Hands over what arrived for this session and may steer the running turn; often nothing."""


def nothing_arrived() -> tuple[InboundMessage, ...]:
    """A ``Drain`` for turns that cannot be steered."""
    return ()


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Bounds of one turn; seconds are wall-clock."""

    max_iterations: int = 20
    model_s: float = 600.0
    result_chars: int = 16_000
    continuations: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """How a turn ended: what is committed in one transaction when it is settled.

    ``consumed`` are the inbounds it answered, ``entries`` its last words for the log of
    ``session``, ``answer`` the text for whoever asked ("" when nothing is to be said because the
    ``message`` tool said it). ``footnote`` goes with it to a chat, and into no log: another than
    the usual model answered. ``trust`` is that of the answer. ``ending`` says which limit ended
    the turn before its work was done ("" for none).
    """

    session: str
    consumed: tuple[str, ...]
    answer: str
    entries: tuple[Draft, ...] = ()
    tools_used: tuple[str, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    footnote: str = ""
    trust: Trust = Trust.TRUSTED
    ending: str = ""
