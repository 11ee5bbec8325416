"""The ports the agent and the bus call through; adapters implement them elsewhere."""

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
    """Where a turn, a compaction or a consolidation gets its model from."""

    def choose(self, model: str | None) -> ChosenModel:
        """The model named, or the configured one. Raises ProviderError when there is none."""
        ...

    async def prepare(self, model: str | None, *, load: bool = True) -> str:
        """Find out what only the model's server knows, before ``choose``.

        ``load``: the server may load the model for that. Returns what a person should know, or "".
        """
        ...


@dataclass(frozen=True, slots=True)
class ChannelState:
    """How a channel does: ``detail`` is a line for the operator, ``last_error`` "" for none."""

    connected: bool
    detail: str = ""
    last_error: str = ""
    error_at: datetime | None = None


class Channel(Protocol):
    """A platform: turns its events into inbounds and sends pieces of outbounds.

    ``run`` takes events in until it is cancelled; it survives whatever the network does and shows
    it in ``state``. ``ready`` is set once the channel is up or its first failure is reported.
    ``pieces`` renders an outbound into the payloads (opaque to the bus, stored one row each) that
    ``send`` hands to the platform one by one; ``send`` returns the platform's message id and
    raises ChannelRetryLater or Undeliverable. ``again`` marks a piece that may have been sent
    before. The platform's own retries are off: the delivery worker is the one owner of retries.
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
