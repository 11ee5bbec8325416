"""Which skills may be used here: requirements against what this machine and the operator offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nanobot.skills.model import Skill, SkillOverride, Source, Standing


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
