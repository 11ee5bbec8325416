"""The ``/memory`` command."""

from __future__ import annotations

from nanobot.core.commands import Command, Invocation
from nanobot.core.identity import Role
from nanobot.memory.edits import sections
from nanobot.memory.progress import Digests
from nanobot.memory.store import MemoryStore

SHOWN_CHARS = 3000
_OWNERS = "Only the owner can see that."


def memory_command(memory: MemoryStore, digests: Digests) -> Command:
    """What is known, how large it is and when it was last consolidated."""

    async def show(invocation: Invocation) -> str:
        if invocation.inbound.role is not Role.OWNER:
            return _OWNERS
        text = memory.read().strip()
        counted = ", ".join(f"{name}: {count}" for name, count in sections(text) if count)
        last = await digests.last_written()
        behind = await digests.behind()
        events = await memory.history_events()
        when = "never" if last is None else f"{last.astimezone():%Y-%m-%d %H:%M}"
        facts = [
            f"MEMORY.md: {len(text):,} characters ({counted or 'nothing yet'}), "
            f"{len(memory.versions())} versions",
            f"HISTORY.md: {events:,} {'paragraph' if events == 1 else 'paragraphs'}, "
            f"{await memory.history_size():,} bytes",
            f"Last consolidation: {when}"
            + (f"; {len(behind)} conversations wait to be archived" if behind else ""),
        ]
        here = await digests.state(invocation.inbound.session_key)
        if warning := memory.warning():
            facts.append(warning)
        if here.error:
            facts.append(f"Here the last try failed: {here.error}")
        shown = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}\n[…]"
        return "\n".join(facts) + (f"\n\n{shown}" if counted else "")

    return Command("memory", "what I know of you, and when it was written", show)
