"""The sandbox round the commands a model runs: bubblewrap, used where it really works."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from nanobot.core.errors import ToolError
from nanobot.safety.paths import DiskView
from nanobot.safety.process import OutputBuffer, ProcessTree

# What programs need to run, and nothing that is anybody's: no /home, /root, /var, /srv, /mnt.
_SYSTEM = (
    *(Path("/usr"), Path("/bin"), Path("/sbin"), Path("/etc"), Path("/opt")),
    *(Path("/lib"), Path("/lib32"), Path("/lib64"), Path("/libx32")),
    *(Path("/nix"), Path("/gnu/store"), Path("/run/current-system"), Path("/snap")),
    Path("/home/linuxbrew/.linuxbrew"),
)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROBE_LIMIT_S = 3.0
_PROBE_ANSWER = "sandboxed"

_PASSED = frozenset(
    {
        *("LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("NIX_SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        "GIT_SSL_CAINFO",
    }
)
_PROXIES = frozenset({"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"})
# Nobody sits at a command's terminal: no pager, no prompt, nothing lost in a buffer when killed.
_FIXED = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "PYTHONUTF8": "1",
    "PYTHONUNBUFFERED": "1",
}


class SandboxMode(StrEnum):
    """``auto``: where it works; ``require``: or not at all; ``off``: never."""

    AUTO = "auto"
    REQUIRE = "require"
    OFF = "off"


class SandboxNetwork(StrEnum):
    """Whether sandboxed commands reach the network."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """What the owner has set; ``readable`` are further places that commands may read."""

    mode: SandboxMode = SandboxMode.AUTO
    network: SandboxNetwork = SandboxNetwork.ON
    readable: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a sandboxed command really ran here; ``reason`` says why not."""

    works: bool
    reason: str = ""


