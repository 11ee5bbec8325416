"""Every path on disk, in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote


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
    def pairing_file(self) -> Path:
        return self.root / "pairing.json"

    @property
    def audit_log(self) -> Path:
        return self.root / "audit.jsonl"

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
