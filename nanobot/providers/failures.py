"""Classifies the failures of endpoints into the errors of ``core.errors``."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from nanobot.core.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ProviderError,
    Refused,
    RetryLater,
)
from nanobot.core.text import shortened

LINE_LENGTH = 300
"""The longest error text, in characters."""

_SHORTEST_SECRET = 8
"""Shorter values are placeholders such as ``ollama``, which also occur in plain text."""

_KEY_SHAPES = re.compile(r"\b(?:(?:sk|pk|gsk|xai|csk|nvapi|hf)[-_]|AIza)[-_A-Za-z0-9*]{8,}")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)

_OVERFLOW_CODES = {
    "context_length_exceeded",
    "exceed_context_size_error",
    "context_window_exceeded",
    "string_above_max_length",
    "tokens_limit_reached",
    "request_too_large",
    "1261",  # Zhipu
}
_OVERFLOW_TEXT = re.compile(
    r"""
      (maximum|max|model'?s?|available|exceeds?\ the|exceeds?|loaded\ with)\ (allowed\ )?
        (model\ )?context[\ _](length|size|window|limit)
    | context[\ _](length|size|window|limit)\ (of|exceed|is\ (too|exceeded)|overflow)
    | exceeds?\ (the\ )?(model'?s?\ )?(maximum\ )?(context|token\ limit|model\ token\ limit)
    | exceeded\ (model\ token\ limit|max\ context|maximum\ context)
    | longer\ than\ the\ (maximum\ )?(model|context)
    | (prompt|input|request|messages?)\ (is|are)\ too\ (long|large)
    | too\ large\ for\ model
    | maximum\ prompt\ length
    | input\ token\ count\ .*exceeds
    | range\ of\ input\ length
    | reduce\ the\ length\ of\ the\ (input\ )?(messages|prompt)
    | input\ length\ (and\ `?max_tokens`?\ )?exceeds?
    | (tokens\ to\ keep|initial\ prompt).*context\ length
    | inputs`?\ tokens\ \+
    | prompt\ 超长
    """,
    re.IGNORECASE | re.VERBOSE,
)
_QUOTA_CODES = {
    "insufficient_quota",
    "insufficient_balance",
    "billing_hard_limit_reached",
    "billing_not_active",
    "exceeded_current_quota_error",
    "billing_error",
    "1113",  # Zhipu
}
_QUOTA_TEXT = re.compile(r"credit balance is too low", re.IGNORECASE)
_KEY_TEXT = re.compile(r"API_KEY_INVALID|API key (not valid|expired)", re.IGNORECASE)
_KEY_CODES = {"invalid_api_key", "authentication_error", "unauthorized", "missing_api_key"}
_FILTER_CODES = {
    "content_filter",
    "content_policy_violation",
    "data_inspection_failed",
    "datainspectionfailed",
    "moderation_blocked",
    "sensitive_words_detected",
    "1301",  # Zhipu
}
_MODERATED = re.compile(r"moderation|flagged", re.IGNORECASE)
_MODEL_CODES = {"model_not_found", "model_not_exist", "notfounderror"}
_REQUEST_CODES = {"invalid_request_error", "badrequesterror", "bad_request", "validation_error"}
# Google's RetryInfo, also where a gateway quotes it as text.
_RETRY_DELAY = re.compile(r'retryDelay\\*"\s*:\s*\\*"(\d+(?:\.\d+)?)s')
_LATER_STATUS = {408, 409, 425, 429}
_OVERFLOW_STATUS = {400, 413, 422, 500}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider's address, and the ``secrets`` to mask in every text.

    ``url``: the one requested, or words where only litellm knows it.
    """

    name: str
    url: str
    secrets: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The URL without user, password and query."""
        parts = urlsplit(self.url)
        if not parts.netloc:
            return self.url
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def key(self) -> str:
        """The endpoint's name in files kept across processes."""
        return f"{self.name} at {self.shown}"

    @property
    def key_hint(self) -> str:
        return f"set the key: nanobot config set providers.{self.name}.apiKey KEY"

    @property
    def base_hint(self) -> str:
        return f"check providers.{self.name}.apiBase"

    def line(self, what: str, detail: str = "", hint: str = "") -> str:
        """``what (detail); hint`` as one line of at most 300 characters, without secrets.

        The detail is shortened first.
        """
        what, detail, hint = (self._clean(text) for text in (what, detail, hint))
        tail = f"; {hint}" if hint else ""
        room = LINE_LENGTH - len(what) - len(tail) - len(" ()")
        shown = f" ({shortened(detail, room)})" if detail and room > len("…") else ""
        return shortened(what, LINE_LENGTH - len(tail) - len(shown)) + shown + tail

    def _clean(self, text: str) -> str:
        for secret in self.secrets:
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        text = _KEY_SHAPES.sub("***", text)
        return " ".join("".join(one if one.isprintable() else " " for one in text).split())


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that an endpoint sent.

    ``status``: the HTTP status, or the code of an error inside a stream, or 0. ``message``: its
    text. ``codes``: its codes and types in lower case. ``body``: all of it. ``wait_s``: the wait
    it asks for.
    """

    status: int
    message: str
    codes: frozenset[str] = frozenset()
    body: str = ""
    wait_s: float | None = None

    @property
    def is_overflow(self) -> bool:
        if self.codes & _OVERFLOW_CODES or self.status == 413:
            return True
        return self.status in {0, *_OVERFLOW_STATUS} and bool(_OVERFLOW_TEXT.search(self.body))


class EndpointRefused(Exception):
    """The endpoint answered with an error; internal to the adapters."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Garbled(Exception):
    """The endpoint sent a malformed answer; internal to the adapters."""


class ConnectionBroke(Exception):
    """The network failed before the answer was complete; internal to the adapters.

    ``was_made``: whether there was a connection.
    """

    def __init__(self, reason: str, *, was_made: bool) -> None:
        super().__init__(reason)
        self.was_made = was_made


def failure_in_body(status: int, body: bytes, wait_s: float | None = None) -> Failure:
    """Parse the body of an error response: JSON in any of the common forms, HTML or text."""
    text = body.decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return Failure(status, described(text), body=text, wait_s=wait_s)
    return failure_in_document(status, document, wait_s)


def described(text: str) -> str:
    """A short description of a body that is no JSON; for a web page its title."""
    if text.lstrip().startswith("<"):
        title = _TITLE.search(text)
        return f"an HTML page: {title[1].strip()}" if title else "an HTML page"
    return text.strip() or "an empty body"


def failure_in_document(status: int, document: Any, wait_s: float | None = None) -> Failure:
    """Interpret an error given as parsed JSON."""
    body = json.dumps(document, ensure_ascii=False)
    if isinstance(document, list) and document:
        document = document[0]
    outer = document if isinstance(document, Mapping) else {}
    inner = outer.get("error")
    error = inner if isinstance(inner, Mapping) else outer
    codes = [
        error.get("code"),
        error.get("type"),
        error.get("status"),
        outer.get("code"),
        inner if isinstance(inner, str) else None,
    ]
    named = frozenset(
        str(code).lower() for code in codes if isinstance(code, str | int) and code != ""
    )
    if status == 0:
        status = next((int(code) for code in sorted(named) if re.fullmatch(r"[45]\d\d", code)), 0)
    if wait_s is None and (delay := _RETRY_DELAY.search(body)):
        wait_s = float(delay[1])
    return Failure(status, _message_of(error, inner, body), named, body, wait_s)


def classify(failure: Failure, endpoint: Endpoint, model: str) -> ProviderError:
    """The ProviderError for ``failure``, with its text for the user."""
    status, codes, name = failure.status, failure.codes, endpoint.name
    said = f"{status}: {failure.message}" if status else failure.message
    line = endpoint.line
    if failure.is_overflow:
        return ContextOverflow(line(f"{name}: the request is too large for {model}", said))
    if codes & _FILTER_CODES or (status == 403 and _MODERATED.search(failure.body)):
        return Refused(line(f"{name}: the content filter declined", said))
    if status == 402 or codes & _QUOTA_CODES or _QUOTA_TEXT.search(failure.body):
        return AuthFailed(
            line(f"{name}: no credit or quota is left", said, "top up, or " + endpoint.key_hint)
        )
    if status in {401, 403} or codes & _KEY_CODES or _KEY_TEXT.search(failure.body):
        verb = "allow this with" if status == 403 else "accept"
        return AuthFailed(line(f"{name} does not {verb} the API key", said, endpoint.key_hint))
    if status == 404 or codes & _MODEL_CODES:
        what = f"{name} has no model {model!r} at {endpoint.shown}"
        hint = f"check agents.defaults.model and providers.{name}.apiBase"
        return BadRequest(line(what, said, hint), reached=False)
    if status in _LATER_STATUS or status >= 500:
        what = f"{name} limits the rate" if status == 429 else f"{name} cannot answer now"
        return RetryLater(line(what, said), after=failure.wait_s)
    if 300 <= status < 400:
        what = f"{name}: {endpoint.shown} leads elsewhere"
        return BadRequest(line(what, said, endpoint.base_hint))
    if status or codes & _REQUEST_CODES:
        return BadRequest(line(f"{name} refuses the request for {model}", said))
    return RetryLater(line(f"{name} broke off with an error", said), after=failure.wait_s)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait as a response's headers say, or None.

    Follows RFC 9110, 10.2.3, and OpenAI's ``retry-after-ms``. A date counts from the response's
    own ``date``, or from ``now``.
    """
    if (milliseconds := _seconds(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if (seconds := _seconds(value)) is not None:
        return seconds
    if (moment := _http_date(value)) is None:
        return None
    since = _http_date(headers.get("date")) or now
    return max(0.0, (moment - since).total_seconds())


def system_reason(error: BaseException) -> str | None:
    """The operating system's error text among the causes of ``error``, or None."""
    reason = None
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, ConnectionError) and cause.errno:
            reason = os.strerror(cause.errno)
        elif isinstance(cause, OSError) and cause.strerror:
            reason = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return reason


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _http_date(value: str | None) -> datetime | None:
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _message_of(error: Mapping[str, Any], inner: Any, body: str) -> str:
    """The error's text, with the upstream provider's text that a gateway may add."""
    said = next(
        (
            text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            for text in (error.get("message"), error.get("detail"), inner)
            if text and not (text is inner and isinstance(inner, Mapping))
        ),
        body,
    )
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{said}: {raw}" if isinstance(raw, str) and raw else said
