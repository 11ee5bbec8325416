"""Masks secrets in text: the configured ones, and what has the shape of a well-known key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "…redacted…"
"""Stands for a secret; masking a masked text does not change it."""

_SHORTEST = 8
_END = r"(?![A-Za-z0-9_-])"


def _key(prefix: str, body: str, *, after: str = r"[A-Za-z0-9_-]") -> re.Pattern[str]:
    """A key that begins with the literal ``prefix``, where no character ``after`` goes before.

    The look-behind comes *after* the literal: a pattern that begins with plain characters is
    searched for ten times as fast. It also makes the search linear, since a run of key-like
    characters is tried at its beginning only.
    """
    literal = re.escape(prefix)
    return re.compile(f"{literal}(?<!{after}{literal}){body}{_END}")


# Each with the literal that must occur for the pattern to be worth trying.
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (prefix, _key(prefix, body))
    for prefix, body in (
        # OpenAI, Anthropic, OpenRouter, DeepSeek …: at least two digits, or `sk-some-css-class`
        # would be one.
        ("sk-", r"(?=(?:[A-Za-z_-]*[0-9]){2})[A-Za-z0-9_-]{20,}"),
        ("sk_live_", r"[A-Za-z0-9]{16,}"),
        ("rk_live_", r"[A-Za-z0-9]{16,}"),
        *((f"gh{kind}_", r"[A-Za-z0-9]{36,}") for kind in "pousr"),
        ("github_pat_", r"[A-Za-z0-9_]{40,}"),
        ("glpat-", r"[A-Za-z0-9_-]{20,}"),
        *((f"xox{kind}-", r"[A-Za-z0-9-]{20,}") for kind in "abprs"),
        ("xapp-", r"[A-Za-z0-9-]{20,}"),
        ("AKIA", r"[A-Z0-9]{16}"),
        ("ASIA", r"[A-Z0-9]{16}"),
        ("AIza", r"[A-Za-z0-9_-]{35}"),
        ("GOCSPX-", r"[A-Za-z0-9_-]{20,}"),
        ("ya29.", r"[A-Za-z0-9_-]{20,}"),
        ("gsk_", r"[A-Za-z0-9]{40,}"),
        ("hf_", r"[A-Za-z0-9]{34,}"),
        ("npm_", r"[A-Za-z0-9]{36}"),
        ("tvly-", r"[A-Za-z0-9-]{20,}"),
        ("AGE-SECRET-KEY-1", r"[A-Z0-9]{50,}"),
        # JSON Web Tokens (RFC 7519): both first parts are base64url of `{"`.
        ("eyJ", r"[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    )
)
# (literal, pattern): the text before the secret is kept, since it says what the secret was.
_AFTER: tuple[tuple[str, re.Pattern[str]], ...] = (
    # A Telegram bot's token; the number before the colon is the bot's public id.
    (":", re.compile(rf"(:)(?<=[0-9]{{8}}:)[A-Za-z0-9_-]{{35}}{_END}")),
    # RFC 6750; a digit in it, since "bearer something-or-other" is prose.
    (
        "earer",
        re.compile(r"(earer\s(?<=[Bb]earer\s))(?=[A-Za-z._~+/-]*[0-9])[A-Za-z0-9._~+/-]{16,}=*"),
    ),
    ("uthorization", re.compile(r"(uthorization[\"']?\s*[:=]\s*[\"']?Basic\s)[A-Za-z0-9+/]{8,}=*")),
    ("://", re.compile(r"(://[^\s:/@?#'\"]{0,64}:)[^\s:/@?#'\"]{3,256}(?=@)")),
    (
        "PRIVATE KEY",
        re.compile(
            r"(-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)"
            r"(?:\s*Proc-Type:[^\n]{0,80})?(?:\s*DEK-Info:[^\n]{0,80})?"
            r"[A-Za-z0-9+/=\s\\]*(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)?"
        ),
    ),
)


class Redactor:
    """Masks the configured secrets and well-known kinds of keys.

    Values shorter than eight characters are not masked: they occur in ordinary text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {
            form
            for secret in map(str.strip, secrets)
            if len(secret) >= _SHORTEST
            # As it is, in a URL, and in JSON.
            for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])
        }
        # The longest first: one secret may be the beginning of another.
        self._secrets = tuple(sorted(forms, key=lambda form: (-len(form), form)))

    def mask(self, text: str) -> str:
        """``text`` with every secret replaced by ``MASK``; takes time linear in its length."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        for literal, pattern in _SHAPES:
            if literal in text:
                text = pattern.sub(MASK, text)
        for literal, pattern in _AFTER:
            if literal in text:
                text = pattern.sub(rf"\1{MASK}", text)
        return text
