"""What ``nanobot bus`` does, as plain data in and out: for the command itself and the socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from nanobot.bus.bus import DeadLetter, MessageBus

MOST_SHOWN = 1000
ALL = "all"

Change: TypeAlias = Callable[[DeadLetter], Awaitable[bool]]


async def handle_letters(bus: MessageBus, request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer ``{"do": "list" | "retry" | "drop", "names": [...]}``.

    A name is a letter's handle (``in-12``), its id, or ``all``. ``list`` gives what waits and the
    dead letters; the others which handles were changed and which names were not, with the reason.
    Raises ValueError for anything else.
    """
    match request:
        case {"do": "list"}:
            return await _listed(bus)
        case {"do": "retry", "names": list(names)}:
            return await _changed(bus, bus.retry, names, "it cannot be read; drop it")
        case {"do": "drop", "names": list(names)}:
            return await _changed(bus, bus.drop, names, "it is no dead letter any more")
    raise ValueError(f"no request about letters: {request!r}")


async def _listed(bus: MessageBus) -> dict[str, Any]:
    counts = await bus.counts()
    return {
        "waiting": {"inbox": counts.inbox, "outbox": counts.outbox},
        "dead": [
            {
                "name": letter.handle,
                "id": letter.id,
                "channel": letter.channel,
                "session": letter.session,
                "error": letter.error,
                "at": letter.at.isoformat(),
                "text": letter.text,
            }
            for letter in await bus.dead_letters(limit=MOST_SHOWN)
        ],
    }


async def _changed(
    bus: MessageBus, change: Change, names: Sequence[object], otherwise: str
) -> dict[str, Any]:
    letters = await bus.dead_letters(limit=MOST_SHOWN)
    known = {name: letter for letter in letters for name in (letter.id, letter.handle)}
    wanted: list[DeadLetter] = letters[::-1] if ALL in names else []
    refused: dict[str, str] = {}
    for name in map(str, names):
        if name in known:
            wanted.append(known[name])
        elif name != ALL:
            refused[name] = "there is no such dead letter"
    changed = []
    for letter in dict.fromkeys(wanted):  # in order, each once
        if await change(letter):
            changed.append(letter.handle)
        else:
            refused[letter.handle] = otherwise
    return {"changed": changed, "refused": refused}
