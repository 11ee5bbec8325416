"""SkillsLoader: finds the skills on disk, notices changes and checks their eligibility."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from loguru import logger

from nanobot.core.ports import Clock
from nanobot.skills.catalogue import catalogue_lines, summary
from nanobot.skills.commands import RESERVED, slash_commands
from nanobot.skills.eligibility import (
    Machine,
    SkillsSettings,
    SkillsSnapshot,
    SkillStatus,
    check_eligibility,
    command_environment,
)
from nanobot.skills.frontmatter import SkillBroken, plain_values
from nanobot.skills.reader import (
    ALWAYS_MAX,
    SKILL_FILE,
    BrokenSkill,
    Skill,
    Source,
    read_body,
    read_frontmatter,
    read_skill,
    read_text,
)
from nanobot.skills.switches import OffSource, OffSwitches
from nanobot.store.home import builtin_skills_dir as shipped_skills_dir

LOOKUP_INTERVAL = timedelta(minutes=1)
"""How long the result of looking up programs is kept while no skill changes."""

# Two writes within one tick of a file system's clock (FAT: 2 s) have the same times, so a file
# written this recently is read again even if its stat is the same.
_CLOCK_TICK = timedelta(seconds=2)

ALWAYS_TOTAL = 64_000
"""Upper bound of characters of all bodies that are in every prompt."""

_SEPARATOR = "\n\n---\n\n"

_Place: TypeAlias = tuple[int, str]
"""A folder by the number of its root and its name; the name is "" for the root itself."""


_Stamp: TypeAlias = tuple[int, ...] | str
"""The stat of a SKILL.md, its time of change last, or why there is none.

