"""Whether one of litellm's streams came to its end, which litellm itself does not say."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

# Gemini's last chunk; in the model's own words such a name stands behind a backslash.
_GEMINI_ENDS = re.compile(r"""(?<!\\)["'](?:finishReason|blockReason)["']\s*:""")


class Ending:
    """Watches a ``CustomStreamWrapper``, from before its first chunk on.

    A stream that breaks off looks complete. Mostly ``received_finish_reason`` is None then; but of
    Gemini's streams it always is, and each of their chunks claims to be the last. There the lines
    that litellm reads are looked at as they pass. A line of JSON that is cut off stays in litellm's
    buffer; at the end of the lines its iterator would return None from it for ever, without
    yielding to the event loop.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._seen = False
        inner = stream.completion_stream
        if type(inner).__module__.startswith("litellm.llms.vertex_ai.gemini"):
            inner.streaming_response = self._watched(inner, inner.streaming_response)

    def was_real(self) -> bool:
        """Whether the provider said why the model stopped."""
        return self._seen or self._stream.received_finish_reason is not None

    async def _watched(self, inner: Any, lines: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for line in lines:
            text = line.decode("utf-8", "replace") if isinstance(line, bytes) else str(line)
            self._seen = self._seen or bool(_GEMINI_ENDS.search(text))
            yield line
        if inner.accumulated_json:
            inner.accumulated_json = ""
            self._seen = False
