"""The configuration as it may be shown, with secrets masked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pydantic import SecretStr

from nanobot.config.keys import Table, children, follow
from nanobot.config.schema import Config, PluginChannelConfig, Section

_CREDENTIAL = re.compile(
    r"key$|token|secret|passw|pass$|pwd$|credential|cookie|auth(orization|entication)?$",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/?#@\s]*:([^/?#@\s]+)(?=@)")
_SHORTEST_SECRET = 8

_Hide: TypeAlias = Callable[[str, str], str]
"""Takes the name and text of a secret, returns the text to show instead."""


def is_credential(name: str) -> bool:
    """Whether a name that users choose (a header, a variable) suggests a secret."""
    return _CREDENTIAL.search(name) is not None


def mask(secret: str) -> str:
    """A secret's last four characters behind stars, or stars alone for a short one."""
    if not secret:
        return ""
    return f"***{secret[-4:]}" if len(secret) >= 12 else "***"


def displayed(config: Config, *, reveal: bool = False) -> dict[str, Any]:
    """The whole configuration as JSON values, as on disk; secrets masked unless ``reveal``."""
    hide: _Hide = (lambda _, text: text) if reveal else (lambda _, text: mask(text))
    shown: dict[str, Any] = _shown(config, "", hide, free=False)
    return shown


def displayed_changes(config: Config, *, reveal: bool = False) -> dict[str, Any]:
    """As ``displayed``, without the keys that have their default."""
    changed: dict[str, Any] = _difference(
        displayed(config, reveal=reveal), displayed(Config.model_validate({}), reveal=reveal)
    )
    return changed


def lookup(config: Config, names: Sequence[str], *, reveal: bool = False) -> Any:
    """The displayed value of a dotted key (its names, either spelling), None for an unknown one.

    A secret that is set is never falsy.
    """
    found = follow(names)
    value: Any = displayed(config, reveal=reveal)
    for name in found[0] if found is not None else names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def all_secrets(config: Config) -> list[str]:
    """Every configured secret, longest first.

    Keys, tokens, values of headers and variables that sound like credentials, passwords in
    addresses. Texts under eight characters are left out: masking ``test`` everywhere helps nobody.
    """
    secrets: set[str] = set()

    def collect(name: str, text: str) -> str:
        if is_credential(name):
            secrets.update((text, *text.split()[-1:]))
        return ""

    _shown(config, "", collect, free=False)
    long_enough = (each for each in secrets if len(each) >= _SHORTEST_SECRET)
    return sorted(long_enough, key=lambda text: (-len(text), text))


def _shown(value: Any, name: str, hide: _Hide, *, free: bool) -> Any:
    if isinstance(value, Section):
        shown = {
            key: _table(getattr(value, each.name), key, hide)
            if isinstance(each.node, Table)
            else _shown(getattr(value, each.name), key, hide, free=False)
            for key, each in children(type(value)).items()
        }
        for key, item in (value.model_extra or {}).items():
            shown[key] = _shown(item, key, hide, free=isinstance(value, PluginChannelConfig))
        return shown
    if isinstance(value, SecretStr):
        return hide(name, value.get_secret_value())
    if isinstance(value, dict):
        return {key: _shown(item, key, hide, free=free) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item, name, hide, free=free) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    if free and is_credential(name):
        return hide(name, text)
    return _IN_ADDRESS.sub(lambda found: _without(found, hide), text)


def _table(table: dict[str, Any], key: str, hide: _Hide) -> dict[str, Any]:
    """A map of the user's own names; headers are hidden only if their name suggests a secret."""
    free = key == "config"
    if key != "extraHeaders":
        return {name: _shown(item, name, hide, free=free) for name, item in table.items()}
    return {
        name: hide(name, item.get_secret_value())
        if is_credential(name)
        else item.get_secret_value()
        for name, item in table.items()
    }


def _without(found: re.Match[str], hide: _Hide) -> str:
    user = found.group()[: found.start(1) - found.start()]
    return user + hide("password", found.group(1))


def _difference(value: Any, default: Any) -> Any:
    """``value`` without the members that equal those of ``default``."""
    if not isinstance(value, dict) or not isinstance(default, dict):
        return value
    return {
        key: _difference(item, default.get(key))
        for key, item in value.items()
        if key not in default or item != default[key]
    }
