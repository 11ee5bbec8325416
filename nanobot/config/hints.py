"""Hints on a configuration that is valid and will still surprise its owner."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from nanobot.config.schema import Config


def config_hints(config: Config) -> list[str]:
    """One line each, with the command that mends it; a gateway's start and ``status`` show them."""
    hints: list[str] = []
    telegram = config.channels.telegram
    if telegram.enabled:
        if not telegram.token:
            hints.append(
                "channels.telegram.token is empty, so Telegram cannot be reached: "
                "nanobot config set channels.telegram.token '<token from @BotFather>'"
            )
        hints.extend(_access("channels.telegram.allowFrom", telegram.allow_from))
    for name, channel in config.channels.plugins.items():
        if channel.enabled and not channel.allow_from:
            hints.append(_nobody(f"channels.{name}.allowFrom"))
    return hints


def _access(key: str, listed: Sequence[str]) -> list[str]:
    if not listed:
        return [_nobody(key)]
    mended = [_mended(entry) for entry in listed]
    wrong = [json.dumps(entry) for entry in listed if entry != _mended(entry)]
    if not wrong:
        return []
    verb = "names nobody" if len(wrong) == 1 else "name nobody"
    return [
        f"{key}: {', '.join(wrong)} {verb}; an entry is a numeric id (safest), @name or *: "
        f"nanobot config set {key} '{json.dumps(mended)}'"
    ]


def _nobody(key: str) -> str:
    return (
        f"{key} is empty: nobody is let in; to let yourself in: "
        f"""nanobot config set {key} '["<your id>"]'"""
    )


def _mended(entry: str) -> str:
    """An entry as it would work: family files have bare names and ``id|name``."""
    if entry == "*" or re.fullmatch(r"-?\d+|@\w+", entry, re.ASCII):
        return entry
    number = re.match(r"(?:\w+:)?(-?\d+)(?:\||$)", entry.strip(), re.ASCII)
    if number:
        return number.group(1)
    name = re.sub(r"\W", "", entry, flags=re.ASCII)
    return f"@{name}" if name else "<numeric id>"
