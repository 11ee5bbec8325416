"""One reading of a configuration: the file's tree and the environment's, and what is wrong."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pydantic import ValidationError

from nanobot.config import compat, jsonc
from nanobot.config.compat import UNREAD
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
    loose,
    nearest,
    node_at,
    value_in,
    words_of,
)
from nanobot.config.schema import ChannelsConfig, Config, PluginChannelConfig, Section

PREFIX = "NANOBOT_"
_DEEPEST = 64
_LONGEST_QUOTED = 24
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_PROTECTS_NOTHING = "nothing reads it, so it would protect nothing: take it out to start"
_TRUE = ("true", "1", "yes", "on", "y", "t")

Installed = Callable[[], Collection[str]]
"""Names the channels that installed packages bring; asked only when a name is not known."""


class _DroppedError(Exception):
    """A value is left out: what is wrong with it has been noted."""


class _Problem(NamedTuple):
    path: KeyPath
    text: str
    variable: str | None


class Reading:
    """Owns the problems and notes of one reading; ``tree`` first, then ``blame``, then the rest.

    ``path`` is only named. ``origins``: the variable that gave a value, by path. With
    ``tolerate_unset`` a value with an unset ``${VAR}`` is left out with a note.
    """

    def __init__(
        self,
        path: Path,
        document: jsonc.Document,
        environ: Mapping[str, str],
        installed: Installed,
        *,
        tolerate_unset: bool,
    ) -> None:
        self.path = path
        self.document = document
        self.environ = environ
        self.installed = installed
        self.tolerate_unset = tolerate_unset
        self.origins: dict[KeyPath, str] = {}
        self._given: dict[str, Any] = {}
        self._installed: frozenset[str] | None = None
        self._variable: str | None = None
        self._problems: list[_Problem] = []
        self._channels: list[_Problem] = []
        self._unserved: dict[KeyPath, None] = {}
        self._unset: list[str] = []

    def tree(self, *, overlay: bool) -> dict[str, Any]:
        """The configuration in camelCase, for pydantic: every section there, ``${VAR}`` replaced,
        the environment's overrides over the file's values (which are then not looked at).
        """
        if overlay:
            self._read_environment()
        tree = self._section(Config, self.document.data, ())
        merged: dict[str, Any] = _merged(tree, self._given)
        return merged

    # -------------------------------------------------------------------------- sections and values

    def _section(self, section: type[Section], value: Any, path: KeyPath) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for name, item in self._members(value, path).items():
            known = child(section, name)
            key = known.key if known is not None else name
            if key in spelled:
                self._note((*path, key), f"given twice, as {spelled[key]} and {name}")
                continue
            spelled[key] = name
            node = known.node if known is not None else self._beyond(section, path, name, item)
            if node is not None and item is not None:
                self._put(tree, key, node, item, (*path, key))
        if self._variable is None:
            # The validator of a section builds those within it; left to their default factories,
            # each would have a validator of its own built: a millisecond each at every start.
            for known in children(section).values():
                if isinstance(known.node, type) and known.key not in tree:
                    tree[known.key] = self._section(known.node, None, (*path, known.key))
        return tree

    def _members(self, value: Any, path: KeyPath) -> dict[str, Any]:
        if value is None or isinstance(value, dict):
            return value or {}
        self._note(path, f"expected an object, found {found(value)}")
        return {}

    def _put(self, tree: dict[str, Any], key: str, node: Node, item: Any, path: KeyPath) -> None:
        """Set ``tree[key]``, unless the value is overridden or cannot be read."""
        if self._variable is None and path in self.origins:
            return
        try:
            if isinstance(node, type):
                tree[key] = self._section(node, item, path)
            elif isinstance(node, Table):
                tree[key] = self._table(node, item, path)
            else:
                tree[key] = self._leaf(item, path, 0)
        except _DroppedError:
            return

    def _table(self, table: Table, value: Any, path: KeyPath) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for name, item in self._members(value, path).items():
            self._check_unicode(name, (*path, name))
            if item is not None or table.values == FREE:
                self._put(tree, name, table.values, item, (*path, name))
        return tree

    def _leaf(self, item: Any, path: KeyPath, depth: int) -> Any:
        """A value with ``${VAR}`` replaced in its texts, checked for what pydantic lets pass."""
        if depth > _DEEPEST:
            self._refuse(path[:8], f"expected at most {_DEEPEST} levels, found more")
        if isinstance(item, str):
            self._check_unicode(item, path)
            return self._expanded(item, path) if "${" in item else item
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
        if self._variable is not None:
            return text

        def replace(match: re.Match[str]) -> str:
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

        return _VARIABLE.sub(replace, text)

    # -------------------------------------------------------------------------------- unknown keys

    def _beyond(self, section: type[Section], path: KeyPath, name: str, item: Any) -> Node | None:
        """The node of a key that the schema does not name; None where it is not read."""
        here = (*path, name)
        if section is PluginChannelConfig:
            return FREE
        unserved = compat.is_unserved(path, name)
        channel = section is ChannelsConfig and isinstance(item, dict)
        on = channel and self._is_on(item)
        if section is ChannelsConfig and (on or not unserved) and self._is_installed(name):
            return PluginChannelConfig
        off = channel and "enabled" in item and not on
        if not (unserved or off or compat.says_nothing(item)):
            self._note(here, f"unknown key; {nearest(path, name)}")
            return None
        self._unserved[here] = None
        for place in compat.protecting(here, item):
            self._note(place, _PROTECTS_NOTHING)
        if on and name not in compat.ALWAYS_ON:
            text = f"expected false, found true: this nanobot does not serve the channel {name}"
            self._channels.append(_Problem((*here, "enabled"), text, self._variable))
        return None

    def check_unread(self, config: Config) -> None:
        """Note the keys of the schema that are set although nothing reads them."""
        for pattern, protecting in UNREAD.items():
            path: KeyPath = tuple(pattern.removesuffix(".<name>").split("."))
            value: Any = config
            default: Any = None
            for step in path:
                known = child(value.__class__, str(step))
                assert known is not None, pattern
                default = known.field.get_default(call_default_factory=True)
                value = getattr(value, known.name)
            given = {path: value} if value != default else {}
            if isinstance(value, dict):
                given = {(*path, name): each for name, each in value.items()}
            for place, each in given.items():
                self._unserved[place] = None
                if each in protecting:
                    self._problems.append(_Problem(place, _PROTECTS_NOTHING, self._origin(place)))

    def _is_installed(self, channel: str) -> bool:
        if self._installed is None:
            self._installed = frozenset(self.installed())
        return channel in self._installed

    def _is_on(self, channel: dict[str, Any]) -> bool:
        value = channel.get("enabled")
        if not isinstance(value, str):
            return bool(value)
        text = _VARIABLE.sub(lambda match: self.environ.get(match.group(1) or "", ""), value)
        return text.strip().lower() in _TRUE

    # --------------------------------------------------------------------------------- environment

    def _read_environment(self) -> None:
        """Read the variables that override keys, whole sections before keys within them."""
        aimed: list[tuple[KeyPath, str, Node]] = []
        for variable, text in self.environ.items():
            names = variable.removeprefix(PREFIX).split("__")
            if variable.startswith(PREFIX) and text and child_loosely(Config, names[0]) is not None:
                path, node = self._aim(names)
                aimed.append((path, variable, node))
        before: dict[KeyPath, str] = {}
        for path, variable, node in sorted(aimed, key=lambda each: (len(each[0]), each[1])):
            self._variable = variable
            if path in before:
                self._note(path, f"is set by {_escaped(before[path])} as well")
            before[path] = variable
            nested: Any = _parsed(self.environ[variable], node)
            for step in reversed(path):
                nested = {step: nested}
            given = self._section(Config, nested, ())
            self.origins.update(dict.fromkeys(_ends(given, ()), variable))
            self._given = _merged(self._given, given)
        self._variable = None

    def _aim(self, names: list[str]) -> tuple[KeyPath, Node]:
        """The path that a variable's names mean, whatever their case.

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

    # ------------------------------------------------------------------------- problems and notes

    def _note(self, path: KeyPath, text: str) -> None:
        self._problems.append(_Problem(path, text, self._variable))

    def _refuse(self, path: KeyPath, text: str) -> NoReturn:
        self._note(path, text)
        raise _DroppedError

    def blame(self, error: ValidationError) -> None:
        """Note what pydantic refused; its own texts may quote values and are not used."""
        known = {problem.path for problem in self._problems}
        for each in error.errors(include_url=False, include_context=False, include_input=False):
            path = _trimmed(each["loc"])
            if path in known:
                continue
            known.add(path)
            node = node_at(path)
            item = isinstance(path[-1], int)
            words = node.item if isinstance(node, Leaf) and item else words_of(node)
            secret = isinstance(node, Leaf) and node.is_secret
            self._variable = self._origin(path)
            source = self.document.data if self._variable is None else self._given
            value = found(value_in(source, path), secret=secret)
            self._note(path, f"expected {words}, found {value}")
        self._variable = None

    def _origin(self, path: KeyPath) -> str | None:
        """The variable that gave the value at ``path``, or one within or around it."""
        for given, variable in self.origins.items():
            shared = min(len(given), len(path))
            if given[:shared] == path[:shared]:
                return variable
        return None

    def problems(self) -> list[str]:
        """The problems, one line each: the file's in its order, then the environment's."""
        return self._lines(self._problems)

    def gateway_problems(self) -> list[str]:
        """What keeps the gateway, and nothing else, from starting: one line each."""
        return self._lines(self._channels)

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
        """What the operator should know of a configuration that is valid."""
        told = [f"the gateway does not start: {line}" for line in self.gateway_problems()]
        if self._unserved:
            keys = ", ".join(_grouped(self._unserved))
            told.insert(0, f"{self.path}: this nanobot does not serve, and ignores: {keys}")
        return [*told, *self._unset]


