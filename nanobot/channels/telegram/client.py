"""Raw Bot API calls over one connection pool; the only module that imports python-telegram-bot.

It does not use the library's error classes, which go by the error's text and do not tell whether
the request was sent, nor its typed methods, which fail on one malformed object in an answer.
Importing this module takes a few hundred milliseconds: do it off the event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
from telegram import Bot
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

from nanobot.channels.telegram.connections import (
    PUBLIC_SERVER,
    CallFailed,
    Limits,
    NoAnswer,
    NotSent,
    PoolFull,
    Refusal,
)
from nanobot.config.schema import TelegramConfig
from nanobot.core.text import one_line

_KEEP_ALIVE_S = 30.0
_LONGEST_WAIT_S = 24 * 3600.0
_NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.LocalProtocolError,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)

# At INFO httpx logs URLs, at DEBUG the library does: both hold the token.
for _name in ("httpx", "httpcore", "telegram"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class Client:
    """A pool of at most ``connections`` to the configured Bot API server."""

    def __init__(
        self, config: TelegramConfig, limits: Limits, verify: ssl.SSLContext, connections: int
    ) -> None:
        token = config.token.get_secret_value()
        root = (config.api_base or PUBLIC_SERVER).rstrip("/")
        password = urlsplit(config.proxy).password if config.proxy else None
        self._secrets = (token, token.partition(":")[2], password or "")
        self._host = urlsplit(root).hostname or root
        self._limits = limits
        self._request = _Request(
            connect_timeout=limits.connect_s,
            pool_timeout=limits.free_connection_s,
            proxy=config.proxy,
            httpx_kwargs={
                "verify": verify,
                "limits": httpx.Limits(
                    max_connections=connections,
                    max_keepalive_connections=connections,
                    keepalive_expiry=_KEEP_ALIVE_S,
                ),
            },
        )
        self._bot = _RawBot(
            token,
            base_url=lambda token: f"{root}/bot{token}",
            base_file_url=lambda token: f"{root}/file/bot{token}",
            request=self._request,
            get_updates_request=self._request,
        )

    async def call(self, method: str, params: Mapping[str, Any], *, limit_s: float) -> Any:
        """The ``result`` of a Bot API method; raises CallFailed, ``limit_s`` at the latest."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._bot.do_api_request(
                    method, dict(params), read_timeout=limit_s, write_timeout=limit_s
                )
        except TimeoutError as error:
            raise NoAnswer(f"{self._host} did not answer within {limit_s:g} s") from error
        except TelegramError as error:
            raise self._classified(error) from error

    async def aclose(self) -> None:
        """Close all connections; calls under way fail."""
        await self._request.shutdown()

    def _classified(self, error: TelegramError) -> CallFailed:
        match error:
            case _Refused():
                return Refusal(error.code, self._told(error.description), after=error.after)
            case _Interposed():
                return NotSent(f"{self._host} is no Bot API server: {self._told(error.message)}")
        match error.__cause__:
            case httpx.PoolTimeout():
                return PoolFull(f"no connection to {self._host} became free")
            case httpx.ConnectTimeout():
                return NotSent(f"no connection to {self._host} within {self._limits.connect_s:g} s")
            case httpx.TransportError() as cause if isinstance(cause, _NEVER_SENT):
                return NotSent(f"no connection to {self._host}: {self._told(_reason(cause))}")
            case httpx.TransportError() as cause:
                reason = self._told(_reason(cause))
                return NoAnswer(f"the connection to {self._host} broke: {reason}")
        return NoAnswer(f"{self._host}: {self._told(error.message)}")

    def _told(self, text: str) -> str:
        for secret in self._secrets:
            if secret:
                text = text.replace(secret, "<secret>")
        return one_line(text, 300)


class _Refused(TelegramError):
    """The Bot API answered with an error."""

    def __init__(self, code: int, description: str, after: float | None) -> None:
        # The base class changes the text: it takes prefixes off and case away.
        super().__init__(description)
        self.code = code
        self.description = description
        self.after = after


class _Interposed(TelegramError):
    """Something that is no Bot API server answered: a captive portal, a proxy, another site."""


class _RawBot(Bot):
    """A bot that makes raw calls without a warning that the library has a method for them."""

    @classmethod
    def _warn(cls, *_: Any, **__: Any) -> None:
        return


class _Request(HTTPXRequest):
    """Raises errors with status and body, and reads only answers that have a result."""

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        code, payload = await super().do_request(*args, **kwargs)
        if not httpx.codes.is_success(code):
            raise _refusal(code, payload)
        return code, payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        document = _document(payload)
        if "result" not in document:
            raise TelegramError("an answer that is not of the Bot API")
        return document


def _refusal(code: int, payload: bytes) -> TelegramError:
    document = _document(payload)
    if document.get("ok") is not False:
        phrase = f"HTTP {code} {httpx.codes.get_reason_phrase(code)}".rstrip()
        # Telegram's own front end answers 502 in HTML, possibly after the method was carried out.
        return _Refused(code, phrase, None) if code >= 500 else _Interposed(phrase)
    description = document.get("description")
    parameters = document.get("parameters")
    after = parameters.get("retry_after") if isinstance(parameters, dict) else None
    return _Refused(
        code,
        description if isinstance(description, str) else f"HTTP {code}",
        min(float(after), _LONGEST_WAIT_S) if isinstance(after, int | float) else None,
    )


def _document(payload: bytes) -> dict[str, Any]:
    """The JSON object in an answer; empty when there is none."""
    try:
        document = json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _reason(error: BaseException) -> str:
    """The operating system's text for ``error``, from the chain of its causes."""
    reason = str(error) or type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            # asyncio's own words for a refused connection are only the address; names that cannot
            # be resolved have negative numbers.
            reason = os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return reason
