"""The typed frontmatter of a skill.

A field that decides whether and how a skill is used (``always``, ``os``, ``requires``, who may
invoke it, the names of its keys) breaks the skill if it cannot be read: an unreadable gate must
not count as open. Any other unreadable field is dropped with a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from nanobot.core.text import shortened
from nanobot.skills.frontmatter import (
    FALSE_WORDS,
    TRUE_WORDS,
    Frontmatter,
    Node,
    Refused,
    Scalar,
    SkillBroken,
    json_tree,
)

DESCRIPTION_MAX = 1024
"""Upper bound of characters in a description (AgentSkills standard); a longer one is cut."""

NAMESPACES = ("nanobot", "openclaw", "moltbot", "clawdbot")
"""Keys of ``metadata`` that are read; the first namespace that has a field decides it."""

_UNGATING = ("openclaw", "moltbot", "clawdbot")
_NAMESPACED = ("homepage", "emoji", "os", "requires", "primaryEnv", "skillKey", "install")
_LENIENT = frozenset(
    ("name", "homepage", "emoji", "license", "compatibility", "allowed-tools", "install")
)
"""Fields that decide nothing: what cannot be read of them is dropped with a note."""

_SYSTEMS = {"macos": "darwin", "osx": "darwin", "mac": "darwin", "windows": "win32"}
"""Common names of systems, and their values of ``sys.platform``."""

_T = TypeVar("_T")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]"
)


class _Unreadable(ValueError):
    """A field does not hold what it should; the text goes behind the field's name."""


# --- types of fields: each validator turns a node into the field's value ------------------------


def _is_absent(node: Node | None) -> bool:
    """Whether a field holds nothing: null, blanks, an empty list or an empty object."""
    return not node or (isinstance(node, Scalar) and not _text(node))


def _text(node: Node) -> str:
    if not node:
        return ""
    if not isinstance(node, Scalar):
        raise _Unreadable("expected text")
    return "" if node.is_null else _UNPRINTABLE.sub("", node.text).strip()


def _truth(node: Node) -> bool:
    word = _text(node).lower()
    if word in TRUE_WORDS or word == "1":
        return True
    if word in FALSE_WORDS or word == "0":
        return False
    raise _Unreadable(f"expected true or false, found {word!r}")


def _names(node: Node) -> tuple[str, ...]:
    """A list of names; a single name, or several separated by commas, will do."""
    if isinstance(node, list):
        parts = [_text(item) for item in node]
    elif isinstance(node, dict) and node:
        raise _Unreadable("expected a list of names")
    else:
        parts = _text(node).split(",")
    return tuple(dict.fromkeys(name for part in parts if (name := part.strip())))


def _words(node: Node) -> tuple[str, ...]:
    """A list of names, or text with blanks or commas between them (outside parentheses)."""
    if isinstance(node, Scalar):
        return tuple(re.findall(r"(?:[^\s,(]|\([^)]*\)?)+", _text(node)))
    return _names(node)


def _systems(node: Node) -> tuple[str, ...]:
    names = (name.lower() for name in _names(node))
    return tuple(dict.fromkeys(_SYSTEMS.get(name, name) for name in names))


def _variable(node: Node) -> str:
    """The name of an environment variable; of a list the first."""
    name = next(iter(_names(node)), "")
    if name and not _VARIABLE.fullmatch(name):
        raise _Unreadable(f"{name!r} is not the name of an environment variable")
    return name


def _object(node: Node | None) -> Mapping[str, Node]:
    if _is_absent(node):
        return {}
    if isinstance(node, dict):
        return node
    raise _Unreadable("expected an object")


def _objects(node: Node) -> list[Node]:
    """A list of objects; a lone object is a list of one."""
    if isinstance(node, Scalar):
        raise _Unreadable("expected a list of objects")
    return node if isinstance(node, list) else [node]


def _install_spec(node: Node) -> Mapping[str, Node]:
    return {"kind": Scalar("", plain=True), **_object(node)}


def _kind(node: Node) -> str:
    kind = _text(node)
    if kind not in set(InstallKind):
        raise _Unreadable(f"expected one of {', '.join(InstallKind)}, found {kind!r}")
    return kind


def _extract(node: Node) -> bool | None:
    return None if _text(node).lower() in ("", "auto") else _truth(node)


