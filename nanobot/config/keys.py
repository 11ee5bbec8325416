"""The schema's keys as they are on disk: finding them, and the words of messages about them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from nanobot.config.schema import (
    ChannelsConfig,
    Config,
    Expected,
    PluginChannelConfig,
    Section,
)
from nanobot.core.errors import ConfigError

_LONGEST_QUOTED = 24

KeyPath: TypeAlias = tuple[str | int, ...]
"""The place of a value: names in camelCase, the user's own names unchanged, list indices."""


@dataclass(frozen=True, slots=True)
class Table:
    """A map whose names are the user's own; ``values`` is the node of each value."""

    values: Node


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value; ``words`` describe the expected values.

    ``is_text``: any text has the right type, so a text from the environment is not read as JSON.
    ``is_free``: any value of any depth is valid. ``item``: the words for an item of a list.
    """

    words: str
    is_text: bool = False
    is_secret: bool = False
    is_free: bool = False
    item: str = ""


Node: TypeAlias = type[Section] | Table | Leaf

FREE = Leaf("anything", is_free=True)


@dataclass(frozen=True, slots=True)
class Child:
    """One key of a section: ``key`` on disk, ``name`` in Python."""

    key: str
    name: str
    node: Node
    field: FieldInfo


@cache
def children(section: type[Section]) -> dict[str, Child]:
    """The keys of a section by name on disk, in the schema's order."""
    found = {}
    for name, field in section.model_fields.items():
        key = field.alias or name
        found[key] = Child(key, name, _node(field.annotation, tuple(field.metadata)), field)
    return found


def child(section: type[Section], key: str) -> Child | None:
    """The key of a section spelled in camelCase or snake_case."""
    known = children(section)
    return known.get(key) or next((each for each in known.values() if each.name == key), None)


def loose(key: str) -> str:
    """A key without case, ``_`` and ``-``, to compare spellings."""
    return key.replace("_", "").replace("-", "").lower()


def child_loosely(section: type[Section], key: str) -> Child | None:
    """The key of a section, ignoring case and underscores."""
    wanted = loose(key)
    return next((each for each in children(section).values() if loose(each.key) == wanted), None)


# ---------------------------------------------------------------------------- nodes and words


def _node(annotation: Any, metadata: tuple[Any, ...]) -> Node:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) is dict:
        return Table(_node(get_args(annotation)[1], ()))
    arms = _arms(annotation)
    items = [get_args(arm)[0] for arm in arms if get_origin(arm) is tuple]
    return Leaf(
        words=_words(annotation, metadata),
        is_text=all(_is_text(arm) for arm in arms),
        is_secret=SecretStr in arms,
        is_free=annotation is Any,
        item=_words(items[0], ()) if items else "",
    )


