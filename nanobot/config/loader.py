"""From the file and the environment to a Config, or to a ConfigError that lists every problem."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from nanobot.config import compat, jsonc
from nanobot.config.keys import dotted
from nanobot.config.reading import Installed, Reading
from nanobot.config.schema import Config
from nanobot.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid configuration and where it came from.

    ``exists``: whether there was a file. ``warnings``: lines for the operator. ``overrides``: the
    environment variable that set a key, by dotted key. ``gateway_problems``: lines that keep the
    gateway, and nothing else, from starting.
    """

    config: Config
    path: Path
    exists: bool
    warnings: tuple[str, ...]
    overrides: Mapping[str, str]
    gateway_problems: tuple[str, ...] = ()

    @property
    def workspace(self) -> Path:
        """The workspace; a relative one is in the home, which is where the file is."""
        return self.path.parent / (self.config.agents.defaults.workspace or "workspace")


def load_config(
    path: Path,
    environ: Mapping[str, str],
    *,
    plugin_channels: Installed = compat.installed_channels,
) -> LoadedConfig:
    """Read the file (none: defaults), lay the environment's overrides over it, check all.

    Raises ConfigError with a line for each problem, which names the file and line (or the
    variable), the key, what was expected and what was found (never a secret), or the valid key
    nearest to an unknown one.
    """
    text = read_text(path)
    if text is None:
        loaded = parse_config("{}", path, environ, plugin_channels=plugin_channels)
        return replace(loaded, exists=False)
    loaded = parse_config(text, path, environ, plugin_channels=plugin_channels)
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return loaded
    warning = f"{path}: others on this machine may read it (mode {mode:04o}): chmod 600 {path}"
    return replace(loaded, warnings=(*loaded.warnings, warning))


def read_text(path: Path) -> str | None:
    """The file as text (UTF-8, with or without a BOM), None where there is none.

    Raises ConfigError where there is something that cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigError(f"{path}: a link that leads to no file") from None
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8; byte {error.start} is not") from None


def parse_config(
    text: str,
    path: Path,
    environ: Mapping[str, str],
    *,
    plugin_channels: Installed = compat.installed_channels,
    overlay: bool = True,
    tolerate_unset: bool = False,
) -> LoadedConfig:
    """What ``load_config`` makes of a text; ``path`` is only named.

    Without ``overlay`` the environment overrides nothing. With ``tolerate_unset`` a key that
    needs an unset variable keeps its default, and a warning says so.
    """
    document = parse_document(text, path)
    reading = Reading(path, document, environ, plugin_channels, tolerate_unset=tolerate_unset)
    tree = reading.tree(overlay=overlay)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        reading.blame(error)
        raise ConfigError("\n".join(reading.problems())) from None
    reading.check_unread(config)
    if problems := reading.problems():
        raise ConfigError("\n".join(problems))
    overrides = {dotted(key): variable for key, variable in reading.origins.items()}
    return LoadedConfig(
        config,
        path,
        True,
        tuple(reading.warnings()),
        overrides,
        tuple(reading.gateway_problems()),
    )


def parse_document(text: str, path: Path) -> jsonc.Document:
    """The text as JSON with comments; ConfigError names ``path``, line and column."""
    try:
        return jsonc.parse(text)
    except jsonc.JsonError as error:
        raise ConfigError(f"{path}:{error.line}:{error.column}: not JSON: {error}") from None