def _small_number(node: Node) -> int:
    text = _text(node) or "0"
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise _Unreadable(f"expected a number, found {text!r}")
    return int(text)


_Text = Annotated[str, BeforeValidator(_text)]
_Truth = Annotated[bool, BeforeValidator(_truth)]
_Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a skill needs: all of ``bins``, ``env`` and ``config``, any one of ``any_bins``."""

    bins: _Names = ()
    any_bins: Annotated[_Names, Field(alias="anyBins")] = ()
    env: _Names = ()
    config: _Names = ()


class InstallKind(StrEnum):
    """The ways a skill may name to get a program it needs."""

    BREW = "brew"
    NODE = "node"
    GO = "go"
    UV = "uv"
    DOWNLOAD = "download"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSpec:
    """One way to install what a skill needs; it is never run without the owner's consent.

    ``extract`` None: unpack if the file is an archive. ``target_dir`` empty: the default folder
    of downloaded tools.
    """

    kind: Annotated[InstallKind, BeforeValidator(_kind)]
    id: _Text = ""
    label: _Text = ""
    bins: _Names = ()
    os: _Names = ()
    formula: _Text = ""
    package: _Text = ""
    module: _Text = ""
    url: _Text = ""
    archive: _Text = ""
    extract: Annotated[bool | None, BeforeValidator(_extract)] = None
    strip_components: Annotated[
        int, BeforeValidator(_small_number), Field(alias="stripComponents")
    ] = 0
    target_dir: Annotated[_Text, Field(alias="targetDir")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The frontmatter of a skill.

    ``always``: the body belongs in every prompt. ``ungated``: eligible whatever its own gates
    say. ``command_tool``: the tool that the skill's slash command calls without the model, ""
    for none. ``key``: the name of its entry in the configuration. ``notes`` are a linter's
    remarks, none of them fatal.
    """

    name: _Text = ""
    description: _Text = ""
    homepage: _Text = ""
    emoji: _Text = ""
    license: _Text = ""
    compatibility: _Text = ""
    allowed_tools: Annotated[
        tuple[str, ...], BeforeValidator(_words), Field(alias="allowed-tools")
    ] = ()
    always: bool = False
    ungated: bool = False
    user_invocable: Annotated[_Truth, Field(alias="user-invocable")] = True
    disable_model_invocation: Annotated[_Truth, Field(alias="disable-model-invocation")] = False
    command_dispatch: Annotated[_Text, Field(alias="command-dispatch")] = ""
    command_tool: Annotated[_Text, Field(alias="command-tool")] = ""
    command_arg_mode: Annotated[_Text, Field(alias="command-arg-mode")] = ""
    os: Annotated[tuple[str, ...], BeforeValidator(_systems)] = ()
    requires: Annotated[Requirements, BeforeValidator(_object)] = Requirements()
    primary_env: Annotated[str, BeforeValidator(_variable), Field(alias="primaryEnv")] = ""
    key: Annotated[_Text, Field(alias="skillKey")] = ""
    install: Annotated[
        tuple[Annotated[InstallSpec, BeforeValidator(_install_spec)], ...],
        BeforeValidator(_objects),
    ] = ()
    notes: tuple[str, ...] = ()


_adapter = cache(lambda: TypeAdapter(Manifest))


def read_manifest(frontmatter: Frontmatter | None, folder_name: str) -> Manifest:
    """The typed frontmatter; None is a file without one, which goes by its folder's name.

    Raises SkillBroken with the first deciding field that cannot be read.
    """
    top = {} if frontmatter is None else frontmatter.values
    spaces = _namespaces(top.get("metadata"))
    fields = {key: node for key, node in top.items() if not _is_absent(node)}
    places: dict[str, str] = {}
    for key in _NAMESPACED:
        space = next((space for space, values in spaces.items() if key in values), None)
        if key != "homepage" or key not in fields:
            fields.pop(key, None)
            if space is not None:
                fields[key] = spaces[space][key]
                places[key] = f"metadata.{space}.{key}"
    always, ungated = _always(top.get("always"), spaces)
    manifest, dropped = _validated(
        {**fields, "always": always, "ungated": ungated, "notes": ()}, places
    )
    notes: list[str] = []
    if frontmatter is None:
        notes.append("there is no frontmatter")
    elif frontmatter.complaint:
        notes.append(f"not strict YAML, read line by line: {frontmatter.complaint}")
    if not manifest.name:
        notes.append("the name is missing")
    elif manifest.name != folder_name:
        notes.append(f"the name {manifest.name} is not the folder's ({folder_name})")
    description = " ".join(manifest.description.split())
    if not description:
        notes.append("the description is missing: a model cannot know when to use it")
        description = " ".join(manifest.name.split()) or folder_name
    if len(description) > DESCRIPTION_MAX:
        notes.append(f"the description is longer than {DESCRIPTION_MAX} characters")
        description = shortened(description, DESCRIPTION_MAX)
    tool = _command_tool(manifest, notes)
    return replace(manifest, description=description, command_tool=tool, notes=(*notes, *dropped))


