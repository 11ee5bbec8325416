"""What a skill says of itself: the typed reading of its frontmatter.

Whatever decides if a skill may be used, and how (``always``, ``os``, ``requires``, who may invoke
it, the names its keys go by), must be right or the skill is broken: a gate that cannot be read
must not stand open. Everything else is taken as far as it makes sense, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypedDict, TypeVar

from nanobot.core.text import shortened
from nanobot.skills.eligibility import InstallKind, InstallSpec, Requirements, SkillBroken
from nanobot.skills.frontmatter import (
    FALSE_WORDS,
    TRUE_WORDS,
    Frontmatter,
    Node,
    Refused,
    Scalar,
    json_tree,
)

DESCRIPTION_MAX = 1024
"""The most characters a description has (AgentSkills standard); more is cut, with a note."""

NAMESPACES = ("nanobot", "openclaw", "moltbot", "clawdbot")
"""The keys of ``metadata`` that speak to us; the first that has a field decides it."""

_SYSTEMS = {"macos": "darwin", "osx": "darwin", "mac": "darwin", "windows": "win32"}
"""What people call a system, and what ``sys.platform`` calls it."""

_UNGATING = ("openclaw", "moltbot", "clawdbot")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]"
)
_T = TypeVar("_T")


class Manifest(TypedDict):
    """The fields of a Skill that its frontmatter decides."""

    declared_name: str
    description: str
    homepage: str
    emoji: str
    license: str
    compatibility: str
    allowed_tools: tuple[str, ...]
    always: bool
    ungated: bool
    user_invocable: bool
    model_invocable: bool
    command_tool: str
    os: tuple[str, ...]
    requires: Requirements
    primary_env: str
    key: str
    install: tuple[InstallSpec, ...]
    notes: tuple[str, ...]


def read_manifest(frontmatter: Frontmatter | None, folder_name: str) -> Manifest:
    """What the frontmatter says; None is a file without one, for which its folder's name stands.

    Raises SkillBroken with the first field that decides something and cannot be read.
    """
    notes: list[str] = []
    top = {} if frontmatter is None else frontmatter.values
    if frontmatter is None:
        notes.append("there is no frontmatter")
    elif frontmatter.complaint:
        notes.append(f"not strict YAML, read line by line: {frontmatter.complaint}")

    def leniently(read: Callable[[Node | None, str], _T], node: Node | None, where: str) -> _T:
        """A field that decides nothing: what cannot be read is left out, with a note."""
        try:
            return read(node, where)
        except SkillBroken as reason:
            notes.append(str(reason))
            return read(None, where)

    spaces = _namespaces(top.get("metadata"))

    def field(name: str) -> tuple[Node | None, str]:
        """The first namespace's value of that name, and where it stands."""
        for space, values in spaces.items():
            if name in values:
                return values[name], f"metadata.{space}.{name}"
        return None, name

    name = leniently(_text, top.get("name"), "name")
    if not name:
        notes.append("the name is missing")
    elif name != folder_name:
        notes.append(f"the name {name} is not the folder's ({folder_name})")
    description = " ".join(_text(top.get("description"), "description").split())
    if not description:
        notes.append("the description is missing: a model cannot know when to use it")
        description = " ".join(name.split()) or folder_name
    if len(description) > DESCRIPTION_MAX:
        notes.append(f"the description is longer than {DESCRIPTION_MAX} characters")
        description = shortened(description, DESCRIPTION_MAX)
    homepage = leniently(_text, top.get("homepage"), "homepage")
    always, ungated = _always(top, spaces)
    return Manifest(
        declared_name=name,
        description=description,
        homepage=homepage or leniently(_text, *field("homepage")),
        emoji=leniently(_text, *field("emoji")),
        license=leniently(_text, top.get("license"), "license"),
        compatibility=leniently(_text, top.get("compatibility"), "compatibility"),
        allowed_tools=leniently(_words, top.get("allowed-tools"), "allowed-tools"),
        always=always,
        ungated=ungated,
        user_invocable=_truth(top.get("user-invocable"), "user-invocable", default=True),
        model_invocable=not _truth(
            top.get("disable-model-invocation"), "disable-model-invocation", default=False
        ),
        command_tool=_command_tool(top, notes),
        os=tuple(
            dict.fromkeys(_SYSTEMS.get(name.lower(), name.lower()) for name in _names(*field("os")))
        ),
        requires=_requirements(*field("requires")),
        primary_env=_variable(*field("primaryEnv")),
        key=_text(*field("skillKey")),
        install=tuple(
            spec
            for item, where in leniently(_items, *field("install"))
            if (spec := leniently(_install_spec, item, where)) is not None
        ),
        notes=tuple(notes),
    )


def _namespaces(metadata: Node | None) -> dict[str, dict[str, Node]]:
    """Those objects of ``metadata`` that speak to us, in order of precedence, without nulls."""
    if isinstance(metadata, Scalar) and not _is_absent(metadata):
        try:
            metadata = json_tree(metadata.text)
        except Refused as refusal:
            raise SkillBroken("metadata: neither a mapping nor JSON that can be read") from refusal
    spaces: dict[str, dict[str, Node]] = {}
    for name in NAMESPACES:
        values = _object(metadata, "metadata").get(name)
        if not _is_absent(values):
            items = _object(values, f"metadata.{name}").items()
            spaces[name] = {key: node for key, node in items if not _is_absent(node)}
    return spaces


