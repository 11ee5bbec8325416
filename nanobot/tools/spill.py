"""Big tool results: head and tail for the model, the whole in a file it is told of."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loguru import logger

from nanobot.core.chat import ToolCall, ToolMessage
from nanobot.core.errors import StoreUnavailable
from nanobot.core.messages import InboundMessage
from nanobot.core.text import head_and_tail
from nanobot.prompts import render
from nanobot.store.files import disk_errors, write_atomic
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
        name = file_name(f"{inbound.id}-{call.id}")[-200:]
        path = self._home.spill_of(inbound.session_key) / f"{name}.txt"
        try:
            await asyncio.to_thread(self._write, path, text)
            note = render.spilled(path)
        except StoreUnavailable as error:  # the call has been made: what fits the log is kept
            logger.bind(session=inbound.session_key).error("a long result is cut: {}", error)
            note = render.unspilled(str(error))
        return head_and_tail(text, self._cap, note)

    async def keep(self, key: str, inbound_id: str, result: ToolMessage, seq: int) -> Path:
        """The file with a logged result; written now unless it was spilled when it came.

        ``seq`` is the result's place in the log, which tells results of one call id apart. Raises
        StoreUnavailable.
        """
        directory = self._home.spill_of(key)
        name = file_name(f"{inbound_id}-{result.call_id}")[-200:]
        spilled = directory / f"{name}.txt"
        if str(spilled) in result.content and await asyncio.to_thread(spilled.is_file):
            return spilled
        path = directory / f"{name}.{seq}.txt"
        await asyncio.to_thread(self._write, path, result.content)
        return path

    def _write(self, path: Path, text: str) -> None:
        with disk_errors(path.parent):
            self._home.private(path.parent)
            write_atomic(path, text.encode(), durable=False)
