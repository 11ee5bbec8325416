"""The loader: finds the skills, keeps up with what changes on disk, and says how each stands."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from loguru import logger

from nanobot.core.ports import Clock
from nanobot.skills.commands import slash_commands
from nanobot.skills.eligibility import (
    BrokenSkill,
    Facts,
    Rules,
    Skill,
    SkillBroken,
    SkillInvocation,
    SkillOverride,
    SkillsSnapshot,
    SlashCommand,
    Source,
    Standing,
    command_environment,
    judge,
)
from nanobot.skills.frontmatter import plain_values
from nanobot.skills.reader import (
    ALWAYS_TOTAL,
    CAP,
    SKILL_FILE,
    always_in_context,
    catalogue_lines,
    in_context,
    read_body,
    read_frontmatter,
    read_skill,
    read_text,
    summary,
)
from nanobot.skills.switches import NOTHING_OFF, OffSource, OffSwitches, nothing_off
from nanobot.store.home import builtin_skills_dir as shipped_skills_dir

LOOKUP_INTERVAL = timedelta(minutes=1)
"""How long a program found or missing on PATH is taken for granted while no skill changes."""

# Two writes within one tick of a file system's clock leave the same times behind (FAT: 2 s), so
# what was written this recently is read again even though its stat is the same.
_CLOCK_TICK = timedelta(seconds=2)

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_SEPARATOR = "\n\n---\n\n"

_Place: TypeAlias = tuple[int, str]
"""A folder by the number of its root and its name; the name is "" for the root itself."""


@dataclass(frozen=True, slots=True)
class _Root:
    source: Source
    path: Path


_Stamp: TypeAlias = tuple[int, ...] | str
"""What tells one state of a file from another, its time of change last; text: why there is none.

