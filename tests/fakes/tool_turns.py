"""Facts of a turn for calling tools without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nanobot.core.events import Emit, ignore
from nanobot.core.messages import Origin, Principal, Role, Trust
from nanobot.core.tool import ToolContext


def tool_turn(
    workspace: Path,
    *,
    session: str = "cli:direct",
    inbound_id: str = "inbound:1",
    role: Role = Role.OWNER,
    attended: bool = False,
    environment: Mapping[str, str] | None = None,
    emit: Emit = ignore,
) -> ToolContext:
    """The context of one call in a turn of ``role`` in ``session``."""
    channel, _, chat_id = session.partition(":")
    return ToolContext(
        session_key=session,
        inbound_id=inbound_id,
        call_id="call_1",
        channel=channel,
        chat_id=chat_id,
        thread_id=None,
        sender_id="1",
        principal=Principal(role, channel, "1"),
        trust=Trust.TRUSTED,
        origin=Origin.USER,
        profile="chat",
        attended=attended,
        workspace=workspace,
        environment=environment or {},
        emit=emit,
    )
