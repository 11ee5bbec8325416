"""Changes of the config file: validated as a whole, written atomically after a backup."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
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
from nanobot.config.load import LoadedConfig, parse_config, parse_document, read_text
from nanobot.core.errors import ConfigError, StoreUnavailable
from nanobot.core.ports import Clock
from nanobot.store.files import write_atomic

KEPT_BACKUPS = 5


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Change:
    """The keys set (as on disk), the backup of the former file, and warnings for the operator."""

    keys: tuple[str, ...]
    backup: Path | None
    warnings: tuple[str, ...]


def set_values(
    path: Path,
    changes: Sequence[tuple[str, str]],
    environ: Mapping[str, str],
    *,
    clock: Clock = _now,
) -> Change:
    """Set dotted keys (either spelling) in the file, which is created if there is none.

    A raw value is JSON where that fits the key, else text. The result must be valid as a whole
    (variables that ``${VAR}`` needs may be unset here: a service has its own); comments, order and
    spelling of everything else stay. Raises ConfigError and leaves the file alone, or
    StoreUnavailable if it cannot be written.
    """
    check = partial(parse_config, path=path, environ=environ, tolerate_unset=True)
    before = read_text(path)
    text = "{}\n" if before is None else before
    keys: list[str] = []
    for key, raw in changes:
        target, node = _target(split(key))
        text = _with(text, path, target, node, raw, partial(check, overlay=False))
        keys.append(dotted(target))
    warnings = [*check(text, overlay=False).warnings]
    with suppress(ConfigError):  # then the environment alone is wrong: the next start reports it
        warnings += [
            f"{variable} in the environment overrides {key}"
            for key, variable in check(text).overrides.items()
            if any(key == each or key.startswith(f"{each}.") for each in keys)
        ]
    backup = _replace(path, text, clock) if text != before else None
    return Change(tuple(keys), backup, tuple(warnings))


def _target(names: Sequence[str]) -> tuple[KeyPath, Node]:
    """What a key means: one of ours, else a compatible program's or an installed channel's."""
    if follow(names) is None:
        place, wrong = beyond(names)
        is_channel = place == ("channels",) and wrong in compat.installed_channels()
        if is_channel or compat.is_unserved(place, wrong):
            return tuple(names), FREE
    return resolve(names)


def _with(
    text: str,
    path: Path,
    target: KeyPath,
    node: Node,
    raw: str,
    check: Callable[[str], LoadedConfig],
) -> str:
    """The text with the key set to what ``raw`` means; ConfigError if no meaning is valid."""
    values: list[Any] = [raw]
    with suppress(jsonc.JsonError):
        values.insert(0, jsonc.parse(raw).data)
    document = parse_document(text, path)
    names = [str(name) for name in as_spelled(document.data, target)]
    errors: list[ConfigError] = []
    for value in values:
        try:
            changed = document.with_value(names, value)
        except ValueError:
            raise ConfigError(f"{path}: {dotted(target)} is inside of what is no object") from None
        try:
            check(changed)
        except ConfigError as error:
            errors.append(error)
        else:
            return changed
    raise errors[-1 if isinstance(node, Leaf) and node.is_text else 0]


def _replace(path: Path, text: str, clock: Clock) -> Path | None:
    """Write the file (0600) atomically after a backup of the former one, which is returned.

    The last five backups are kept. A link stays a link. Raises StoreUnavailable.
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
        ours = re.compile(re.escape(path.name) + r"\.bak-\d{8}T\d{12}Z")
        backups = sorted(each for each in path.parent.iterdir() if ours.fullmatch(each.name))
        for old in backups[:-KEPT_BACKUPS]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{path}: cannot be written: {error.strerror}") from error
    return backup