def _arms(annotation: Any) -> list[Any]:
    """The alternatives of a type, Annotated and None taken away."""
    if get_origin(annotation) is Annotated:
        return _arms(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [arm for each in get_args(annotation) for arm in _arms(each)]
    return [] if annotation is NoneType else [annotation]


def _is_text(arm: Any) -> bool:
    if get_origin(arm) is Literal:
        return all(isinstance(value, str) for value in get_args(arm))
    return arm not in (Any, int, float, bool) and get_origin(arm) is None


def _words(annotation: Any, metadata: Sequence[Any]) -> str:
    for entry in metadata:
        if isinstance(entry, Expected):
            return entry.words
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _words(inner, (*metadata, *more))
    if get_origin(annotation) in (Union, UnionType):
        arms = [arm for arm in get_args(annotation) if arm is not NoneType]
        return " or ".join(_words(arm, metadata) for arm in arms)
    if get_origin(annotation) is Literal:
        return _one_of([json.dumps(value) for value in get_args(annotation)])
    if get_origin(annotation) is tuple:
        return f"a list, each item {_words(get_args(annotation)[0], ())}"
    if annotation is int:
        return f"a whole number{_bounds(metadata)}"
    if annotation is float:
        return f"a number{_bounds(metadata)}"
    if annotation is bool:
        return "true or false"
    return "anything" if annotation is Any else "text"


def _bounds(metadata: Sequence[Any]) -> str:
    low = next((entry.ge for entry in metadata if hasattr(entry, "ge")), None)
    high = next((entry.le for entry in metadata if hasattr(entry, "le")), None)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return "" if low is None else f" of at least {low}"


def _one_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def words_of(node: Node) -> str:
    """The expected values of a node, in the words of an error message."""
    return node.words if isinstance(node, Leaf) else "an object"


def found(value: Any, *, secret: bool = False) -> str:
    """A value in the words of an error message: short ones verbatim, never a secret."""
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


# -------------------------------------------------------------------------------- dotted keys


def dotted(path: KeyPath) -> str:
    """A path as text: ``channels.telegram.allowFrom[1]``, unusual names in quotes."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        plain = re.fullmatch(r"[\w$*+/@-]+", step, re.ASCII)
        text += ("." if text else "") + (step if plain else json.dumps(step[:80]))
    return text


def grouped(keys: Iterable[KeyPath]) -> list[str]:
    """Keys as text, those of a section together: ``tools.exec.{enable, pathAppend}``.

    Keys of several providers appear once, as ``providers.<name>.apiType``.
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


_NAME = r'"(?:[^"\\]|\\.)*"|[^."]+'


def split(key: str) -> list[str]:
    """A dotted key as its names; a name in double quotes may hold dots. Raises ConfigError."""
    if re.fullmatch(rf"(?:{_NAME})(?:\.(?:{_NAME}))*", key) is None:
        raise ConfigError(f"{json.dumps(key[:80])}: expected a key such as agents.defaults.model")
    try:
        return [json.loads(name) if name[0] == '"' else name for name in re.findall(_NAME, key)]
    except json.JSONDecodeError:
        raise ConfigError(f"{json.dumps(key[:80])}: a name in quotes is not JSON text") from None


def follow(
    names: Sequence[str], node: Node = Config, path: KeyPath = ()
) -> tuple[KeyPath, Node] | None:
    """The path and node that names (in either spelling) lead to, None for an unknown key.

    Names of a table may hold dots: the shortest one that lets the rest be found is taken, so
    ``providers.openai.models.gpt-4.1.vision`` means the model ``gpt-4.1``.
    """
    if not names:
        return path, node
    if isinstance(node, Leaf):
        return ((*path, *names), node) if node.is_free else None
    if isinstance(node, Table):
        for end in range(1, len(names) + 1):
            found = follow(names[end:], node.values, (*path, ".".join(names[:end])))
            if found is not None:
                return found
        return None
    step = child(node, names[0])
    return None if step is None else follow(names[1:], step.node, (*path, step.key))


def node_at(path: KeyPath) -> Node:
    """The node a valid path leads to; a list's items have the list's own."""
    node: Node = Config
    for step in path:
        node = _below(node, step)
    return node


def _below(node: Node, step: str | int) -> Node:
    if isinstance(node, Leaf):
        return node
    if isinstance(node, Table):
        return node.values
    found = child(node, str(step))
    if found is not None:
        return found.node
    return PluginChannelConfig if node is ChannelsConfig else FREE


def as_spelled(data: Any, path: KeyPath) -> KeyPath:
    """``path`` with the names as ``data`` spells them, which may be snake_case."""
    node: Node = Config
    spelled: list[str | int] = []
    for step in path:
        name = step
        if isinstance(node, type) and isinstance(data, dict) and step not in data:
            known = ((each, child(node, each)) for each in data)
            name = next((each for each, to in known if to and to.key == step), step)
        node = _below(node, step)
        spelled.append(name)
        data = _item(data, name)
    return tuple(spelled)


def value_in(data: Any, path: KeyPath) -> Any:
    """The value at ``path`` in a file's data, None if it is missing."""
    for name in as_spelled(data, path):
        data = _item(data, name)
    return data


def _item(data: Any, step: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(step)
    return data[step] if isinstance(data, list) and isinstance(step, int) else None


@dataclass(frozen=True, slots=True)
class Key:
    """A key with a value; ``pattern`` has ``<name>`` for a name that the user chooses."""

    pattern: str
    child: Child


def all_keys() -> list[Key]:
    """Every key of the schema with a value, in its order; the providers' keys only once."""
    found: dict[str, Key] = {}
    for pattern, leaf in _leaves(Config, ""):
        shown = re.sub(r"^providers\.\w+", "providers.<name>", pattern)
        found.setdefault(shown, Key(shown, leaf))
    return list(found.values())


def _leaves(section: type[Section], prefix: str) -> Iterator[tuple[str, Child]]:
    for key, each in children(section).items():
        here = prefix + key
        node = each.node
        if isinstance(node, Table):
            if isinstance(node.values, Leaf):
                yield f"{here}.<name>", each
                continue
            here, node = f"{here}.<name>", node.values
        if isinstance(node, Leaf):
            yield here, each
        elif not isinstance(node, Table):
            yield from _leaves(node, f"{here}.")


def resolve(names: Sequence[str]) -> tuple[KeyPath, Node]:
    """As ``follow``, but an unknown key raises ConfigError with the nearest valid key."""
    found = follow(names)
    if found is None:
        place, wrong = beyond(names)
        raise ConfigError(f"{dotted((*place, wrong))}: unknown key; {nearest(place, wrong)}")
    return found


def beyond(names: Sequence[str]) -> tuple[KeyPath, str]:
    """The path of the known names before the first unknown one, and that name."""
    for depth in range(len(names) - 1, 0, -1):
        found = follow(names[:depth])
        if found is not None:
            return found[0], names[depth]
    return (), names[0]


def nearest(place: KeyPath, wrong: str) -> str:
    """The rest of a message about an unknown key below ``place``: the valid key nearest to it."""
    from difflib import get_close_matches

    section = node_at(place)
    if not isinstance(section, type):
        return f"{dotted(place)} is a value and has no keys"
    here = {loose(key): key for key in children(section)}
    if close := get_close_matches(loose(wrong), here, n=1, cutoff=0.6):
        return f"the nearest valid key is {dotted((*place, here[close[0]]))}"
    elsewhere: dict[str, str] = {}
    for key in all_keys():
        elsewhere.setdefault(loose(key.pattern.rsplit(".", 1)[-1]), key.pattern)
    if close := get_close_matches(loose(wrong), elsewhere, n=1, cutoff=0.8):
        return f"the nearest valid key is {elsewhere[close[0]]}"
    return f"valid here: {', '.join(children(section))}"