def _validated(fields: dict[str, Any], places: Mapping[str, str]) -> tuple[Manifest, list[str]]:
    """The manifest without what is unreadable and decides nothing, and a note on each of those."""
    dropped: list[str] = []
    try:
        return _adapter().validate_python(fields), dropped
    except ValidationError as error:
        problems = error.errors(include_url=False)
    items: set[int] = set()
    for problem in problems:
        field, *inner = problem["loc"]
        where = places.get(str(field), str(field)) + "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner
        )
        reason = f"{where}: {problem['ctx']['error']}"
        if field not in _LENIENT:
            raise SkillBroken(reason)
        dropped.append(reason)
        if inner and isinstance(inner[0], int):
            items.add(inner[0])
        else:
            del fields[str(field)]
    if items:
        install = _objects(fields["install"])
        fields["install"] = [item for index, item in enumerate(install) if index not in items]
    return _adapter().validate_python(fields), dropped


def _namespaces(metadata: Node | None) -> dict[str, dict[str, Node]]:
    """The objects of ``metadata`` under ``NAMESPACES``, in that order, without absent fields."""
    if isinstance(metadata, Scalar) and not _is_absent(metadata):
        try:
            metadata = json_tree(metadata.text)
        except Refused as refusal:
            raise SkillBroken("metadata: neither a mapping nor JSON that can be read") from refusal
    spaces: dict[str, dict[str, Node]] = {}
    for name in NAMESPACES:
        values = _at("metadata", _object, metadata).get(name)
        if not _is_absent(values):
            items = _at(f"metadata.{name}", _object, values).items()
            spaces[name] = {key: node for key, node in items if not _is_absent(node)}
    return spaces


def _at(where: str, read_value: Callable[[Any], _T], node: Node | None) -> _T:
    """A value that is needed before the manifest is validated; raises SkillBroken."""
    try:
        return read_value(node)
    except _Unreadable as error:
        raise SkillBroken(f"{where}: {error}") from error


def _always(on_top: Node | None, spaces: dict[str, dict[str, Node]]) -> tuple[bool, bool]:
    """Whether the body is always in context, and whether the gates do not count.

    Under nanobot and openclaw ``always`` says both ways if the body belongs in every prompt;
    under openclaw, moltbot and clawdbot a true one makes the skill eligible regardless. Where a
    namespace has the field, the top level does not count, except that a true one under moltbot
    or clawdbot says nothing about the body.
    """
    said = {
        space: _at(f"metadata.{space}.always", _truth, values["always"])
        for space, values in spaces.items()
        if "always" in values
    }
    top = not _is_absent(on_top) and _at("always", _truth, on_top)
    ungated = next((said[space] for space in _UNGATING if space in said), False)
    if not said:
        return top, ungated
    space, value = next(iter(said.items()))
    return (top if value and space in ("moltbot", "clawdbot") else value), ungated


def _command_tool(manifest: Manifest, notes: list[str]) -> str:
    """The tool of ``command-dispatch: tool``; "" where the model gets the command."""
    if manifest.command_dispatch.lower() not in ("", "tool"):
        notes.append(f"command-dispatch: {manifest.command_dispatch} is not known, only tool is")
    if manifest.command_dispatch.lower() != "tool":
        return ""
    if not manifest.command_tool:
        raise SkillBroken("command-dispatch: tool needs command-tool, the tool's name")
    if manifest.command_arg_mode.lower() not in ("", "raw"):
        notes.append(f"command-arg-mode: {manifest.command_arg_mode} is not known, raw is used")
    return manifest.command_tool