class Sandbox:
    """Builds the command lines and environments of sandboxed commands.

    ``environ`` is the daemon's environment, of which little is passed on; ``user_home`` is
    hidden.
    """

    def __init__(
        self, policy: SandboxPolicy, *, environ: Mapping[str, str], user_home: Path
    ) -> None:
        self.policy = policy
        self._environ = environ
        self._user_home = user_home
        self._probing = asyncio.Lock()
        self._probe: Probe | None = None

    async def probe(self) -> Probe:
        """Run one real command in the sandbox (once; the outcome is kept)."""
        async with self._probing:
            if self._probe is None:
                self._probe = await self._try()
            return self._probe

    def wrap(self, argv: Sequence[str], *, view: DiskView, cwd: Path) -> list[str]:
        """The command line that runs ``argv`` inside, in ``cwd``; raises ToolError.

        The new root holds the system read-only, an empty /tmp, a minimal /dev, the processes of
        this command alone, and the view. The user's home and nanobot's are not there at all, but
        for what the view shows of them.
        """
        if Path("/") in view.writable:
            raise ToolError("The workspace is the whole disk; no sandbox can be put round it.")
        if not self._sees(view, cwd):
            raise ToolError(f"{cwd} cannot be seen from the sandbox that commands run in.")
        return [
            self._program() or "bwrap",
            *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *(["--share-net"] if self.policy.network is SandboxNetwork.ON else []),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/var"),
            *("--symlink", "../tmp", "/var/tmp"),
            *_resolver_mount(),
            *(word for mount in self._mounts(view) for word in mount),
            *("--remount-ro", "/", "--chdir", str(cwd), "--", *argv),
        ]

    def environment(self, view: DiskView, extra: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of a sandboxed command; ``extra`` is the turn's own."""
        home = view.writable[0]

        def seen(path: str) -> bool:
            return path.startswith("/") and self._sees(view, Path(path))

        return {
            **_allowed(self._environ, seen),
            "PATH": _search_path(self._environ, seen),
            "HOME": str(home),
            "TMPDIR": "/tmp",
            "SHELL": shell(),
            **extra,
        }

    def open_environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of a command that runs unsandboxed; as free of secrets."""

        def seen(path: str) -> bool:
            return True

        return {
            **_allowed(self._environ, seen),
            "PATH": _search_path(self._environ, seen),
            "HOME": str(self._user_home),
            "TMPDIR": self._environ.get("TMPDIR", "/tmp"),
            "SHELL": shell(),
            **extra,
        }

    def _mounts(self, view: DiskView) -> Iterator[tuple[str, ...]]:
        """Mount options, outer places first, so that the inner ones lie on top."""
        mounts: dict[Path, tuple[str, ...]] = {}
        for path in filter(os.path.lexists, _SYSTEM):
            if path.is_symlink():
                mounts[path] = ("--symlink", str(path.readlink()), str(path))
            else:
                mounts[path] = ("--ro-bind", str(path), str(path))
        for path in _not_for_strangers():
            if path.exists():
                mounts[path] = _hiding(path)
        for path in self.policy.readable:
            mounts[path] = ("--ro-bind-try", str(path), str(path))
        shown = (*_SYSTEM, *self.policy.readable, *view.writable)
        for path in (self._user_home, *view.hidden):
            if path.exists() and any(root in path.parents for root in shown):
                mounts[path] = _hiding(path)
        for path in view.readable:
            mounts[path] = ("--ro-bind", str(path), str(path))
        for path in view.writable:
            mounts[path] = ("--bind", str(path), str(path))
        yield from (mounts[path] for path in sorted(mounts, key=lambda path: len(path.parts)))

    def _sees(self, view: DiskView, path: Path) -> bool:
        """Whether ``path`` is there inside: the innermost of the places it lies in decides."""
        shown = {*_SYSTEM, *self.policy.readable, *view.readable, *view.writable}
        hidden = {self._user_home, *view.hidden} - shown
        for place in (path, *path.parents):
            if place in shown:
                return True
            if place in hidden:
                return False
        return False

    def _program(self) -> str | None:
        return shutil.which("bwrap", path=self._environ.get("PATH", _DEFAULT_PATH))

    async def _try(self) -> Probe:
        if sys.platform != "linux":
            return Probe(False, "bubblewrap exists on Linux only")
        if self._program() is None:
            return Probe(False, "bubblewrap (bwrap) is not installed")
        await asyncio.to_thread(_not_for_strangers)  # walks /etc, once
        with tempfile.TemporaryDirectory(prefix="nanobot-probe-") as directory:
            place = Path(directory).resolve()
            view = DiskView(writable=(place,))
            script = f"cat /proc/self/stat >here && echo {_PROBE_ANSWER}"
            tree = ProcessTree.start(
                self.wrap(["/bin/sh", "-c", script], view=view, cwd=place),
                cwd="/",
                environment=self.environment(view, {}),
                buffer=OutputBuffer(1000, 0),
                contained=True,
            )
            try:
                async with asyncio.timeout(_PROBE_LIMIT_S):
                    await tree.wait()
            except TimeoutError:
                return Probe(False, f"bubblewrap did not answer within {_PROBE_LIMIT_S:g} s")
            finally:
                await tree.close()
        said = tree.captured().text().strip()
        if tree.exit_code == 0 and said == _PROBE_ANSWER:
            return Probe(True)
        return Probe(False, said or f"bubblewrap ended with code {tree.exit_code}")


@cache
def shell() -> str:
    """The shell that runs commands: bash where there is one."""
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if Path(path).exists()), "/bin/sh")


def _hiding(path: Path) -> tuple[str, ...]:
    if path.is_dir():
        return ("--tmpfs", str(path))
    return ("--ro-bind", "/dev/null", str(path))


@cache
def _not_for_strangers() -> tuple[Path, ...]:
    """What in /etc is not everybody's: keys and password hashes, readable to us only as root."""
    found: list[Path] = []
    for directory, directories, files in os.walk("/etc"):
        for name in (*directories, *files):
            path = Path(directory, name)
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue
            if not stat.S_ISLNK(mode) and not mode & stat.S_IROTH and os.access(path, os.R_OK):
                found.append(path)
        directories[:] = [name for name in directories if Path(directory, name) not in found]
    return tuple(found)


def _resolver_mount() -> tuple[str, ...]:
    """/etc/resolv.conf is often a link into /run, which is not there inside."""
    target = Path(os.path.realpath("/etc/resolv.conf"))
    if target.is_file() and not any(root in target.parents for root in _SYSTEM):
        return ("--ro-bind", str(target), str(target))
    return ()


def _allowed(environ: Mapping[str, str], seen: Callable[[str], bool]) -> dict[str, str]:
    """The harmless part of ``environ``, and UTF-8 whatever its locale is."""
    allowed = dict(_FIXED)
    for name, value in environ.items():
        if name.lower() in _PROXIES:
            passed = "@" not in value  # a proxy's password is a secret like any other
        elif name.startswith("LC_") or name in _PASSED:
            passed = not value.startswith("/") or seen(value)
        else:
            passed = False
        if passed:
            allowed[name] = value
    spoken = allowed.get("LC_ALL") or allowed.get("LC_CTYPE") or allowed.get("LANG", "")
    if "utf" not in spoken.lower():
        allowed.pop("LC_ALL", None)
        allowed["LC_CTYPE"] = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
    return allowed


def _search_path(environ: Mapping[str, str], seen: Callable[[str], bool]) -> str:
    """The user's PATH as far as it can be seen, then the usual places."""
    entries = [*environ.get("PATH", "").split(os.pathsep), *_DEFAULT_PATH.split(":")]
    return os.pathsep.join(
        dict.fromkeys(entry for entry in entries if entry.startswith("/") and seen(entry))
    )
