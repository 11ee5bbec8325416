"""The ``message`` tool: sends a message before, or besides, the turn's final answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from pydantic import Field

from nanobot.core.errors import ToolError
from nanobot.core.messages import Cause, OutboundMessage, session_key
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput

TERMINAL = "cli"
QUEUED = "Queued, to go out when `nanobot gateway` runs, which it does not now, for"


class Outbox(Protocol):
    """The part of the bus that the tool uses: once ``queue`` returns, the message is durable.

    ``delivers``: this process delivers queued messages itself.
    """

    @property
    def delivers(self) -> bool: ...

    async def queue(self, *outbounds: OutboundMessage) -> tuple[OutboundMessage, ...]: ...

    async def holds(self, outbound_id: str) -> bool: ...


class MessageArguments(ToolArguments):
    content: str = Field(min_length=1, description="Markdown")
    channel: str | None = Field(default=None, description="default: this one")
    chat_id: str | None = Field(default=None, description="default: this one")


class Message(Tool[MessageArguments]):
    """Queues an outbound message under an id made from the call's, so it is sent exactly once."""

    name = "message"
    description = (
        "Send a message at once: to another chat, or to this one before a long job is done. "
        "Your final answer is delivered to this chat by itself."
    )
    effect = Effect.WRITE
    arguments = MessageArguments

    def __init__(self, outbox: Outbox, channels: frozenset[str]) -> None:
        """``channels`` are the names of those that can deliver."""
        self._outbox = outbox
        self._channels = channels

    async def run(self, args: MessageArguments, context: ToolContext) -> ToolOutput:
        channel = args.channel or context.channel
        chat_id = args.chat_id or (context.chat_id if channel == context.channel else "")
        here = (channel, chat_id) == (context.channel, context.chat_id)
        if not args.content.strip():
            raise ToolError("There is nothing to send: content is empty.")
        if channel == TERMINAL:
            raise ToolError(
                "The person at the terminal reads your final answer; put it there. "
                f"To write elsewhere name a channel ({self._names()}) and a chat_id."
            )
        if channel not in self._channels:
            raise ToolError(f"There is no channel {channel!r}; there is {self._names()}.")
        if not chat_id:
            raise ToolError(f"Name the chat_id to write to on {channel}.")
        if not here and not context.principal.is_owner:
            raise ToolError("A guest's turn writes to its own chat only.")
        outbound = OutboundMessage(
            channel,
            chat_id,
            args.content,
            id=_outbound_id(context.inbound_id, context.call_id),
            thread_id=context.thread_id if here else None,
            session=context.session_key if here else session_key(channel, chat_id),
            inbound_id=context.inbound_id,
        )
        if not here or context.profile != "chat":
            by = f"another conversation ({context.origin})"
            cause = Cause(by, str(context.principal), args.content, context.trust)
            outbound = replace(outbound, cause=cause)
        await self._outbox.queue(outbound)
        done = "Sent to" if self._outbox.delivers else QUEUED
        if here:
            return ToolOutput(
                f"{done} this chat; do not repeat it in your final answer, which may be empty.",
                delivered=args.content,
            )
        return ToolOutput(f"{done} {channel} {chat_id}.")

    async def recovered_call(self, inbound_id: str, call_id: str) -> str | None:
        if await self._outbox.holds(_outbound_id(inbound_id, call_id)):
            return f"{'Sent' if self._outbox.delivers else 'Queued'}, just before a restart."
        return "Not sent: a restart came first. Send it again if it is still wanted."

    def _names(self) -> str:
        return ", ".join(sorted(self._channels)) or "none that can deliver"


def _outbound_id(inbound_id: str, call_id: str) -> str:
    return f"{inbound_id}/message/{call_id}"
