"""Session hooks that do nothing."""

from __future__ import annotations


class NoHooks:
    """For a dispatcher without a memory."""

    async def turn_begins(self) -> None:
        """Nothing to do."""

    def idle(self, session_key: str) -> None:
        """Nothing to do."""
