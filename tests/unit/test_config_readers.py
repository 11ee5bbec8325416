"""Every key of the schema is read by the program, or is listed as one that nothing reads."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import nanobot
from nanobot.config import schema
from nanobot.config.compat import UNREAD
from nanobot.config.keys import Table, children
from nanobot.config.schema import ChannelsConfig, Config, Section

SECTIONS = {
    name: kind
    for name, kind in inspect.getmembers(schema, inspect.isclass)
    if issubclass(kind, Section)
}
NOT_READERS = ("schema.py", "show.py", "keys.py")
"""Modules of the config that handle every key alike, or only say something of it."""

Kind: TypeAlias = type[Section] | None


def section_of(annotation: ast.expr | None) -> Kind:
    """The section that an annotation names, also as ``X | None``."""
    names = ast.unparse(annotation).removesuffix(" | None") if annotation else ""
    return SECTIONS.get(names)


def below(section: Kind, name: str) -> Kind:
    """The section that a field is, or of which it is a table."""
    if section is ChannelsConfig and name == "plugins":
        return schema.PluginChannelConfig
    for each in children(section).values() if section else ():
        node = each.node.values if isinstance(each.node, Table) else each.node
        if each.name == name and isinstance(node, type):
            return node
    return None


class Readers(ast.NodeVisitor):
    """Collects the fields that modules read, by following names that hold sections.

    A section and a table of sections count alike: ``entries["a"].env`` reads what
    ``entry.env`` reads. ``declared`` are attributes and functions that are annotated as one.
    """

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        self.reads: set[tuple[type[Section], str]] = set()
        self._declared: dict[str, type[Section]] = {}
        self._scopes: list[dict[str, type[Section]]] = [{}]
        modules = list(modules)
        for node in (each for module in modules for each in ast.walk(module)):
            match node:
                case ast.AnnAssign(ast.Name(name), annotation):
                    self._declare(name, annotation)
                case ast.FunctionDef(name, _, _, _, annotation):
                    self._declare(name, annotation)
        for module in modules:
            self._scopes = [{}]
            self.visit(module)

    def _declare(self, name: str, annotation: ast.expr | None) -> None:
        if section := section_of(annotation):
            self._declared[name] = section

    def _section(self, node: ast.expr) -> Kind:
        match node:
            case ast.Name(name):
                return self._known(name)
            case ast.Attribute(ast.Name("self"), name):
                return self._known(name) or self._declared.get(name)
            case ast.Attribute(owner, name):
                section = self._section(owner)
                return below(section, name) if section else self._declared.get(name)
            case ast.Call(ast.Attribute(owner, "get" | "items" | "values")) | ast.Subscript(owner):
                return self._section(owner)
            case ast.Call(ast.Name("getattr"), [owner, *_]):
                is_providers = self._section(owner) is schema.ProvidersConfig
                return schema.ProviderConfig if is_providers else None
            case ast.Call(ast.Name(name) | ast.Attribute(_, name)):
                return self._declared.get(name)
        return None

    def _known(self, name: str) -> Kind:
        found = [scope[name] for scope in self._scopes if name in scope]
        return found[-1] if found else None

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Tuple(names), ast.Tuple(values) if len(names) == len(values):
                for name, each in zip(names, values, strict=True):
                    self._bind(name, each)
            case ast.Tuple([_, name]), ast.Call(ast.Attribute(_, "items")):
                self._bind(name, value.func.value)  # type: ignore[attr-defined]
            case ((ast.Name(name) | ast.Attribute(ast.Name("self"), name)), _):
                if section := self._section(value):
                    scope = self._scopes[-1 if isinstance(target, ast.Name) else 0]
                    scope[name] = section

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                arguments = (*node.args.args, *node.args.kwonlyargs)
                sections = {each.arg: section_of(each.annotation) for each in arguments}
                self._scopes.append({name: kind for name, kind in sections.items() if kind})
                self.generic_visit(node)
                self._scopes.pop()
                return
            case ast.Assign(targets, value):
                for target in targets:
                    self._bind(target, value)
            case ast.For(target, over):
                self._bind(target, over)
            case ast.DictComp() | ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                for each in node.generators:
                    self._bind(each.target, each.iter)
            case ast.Attribute(owner, name) if section := self._section(owner):
                self.reads.add((section, name))
        self.generic_visit(node)


def keys_of(section: type[Section], place: str = "") -> Iterator[tuple[str, type[Section], str]]:
    """Each key that has a value: its name on disk, its section and its name in Python."""
    for key, each in children(section).items():
        is_table = isinstance(each.node, Table)
        node = each.node.values if isinstance(each.node, Table) else each.node
        here = f"{place}{key}{'.<name>' if is_table else ''}"
        if isinstance(node, type):
            yield from keys_of(node, f"{here}.")
        else:
            yield here, section, each.name


def without_reader(sources: Iterable[str]) -> set[str]:
    readers = Readers(ast.parse(source) for source in sources)
    return {key for key, *read in keys_of(Config) if tuple(read) not in readers.reads}


def test_every_key_has_a_reader_or_is_listed_as_unread() -> None:
    root = Path(nanobot.__file__).parent
    files = [file for file in root.rglob("*.py") if file.name not in NOT_READERS]

    unread = without_reader(file.read_text("utf-8") for file in files)

    assert unread == set(UNREAD)


def test_a_key_read_under_another_sections_name_is_not_read() -> None:
    source = "def look(config: Config, url: str) -> None:\n    config.gateway.host; url.port"

    unread = without_reader([source])

    assert "gateway.host" not in unread
    assert "gateway.port" in unread