def _grouped(keys: Iterable[KeyPath]) -> list[str]:
    """Keys as one writes them, those of one section together: ``tools.exec.{enable, pathAppend}``.

    What single providers have is named once, as ``providers.<name>.apiType``.
    """
    groups: dict[str, dict[str, None]] = {}
    for *place, key in keys:
        in_provider = len(place) == 2 and place[0] == "providers"
        section = "providers.<name>" if in_provider else dotted(tuple(place))
        groups.setdefault(section, {})[dotted((key,))] = None
    return [
        f"{section}.{{{', '.join(names)}}}" if section and len(names) > 1 else shown
        for section, names in groups.items()
        for shown in [", ".join(f"{section}.{name}".lstrip(".") for name in names)]
    ]


def found(value: Any, *, secret: bool = False) -> str:
    """A value in the words of an error message: short ones as they are, never a secret."""
    if isinstance(value, str):
        if not value:
            return "empty text"
        harmless = len(value) <= _LONGEST_QUOTED and value.isprintable() and "@" not in value
        return (
            f'the text "{value}"' if harmless and not secret else f"text of {len(value)} characters"
        )
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    return text if not secret and len(text) <= _LONGEST_QUOTED else "a number"


def _escaped(variable: str) -> str:
    """A variable's name on one line, whatever characters it has."""
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
    """Pydantic's location without what it adds inside of a value (the alternatives of a type)."""
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