A plain tuple, since a thousand are made and compared at each turn.
"""


def _is_young(stamp: _Stamp, now: datetime) -> bool:
    """Whether the file could still change without a change of its stamp."""
    return not isinstance(stamp, str) and stamp[-1] / 1e9 > (now - _CLOCK_TICK).timestamp()


@dataclass(frozen=True, slots=True)
class _Reading:
    """The skill as read; ``stamp`` is None if it has to be read again at the next look."""

    stamp: _Stamp | None
    result: Skill | BrokenSkill


def _now() -> datetime:
    return datetime.now(UTC)


class SkillsLoader:
    """Finds skills in the workspace, the shared folder, the built-in ones and extra folders.

    Nothing is read before it is asked for, and a SKILL.md is read again only when its stat has
    changed; bodies are never kept. The documented interface (``list_skills`` to
    ``get_skill_metadata``) looks at the disk each time. A turn uses ``snapshot_for`` instead.
    All methods may be called from any thread.

    ``environ`` and ``which`` default to the process's own; neither is ever written to. ``off``
    gives the skills that are off until the owner enables them; it is asked at every look at the
    disk.
    """

    def __init__(
        self,
        workspace: Path,
        builtin_skills_dir: Path | None = None,
        *,
        settings: SkillsSettings | None = None,
        environ: Mapping[str, str] | None = None,
        platform: str = sys.platform,
        which: Callable[[str], str | None] | None = None,
        off: OffSource = dict,
        clock: Clock = _now,
    ) -> None:
        self._workspace = Path(workspace)
        self._settings = settings = settings or SkillsSettings()
        builtin = shipped_skills_dir() if builtin_skills_dir is None else Path(builtin_skills_dir)
        shared = [] if settings.shared_dir is None else [(Source.SHARED, settings.shared_dir)]
        self._roots: tuple[tuple[Source, Path], ...] = (
            (Source.WORKSPACE, self._workspace / "skills"),
            *shared,
            (Source.BUILTIN, builtin),
            *((Source.EXTRA, path) for path in settings.extra_dirs),
        )
        self._environ = os.environ if environ is None else environ
        self._platform = platform
        self._which = which or self._on_path
        self._off_source = off
        self._off: OffSwitches = {}
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
        if held is not None and not self._settings.watch:
            return held
        return self._refreshed()

    def snapshot(self) -> SkillsSnapshot:
        """The skills as last looked at."""
        return self._snapshot or self._refreshed()

    def menu(self) -> tuple[tuple[str, str], ...]:
        """Names and help lines of the skills' slash commands, as they are on disk now."""
        return tuple(
            (command.name, command.skill.manifest.description)
            for command in self._refreshed().commands
        )

    # --- the documented interface -----------------------------------------------------------

    def list_skills(self, filter_unavailable: bool = True) -> list[dict[str, str]]:
        """Name (of the folder), path (of SKILL.md) and source of each skill, by name.

        Without the filter those which are disabled, unavailable or broken as well.
        """
        latest = self._refreshed(look_up=True)
        if filter_unavailable:
            listed: dict[str, Skill | BrokenSkill] = {skill.name: skill for skill in latest.skills}
        else:
            listed = {status.skill.name: status.skill for status in latest.statuses}
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
                texts.append(_in_context(skill))
        return _SEPARATOR.join(texts)

    def build_skills_summary(self) -> str:
        """The list of the skills the model is told of, as the prompt has it; "" for none."""
        return self._refreshed(look_up=True).summary

    def get_always_skills(self) -> list[str]:
        """The names of the skills whose bodies belong in every prompt."""
        return list(self._refreshed(look_up=True).always)

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

    def _named(self, names: Iterable[str]) -> Iterator[Skill]:
        skills = {
            status.skill.name: status.skill for status in self._refreshed(look_up=True).statuses
        }
        return (skills[name] for name in names if name in skills)

    def _on_path(self, program: str) -> str | None:
        return shutil.which(program, path=self._environ.get("PATH", ""))

    def _refreshed(self, *, look_up: bool = False) -> SkillsSnapshot:
        """The current snapshot, after a look at the disk.

        Programs on PATH are looked up again if a skill changed, if ``LOOKUP_INTERVAL`` has
        passed, or with ``look_up``.
        """
        with self._lock:
            return self._renewed(look_up)

    def _renewed(self, look_up: bool) -> SkillsSnapshot:
        now = self._clock()
        before = self._snapshot
        found = self._scanned()
        off = self._off_source()
        stale = {
            place: stamp
            for place, stamp in found.items()
            if (reading := self._readings.get(place)) is None or reading.stamp != stamp
        }
        is_unchanged = not stale and len(found) == len(self._readings) and off == self._off
        is_recent = abs(now - self._looked_up_at) < LOOKUP_INTERVAL
        if before is not None and is_unchanged and is_recent and not look_up:
            return before
        protected = self._protected() if stale else ()
        renewed = {
            place: _Reading(
                None if _is_young(stamp, now) else stamp, self._read(place, stamp, protected)
            )
            for place, stamp in stale.items()
        }
        self._readings = {place: renewed.get(place) or self._readings[place] for place in found}
        self._looked_up_at = now
        self._off = off
        after = self._composed()
        if before is not None and after == before:
            return before
        self._snapshot = after
        known = before.statuses if before else ()
        for status in after.statuses:
            if status.in_place_of and status not in known:
                place = ", ".join(status.in_place_of)
                name, source = status.skill.name, status.skill.source
                logger.warning("the skill {} of {} is in place of the {} one", name, source, place)
        return after

    def _scanned(self) -> dict[_Place, _Stamp]:
        """The stamp of each SKILL.md, and of each root that cannot be listed."""
        found: dict[_Place, _Stamp] = {}
        for number, (_, root) in enumerate(self._roots):
            try:
                with os.scandir(root) as entries:
                    names = [(entry.name, entry.is_symlink()) for entry in entries]
            except FileNotFoundError:
                continue
            except OSError as error:
                found[number, ""] = str(error.strerror)
                continue
            prefix = f"{root}{os.sep}"
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
        places = (self._workspace, *(path for _, path in self._roots))
        return tuple(Path(os.path.realpath(place)) for place in places)

    def _read(
        self, place: _Place, stamp: _Stamp, protected: tuple[Path, ...]
    ) -> Skill | BrokenSkill:
        number, name = place
        source, root = self._roots[number]
        if not name:
            return BrokenSkill(root.name, source, root, f"not listed: {stamp}")
        if isinstance(stamp, str):
            return BrokenSkill(name, source, root / name / SKILL_FILE, stamp)
        return read_skill(source, root / name, protected=protected)

    def _composed(self) -> SkillsSnapshot:
        """A snapshot made from all readings; of the same name the highest working skill wins."""
        skills, broken, hidden = self._chosen()
        machine = Machine(self._platform, self._environ, cache(self._which))
        statuses = tuple(
            self._status(skill, machine, tuple(hidden.get(skill.name, ()))) for skill in skills
        )
        eligible = [status.skill for status in statuses if status.is_eligible]
        always = [status.skill for status in statuses if status.is_always]
        listed = summary(statuses, self._settings.cap)
        return SkillsSnapshot(
            statuses=statuses,
            broken=tuple(sorted(broken, key=lambda skill: skill.name)),
            summary=listed.text,
            costs=listed.costs,
            catalogue=self._catalogued(statuses) if listed.is_short else None,
            always=tuple(skill.name for skill in always),
            always_text=_always_text(always),
            commands=slash_commands(eligible, RESERVED),
            environment=MappingProxyType(
                command_environment(statuses, self._settings, self._environ)
            ),
            readable=tuple(dict.fromkeys(path for skill in eligible for path in skill.readable)),
        )

    def _chosen(self) -> tuple[list[Skill], list[BrokenSkill], dict[str, list[Source]]]:
        """The skills by name, the broken ones, and the sources of those that each name hides."""
        chosen: dict[str, Skill] = {}
        broken: list[BrokenSkill] = []
        untrusted: list[Skill] = []
        hidden: dict[str, list[Source]] = {}
        for _, reading in sorted(self._readings.items(), key=lambda item: item[0]):
            skill = reading.result
            if isinstance(skill, BrokenSkill):
                broken.append(skill)
            elif not self._settings.loads(skill):
                continue
            elif self._is_untrusted(skill):
                untrusted.append(skill)
            elif chosen.setdefault(skill.name, skill) is not skill:
                hidden.setdefault(skill.name, []).append(skill.source)
        for skill in untrusted:
            # It must not take the place of a skill that the owner trusts.
            if chosen.setdefault(skill.name, skill) is not skill:
                reason = f"off: {self._why_off(skill)}"
                broken.append(BrokenSkill(skill.name, skill.source, skill.path, reason))
        return [chosen[name] for name in sorted(chosen)], broken, hidden

    def _status(self, skill: Skill, machine: Machine, hidden: tuple[Source, ...]) -> SkillStatus:
        status = check_eligibility(skill, machine, self._settings)
        reason = self._why_off(skill)
        return replace(
            status,
            enabled=status.enabled and not reason,
            off_reason=reason,
            in_place_of=hidden,
        )

    def _catalogued(self, statuses: Iterable[SkillStatus]) -> Path | None:
        """The file that has all skills, written anew; None where there is none to write."""
        path = self._settings.catalogue
        if path is None:
            return None
        fresh = path.with_suffix(".new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.write_text(catalogue_lines(statuses), encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            logger.warning("the catalogue of all skills cannot be written: {}", error)
            return None
        return path

    def _is_untrusted(self, skill: Skill) -> bool:
        switch = self._off.get(skill.name) or self._off.get("*")
        return switch is not None and not switch.by_owner and _is_in_reach(skill)

    def _why_off(self, skill: Skill) -> str:
        """Why the skill is off until the owner enables it; "" if it is not."""
        switch = self._off.get(skill.name) or self._off.get("*")
        is_off = switch is not None and (switch.by_owner or _is_in_reach(skill))
        return switch.reason if switch is not None and is_off else ""


def _is_in_reach(skill: Skill) -> bool:
    """Whether the skill lies where file tools may write."""
    return skill.source in (Source.WORKSPACE, Source.EXTRA)


def _in_context(skill: Skill) -> str:
    """A skill in full for a prompt: heading and body; raises SkillBroken."""
    return f"### Skill: {skill.name}\n\n{read_body(skill)}"


def _always_text(skills: Iterable[Skill]) -> str:
    """The bodies that are always in the prompt; a skill that is gone meanwhile is left out.

    A body is cut at ``ALWAYS_MAX`` characters, and left out with a note beyond ``ALWAYS_TOTAL``.
    The folder is named because relative paths in a body mean nothing without it.
    """
    texts: list[str] = []
    room = ALWAYS_TOTAL
    for skill in skills:
        try:
            text = _in_context(skill)
        except SkillBroken:
            continue
        if min(len(text), ALWAYS_MAX) > room:
            texts.append(f"### Skill: {skill.name}\n\n[Left out for its length: read {skill.path}]")
        else:
            if len(text) > ALWAYS_MAX:
                cut = text.rfind("\n", 0, ALWAYS_MAX) + 1 or ALWAYS_MAX
                text = f"{text[:cut].rstrip()}\n\n[Cut here: the rest is in {skill.path}]"
            texts.append(f"Folder of the skill {skill.name}: {skill.folder}\n\n{text}")
        room -= len(texts[-1])
    return _SEPARATOR.join(texts)
