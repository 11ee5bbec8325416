"""The ``spawn`` tool: gives a task to a subagent that works on it in the background."""

from __future__ import annotations

from pydantic import Field

from nanobot.core.errors import ToolError
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.subagents.manager import SubagentManager


class SpawnArguments(ToolArguments):
    task: str = Field(min_length=1, description="all that it must know; it sees nothing else")
    label: str | None = Field(default=None, max_length=80, description="a few words")


class Spawn(Tool[SpawnArguments]):
    """Posts the task under an id made of the call's, so that it is sent exactly once."""

    name = "spawn"
    description = (
        "Give a long or separate task to a subagent that works in the background with your tools. "
        "Its report comes to you as a message; do not wait for it."
    )
    effect = Effect.WRITE
    arguments = SpawnArguments

    def __init__(self, subagents: SubagentManager) -> None:
        self._subagents = subagents

    async def run(self, args: SpawnArguments, context: ToolContext) -> ToolOutput:
        if not context.principal.is_owner:
            raise ToolError("A guest's turn cannot send subagents.")
        if not args.task.strip():
            raise ToolError("There is nothing to do: task is empty.")
        sent = await self._subagents.send(
            args.task,
            (args.label or "").strip(),
            inbound_id=context.inbound_id,
            call_id=context.call_id,
            trust=context.trust,
        )
        return ToolOutput(
            f"The subagent “{sent.errand.label}” has the task. Its report will come as a message; "
            "go on with other work, or end your turn and say what you have begun."
        )

    async def aftermath(self, inbound_id: str, call_id: str) -> str | None:
        if await self._subagents.was_sent(inbound_id, call_id):
            return "The subagent was sent, just before a restart; its report will come."
        return "No subagent was sent: a restart came first. Call again if it is still wanted."
