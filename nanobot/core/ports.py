"""The ports of agent and bus; providers and channels implement them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from nanobot.core.chat import LLMResponse, ModelRequest
from nanobot.core.events import Emit, ignore
from nanobot.core.messages import InboundMessage, OutboundMessage

Clock: TypeAlias = Callable[[], datetime]
"""Returns the present moment, aware."""


class LLMProvider(Protocol):
    """A model behind one call.

    ``chat`` returns a complete answer or raises a ProviderError; while it works it may pass
    TextDelta, ReasoningDelta, TextDiscarded and Notice to ``on_delta``. Cancelling it closes the
    connection. An answer cut off by the network is an error, never a short answer.
    """

    async def chat(self, request: ModelRequest, on_delta: Emit = ignore) -> LLMResponse: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model and how it is called; sizes in tokens.

    ``reflect``: ask it to assess results. ``vision``: it can be shown pictures.
    ``reasoning_effort``: how much it reasons in sessions that say nothing of it; None: as it likes.
    """

    provider: LLMProvider
    model: str
    max_tokens: int
    temperature: float
    context_window: int
    reflect: bool = False
    vision: bool = False
    reasoning_effort: str | None = None


class ModelSource(Protocol):
    """Chooses the model of a turn, a compaction or a consolidation."""

    def choose(self, model: str | None) -> ChosenModel:
        """The model named, or the configured one. Raises ProviderError when there is none."""
        ...

    async def prepare(self, model: str | None, *, load: bool = True) -> str:
        """Ask the model's server for its facts; call it before ``choose``.

        ``load``: the server may load the model for that. Returns a warning for the person, or "".
        """
        ...


@dataclass(frozen=True, slots=True)
class ChannelState:
    """The state of a channel; ``detail`` is a line for the operator, ``last_error`` "" for none."""

    connected: bool
    detail: str = ""
    last_error: str = ""
    error_at: datetime | None = None


class Channel(Protocol):
    """A platform: turns its events into inbounds and sends pieces of outbounds.

    ``run`` posts the platform's events until it is cancelled; network failures show in ``state``
    and never end it. ``wait_ready`` returns once the channel is up or its first failure is
    reported. ``pieces`` renders an outbound into payloads that only the channel reads, stored one
    row each. ``send`` sends one of them, returns the platform's message id and raises
    ChannelRetryLater or Undeliverable; ``again`` marks a piece that may have been sent before.
    Only the delivery worker retries; the platform library's own retries are off.
    """

    name: str

    async def run(self) -> None: ...

    async def wait_ready(self) -> None: ...

    def pieces(self, outbound: OutboundMessage) -> Sequence[str]: ...

    async def send(self, outbound: OutboundMessage, piece: str, *, again: bool) -> str: ...

    def began(self, inbound: InboundMessage) -> Emit: ...

    def ended(self, inbound: InboundMessage) -> None: ...

    def state(self) -> ChannelState: ...

    async def aclose(self) -> None: ...
