"""The sandbox of the model's commands: bubblewrap, used after a probe has run in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from nanobot.core.errors import ToolError
from nanobot.safety.paths import DiskView

# Places that programs need, without anybody's data: no /home, /root, /var, /srv, /mnt.
_SYSTEM = (
    *(Path("/usr"), Path("/bin"), Path("/sbin"), Path("/etc")),
    *(Path("/lib"), Path("/lib32"), Path("/lib64"), Path("/libx32")),
    *(Path("/nix"), Path("/gnu/store"), Path("/run/current-system"), Path("/snap")),
    Path("/home/linuxbrew/.linuxbrew"),
)
# Programs installed by hand, with their data: left out under tools.restrictToWorkspace.
_ADDED = (Path("/opt"),)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The user's own programs, below their home, and what the links in these folders lead to.
_USERS_PATH = (".local/bin", "go/bin", ".linuxbrew/bin")
_USERS_PROGRAMS = (
    *(".local/bin", "go/bin", ".linuxbrew", ".local/share/uv/tools", ".local/share/uv/python"),
    *(".local/share/pipx", ".local/pipx"),
)
_BREW_PATH = (Path("/home/linuxbrew/.linuxbrew/bin"), Path("/home/linuxbrew/.linuxbrew/sbin"))
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
# Commands have no terminal: no pager, no prompt, no output lost in a buffer when they are killed.
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
    """The owner's settings; ``path_append`` are further folders of programs."""

    mode: SandboxMode = SandboxMode.AUTO
    network: SandboxNetwork = SandboxNetwork.ON
    path_append: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a sandboxed command ran on this machine; ``reason`` says why not."""

    works: bool
    reason: str = ""


class Sandbox:
    """Builds the command lines and environments of sandboxed commands.

    ``environ`` is the daemon's environment, of which commands get little; ``user_home`` is hidden
    except for the programs in it.
    """

    def __init__(
        self, policy: SandboxPolicy, *, environ: Mapping[str, str], user_home: Path
    ) -> None:
        self.policy = policy
        self._environ = environ
        self._user_home = user_home
        self._probing = threading.Lock()
        self._probe: Probe | None = None

    async def probe(self) -> Probe:
        """Run one real command in the sandbox, the first time only."""
        return await asyncio.to_thread(self._probed)

    def is_used(self) -> bool:
        """Whether commands run in the sandbox; blocks for the first probe."""
        return self.policy.mode is not SandboxMode.OFF and self._probed().works

    def which(self, program: str, view: DiskView) -> str | None:
        """The path at which a command finds and can run ``program``; None if there is none."""
        if not self.is_used():
            return shutil.which(program, path=self.environment(None, {})["PATH"])
        is_seen = self._sight(view)
        for folder in self.environment(view, {})["PATH"].split(os.pathsep):
            found = shutil.which(program, path=folder)
            if found and all(map(is_seen, _needed(Path(found)))):
                return found
        return None

    def wrap(self, argv: Sequence[str], *, view: DiskView, cwd: Path) -> list[str]:
        """The command line that runs ``argv`` inside, in ``cwd``; raises ToolError.

        The new root holds the system read-only, the view's /tmp, a minimal /dev, this command's
        own processes, and the view. Of the user's home and nanobot's it holds only what the view
        shows.
        """
        if Path("/") in view.writable:
            raise ToolError("The workspace is the whole disk; no sandbox can be put round it.")
        if not self._sight(view)(cwd):
            raise ToolError(f"{cwd} cannot be seen from the sandbox that commands run in.")
        return [
            self._program() or "bwrap",
            *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *(["--share-net"] if self.policy.network is SandboxNetwork.ON else []),
            *("--proc", "/proc", "--dev", "/dev", "--dir", "/var"),
            *(("--bind", str(view.tmp), "/tmp") if view.tmp else ("--tmpfs", "/tmp")),
            *("--symlink", "../tmp", "/var/tmp"),
            *_resolver_mount(),
            *(word for mount in self._mounts(view) for word in mount),
            *("--remount-ro", "/", "--chdir", str(view.inside(cwd)), "--", *argv),
        ]

    def environment(self, view: DiskView | None, extra: Mapping[str, str]) -> dict[str, str]:
        """The environment of a command without the daemon's secrets; None: it runs unsandboxed.

        ``extra`` is the turn's own.
        """
        is_seen = (lambda path: True) if view is None else self._sight(view)
        home = self._user_home if view is None else view.writable[0]
        tmp = self._environ.get("TMPDIR", "/tmp") if view is None else "/tmp"

        def seen(path: str) -> bool:
            return view is None or (path.startswith("/") and is_seen(Path(path)))

        return {
            **_allowed(self._environ, seen),
            "PATH": self._search_path(seen),
            "HOME": str(home),
            "TMPDIR": tmp,
            "SHELL": shell(),
            **extra,
        }

    def _mounts(self, view: DiskView) -> Iterator[tuple[str, ...]]:
        """Mount options, outer places first so that inner ones are mounted over them."""
        mounts: dict[Path, tuple[str, ...]] = {}
        for path in filter(os.path.lexists, _system(view)):
            if path.is_symlink():
                mounts[path] = ("--symlink", str(path.readlink()), str(path))
            else:
                mounts[path] = ("--ro-bind", str(path), str(path))
        for path in _unreadable_to_others():
            if path.exists():
                mounts[path] = _hiding(path)
        shown = (*_system(view), *view.writable)
        for path in (self._user_home, *view.hidden):
            if path.exists() and any(root in path.parents for root in shown):
                mounts[path] = _hiding(path)
        for path in (*self._programs(), *view.readable):
            mounts[path] = ("--ro-bind-try", str(path), str(path))
        for path in view.writable:
            mounts[path] = ("--bind", str(path), str(path))
        yield from (mounts[path] for path in sorted(mounts, key=lambda path: len(path.parts)))

    def _sight(self, view: DiskView) -> Callable[[Path], bool]:
        """A test whether a path exists in the sandbox; the innermost place around it decides."""
        tmp = () if view.tmp is None else (view.tmp,)
        shown = {*_system(view), *self._programs(), *view.readable, *view.writable, *tmp}
        hidden = {self._user_home, *view.hidden} - shown

        def is_seen(path: Path) -> bool:
            places = (path, *path.parents)
            return next((place in shown for place in places if place in shown | hidden), False)

        return is_seen

    def _programs(self) -> Iterator[Path]:
        """Folders of programs besides the system's; of a link its target as well."""
        home = (self._user_home / name for name in _USERS_PROGRAMS)
        for path in (*home, *self.policy.path_append):
            if _is_folder(path):
                yield from dict.fromkeys((path, Path(os.path.realpath(path))))

    def _search_path(self, seen: Callable[[str], bool]) -> str:
        """The PATH of commands: the visible part of the daemon's, the usual folders, the user's
        own and those of the policy.
        """
        places = (*_BREW_PATH, *(self._user_home / name for name in _USERS_PATH))
        entries = (
            *self._environ.get("PATH", "").split(os.pathsep),
            *_DEFAULT_PATH.split(os.pathsep),
            *(str(path) for path in (*places, *self.policy.path_append) if _is_folder(path)),
        )
        return os.pathsep.join(
            dict.fromkeys(entry for entry in entries if entry.startswith("/") and seen(entry))
        )

    def _program(self) -> str | None:
        return shutil.which("bwrap", path=self._environ.get("PATH", _DEFAULT_PATH))

    def _probed(self) -> Probe:
        with self._probing:
            if self._probe is None:
                self._probe = self._try()
            return self._probe

    def _try(self) -> Probe:
        if sys.platform != "linux":
            return Probe(False, "bubblewrap exists on Linux only")
        if self._program() is None:
            return Probe(False, "bubblewrap (bwrap) is not installed")
        with tempfile.TemporaryDirectory(prefix="nanobot-probe-") as directory:
            place = Path(directory).resolve()
            view = DiskView(writable=(place,))
            script = f"cat /proc/self/stat >here && echo {_PROBE_ANSWER}"
            try:
                tried = subprocess.run(
                    self.wrap(["/bin/sh", "-c", script], view=view, cwd=place),
                    cwd="/",
                    env=self.environment(view, {}),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=_PROBE_LIMIT_S,
                    check=False,
                    start_new_session=True,
                )
            except subprocess.TimeoutExpired:
                return Probe(False, f"bubblewrap did not answer within {_PROBE_LIMIT_S:g} s")
            except OSError as error:
                return Probe(False, f"bubblewrap cannot be started: {error.strerror}")
        said = tried.stdout.decode("utf-8", "replace").strip()[:1000]
        if tried.returncode == 0 and said == _PROBE_ANSWER:
            return Probe(True)
        return Probe(False, said or f"bubblewrap ended with code {tried.returncode}")