A plain tuple, since a thousand are made and compared at each turn.
"""


def _is_young(stamp: _Stamp, now: datetime) -> bool:
    """Whether the file may change once more without its stamp doing so."""
    return not isinstance(stamp, str) and stamp[-1] / 1e9 > (now - _CLOCK_TICK).timestamp()


@dataclass(frozen=True, slots=True)
class _Reading:
    stamp: _Stamp
    is_settled: bool
    result: Skill | BrokenSkill


def _now() -> datetime:
    return datetime.now(UTC)


class SkillsLoader:
    """Finds skills in the workspace, the shared folder, the built-in ones and extra folders.

    Nothing is read before it is asked for, and a SKILL.md is read again only when its stat has
    changed; bodies are never kept. The documented interface (``list_skills`` to
    ``get_skill_metadata``) looks at the disk each time. A turn uses ``snapshot_for`` instead.
    All methods may be called from any thread.

    ``cap`` is how many tokens the list in the prompt may have; ``catalogue`` is the file in which
    all skills are listed once that is too few.

    ``config`` is config.json as a mapping, for ``requires.config``. ``environ`` and ``which``
    default to the process's own; neither is ever written to. ``off`` says which skills are off
    until the owner enables them; it is asked at every look at the disk.
    """

    def __init__(
        self,
        workspace: Path,
        builtin_skills_dir: Path | None = None,
        *,
        shared_dir: Path | None = None,
        extra_dirs: Iterable[Path] = (),
        entries: Mapping[str, SkillOverride] = _NOTHING,
        allow_bundled: Iterable[str] | None = None,
        config: Mapping[str, Any] = _NOTHING,
        environ: Mapping[str, str] | None = None,
        platform: str = sys.platform,
        which: Callable[[str], str | None] | None = None,
        watch: bool = True,
        reserved_commands: Iterable[str] = (),
        cap: int = CAP,
        catalogue: Path | None = None,
        off: OffSource = nothing_off,
        clock: Clock = _now,
    ) -> None:
        builtin = shipped_skills_dir() if builtin_skills_dir is None else builtin_skills_dir
        roots = [_Root(Source.WORKSPACE, Path(workspace) / "skills")]
        if shared_dir is not None:
            roots.append(_Root(Source.SHARED, shared_dir))
        roots.append(_Root(Source.BUILTIN, Path(builtin)))
        roots.extend(_Root(Source.EXTRA, path) for path in extra_dirs)
        self._roots = tuple(roots)
        self._workspace = Path(workspace)
        self._rules = Rules(
            entries, None if allow_bundled is None else frozenset(allow_bundled), config
        )
        self._environ = os.environ if environ is None else environ
        self._platform = platform
        self._which = which or self._on_path
        self._watch = watch
        self._reserved = frozenset(reserved_commands)
        self._cap = cap
        self._catalogue = catalogue
        self._off_source = off
        self._off: OffSwitches = NOTHING_OFF
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[_Place, _Reading] = {}
        self._snapshot: SkillsSnapshot | None = None
        self._looked_up_at = datetime.min.replace(tzinfo=UTC)

    # --- for turns --------------------------------------------------------------------------

    def snapshot_for(self, held: SkillsSnapshot | None) -> SkillsSnapshot:
        """The skills of a turn whose session holds ``held`` (None: the session starts).

        The same object as long as nothing changed, and with ``watch`` off as long as the
        session lasts.
        """
        if held is not None and not self._watch:
            return held
        with self._lock:
            return self._refreshed(look_up=False)[0]

    def refresh(self) -> bool:
        """Look at the disk, and at PATH if a skill changed or a minute has passed.

        Returns whether anything is different from the last time.
        """
        with self._lock:
            return self._refreshed(look_up=False)[1]

    def snapshot(self) -> SkillsSnapshot:
        """The skills as last looked at."""
        with self._lock:
            return self._snapshot or self._refreshed(look_up=False)[0]

    def menu(self) -> tuple[tuple[str, str], ...]:
        """Names and help lines of the skills' slash commands, as they are on disk now."""
        with self._lock:
            snapshot = self._refreshed(look_up=False)[0]
        return tuple((command.name, command.skill.description) for command in snapshot.commands)

    def broken(self) -> tuple[BrokenSkill, ...]:
        """The folders that mean to be skills and are none, by name, each with the reason."""
        return self._latest().broken

    def invocation(self, command: SlashCommand, arguments: str) -> SkillInvocation:
        """What the model gets for ``/command arguments``; raises SkillBroken if it is gone."""
        skill = command.skill
        return SkillInvocation(skill.name, skill.folder, read_body(skill), arguments)

    # --- the documented interface -----------------------------------------------------------

    def list_skills(self, filter_unavailable: bool = True) -> list[dict[str, str]]:
        """Name (of the folder), path (of SKILL.md) and source of each skill, by name.

        Without the filter those which are disabled, unavailable or broken as well.
        """
        latest = self._latest()
        if filter_unavailable:
            listed: dict[str, Skill | BrokenSkill] = {skill.name: skill for skill in latest.skills}
        else:
            listed = {standing.skill.name: standing.skill for standing in latest.standings}
            for broken in latest.broken:
                if broken.path.name == SKILL_FILE:
                    listed.setdefault(broken.name, broken)
        return [
            {"name": name, "path": str(skill.path), "source": skill.source.value}
            for name, skill in sorted(listed.items())
        ]

    def load_skill(self, name: str) -> str | None:
        """The whole SKILL.md, frontmatter included; None if there is none to read."""
        path = next(
            (Path(skill["path"]) for skill in self.list_skills(False) if skill["name"] == name),
            None,
        )
        try:
            return None if path is None else read_text(path)
        except SkillBroken:
            return None

    def load_skills_for_context(self, names: Iterable[str]) -> str:
        """Each as ``### Skill: NAME`` and its body, ``---`` between; unknown ones are left out."""
        texts: list[str] = []
        for skill in self._named(names):
            with suppress(SkillBroken):
                texts.append(in_context(skill))
        return _SEPARATOR.join(texts)

    def build_skills_summary(self) -> str:
        """The list of the skills the model is told of, as the prompt has it; "" for none."""
        return self._latest().summary

    def get_always_skills(self) -> list[str]:
        """The names of the skills whose bodies belong in every prompt."""
        return list(self._latest().always)

    def get_skill_metadata(self, name: str) -> dict[str, Any] | None:
        """The frontmatter as plain values; None for an unknown skill or one without any."""
        for skill in self._named([name]):
            try:
                frontmatter = read_frontmatter(skill.path)
            except SkillBroken:
                return None
            return None if frontmatter is None else plain_values(frontmatter.values)
        return None

    # --- inside -----------------------------------------------------------------------------

    def _latest(self) -> SkillsSnapshot:
        with self._lock:
            return self._refreshed(look_up=True)[0]

    def _named(self, names: Iterable[str]) -> Iterator[Skill]:
        skills = {standing.skill.name: standing.skill for standing in self._latest().standings}
        return (skills[name] for name in names if name in skills)

    def _on_path(self, program: str) -> str | None:
        return shutil.which(program, path=self._environ.get("PATH", ""))

    def _refreshed(self, *, look_up: bool) -> tuple[SkillsSnapshot, bool]:
        """The current snapshot, and whether it is another one than before."""
        now = self._clock()
        before = self._snapshot
        found = self._scanned()
        off = self._off_source()
        stale = [
            place
            for place, stamp in found.items()
            if (reading := self._readings.get(place)) is None
            or not reading.is_settled
            or reading.stamp != stamp
        ]
        is_unchanged = not stale and len(found) == len(self._readings) and off == self._off
        is_recent = abs(now - self._looked_up_at) < LOOKUP_INTERVAL
        if before is not None and is_unchanged and is_recent and not look_up:
            return before, False
        protected = self._protected() if stale else ()
        renewed = {
            place: _Reading(
                found[place],
                not _is_young(found[place], now),
                self._read(place, found[place], protected),
            )
            for place in stale
        }
        self._readings = {place: renewed.get(place) or self._readings[place] for place in found}
        self._looked_up_at = now
        self._off = off
        after = self._composed()
        if after == before:
            return before, False
        self._snapshot = after
        known = before.standings if before else ()
        for standing in after.standings:
            if standing.in_place_of and standing not in known:
                place = ", ".join(standing.in_place_of)
                name, source = standing.skill.name, standing.skill.source
                logger.warning("the skill {} of {} is in place of the {} one", name, source, place)
        return after, True

    def _scanned(self) -> dict[_Place, _Stamp]:
        """The stamp of each SKILL.md, and of each root that cannot be listed."""
        found: dict[_Place, _Stamp] = {}
        for number, root in enumerate(self._roots):
            try:
                with os.scandir(root.path) as entries:
                    names = [(entry.name, entry.is_symlink()) for entry in entries]
            except FileNotFoundError:
                continue
            except OSError as error:
                found[number, ""] = str(error.strerror)
                continue
            prefix = f"{root.path}{os.sep}"
            for name, is_link in names:
                if name.startswith("."):
                    continue
                try:
                    status = os.stat(f"{prefix}{name}{os.sep}{SKILL_FILE}")  # noqa: PTH116
                except (FileNotFoundError, NotADirectoryError):
                    if is_link and not os.path.exists(prefix + name):  # noqa: PTH110
                        found[number, name] = "the folder is a link to nowhere"
                    continue
                except OSError as error:
                    found[number, name] = str(error.strerror)
                    continue
                found[number, name] = (
                    status.st_dev,
                    status.st_ino,
                    status.st_mode,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                )
        return found

    def _protected(self) -> tuple[Path, ...]:
        places = (self._workspace, *(root.path for root in self._roots))
        return tuple(Path(os.path.realpath(place)) for place in places)

    def _read(
        self, place: _Place, stamp: _Stamp, protected: tuple[Path, ...]
    ) -> Skill | BrokenSkill:
        number, name = place
        root = self._roots[number]
        if not name:
            return BrokenSkill(root.path.name, root.source, root.path, f"not listed: {stamp}")
        if isinstance(stamp, str):
            return BrokenSkill(name, root.source, root.path / name / SKILL_FILE, stamp)
        return read_skill(root.source, root.path / name, protected=protected)

    def _composed(self) -> SkillsSnapshot:
        """A snapshot made from all readings; of the same name the highest working skill wins."""
        chosen: dict[str, Skill] = {}
        broken: list[BrokenSkill] = []
        held_back: list[Skill] = []
        hidden: dict[str, list[Source]] = {}
        for _, reading in sorted(self._readings.items(), key=lambda item: item[0]):
            if isinstance(reading.result, BrokenSkill):
                broken.append(reading.result)
            elif not self._rules.loads(reading.result):
                continue
            elif self._is_untrusted(reading.result):
                held_back.append(reading.result)
            elif chosen.setdefault(reading.result.name, reading.result) is not reading.result:
                hidden.setdefault(reading.result.name, []).append(reading.result.source)
        for skill in held_back:
            # It must not take the place of a skill that the owner trusts.
            if chosen.setdefault(skill.name, skill) is not skill:
                reason = f"off: {self._why_off(skill)}"
                broken.append(BrokenSkill(skill.name, skill.source, skill.path, reason))
        skills = [chosen[name] for name in sorted(chosen)]
        facts = Facts.gathered(
            skills, platform=self._platform, environ=self._environ, which=self._which
        )
        standings = tuple(
            self._judged(skill, facts, tuple(hidden.get(skill.name, ()))) for skill in skills
        )
        eligible = [standing.skill for standing in standings if standing.is_eligible]
        always = [standing.skill for standing in standings if standing.is_always]
        listed = summary(standings, self._cap)
        return SkillsSnapshot(
            standings=standings,
            broken=tuple(sorted(broken, key=lambda skill: skill.name)),
            summary=listed.text,
            costs=listed.costs,
            catalogue=self._catalogued(standings) if listed.is_short else None,
            always=tuple(skill.name for skill in always),
            always_text=_always_text(always),
            commands=slash_commands(eligible, self._reserved),
            environment=MappingProxyType(
                command_environment(standings, self._rules, self._environ)
            ),
            readable=tuple(dict.fromkeys(path for skill in eligible for path in skill.readable)),
        )

    def _catalogued(self, standings: Iterable[Standing]) -> Path | None:
        """The file that has all skills, written anew; None where there is none to write."""
        if self._catalogue is None:
            return None
        fresh = self._catalogue.with_suffix(".new")
        try:
            self._catalogue.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.write_text(catalogue_lines(standings), encoding="utf-8")
            fresh.replace(self._catalogue)
        except OSError as error:
            logger.warning("the catalogue of all skills cannot be written: {}", error)
            return None
        return self._catalogue

    def _judged(self, skill: Skill, facts: Facts, hidden: tuple[Source, ...]) -> Standing:
        standing = replace(judge(skill, facts, self._rules), in_place_of=hidden)
        reason = self._why_off(skill)
        return replace(standing, enabled=False, held_back=reason) if reason else standing

    def _is_untrusted(self, skill: Skill) -> bool:
        switch = self._off.get(skill.name) or self._off.get("*")
        return switch is not None and not switch.by_owner and _is_in_reach(skill)

    def _why_off(self, skill: Skill) -> str:
        switch = self._off.get(skill.name) or self._off.get("*")
        is_off = switch is not None and (switch.by_owner or _is_in_reach(skill))
        return switch.reason if switch is not None and is_off else ""


def _is_in_reach(skill: Skill) -> bool:
    """Whether the skill lies where file tools may write."""
    return skill.source in (Source.WORKSPACE, Source.EXTRA)


def _always_text(skills: Iterable[Skill]) -> str:
    """The bodies that are always in the prompt; a skill that is gone meanwhile is left out."""
    texts: list[str] = []
    room = ALWAYS_TOTAL
    for skill in skills:
        with suppress(SkillBroken):
            texts.append(always_in_context(skill, room))
            room -= len(texts[-1])
    return _SEPARATOR.join(texts)
