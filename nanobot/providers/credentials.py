"""What a provider is sent to let us in, the key and further headers, checked beforehand."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nanobot.core.errors import ConfigError

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def checked(name: str, key: str | None, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The key and the headers of a provider without the white space around them.

    Raises ConfigError for what HTTP cannot carry (RFC 9110, 5.1 and 5.5); as a failed call it
    would be tried again and again.
    """
    key = (key or "").strip()
    if not _fits(key):
        raise ConfigError(f"providers.{name}.apiKey: a key has only printable ASCII characters")
    for header, value in headers.items():
        if not (_TOKEN.fullmatch(header) and _fits(value)):
            raise ConfigError(f"providers.{name}.extraHeaders.{header!r}: not a valid HTTP header")
    return key, {header: value.strip() for header, value in headers.items()}


def _fits(value: str) -> bool:
    return value.isascii() and value.isprintable()