@cache
def shell() -> str:
    """The shell that runs commands: bash where there is one."""
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if Path(path).exists()), "/bin/sh")


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path's raises where a folder is closed to us


def _system(view: DiskView) -> tuple[Path, ...]:
    return _SYSTEM if view.restricted else _SYSTEM + _ADDED


def _needed(program: Path) -> Iterator[Path]:
    """The files needed to start ``program``: the target of links, and a script's interpreter."""
    real = Path(os.path.realpath(program))
    yield real
    with contextlib.suppress(OSError), real.open("rb") as file:
        first = file.readline(256).decode("utf-8", "replace")
        if first.startswith("#!/") and (words := first[2:].split()):
            yield Path(os.path.realpath(words[0]))


def _hiding(path: Path) -> tuple[str, ...]:
    if path.is_dir():
        return ("--tmpfs", str(path))
    return ("--ro-bind", "/dev/null", str(path))


@cache
def _unreadable_to_others() -> tuple[Path, ...]:
    """The files in /etc that others cannot read but nanobot (as root) can: keys, passwords."""
    found: list[Path] = []
    folders = ["/etc"]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                listed = [entry for entry in entries if not entry.is_symlink()]
        except OSError:
            continue
        for entry in listed:
            with contextlib.suppress(OSError):  # gone meanwhile
                is_public = entry.stat(follow_symlinks=False).st_mode & stat.S_IROTH
                if not is_public and os.access(entry.path, os.R_OK):
                    found.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return tuple(found)


def _resolver_mount() -> tuple[str, ...]:
    """Mount the target of /etc/resolv.conf, which is often a link into /run."""
    target = Path(os.path.realpath("/etc/resolv.conf"))
    if target.is_file() and not any(root in target.parents for root in _SYSTEM):
        return ("--ro-bind", str(target), str(target))
    return ()


def _allowed(environ: Mapping[str, str], seen: Callable[[str], bool]) -> dict[str, str]:
    """The harmless part of ``environ``, in UTF-8 whatever its locale is."""
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
