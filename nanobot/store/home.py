"""Every path on disk, and the data that ships with the program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from nanobot.core.errors import StoreUnavailable


@dataclass(frozen=True, slots=True)
class Home:
    """The directory that holds one owner's assistant (``~/.nanobot`` unless moved)."""

    root: Path

    @classmethod
    def locate(cls, option: str | None, environ: Mapping[str, str]) -> Home:
        """The home named by ``--home``, else by ``NANOBOT_HOME``, else ``~/.nanobot``."""
        chosen = option or environ.get("NANOBOT_HOME") or "~/.nanobot"
        return cls(Path(os.path.abspath(os.path.expanduser(chosen))))  # noqa: PTH100, PTH111

    @property
    def config_file(self) -> Path:
        return self.root / "config.json"

    @property
    def default_workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def database(self) -> Path:
        return self.root / "state.db"

    @property
    def recall_index(self) -> Path:
        return self.root / "recall.db"

    @property
    def cron_jobs(self) -> Path:
        return self.root / "cron" / "jobs.json"

    @property
    def shared_skills(self) -> Path:
        return self.root / "skills"

    @property
    def taken_over(self) -> Path:
        return self.root / "taken-over.json"

    @property
    def skills_catalogue(self) -> Path:
        return self.cache / "skills.txt"

    @property
    def skills_off(self) -> Path:
        return self.root / "skills-off.json"

    @property
    def skills_lock(self) -> Path:
        return self.root / "skills.lock.json"

    @property
    def media(self) -> Path:
        return self.root / "media"

    @property
    def spill(self) -> Path:
        return self.root / "spill"

    @property
    def memory_versions(self) -> Path:
        return self.root / "memory-versions"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def refusals(self) -> Path:
        """What model endpoints have refused."""
        return self.cache / "refusals.json"

    @property
    def tmp(self) -> Path:
        """What tools and sandboxed commands have as /tmp."""
        return self.cache / "tmp"

    @property
    def plugins(self) -> Path:
        return self.root / "plugins"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def socket(self) -> Path:
        return self.run / "gateway.sock"

    @property
    def lock(self) -> Path:
        return self.run / "lock"

    def spill_of(self, session_key: str) -> Path:
        """Where one session's spilled tool results are; the key is percent-encoded."""
        return self.spill / file_name(session_key)

    def media_of(self, session_key: str) -> Path:
        """Where one session's media are; the key is percent-encoded."""
        return self.media / file_name(session_key)

    def private(self, directory: Path) -> Path:
        """Create ``directory`` (inside the home) and those above it with mode 0700; returns it."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self.root
        for part in directory.relative_to(self.root).parts:
            place /= part
            place.mkdir(mode=0o700, exist_ok=True)
        return directory


def file_name(key: str) -> str:
    """A reversible file name for any key: percent-encoded, never ``.`` or ``..``."""
    encoded = quote(key, safe="")
    return encoded.replace(".", "%2E") if encoded.strip(".") == "" else encoded


LONGEST_NAME = 100
"""Bytes of a socket's path that every system takes (Linux 107, BSD and macOS 103)."""


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """``path``, or while the block lasts a shorter name of the same place, to bind or connect to.

    The shorter one leads through a link in a private temporary directory.
    """
    if len(os.fsencode(path)) <= LONGEST_NAME:
        yield str(path)
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="nanobot-") as folder:
        link = Path(folder, "run")
        link.symlink_to(path.parent.absolute(), target_is_directory=True)
        yield str(link / path.name)


_PACKAGE = Path(__file__).parent.parent


def builtin_skills_dir() -> Path:
    """The folder of the built-in skills; raises StoreUnavailable when it was not installed."""
    return shipped_dir("skills", package=_PACKAGE)


def workspace_templates_dir() -> Path:
    """The folder a new workspace is copied from; raises StoreUnavailable when it is missing."""
    return shipped_dir("workspace_templates", package=_PACKAGE)


def shipped_dir(name: str, *, package: Path) -> Path:
    """Where ``name`` is: in the package's ``_data`` (a wheel), else beside it (a checkout)."""
    for place in (package / "_data" / name, package.parent / name):
        if place.is_dir():
            return place
    raise StoreUnavailable(f"{name} is missing from the installation at {package}: reinstall it")


def seed(workspace: Path, templates: Path) -> tuple[Path, ...]:
    """Create the workspace and the template files it lacks; returns what was created."""
    created = []
    workspace.mkdir(parents=True, exist_ok=True)
    for template in sorted(templates.rglob("*.md")):
        target = workspace / template.relative_to(templates)
        if target.exists() or target.is_symlink():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(template, target)
        created.append(target)
    return tuple(created)
