"""The commands menu that Telegram shows beside the input field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from nanobot.channels.telegram.connections import Connections
from nanobot.channels.telegram.failures import CallFailed, Refusal
from nanobot.channels.telegram.limits import Limits
from nanobot.channels.telegram.pacing import Sleep
from nanobot.core.text import one_line

Menu: TypeAlias = Sequence[tuple[str, str]]
"""Names (``[a-z0-9_]{1,32}``) and help lines, in order."""

MOST_COMMANDS = 100
LONGEST_HELP = 256
RETRY_S = 60.0
RETRY_MOST_S = 3600.0


async def publish(
    menu: Menu,
    connections: Connections,
    limits: Limits,
    *,
    failed: Callable[[str], None],
    sleep: Sleep,
) -> None:
    """Set the menu (Bot API ``setMyCommands``), trying again until the server has taken it.

    ``failed`` hears of each failure. A server that refuses the menu as it stands is not asked
    again: only another menu could help.
    """
    commands = [
        {"command": name, "description": one_line(help_line, LONGEST_HELP) or name}
        for name, help_line in menu[:MOST_COMMANDS]
    ]
    wait_s = RETRY_S
    while True:
        try:
            await connections.call("setMyCommands", {"commands": commands}, limit_s=limits.call_s)
        except CallFailed as error:
            failed(f"the commands menu is not set: {error}")
            if isinstance(error, Refusal) and error.code == 400:
                return
            after = error.after if isinstance(error, Refusal) else None
            await sleep(max(after or 0.0, wait_s))
            wait_s = min(wait_s * 2, RETRY_MOST_S)
        else:
            return
