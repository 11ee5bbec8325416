"""Litellm's exceptions, read back into what the endpoint said."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from nanobot.providers.failures import (
    Failure,
    failure_in_body,
    failure_in_document,
    retry_after,
    system_reason,
)

# "litellm.RateLimitError: AnthropicException - …", "GeminiException BadRequestError - …"
_WRAPPING = re.compile(r"^(?:litellm\.)?\w+(?:Error|Exception)(?: \w+Error)?(?::| -)\s*")
_ADVICE = re.compile(r"\.? Handle with `litellm\.\w+`\.?.*$", re.DOTALL)
_BYTES = re.compile(r"^b(['\"]).*\1$", re.DOTALL)
_KINDS = {
    "ContextWindowExceededError": "context_length_exceeded",
    "ContentPolicyViolationError": "content_filter",
    "AuthenticationError": "authentication_error",
}


def is_litellms(error: Exception) -> bool:
    """Whether litellm, or the SDK it builds on, raised this on purpose."""
    return type(error).__module__.split(".")[0] in {"litellm", "openai", "httpx"}


def failure_of(error: Any, now: datetime) -> Failure | str:
    """What the endpoint refused, or the reason why there is no connection to it.

    Litellm's own status is 500 for the lack of a connection and for what it does not know; the
    first-hand one is in the exception of the provider's module behind it. The provider's answer
    stands in the exception's text behind several prefixes.
    """
    error = getattr(error, "original_exception", None) or error
    status = _status(_first_hand(error)) or _status(error)
    text = _unwrapped(str(getattr(error, "message", "") or error))
    if status in {0, 408, 500, 503} and not text.startswith("{"):
        reason = system_reason(error)
        if reason is not None:
            return reason
    failure = _read(status, text)
    named = {_KINDS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _KINDS}
    said = (
        headers
        for one in _chain(error)
        for headers in (
            getattr(one, "litellm_response_headers", None),
            getattr(one, "headers", None),
            getattr(getattr(one, "response", None), "headers", None),
        )
    )
    waits = (retry_after(headers, now) for headers in said if headers)
    wait_s = next((wait for wait in waits if wait is not None), failure.wait_s)
    return replace(failure, codes=failure.codes | named, wait_s=wait_s)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those it was made of."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _first_hand(error: BaseException) -> BaseException | None:
    """The exception of the provider's own module which litellm made its own of."""
    theirs = (one for one in _chain(error) if type(one).__module__.startswith("litellm.llms."))
    return next((one for one in theirs if _status(one)), None)


def _status(error: BaseException | None) -> int:
    status = getattr(error, "status_code", 0)
    return status if isinstance(status, int) else 0


def _read(status: int, text: str) -> Failure:
    """The provider's own error, whose JSON the text may hold."""
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        try:
            document = json.loads(text[start : end + 1])
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict) and document:
            return failure_in_document(status, document)
    return failure_in_body(status, text.encode("utf-8", "replace"))


def _unwrapped(text: str) -> str:
    text = _ADVICE.sub("", text.strip())
    while (rest := _WRAPPING.sub("", text)) != text:
        text = rest
    text = text.strip()
    if _BYTES.match(text):
        try:
            text = ast.literal_eval(text).decode("utf-8", "replace")
        except (ValueError, SyntaxError):
            return text
    return text
