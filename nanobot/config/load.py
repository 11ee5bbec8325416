"""Load the configuration: the file with the environment over it, validated once.

One walk over the schema reads the spellings that the file may use and replaces ``${VAR}``; pydantic
validates the result; what either refuses is told with the line of the file, or the variable.
"""

from __future__ import annotations

import json
import math
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from nanobot.config import compat, jsonc
from nanobot.config.keys import (
    FREE,
    KeyPath,
    Leaf,
    Node,
    Table,
    as_spelled,
    child,
    child_loosely,
    children,
    dotted,
    found,
    grouped,
    loose,
    nearest,
    node_at,
    value_in,
    words_of,
)
from nanobot.config.schema import ChannelsConfig, Config, PluginChannelConfig, Section
from nanobot.core.errors import ConfigError

PREFIX = "NANOBOT_"
_DEEPEST = 64
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_PROTECTS_NOTHING = "nothing reads it, so it would protect nothing: take it out to start"
_TRUE = ("true", "1", "yes", "on", "y", "t")

Installed = Callable[[], Collection[str]]
"""Names the channels that installed packages bring; called only for a name that is not known."""


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
    """Read the file (none: defaults), apply the environment's overrides, validate the result.

    Raises ConfigError with a line for each problem: the file and line (or the variable), the key,
    what was expected and what was found (never a secret), or the valid key nearest to an unknown
    one.
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

    Raises ConfigError if it cannot be read.
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
    """As ``load_config`` for a text; ``path`` serves for messages and the workspace.

    Without ``overlay`` the environment overrides nothing. With ``tolerate_unset`` a key that
    needs an unset variable keeps its default, with a warning.
    """
    document = parse_document(text, path)
    reading = _Reading(path, document, environ, plugin_channels, tolerate_unset)
    try:
        config = Config.model_validate(reading.tree(overlay=overlay))
    except ValidationError as error:
        reading.add_refused(error)
        raise ConfigError("\n".join(reading.problems())) from None
    reading.check_unread(config)
    if problems := reading.problems():
        raise ConfigError("\n".join(problems))
    return LoadedConfig(
        config,
        path,
        True,
        tuple(reading.warnings()),
        {dotted(key): variable for key, variable in reading.origins.items()},
        tuple(reading.gateway_problems()),
    )


def parse_document(text: str, path: Path) -> jsonc.Document:
    """The text as JSON with comments; ConfigError names ``path``, line and column."""
    try:
        return jsonc.parse(text)
    except jsonc.JsonError as error:
        raise ConfigError(f"{path}:{error.line}:{error.column}: not JSON: {error}") from None


class _DroppedError(Exception):
    """A value is left out; its problem is noted."""


class _Problem(NamedTuple):
    path: KeyPath
    text: str
    variable: str | None


@dataclass
class _Reading:
    """One reading of a configuration: ``tree`` first, then the checks, then problems and warnings.

    ``origins``: the environment variable that gave a value, by path. With ``tolerate_unset`` a
    value with an unset ``${VAR}`` is left out with a warning.
    """

    path: Path
    document: jsonc.Document
    environ: Mapping[str, str]
    installed: Installed
    tolerate_unset: bool
    origins: dict[KeyPath, str] = field(default_factory=dict)
    _given: dict[str, Any] = field(default_factory=dict)
    _variable: str | None = None
    _problems: list[_Problem] = field(default_factory=list)
    _gateway_problems: list[_Problem] = field(default_factory=list)
    _unserved: dict[KeyPath, None] = field(default_factory=dict)
    _unset: list[str] = field(default_factory=list)

    def tree(self, *, overlay: bool) -> dict[str, Any]:
        """The configuration in camelCase with every section, ``${VAR}`` replaced.

        The environment's overrides replace the file's values, which are then not checked.
        """
        if overlay:
            self._read_environment()
        tree = self._members(Config, self.document.data, ())
        merged: dict[str, Any] = _merged(tree, self._given)
        return merged

    def _members(self, node: type[Section] | Table, value: Any, path: KeyPath) -> dict[str, Any]:
        """The members of a section or table, by their names in camelCase."""
        if value is not None and not isinstance(value, dict):
            self._note(path, f"expected an object, found {found(value)}")
            value = None
        tree: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for name, item in (value or {}).items():
            key, below = self._child(node, name, item, path)
            here = (*path, key)
            if key in spelled:
                self._note(here, f"given twice, as {spelled[key]} and {name}")
                continue
            spelled[key] = name
            is_overridden = self._variable is None and here in self.origins
            is_default = item is None and node != Table(FREE)
            if below is None or is_overridden or is_default:
                continue
            try:
                self._check_unicode(name, here)
                if isinstance(below, Leaf):
                    tree[key] = self._leaf(item, here, 0)
                else:
                    tree[key] = self._members(below, item, here)
            except _DroppedError:
                continue
        if isinstance(node, type) and self._variable is None:
            # The validator of a section builds those within it; left to their default factories,
            # each would have a validator of its own built: a millisecond each at every start.
            for known in children(node).values():
                if isinstance(known.node, type) and known.key not in tree:
                    tree[known.key] = self._members(known.node, None, (*path, known.key))
        return tree

    def _child(
        self, node: type[Section] | Table, name: str, item: Any, path: KeyPath
    ) -> tuple[str, Node | None]:
        """The key that a member's name means, and its node; None where it is not read."""
        if isinstance(node, Table):
            return name, node.values
        known = child(node, name)
        if known is not None:
            return known.key, known.node
        return name, self._unknown(node, path, name, item)

    def _leaf(self, item: Any, path: KeyPath, depth: int) -> Any:
        """A value with ``${VAR}`` replaced in its texts, checked for what pydantic lets pass."""
        if depth > _DEEPEST:
            self._refuse(path[:8], f"expected at most {_DEEPEST} levels, found more")
        if isinstance(item, str):
            self._check_unicode(item, path)
            is_template = self._variable is None and "${" in item
            return self._expanded(item, path) if is_template else item
        if isinstance(item, float) and not math.isfinite(item):
            self._refuse(path, f"expected {words_of(node_at(path))}, found {item}")
        if isinstance(item, list):
            return [self._leaf(each, (*path, at), depth + 1) for at, each in enumerate(item)]
        if isinstance(item, dict):
            for name in item:
                self._check_unicode(name, path)
            return {name: self._leaf(each, (*path, name), depth + 1) for name, each in item.items()}
        return item

    def _check_unicode(self, text: str, path: KeyPath) -> None:
        if not text.isascii() and re.search(r"[\ud800-\udfff]", text):
            self._refuse(path, "expected Unicode text, found half a surrogate pair")

    def _expanded(self, text: str, path: KeyPath) -> str:
        def replace_one(match: re.Match[str]) -> str:
            name = match.group(1)
            if match.group() == "$${":
                return "${"
            if name is None:
                self._refuse(path, "expected ${NAME} of a variable ($${ stands for ${ itself)")
            if name not in self.environ and self.tolerate_unset:
                self._unset.append(f"{dotted(path)} needs the variable {name}, not set here")
                raise _DroppedError
            if name not in self.environ:
                self._refuse(path, f"the environment variable {name} is not set")
            return self.environ[name]

        return _VARIABLE.sub(replace_one, text)

    # -------------------------------------------------------------------------------- unknown keys

    def _unknown(self, section: type[Section], path: KeyPath, name: str, item: Any) -> Node | None:
        """The node of a key that the schema does not name; None where it is not read."""
        if section is PluginChannelConfig:
            return FREE
        here = (*path, name)
        is_unserved = compat.is_unserved(path, name)
        is_channel = section is ChannelsConfig and isinstance(item, dict)
        is_on = is_channel and self._is_on(item)
        may_be_installed = section is ChannelsConfig and (is_on or not is_unserved)
        if may_be_installed and name in self._installed_channels:
            return PluginChannelConfig
        is_off = is_channel and "enabled" in item and not is_on
        if not (is_unserved or is_off or compat.is_empty(item)):
            self._note(here, f"unknown key; {nearest(path, name)}")
            return None
        self._unserved[here] = None
        for place in compat.restrictions(here, item):
            self._note(place, _PROTECTS_NOTHING)
        if is_on and name not in compat.ALWAYS_ON:
            text = f"expected false, found true: this nanobot does not serve the channel {name}"
            self._gateway_problems.append(_Problem((*here, "enabled"), text, self._variable))
        return None

    @cached_property
    def _installed_channels(self) -> frozenset[str]:
        return frozenset(self.installed())

    def _is_on(self, channel: dict[str, Any]) -> bool:
        value = channel.get("enabled")
        if not isinstance(value, str):
            return bool(value)
        text = _VARIABLE.sub(lambda match: self.environ.get(match.group(1) or "", ""), value)
        return text.strip().lower() in _TRUE

    def check_unread(self, config: Config) -> None:
        """Note the keys of the schema that are set although nothing reads them."""
        for pattern, protecting in compat.UNREAD.items():
            path = tuple(pattern.removesuffix(".<name>").split("."))
            *sections, name = map(to_snake, path)
            section = attrgetter(".".join(sections))(config)
            value = getattr(section, name)
            if isinstance(value, dict):
                given = {(*path, key): each for key, each in value.items()}
            else:
                given = {} if value == type(section).model_fields[name].default else {path: value}
            for place, each in given.items():
                self._unserved[place] = None
                if each in protecting:
                    self._problems.append(_Problem(place, _PROTECTS_NOTHING, self._origin(place)))

    # --------------------------------------------------------------------------------- environment

    def _read_environment(self) -> None:
        """Read the variables that override keys, whole sections before keys within them."""
        aimed: list[tuple[KeyPath, str, Node]] = []
        for variable, text in self.environ.items():
            names = variable.removeprefix(PREFIX).split("__")
            if variable.startswith(PREFIX) and text and child_loosely(Config, names[0]) is not None:
                path, node = self._target(names)
                aimed.append((path, variable, node))
        before: dict[KeyPath, str] = {}
        for path, variable, node in sorted(aimed, key=lambda each: (len(each[0]), each[1])):
            self._variable = variable
            if path in before:
                self._note(path, f"is set by {_escaped(before[path])} as well")
            before[path] = variable
            nested = jsonc.nested(path, _parsed(self.environ[variable], node))
            given = self._members(Config, nested, ())
            self.origins.update(dict.fromkeys(_ends(given, ()), variable))
            self._given = _merged(self._given, given)
        self._variable = None

    def _target(self, names: list[str]) -> tuple[KeyPath, Node]:
        """The path that a variable's names mean in any case, and its node.

        A table's name is one that the file has, else taken letter for letter.
        """
        path: KeyPath = ()
        node: Node = Config
        for name in names:
            key = name
            if isinstance(node, type):
                known = child_loosely(node, name)
                key = known.key if known is not None else name.lower()
            elif isinstance(node, Table):
                table = value_in(self.document.data, path)
                names_there = table if isinstance(table, dict) else ()
                key = next((each for each in names_there if loose(each) == loose(name)), name)
            path = (*path, key)
            node = node_at(path)
        return path, node

    # ----------------------------------------------------------------------- problems and warnings

    def _note(self, path: KeyPath, text: str) -> None:
        self._problems.append(_Problem(path, text, self._variable))

    def _refuse(self, path: KeyPath, text: str) -> NoReturn:
        self._note(path, text)
        raise _DroppedError

    def add_refused(self, error: ValidationError) -> None:
        """Add what pydantic refused, by place; its own texts may quote secrets and are not used."""
        known = {problem.path for problem in self._problems}
        for each in error.errors(include_url=False, include_context=False, include_input=False):
            path = _trimmed(each["loc"])
            if path in known:
                continue
            known.add(path)
            node = node_at(path)
            words = words_of(node)
            if isinstance(node, Leaf) and isinstance(path[-1], int):
                words = node.item
            variable = self._origin(path)
            source = self.document.data if variable is None else self._given
            is_secret = isinstance(node, Leaf) and node.is_secret
            value = found(value_in(source, path), secret=is_secret)
            self._problems.append(_Problem(path, f"expected {words}, found {value}", variable))

    def _origin(self, path: KeyPath) -> str | None:
        """The variable that set the value at ``path``, or one within or around it."""
        for given, variable in self.origins.items():
            shared = min(len(given), len(path))
            if given[:shared] == path[:shared]:
                return variable
        return None

    def problems(self) -> list[str]:
        """The problems, one line each: the file's in its order, then the environment's."""
        return self._lines(self._problems)

    def gateway_problems(self) -> list[str]:
        """A line for each problem that prevents the start of the gateway alone."""
        return self._lines(self._gateway_problems)

    def _lines(self, problems: Iterable[_Problem]) -> list[str]:
        lines: list[tuple[int, str]] = []
        for problem in problems:
            key = dotted(problem.path)
            text = f"{key}: {problem.text}" if key else problem.text
            if problem.variable is not None:
                variable = _escaped(problem.variable)
                lines.append((sys.maxsize, f"{variable} in the environment: {text}"))
            else:
                line = self.document.line_of(as_spelled(self.document.data, problem.path))
                lines.append((line, f"{self.path}:{line}: {text}"))
        return [text for _, text in sorted(lines, key=lambda each: each[0])]

    def warnings(self) -> list[str]:
        """Lines for the operator about a valid configuration."""
        told = [f"the gateway does not start: {line}" for line in self.gateway_problems()]
        if self._unserved:
            keys = ", ".join(grouped(self._unserved))
            told.insert(0, f"{self.path}: this nanobot does not serve, and ignores: {keys}")
        return [*told, *self._unset]


def _escaped(variable: str) -> str:
    """A variable's name with its special characters escaped."""
    return json.dumps(variable)[1:-1]


def _parsed(text: str, node: Node) -> Any:
    """A variable's text: as it is where text is expected, else as JSON if it is any."""
    if isinstance(node, Leaf) and node.is_text:
        return text
    try:
        return jsonc.parse(text).data
    except jsonc.JsonError:
        return text


def _trimmed(loc: tuple[int | str, ...]) -> KeyPath:
    """Pydantic's location without its additions within a value (the alternatives of a type)."""
    path: KeyPath = ()
    for step in loc:
        node = node_at(path)
        if isinstance(node, Leaf):
            return (*path, step) if isinstance(step, int) and node.item else path
        path = (*path, step)
    return path


def _merged(old: Any, new: Any) -> Any:
    """``new`` over ``old``, objects key by key."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _ends(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """The paths of the values of a tree that are not objects themselves."""
    if not isinstance(value, dict):
        yield path
        return
    for key, item in value.items():
        yield from _ends(item, (*path, key))
