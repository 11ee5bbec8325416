"""The values that describe a skill, and whether it may be used here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from nanobot.core.errors import NanobotError


class SkillBroken(NanobotError):
    """A skill cannot be used as it is; the text is the reason, for whoever wrote it."""


class Source(StrEnum):
    """Where a skill was found, highest first: of the same name the higher wins."""

    WORKSPACE = "workspace"
    SHARED = "shared"
    BUILTIN = "builtin"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class SkillOverride:
    """What the operator sets for one skill (``skills.entries.<key>`` of the config).

    ``env`` and ``api_key`` hold secrets, so they are no part of the ``repr``.
    """

    enabled: bool = True
    api_key: str = field(default="", repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Requirements:
    """What must be there: every one of ``bins``, ``env``, ``config``; any one of ``any_bins``."""

    bins: tuple[str, ...] = ()
    any_bins: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    config: tuple[str, ...] = ()


class InstallKind(StrEnum):
    """The ways a skill may name to get a program it needs."""

    BREW = "brew"
    NODE = "node"
    GO = "go"
    UV = "uv"
    DOWNLOAD = "download"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSpec:
    """One way to install what a skill needs; nothing here is ever run without consent.

    ``extract`` None means: unpack when the file is an archive. ``target_dir`` empty means the
    default folder of downloaded tools.
    """

    kind: InstallKind
    id: str = ""
    label: str = ""
    bins: tuple[str, ...] = ()
    os: tuple[str, ...] = ()
    formula: str = ""
    package: str = ""
    module: str = ""
    url: str = ""
    archive: str = ""
    extract: bool | None = None
    strip_components: int = 0
    target_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill as its SKILL.md describes it; the body stays on disk.

    ``name`` is the name of its folder, by which everything refers to it; ``declared_name`` is
    the frontmatter's. ``folder`` and ``path`` (of SKILL.md) are as they were found; ``readable``
    are the same places with links resolved. ``always``: the body belongs in every prompt.
    ``ungated``: eligible whatever its own gates say. ``command_tool``: the tool its slash
    command calls without the model. ``notes``: what a linter would say, none of it fatal.
    """

    name: str
    source: Source
    folder: Path
    path: Path
    readable: tuple[Path, ...]
    declared_name: str
    description: str
    homepage: str = ""
    emoji: str = ""
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    always: bool = False
    ungated: bool = False
    user_invocable: bool = True
    model_invocable: bool = True
    command_tool: str = ""
    os: tuple[str, ...] = ()
    requires: Requirements = Requirements()
    primary_env: str = ""
    key: str = ""
    install: tuple[InstallSpec, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The names under which the operator may speak of this skill, first choice first."""
        return tuple(dict.fromkeys(key for key in (self.key, self.declared_name, self.name) if key))


@dataclass(frozen=True, slots=True)
class BrokenSkill:
    """A folder that means to be a skill and is none; ``reason`` is one line for its author."""

    name: str
    source: Source
    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Standing:
    """How a skill stands on this machine under this configuration.

    ``missing`` are its unmet requirements, as the summary words them (``CLI: ffmpeg``).
    ``held_back``: why it is off until the owner enables it ("" when it is not). ``in_place_of``
    are the sources of the working skills of the same name that it hides.
    """

    skill: Skill
    enabled: bool
    fits_os: bool
    missing: tuple[str, ...]
    held_back: str = ""
    in_place_of: tuple[Source, ...] = ()

    @property
    def is_eligible(self) -> bool:
        """Whether it can be used here."""
        return self.enabled and (self.skill.ungated or (self.fits_os and not self.missing))

    @property
    def is_listed(self) -> bool:
        """Whether the model is told of it, be it only to know what is missing."""
        offered = self.enabled and self.skill.model_invocable
        return offered and (self.skill.ungated or self.fits_os)

    @property
    def is_always(self) -> bool:
        """Whether its body is in every prompt; being ungated does not make up for a need."""
        usable = self.is_listed and self.fits_os and not self.missing
        return usable and self.skill.always


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """``/name`` (``[a-z0-9_]{1,32}``) of a user-invocable skill.

    ``tool`` empty: the model gets the body. Otherwise that tool is called without the model,
    with what ``tool_arguments`` gives.
    """

    name: str
    skill: Skill
    tool: str = ""

    def tool_arguments(self, raw: str) -> dict[str, str]:
        """The arguments of the tool, ``raw`` being the text after the command."""
        return {"command": raw, "commandName": self.name, "skillName": self.skill.name}


@dataclass(frozen=True, slots=True)
class SkillInvocation:
    """What the model needs to follow a slash command: the words round it are a template's."""

    skill: str
    folder: Path
    body: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillsSnapshot:
    """The skills as one turn sees them; a session holds one until something changes.

    ``standings`` are all working skills by name, ``broken`` all others. ``summary`` is the list
    for the prompt and ``always_text`` the bodies that are always in it (both "" for none).
    ``costs`` are the tokens of each skill in the list; ``catalogue`` is the file that has all
    skills where the list had to be shortened.
    ``environment`` is for the commands of a turn and nothing else; it holds secrets.
    ``readable`` are resolved paths that file tools may read under any restriction: folders of
    eligible skills (and a SKILL.md that is a link to elsewhere).
    """

    standings: tuple[Standing, ...] = ()
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
        return tuple(standing.skill for standing in self.standings if standing.is_eligible)

    def command(self, name: str) -> SlashCommand | None:
        """The slash command of that name (without the slash), if a skill has it."""
        return next((command for command in self.commands if command.name == name), None)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is there, as far as the skills at hand ask: programs on PATH, variables with a value."""

    platform: str
    binaries: frozenset[str]
    variables: frozenset[str]

    @classmethod
    def gathered(
        cls,
        skills: Iterable[Skill],
        *,
        platform: str,
        environ: Mapping[str, str],
        which: Callable[[str], str | None],
    ) -> Facts:
        """The facts that decide about ``skills``; each program is looked up once."""
        needs = [skill.requires for skill in skills]
        binaries = {name for need in needs for name in (*need.bins, *need.any_bins)}
        variables = {name for need in needs for name in need.env}
        return cls(
            platform,
            frozenset(name for name in binaries if which(name)),
            frozenset(name for name in variables if environ.get(name)),
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator says: ``skills.entries``, ``skills.allowBundled``, and the whole config.

    ``allow_bundled`` None allows every built-in skill. ``config`` is looked up by the dotted
    paths of ``requires.config``, with its keys as they stand in the file.
    """

    entries: Mapping[str, SkillOverride] = field(default_factory=dict)
    allow_bundled: frozenset[str] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def override(self, skill: Skill) -> SkillOverride:
        """What is set for a skill, by its skillKey, its name or its folder's name."""
        return next((self.entries[key] for key in skill.keys if key in self.entries), _NO_OVERRIDE)

    def loads(self, skill: Skill) -> bool:
        """Whether the skill is loaded at all; only built-in ones can be left out."""
        if self.allow_bundled is None or skill.source is not Source.BUILTIN:
            return True
        return not self.allow_bundled.isdisjoint(skill.keys)


_NO_OVERRIDE = SkillOverride()


def judge(skill: Skill, facts: Facts, rules: Rules) -> Standing:
    """How a skill stands, its unmet requirements worded as the summary has them."""
    override = rules.override(skill)
    needs = skill.requires
    missing = [f"CLI: {name}" for name in needs.bins if name not in facts.binaries]
    if needs.any_bins and facts.binaries.isdisjoint(needs.any_bins):
        missing.append(f"CLI: {'|'.join(needs.any_bins)}")
    missing += [
        f"ENV: {name}" for name in needs.env if not _has_variable(skill, name, facts, override)
    ]
    missing += [
        f"CONFIG: {path}"
        for path in needs.config
        if not (_looked_up(override.config, path) or _looked_up(rules.config, path))
    ]
    return Standing(
        skill,
        enabled=override.enabled,
        fits_os=not skill.os or facts.platform in skill.os,
        missing=tuple(missing),
    )


def _has_variable(skill: Skill, name: str, facts: Facts, override: SkillOverride) -> bool:
    given = override.env.get(name) or (override.api_key if name == skill.primary_env else "")
    return name in facts.variables or bool(given)


def _looked_up(mapping: Mapping[str, Any], path: str) -> object:
    """The value at a dotted path, or None."""
    value: object = mapping
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def command_environment(
    standings: Iterable[Standing], rules: Rules, environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables that eligible skills bring to the commands of a turn.

    A skill's ``env`` comes first, then its ``apiKey`` as ``primaryEnv``; of two skills that set
    the same variable the first by name does. A variable which ``environ`` has keeps that value:
    it is in the result all the same, for commands run in an environment built anew.
    """
    environment: dict[str, str] = {}
    for standing in standings:
        if not standing.is_eligible:
            continue
        override = rules.override(standing.skill)
        primary = standing.skill.primary_env
        wanted = dict(override.env)
        if primary and override.api_key:
            wanted[primary] = wanted.get(primary) or override.api_key
        for name, value in wanted.items():
            if value or environ.get(name):
                environment.setdefault(name, environ.get(name) or value)
    return environment
