"""Which skills can be used on this machine under this configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.skills.reader import BrokenSkill, Skill, Source

CATALOGUE_TOKENS = 4000
"""Tokens that the prompt's section of skills may have, unless configured."""


@dataclass(frozen=True, slots=True)
class SkillOverride:
    """What the operator sets for one skill (``skills.entries.<key>`` of the config).

    ``env`` and ``api_key`` hold secrets, so they are no part of the ``repr``.
    """

    enabled: bool = True
    api_key: str = field(default="", repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)


_NO_OVERRIDE = SkillOverride()


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillsSettings:
    """What the operator sets for all skills: ``skills`` of the config, and where skills lie.

    ``entries`` is ``skills.entries``. ``allow_bundled`` None allows every built-in skill.
    ``config`` is the whole config.json, in which the dotted paths of ``requires.config`` are
    looked up. ``watch`` False: a session keeps the skills that it started with. The list of the
    skills in the prompt has at most ``cap`` tokens; ``catalogue`` is the file that lists all
    skills when they do not fit.
    """

    shared_dir: Path | None = None
    extra_dirs: Sequence[Path] = ()
    entries: Mapping[str, SkillOverride] = field(default_factory=dict)
    allow_bundled: Collection[str] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    watch: bool = True
    cap: int = CATALOGUE_TOKENS
    catalogue: Path | None = None

    def override(self, skill: Skill) -> SkillOverride:
        """What is set for a skill, by its skillKey, its name or its folder's name."""
        return next((self.entries[key] for key in skill.keys if key in self.entries), _NO_OVERRIDE)

    def loads(self, skill: Skill) -> bool:
        """Whether the skill is loaded at all; only built-in ones can be left out."""
        if self.allow_bundled is None or skill.source is not Source.BUILTIN:
            return True
        return any(key in self.allow_bundled for key in skill.keys)


@dataclass(frozen=True, slots=True)
class Machine:
    """What requirements are checked against: system, environment, and how to find a program."""

    platform: str
    environ: Mapping[str, str]
    which: Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class SkillStatus:
    """A skill, and whether it can be used here.

    ``missing`` are its unmet requirements as the list in the prompt words them (``CLI: ffmpeg``).
    ``off_reason``: why it is off until the owner enables it ("" if it is not). ``in_place_of``:
    the sources of the working skills of the same name that it hides.
    """

    skill: Skill
    enabled: bool
    fits_os: bool
    missing: tuple[str, ...]
    off_reason: str = ""
    in_place_of: tuple[Source, ...] = ()

    @property
    def is_eligible(self) -> bool:
        """Whether it can be used here."""
        is_met = self.fits_os and not self.missing
        return self.enabled and (self.skill.manifest.ungated or is_met)

    @property
    def is_listed(self) -> bool:
        """Whether the model is told of it, be it only to know what is missing."""
        manifest = self.skill.manifest
        is_offered = self.enabled and not manifest.disable_model_invocation
        return is_offered and (manifest.ungated or self.fits_os)

    @property
    def is_always(self) -> bool:
        """Whether its body is in every prompt; an ungated skill needs its requirements too."""
        is_usable = self.is_listed and self.fits_os and not self.missing
        return is_usable and self.skill.manifest.always


def check_eligibility(skill: Skill, machine: Machine, settings: SkillsSettings) -> SkillStatus:
    """The status of a skill as far as its requirements and the configuration decide it."""
    override = settings.override(skill)
    manifest = skill.manifest
    needs = manifest.requires

    def has_variable(name: str) -> bool:
        key = override.api_key if name == manifest.primary_env else ""
        return bool(machine.environ.get(name) or override.env.get(name) or key)

    missing = [f"CLI: {name}" for name in needs.bins if not machine.which(name)]
    if needs.any_bins and not any(map(machine.which, needs.any_bins)):
        missing.append(f"CLI: {'|'.join(needs.any_bins)}")
    missing += [f"ENV: {name}" for name in needs.env if not has_variable(name)]
    missing += [
        f"CONFIG: {path}"
        for path in needs.config
        if not (_looked_up(override.config, path) or _looked_up(settings.config, path))
    ]
    return SkillStatus(
        skill,
        enabled=override.enabled,
        fits_os=not manifest.os or machine.platform in manifest.os,
        missing=tuple(missing),
    )


def _looked_up(mapping: Mapping[str, Any], path: str) -> object:
    """The value at a dotted path, or None."""
    value: object = mapping
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def command_environment(
    statuses: Iterable[SkillStatus], settings: SkillsSettings, environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables that eligible skills bring to the commands of a turn.

    A skill's ``env`` comes first, then its ``apiKey`` as ``primaryEnv``; of two skills that set
    the same variable the first by name does. A variable which ``environ`` has keeps that value:
    it is in the result all the same, for commands run in an environment built anew.
    """
    environment: dict[str, str] = {}
    for status in statuses:
        if not status.is_eligible:
            continue
        override = settings.override(status.skill)
        primary = status.skill.manifest.primary_env
        wanted = dict(override.env)
        if primary and override.api_key:
            wanted[primary] = wanted.get(primary) or override.api_key
        for name, value in wanted.items():
            if value or environ.get(name):
                environment.setdefault(name, environ.get(name) or value)
    return environment


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """``/name`` (``[a-z0-9_]{1,32}``) of a user-invocable skill."""

    name: str
    skill: Skill

    @property
    def tool(self) -> str:
        """The tool that the command calls without the model; "": the model gets the body."""
        return self.skill.manifest.command_tool


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillsSnapshot:
    """The skills as one turn sees them; a session holds one until something changes.

    ``statuses`` are all working skills by name, ``broken`` all others. ``summary`` is the list
    for the prompt and ``always_text`` the bodies that are always in it (both "" for none).
    ``costs`` are the tokens of each skill in the list; ``catalogue`` is the file that has all
    skills where the list had to be shortened.
    ``environment`` is for the commands of a turn and nothing else; it holds secrets.
    ``readable`` are resolved paths that file tools may read under any restriction: folders of
    eligible skills (and a SKILL.md that is a link to elsewhere).
    """

    statuses: tuple[SkillStatus, ...] = ()
    broken: tuple[BrokenSkill, ...] = ()
    summary: str = ""
    costs: Mapping[str, int] = field(default_factory=dict)
    catalogue: Path | None = None
    always: tuple[str, ...] = ()
    always_text: str = ""
    commands: tuple[SlashCommand, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    readable: tuple[Path, ...] = ()

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The eligible skills by name."""
        return tuple(status.skill for status in self.statuses if status.is_eligible)

    def command(self, name: str) -> SlashCommand | None:
        """The slash command of that name (without the slash), if a skill has it."""
        return next((command for command in self.commands if command.name == name), None)
