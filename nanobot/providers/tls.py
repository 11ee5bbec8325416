"""The TLS context that all HTTP clients of the process share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


class TLS:
    """Makes the context on first use, in a thread: it costs 60 to 105 ms and is needed once."""

    def __init__(self, create: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._create = create or _verifying
        self._making = asyncio.Lock()
        self._context: ssl.SSLContext | None = None

    async def context(self) -> ssl.SSLContext:
        """The context; it verifies certificates as httpx does by default."""
        async with self._making:
            if self._context is None:
                self._context = await asyncio.to_thread(self._create)
            return self._context


def _verifying() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()
