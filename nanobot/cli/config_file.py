"""Changing the config file: checked as a whole, with a backup, atomically, text kept as it was."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nanobot.config import compat, jsonc
from nanobot.config.keys import (
    FREE,
    KeyPath,
    Leaf,
    Node,
    as_spelled,
    beyond,
    dotted,
    follow,
    resolve,
    split,
)
from nanobot.config.load import Installed, parse_config, parse_document, read_text
from nanobot.core.errors import ConfigError, StoreUnavailable
from nanobot.core.ports import Clock
from nanobot.store.files import write_atomic

KEPT_BACKUPS = 5


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Change:
    """What was done: the keys set (as on disk), the copy of the former file, lines to say."""

    keys: tuple[str, ...]
    backup: Path | None
    warnings: tuple[str, ...]


def set_value(
    path: Path,
    key: str,
    raw: str,
    environ: Mapping[str, str],
    *,
    plugin_channels: Installed = compat.installed_channels,
    clock: Clock = _now,
) -> Change:
    """Set one dotted key; see ``set_values``."""
    return set_values(path, [(key, raw)], environ, plugin_channels=plugin_channels, clock=clock)


def set_values(
    path: Path,
    changes: Sequence[tuple[str, str]],
    environ: Mapping[str, str],
    *,
    plugin_channels: Installed = compat.installed_channels,
    clock: Clock = _now,
) -> Change:
    """Set dotted keys (either spelling) in the file, which is made if there is none.

    A raw value is taken as JSON where that fits the key, else as text. The result must be valid as
    a whole (variables that ``${VAR}`` needs may be unset here: a service has its own); comments,
    order and spelling of everything else stay. Raises ConfigError and leaves the file alone, or
    StoreUnavailable where it cannot be written.
    """
    before = read_text(path)
    text = "{}\n" if before is None else before
    keys: list[str] = []
    for key, raw in changes:
        target, node = _target(split(key), plugin_channels)
        text = _with(text, path, target, node, raw, environ, plugin_channels)
        keys.append(dotted(target))
    loaded = parse_config(
        text, path, environ, plugin_channels=plugin_channels, overlay=False, tolerate_unset=True
    )
    backup = replace_config(path, text, clock=clock) if text != before else None
    overridden = _overridden(keys, text, path, environ, plugin_channels)
    return Change(tuple(keys), backup, (*loaded.warnings, *overridden))


def replace_config(path: Path, text: str, *, clock: Clock = _now) -> Path | None:
    """Write the file (0600) in one step, after a copy of the former one, which is returned.

    The last five copies are kept. A link stays a link. Raises StoreUnavailable.
    """
    target = Path(os.path.realpath(path))
    backup = None
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if target.exists():
            stamp = clock().strftime("%Y%m%dT%H%M%S%fZ")
            backup = path.with_name(f"{path.name}.bak-{stamp}")
            write_atomic(backup, target.read_bytes())
        write_atomic(target, text.encode())
        for old in _backups(path)[:-KEPT_BACKUPS]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{path}: cannot be written: {error.strerror}") from error
    return backup


def _backups(path: Path) -> list[Path]:
    """Our copies of the file, oldest first."""
    ours = re.compile(re.escape(path.name) + r"\.bak-\d{8}T\d{12}Z")
    return sorted(each for each in path.parent.iterdir() if ours.fullmatch(each.name))


def _target(names: Sequence[str], installed: Installed) -> tuple[KeyPath, Node]:
    """What a key means: one of ours, else one of the family's or of an installed channel's."""
    if follow(names) is None:
        place, wrong = beyond(names)
        if compat.is_unserved(place, wrong) or (place == ("channels",) and wrong in installed()):
            return tuple(names), FREE
    return resolve(names)


def _with(
    text: str,
    path: Path,
    target: KeyPath,
    node: Node,
    raw: str,
    environ: Mapping[str, str],
    installed: Installed,
) -> str:
    """The text with the key set to what ``raw`` means; ConfigError if it can mean nothing valid."""
    values: list[Any] = [raw]
    with suppress(jsonc.JsonError):
        values.insert(0, jsonc.parse(raw).data)
    errors: list[ConfigError] = []
    for value in values:
        document = parse_document(text, path)
        try:
            changed = document.with_value(
                [str(name) for name in as_spelled(document.data, target)], value
            )
        except ValueError:
            raise ConfigError(f"{path}: {dotted(target)} is inside of what is no object") from None
        try:
            parse_config(
                changed,
                path,
                environ,
                plugin_channels=installed,
                overlay=False,
                tolerate_unset=True,
            )
        except ConfigError as error:
            errors.append(error)
        else:
            return changed
    raise errors[-1 if isinstance(node, Leaf) and node.is_text else 0]


def _overridden(
    keys: Sequence[str], text: str, path: Path, environ: Mapping[str, str], installed: Installed
) -> list[str]:
    """A line for each key set whose value the environment overrides all the same."""
    try:
        loaded = parse_config(text, path, environ, plugin_channels=installed, tolerate_unset=True)
    except ConfigError:  # only the environment is wrong here: the next start says so
        return []
    return [
        f"{variable} in the environment overrides {key}"
        for key, variable in loaded.overrides.items()
        if any(key == each or key.startswith(f"{each}.") for each in keys)
    ]