def _always(top: dict[str, Node], spaces: dict[str, dict[str, Node]]) -> tuple[bool, bool]:
    """Whether the body is always in context, and whether the gates do not count.

    Under nanobot and openclaw the word says both ways if the body belongs in every prompt;
    under openclaw, moltbot and clawdbot a true one says that the skill is eligible regardless.
    Where a namespace speaks, the top level does not count, except that a true one under moltbot
    or clawdbot says nothing of the body.
    """
    said = {
        space: _truth(values["always"], f"metadata.{space}.always", default=False)
        for space, values in spaces.items()
        if "always" in values
    }
    on_top = _truth(top.get("always"), "always", default=False)
    ungated = next((said[space] for space in _UNGATING if space in said), False)
    if not said:
        return on_top, ungated
    space, value = next(iter(said.items()))
    return (on_top if value and space in ("moltbot", "clawdbot") else value), ungated


def _command_tool(top: dict[str, Node], notes: list[str]) -> str:
    """The tool of ``command-dispatch: tool``; "" where the model gets the command."""
    dispatch = _text(top.get("command-dispatch"), "command-dispatch")
    tool = _text(top.get("command-tool"), "command-tool")
    mode = _text(top.get("command-arg-mode"), "command-arg-mode")
    if dispatch.lower() not in ("", "tool"):
        notes.append(f"command-dispatch: {dispatch} is not known, only tool is")
    if dispatch.lower() != "tool":
        return ""
    if not tool:
        raise SkillBroken("command-dispatch: tool needs command-tool, the tool's name")
    if mode.lower() not in ("", "raw"):
        notes.append(f"command-arg-mode: {mode} is not known, raw is used")
    return tool


# --- single values: each reader gives its empty value for what is absent -----------------------


def _is_absent(node: Node | None) -> bool:
    """Whether a field holds nothing: null, blanks, an empty list or an empty object."""
    return not node or (isinstance(node, Scalar) and (node.is_null or not node.text.strip()))


def _text(node: Node | None, where: str) -> str:
    if not node:
        return ""
    if not isinstance(node, Scalar):
        raise SkillBroken(f"{where}: expected text")
    return "" if node.is_null else _UNPRINTABLE.sub("", node.text).strip()


def _truth(node: Node | None, where: str, *, default: bool) -> bool:
    word = _text(node, where).lower()
    if not word:
        return default
    if word in TRUE_WORDS or word == "1":
        return True
    if word in FALSE_WORDS or word == "0":
        return False
    raise SkillBroken(f"{where}: expected true or false, found {word!r}")


def _names(node: Node | None, where: str) -> tuple[str, ...]:
    """A list of names; a single one, or several with commas between, do as well."""
    if isinstance(node, list):
        parts = [_text(item, where) for item in node]
    elif isinstance(node, dict) and node:
        raise SkillBroken(f"{where}: expected a list of names")
    else:
        parts = _text(node, where).split(",")
    return tuple(dict.fromkeys(name for part in parts if (name := part.strip())))


def _words(node: Node | None, where: str) -> tuple[str, ...]:
    """A list of names, or text with blanks or commas between them (outside parentheses)."""
    if isinstance(node, Scalar):
        return tuple(re.findall(r"(?:[^\s,(]|\([^)]*\)?)+", _text(node, where)))
    return _names(node, where)


def _variable(node: Node | None, where: str) -> str:
    """The name of an environment variable; of a list the first."""
    name = next(iter(_names(node, where)), "")
    if name and not _VARIABLE.fullmatch(name):
        raise SkillBroken(f"{where}: {name!r} is not the name of an environment variable")
    return name


def _object(node: Node | None, where: str) -> dict[str, Node]:
    if _is_absent(node):
        return {}
    if isinstance(node, dict):
        return node
    raise SkillBroken(f"{where}: expected an object")


def _requirements(node: Node | None, where: str) -> Requirements:
    needs = _object(node, where)
    return Requirements(
        bins=_names(needs.get("bins"), f"{where}.bins"),
        any_bins=_names(needs.get("anyBins"), f"{where}.anyBins"),
        env=_names(needs.get("env"), f"{where}.env"),
        config=_names(needs.get("config"), f"{where}.config"),
    )


def _items(node: Node | None, where: str) -> list[tuple[Node, str]]:
    """The members of a list, each with where it stands; a lone object is a list of one."""
    if isinstance(node, Scalar):
        raise SkillBroken(f"{where}: expected a list of objects")
    items = node if isinstance(node, list) else [node] if node else []
    return [(item, f"{where}[{index}]") for index, item in enumerate(items)]


def _install_spec(node: Node | None, where: str) -> InstallSpec | None:
    if node is None:
        return None
    values = _object(node, where)

    def text(key: str) -> str:
        return _text(values.get(key), f"{where}.{key}")

    if text("kind") not in set(InstallKind):
        known = ", ".join(InstallKind)
        raise SkillBroken(f"{where}.kind: expected one of {known}, found {text('kind')!r}")
    strip = text("stripComponents") or "0"
    if not re.fullmatch(r"[0-9]{1,3}", strip):
        raise SkillBroken(f"{where}.stripComponents: expected a number, found {strip!r}")
    extract = text("extract").lower()
    return InstallSpec(
        kind=InstallKind(text("kind")),
        id=text("id"),
        label=text("label"),
        bins=_names(values.get("bins"), f"{where}.bins"),
        os=_names(values.get("os"), f"{where}.os"),
        formula=text("formula"),
        package=text("package"),
        module=text("module"),
        url=text("url"),
        archive=text("archive"),
        extract=None
        if extract in ("", "auto")
        else _truth(values.get("extract"), f"{where}.extract", default=False),
        strip_components=int(strip),
        target_dir=text("targetDir"),
    )
