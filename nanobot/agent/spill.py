"""Big tool results: head and tail for the model, the whole in a file it is told of."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nanobot.core.chat import ToolCall, ToolMessage
from nanobot.core.messages import InboundMessage
from nanobot.core.text import head_and_tail
from nanobot.prompts import render
from nanobot.store.files import write_atomic
from nanobot.store.home import Home, file_name


class Spill:
    """Keeps results longer than ``cap`` characters in the session's spill folder."""

    def __init__(self, home: Home, *, cap: int) -> None:
        self._home = home
        self._cap = cap

    async def shorten(self, inbound: InboundMessage, call: ToolCall, text: str) -> str:
        """``text`` itself, or its head and tail round a note that names the file with it all."""
        if len(text) <= self._cap:
            return text
        path = self._path(inbound, call)
        await asyncio.to_thread(self._write, path, text)
        return head_and_tail(text, self._cap, render.spilled(path))

    async def keep(self, key: str, inbound_id: str, result: ToolMessage, seq: int) -> Path:
        """The file with a logged result; written now unless it was spilled when it came.

        ``seq`` is the result's place in the log, which tells results of one call id apart.
        """
        directory = self._home.spill_of(key)
        name = file_name(f"{inbound_id}-{result.call_id}")[-200:]
        spilled = directory / f"{name}.txt"
        if str(spilled) in result.content and await asyncio.to_thread(spilled.is_file):
            return spilled
        path = directory / f"{name}.{seq}.txt"
        await asyncio.to_thread(self._write, path, result.content)
        return path

    def _path(self, inbound: InboundMessage, call: ToolCall) -> Path:
        name = file_name(f"{inbound.id}-{call.id}")[-200:]
        return self._home.spill_of(inbound.session_key) / f"{name}.txt"

    def _write(self, path: Path, text: str) -> None:
        self._home.private(path.parent)
        write_atomic(path, text.encode(), durable=False)
