"""The installers a skill names for the programs it needs: which one is offered, as a command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanobot.skills.manifest import InstallKind, InstallSpec
from nanobot.skills.reader import Skill

_NODE = {
    "npm": ("npm", "install", "-g", "--ignore-scripts"),
    "pnpm": ("pnpm", "add", "-g", "--ignore-scripts"),
    "yarn": ("yarn", "global", "add", "--ignore-scripts"),
    "bun": ("bun", "add", "-g", "--ignore-scripts"),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One installer. ``command`` is empty for a download, which the owner fetches themselves."""

    spec: InstallSpec
    label: str
    command: tuple[str, ...] = ()
    url: str = ""


def offers(
    skill: Skill, *, platform: str, which: Callable[[str], str | None], node_manager: str
) -> tuple[Offer, ...]:
    """The preferred installer, or every download where there is nothing else.

    brew where there is one, else node, uv, go, whichever has its program here.
    """
    specs = [spec for spec in skill.manifest.install if not spec.os or platform in spec.os]
    ranked = (
        (InstallKind.BREW, "brew"),
        (InstallKind.NODE, node_manager),
        (InstallKind.UV, "uv"),
        (InstallKind.GO, "go"),
    )
    for kind, program in ranked:
        fitting = [spec for spec in specs if spec.kind is kind and _target(spec)]
        if fitting and which(program):
            spec = fitting[0]
            return (Offer(spec, _label(spec), _command(spec, node_manager)),)
    downloads = [spec for spec in specs if spec.kind is InstallKind.DOWNLOAD and spec.url]
    return tuple(Offer(spec, _label(spec), url=spec.url) for spec in downloads)


def _target(spec: InstallSpec) -> str:
    """What is installed; "" for what would be read as an option."""
    target = {
        InstallKind.BREW: spec.formula,
        InstallKind.NODE: spec.package,
        InstallKind.UV: spec.package,
        InstallKind.GO: spec.module,
    }.get(spec.kind, "")
    return "" if target.startswith("-") else target


def _command(spec: InstallSpec, node_manager: str) -> tuple[str, ...]:
    target = _target(spec)
    commands: dict[InstallKind, Sequence[str]] = {
        InstallKind.BREW: ("brew", "install", target),
        InstallKind.NODE: (*_NODE[node_manager], target),
        InstallKind.UV: ("uv", "tool", "install", target),
        InstallKind.GO: ("go", "install", target if "@" in target else f"{target}@latest"),
    }
    return tuple(commands[spec.kind])


def _label(spec: InstallSpec) -> str:
    return spec.label or f"{spec.kind} {_target(spec) or spec.url}"
