"""Installing skills: fetched into quarantine, scanned, then moved into place and locked."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.core.errors import NanobotError, StoreCorrupt
from nanobot.core.ports import Clock
from nanobot.core.text import one_line
from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.install.bundle import (
    Bundle,
    hashes,
    read_archive,
    read_folder,
    skill_in,
    write_bundle,
)
from nanobot.skills.install.clawhub import Registry
from nanobot.skills.install.scan import Finding, scan
from nanobot.skills.reader import SKILL_FILE, BrokenSkill, Skill, Source, read_skill
from nanobot.store.files import locked, write_atomic
from nanobot.store.home import builtin_skills_dir

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
GIT_S = 120.0
_GIT_NEEDS = ("PATH", "HOME", "SSH_AUTH_SOCK", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_ARCHIVE_BYTES = 64 * 1024**2
_ARCHIVES = (".zip", ".skill", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
_GIT = re.compile(r"(?:https?|ssh|git|file)://\S+|git@[\w.-]+:\S+")


@dataclass(frozen=True, slots=True)
class Locked:
    """One installed skill; ``files`` are SHA-256 in hex by path."""

    source: str
    version: str
    installed_at: str
    files: Mapping[str, str]


class SkillLock:
    """The lock file of a home, which tools cannot reach; skills are named by root and name."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def installed(self, root: Path) -> dict[str, Locked]:
        """The skills that were installed into ``root``; raises StoreCorrupt."""
        try:
            return {
                name: Locked(
                    entry["source"], entry["version"], entry["installedAt"], dict(entry["files"])
                )
                for name, entry in self._document()["roots"].get(_key(root), {}).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreCorrupt(f"{self._file} is damaged: {error}; mend or remove it") from error

    def put(self, root: Path, name: str, entry: Locked) -> None:
        """Record an installation."""
        self._change(
            root,
            name,
            {
                "source": entry.source,
                "version": entry.version,
                "installedAt": entry.installed_at,
                "files": dict(entry.files),
            },
        )

    def remove(self, root: Path, name: str) -> None:
        """Forget an installation."""
        self._change(root, name, None)

    def changes(self, root: Path, name: str) -> tuple[str, ...]:
        """What is no longer as installed, such as ``changed: SKILL.md``; raises StoreCorrupt."""
        before = self.installed(root)[name].files
        try:
            now = hashes(read_folder(root / name))
        except (SkillBroken, OSError) as error:
            return (f"unreadable: {error}",)
        return (
            *(
                f"changed: {path}"
                for path in sorted(before)
                if now.get(path, "") not in ("", before[path])
            ),
            *(f"missing: {path}" for path in sorted(before.keys() - now.keys())),
            *(f"added: {path}" for path in sorted(now.keys() - before.keys())),
        )

    def _document(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {"version": 1, "roots": {}}
        return document

    def _change(self, root: Path, name: str, entry: dict[str, Any] | None) -> None:
        with locked(self._file):
            self.installed(root)  # a damaged file is said to be, not written over
            document = self._document()
            skills = document["roots"].setdefault(_key(root), {})
            skills.pop(name, None)
            if entry is not None:
                skills[name] = entry
            text = json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True)
            write_atomic(self._file, f"{text}\n".encode())


def _key(root: Path) -> str:
    return os.path.realpath(root)


class InstallError(NanobotError):
    """A skill could not be installed, updated or removed; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A skill in quarantine: what it is, where it came from, what the scan found."""

    name: str
    skill: Skill
    source: str
    version: str
    bundle: Bundle
    findings: tuple[Finding, ...]
    folder: Path


class Installer:
    """Installs into the roots of one home; ``registry`` opens a client when one is needed."""

    def __init__(
        self, quarantine: Path, lock: SkillLock, registry: Callable[[], Registry], clock: Clock
    ) -> None:
        self._quarantine = quarantine
        self._lock = lock
        self._registry = registry
        self._clock = clock

    def fetch(self, source: str) -> Candidate:
        """Bring ``source`` into quarantine and scan it; raises InstallError, RegistryError.

        A folder, a zip or tar, a git URL or a repository on disk, or a slug of the registry
        (``slug`` or ``slug@version``). ``#FOLDER`` chooses where there are several skills. The
        caller ends with ``install`` or ``discard``.
        """
        try:
            name, bundle, canonical, version = self._fetched(source)
            return self._candidate(name, bundle, canonical, version)
        except SkillBroken as error:
            raise InstallError(f"{source}: {error}") from error

    def install(self, candidate: Candidate, root: Path) -> Path:
        """Move a candidate into ``root`` and lock it; raises InstallError if one is there."""
        target = root / candidate.name
        try:
            if os.path.lexists(target):
                raise InstallError(
                    f"{target} exists already; `nanobot skills update {candidate.name}` renews it"
                )
            root.mkdir(parents=True, exist_ok=True)
            self._place(candidate, root)
        finally:
            self.discard(candidate)
        return target

    def renew(self, candidate: Candidate, root: Path, name: str, *, force: bool) -> Path | None:
        """Replace an installed skill by a candidate; returns the folder of the backup.

        None: the skill is up to date. Raises InstallError over hand-made changes unless ``force``.
        """
        try:
            changes = self._lock.changes(root, name)
            if changes and not force:
                raise InstallError(
                    f"{name} was changed by hand ({', '.join(changes)}); "
                    "--force replaces it and keeps a copy"
                )
            if candidate.name != name:
                raise InstallError(f"the source of {name} now holds {candidate.name}")
            if not changes and hashes(candidate.bundle) == self._lock.installed(root)[name].files:
                return None
            backup = self._backup(root, name)
            self._place(candidate, root)
        finally:
            self.discard(candidate)
        return backup

    def remove(self, root: Path, name: str) -> Path:
        """Remove a skill and its lock entry; returns the backup. Raises InstallError."""
        if not NAME.fullmatch(name) or not (root / name).is_dir():
            raise InstallError(f"there is no skill {name} in {root}")
        backup = self._backup(root, name)
        self._lock.remove(root, name)
        return backup

    def discard(self, candidate: Candidate) -> None:
        """Empty the quarantine of a candidate."""
        shutil.rmtree(candidate.folder.parent, ignore_errors=True)

    def _place(self, candidate: Candidate, root: Path) -> None:
        """Copy into a hidden folder beside the target, then rename it, so no part shows alone."""
        with tempfile.TemporaryDirectory(prefix=".installing-", dir=root) as staging:
            staged = Path(staging) / candidate.name
            shutil.copytree(candidate.folder, staged)
            os.rename(staged, root / candidate.name)  # noqa: PTH104
        self._lock.put(
            root,
            candidate.name,
            Locked(
                candidate.source,
                candidate.version,
                self._clock().isoformat(timespec="seconds"),
                hashes(candidate.bundle),
            ),
        )

    def _backup(self, root: Path, name: str) -> Path:
        folder = self._quarantine.parent / "skills-backup"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        backup = folder / f"{name}-{self._clock():%Y%m%dT%H%M%S%f}"
        if (root / name).is_symlink():
            raise InstallError(f"{root / name} is a link: remove it yourself")
        shutil.move(root / name, backup)
        return backup

    def _fetched(self, source: str) -> tuple[str, Bundle, str, str]:
        """Name, files, canonical source and version of what ``source`` means."""
        address, _, inner = source.partition("#")
        path = Path(os.path.expanduser(address))  # noqa: PTH111
        absolute = os.path.abspath(path)  # noqa: PTH100
        suffix = f"#{inner}" if inner else ""
        if path.is_dir():
            if _is_repository(path):
                return self._cloned(absolute, inner)
            folder, bundle = skill_in(read_folder(path), inner)
            return Path(folder).name or Path(absolute).name, bundle, absolute + suffix, ""
        if path.is_file() and path.name.lower().endswith(_ARCHIVES):
            if path.stat().st_size > _ARCHIVE_BYTES:
                raise InstallError(f"{path} is larger than {_ARCHIVE_BYTES // 1024**2} MB")
            folder, bundle = skill_in(read_archive(path.read_bytes()), inner)
            return Path(folder).name or path.name.split(".")[0], bundle, absolute + suffix, ""
        if _GIT.fullmatch(address):
            return self._cloned(address, inner)
        slug, _, version = address.partition("@")
        if not inner and NAME.fullmatch(slug) and not path.exists():
            with self._registry() as registry:
                latest = registry.latest(slug)  # asked always: it says what is blocked
                version = version or latest
                _, bundle = skill_in(registry.fetch(slug, version))
                return slug, bundle, f"registry:{slug}", version
        raise InstallError(
            f"{source} is no folder, no zip or tar, no git URL and no name in a registry"
        )

    def _cloned(self, address: str, inner: str) -> tuple[str, Bundle, str, str]:
        with tempfile.TemporaryDirectory(prefix="nanobot-skill-") as directory:
            clone = Path(directory) / "clone"
            _git("clone", "--quiet", "--depth", "1", "--no-tags", "--", address, str(clone))
            version = _git("-C", str(clone), "rev-parse", "HEAD").strip()
            folder, bundle = skill_in(read_folder(clone), inner)
        own = re.split(r"[/:]", address.rstrip("/"))[-1].removesuffix(".git")
        return (
            Path(folder).name or own,
            bundle,
            f"git:{address}{'#' + inner if inner else ''}",
            version,
        )

    def _candidate(self, name: str, bundle: Bundle, source: str, version: str) -> Candidate:
        self._quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=self._quarantine))
        try:
            probe = place / "skill"
            write_bundle(bundle, probe)
            skill = read_skill(Source.WORKSPACE, probe, protected=())
            if isinstance(skill, BrokenSkill):
                raise InstallError(f"{source}: {skill.reason}")
            if NAME.fullmatch(skill.manifest.name) and not source.startswith("registry:"):
                name = skill.manifest.name
            if not NAME.fullmatch(name):
                raise InstallError(f"{source}: {one_line(name, 80)!r} is no name for a folder")
            findings = scan(bundle)
            if (builtin_skills_dir() / name).is_dir():
                kind = "takes the place of a built-in skill"
                findings = (*findings, Finding(SKILL_FILE, 0, kind, name))
            return Candidate(name, skill, source, version, bundle, findings, probe)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def address_of(installed: Locked) -> str:
    """The source for ``Installer.fetch`` that gives the newest version of an installed skill."""
    return installed.source.removeprefix("registry:").removeprefix("git:")


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir())


def _git(*arguments: str) -> str:
    """Run git without hooks or other code of the repository; raises InstallError."""
    environment = {
        **{
            name: os.environ[name]
            for name in (*_GIT_NEEDS, *map(str.lower, _GIT_NEEDS))
            if name in os.environ
        },
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    options = ("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never")
    try:
        git = subprocess.Popen(
            ["git", *options, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise InstallError("git is not installed") from error
    with git:
        try:
            said, complaint = git.communicate(timeout=GIT_S)
        except BaseException as error:
            # With the helpers that speak to the network, which would wait on by themselves.
            os.killpg(git.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise InstallError(f"git was not done after {GIT_S:g} s") from error
            raise
    if git.returncode:
        raise InstallError(f"git: {one_line(complaint.strip(), 300)}")
    return said
