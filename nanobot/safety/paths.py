"""Resolves a path that a model wrote to a file that a tool may touch."""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeAlias

from nanobot.core.errors import ToolError
from nanobot.core.messages import Trust
from nanobot.core.tool import ToolContext
from nanobot.store.files import write_atomic
from nanobot.store.home import Home

SkillFolders: TypeAlias = Callable[[ToolContext], Sequence[Path]]
"""Gives the folders of the skills that the session of a call may use."""

WriteNoted: TypeAlias = Callable[[ToolContext, Path], None]
"""Called with each real path before a file tool writes it."""

_PRIVATE = (
    *("config.json*", "pairing.json*", "state.db*", "recall.*", "audit.jsonl*"),
    *("skills-off.json*", "skills.lock.json*"),
    *("cron", "run", "logs", "cache", "media", "spill", "plugins", "memory-versions"),
)
_TMP = (Path("/tmp"), Path("/var/tmp"))
_LINKS = 40  # as many as Linux follows
_WRITTEN = 100  # files that are remembered
# /proc/self/environ holds the daemon's keys, and devices may block or act.
_NOT_FILES = (Path("/proc"), Path("/dev"))


class Access(StrEnum):
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class DiskView:
    """The part of the disk, besides the system, that a turn's commands see; existing paths.

    ``writable`` and ``readable`` are mounted, ``hidden`` is taken out of them; of nested places
    the inner one wins. ``tmp`` is mounted as /tmp; None: each command has its own. ``restricted``:
    of the system only what the distribution and its package managers install.
    """

    writable: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    tmp: Path | None = None
    restricted: bool = False

    def inside(self, path: Path) -> Path:
        """The path at which a command finds the real ``path``."""
        return _inside(path, self.tmp)


class PathResolver:
    """The rules about files, for the life of the daemon; ``for_context`` applies them to a turn.

    Everything in nanobot's home is private (configuration, tokens, sessions, logs) except the
    workspace. Tools may read shared skills, the catalogue of skills and the session's own spilled
    results and media. With ``restrict`` they may touch nothing else outside the workspace and /tmp.

    ``own_tmp`` says whether commands run in a sandbox. If so, /tmp is a folder of the home, mounted
    for commands and translated for file tools, and commands see the files that file tools wrote
    elsewhere.
    """

    def __init__(
        self,
        home: Home,
        *,
        restrict: bool,
        skills: SkillFolders | None = None,
        noted: WriteNoted = lambda context, path: None,
        own_tmp: Callable[[], bool] = lambda: False,
    ) -> None:
        self._home = home
        self._restrict = restrict
        self._skills = skills
        self._noted = noted
        self._own_tmp = own_tmp
        self._written: dict[Path, None] = {}

    def for_context(self, context: ToolContext) -> Paths:
        """The paths that the tools of this turn may touch."""
        configured = _absolute(context.workspace)
        workspace = _real(configured)
        home = _real(self._home.root)
        tmp = _real(self._home.private(self._home.tmp)) if self._own_tmp() else None
        skills = () if self._skills is None else tuple(self._skills(context))
        shared = _real(self._home.shared_skills)
        roots = (
            # Each root is a mount, and thousands of mounts take bubblewrap many seconds.
            *(
                folder
                for folder in skills
                if not _within(_absolute(folder), configured) and not _within(folder, shared)
            ),
            shared,
            self._home.skills_catalogue,
            self._home.spill_of(context.session_key),
            self._home.media_of(context.session_key),
        )
        return Paths(
            workspace=workspace,
            configured_workspace=configured,
            home=home,
            # Not the folders in the workspace: it is readable itself, and the model could have
            # made a skill's folder there a link to somewhere else.
            readable=tuple(real for real in map(_real, roots) if not _within(home, real)),
            foreign=(_real(self._home.spill), _real(self._home.media)),
            skill_files=(
                *(_real(folder) / "SKILL.md" for folder in skills),
                _real(self._home.skills_catalogue),
            ),
            restrict=self._restrict,
            skills_only=not context.principal.is_owner,
            noted=lambda path: self._note(context, path),
            tmp=tmp,
            written=tuple(
                path
                for path in tuple(self._written)
                if not _within(path, home) and not _within(path, workspace)
            ),
        )

    def _note(self, context: ToolContext, path: Path) -> None:
        self._noted(context, path)
        self._written[path] = self._written.pop(path, None)
        if len(self._written) > _WRITTEN:
            del self._written[next(iter(self._written))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The paths that one turn may touch; all but ``configured_workspace`` are real paths.

    ``configured_workspace`` is the workspace as the prompt names it, perhaps a symbolic link.
    ``foreign`` are the folders of files from outside. ``skills_only``: the turn is a guest's, who
    may read the ``skill_files`` (with the catalogue of skills) and nothing else. ``noted`` is
    called with each path before it is written. ``tmp`` stands for /tmp; None: the machine's.
    ``written`` are files outside home and workspace that file tools wrote lately.
    """

    workspace: Path
    configured_workspace: Path
    home: Path
    readable: tuple[Path, ...]
    foreign: tuple[Path, ...]
    skill_files: tuple[Path, ...]
    restrict: bool
    skills_only: bool
    noted: Callable[[Path], None] = lambda path: None
    tmp: Path | None = None
    written: tuple[Path, ...] = ()

    def resolve(self, text: str, access: Access = Access.READ) -> Path:
        """The real path that ``text`` means, if ``access`` to it is allowed; raises ToolError.

        ``~`` is the user's home, a relative path starts at the workspace, symbolic links are
        followed (of a file yet to be made: those of its nearest existing ancestor).
        """
        if "\0" in text:
            raise ToolError("The path contains a NUL character; no file has such a name.")
        if not text.strip():
            raise ToolError("The path is empty; use '.' for the workspace.")
        path = self._in_tmp(_real(self.workspace / os.path.expanduser(text)))  # noqa: PTH111
        self._check(path, text, access)
        return path

    def show(self, path: Path) -> str:
        """The path as the model sees it: relative within the workspace, else absolute."""
        if _within(path, self.workspace):
            return str(path.relative_to(self.workspace))
        return str(_inside(path, self.tmp))

    def is_private(self, path: Path) -> bool:
        """Whether the real ``path`` is nanobot's own."""
        if not _within(path, self.home):
            return _lies_in_same(path, self.home)
        if self.workspace == self.home:
            first = path.relative_to(self.home).parts[:1]
            return any(_is_private_name(name) for name in first)
        return not (_within(self.workspace, self.home) and _within(path, self.workspace))

    def hidden(self) -> tuple[Path, ...]:
        """The paths that a walk over the disk leaves out, except for the workspace in them."""
        return tuple(self._private_entries()) if self.workspace == self.home else (self.home,)

    def view(self) -> DiskView:
        """The part of the disk that this turn's commands see."""
        history = (self.history_file,) if self.history_file.is_file() else ()
        return DiskView(
            writable=tuple(dict.fromkeys((self.workspace, self.configured_workspace))),
            readable=(
                *(root for root in self.readable if root.exists()),
                *history,
                *(path for path in self.written if os.path.isfile(path)),  # noqa: PTH113
            ),
            hidden=self.hidden(),
            tmp=self.tmp,
            restricted=self.restrict,
        )

    @property
    def history_file(self) -> Path:
        """HISTORY.md, which no tool may write."""
        return _real(self.workspace / "memory" / "HISTORY.md")

    def open_file(self, path: Path) -> int:
        """Open a resolved regular file for reading; returns a descriptor, raises ToolError.

        Never blocks: pipes and devices are refused. A symbolic link put in place of the file since
        it was resolved is refused too.
        """
        name = self.show(path)
        try:
            _refuse_special(name, os.lstat(path).st_mode)
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise ToolError(f"{name}: {_reason(error)}.") from error
        try:
            _refuse_special(name, os.fstat(descriptor).st_mode)
            self._refuse_hard_link(os.fstat(descriptor), name)
            _refuse_moved(descriptor, path, name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @contextlib.contextmanager
    def open_directory(self, path: Path) -> Iterator[int]:
        """A descriptor of a resolved directory, as safe as ``open_file``; raises ToolError."""
        name = self.show(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except NotADirectoryError as error:
            raise ToolError(f"{name} is not a directory.") from error
        except OSError as error:
            raise ToolError(f"{name}: {_reason(error)}.") from error
        try:
            _refuse_moved(descriptor, path, name)
            yield descriptor
        finally:
            os.close(descriptor)

    def trust_of(self, path: Path) -> Trust:
        """The trust of a file's content: untrusted for spilled results and media.

        Spilled results may come from the web, and media from anybody.
        """
        foreign = any(_within(path, root) for root in self.foreign)
        return Trust.UNTRUSTED if foreign else Trust.TRUSTED

    def write_file(self, path: Path, data: bytes) -> None:
        """Replace a resolved file atomically, making its directory; keeps an existing mode."""
        name = self.show(path)
        try:
            with contextlib.suppress(FileNotFoundError):
                _refuse_special(name, path.lstat().st_mode)
            self.noted(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.open_directory(path.parent) as directory:
                pinned = Path(f"/proc/self/fd/{directory}")
                place = pinned if sys.platform == "linux" and pinned.is_dir() else path.parent
                write_atomic(place / path.name, data, mode=-1)
        except OSError as error:
            raise ToolError(f"{name}: {_reason(error)}.") from error

    def _in_tmp(self, path: Path) -> Path:
        """Translate a path in /tmp to the folder that stands for it; others stay as they are.

        A file that exists in both is taken from the assistant's own /tmp. Unless restricted, a
        file that exists only in the machine's /tmp is found there, and so is a new file in a
        folder that only the machine's has.
        """
        for _ in range(_LINKS):
            root = next((root for root in _TMP if _within(path, root)), None)
            known = (self.workspace, self.home, *self.readable)
            if self.tmp is None or root is None or any(_within(path, place) for place in known):
                return path
            own = self.tmp / path.relative_to(root)
            if not self.restrict and not os.path.lexists(own):
                depth = _existing_parts(path, root)
                if depth and depth >= _existing_parts(own, self.tmp):
                    return path
            path = _real(own)  # a link that a command made may lead anywhere, into /tmp again too
            if _within(path, self.tmp):
                return path
        raise ToolError(f"{path}: {os.strerror(errno.ELOOP)}.")

    def _check(self, path: Path, text: str, access: Access) -> None:
        if self.skills_only and (access is Access.WRITE or path not in self.skill_files):
            raise ToolError("Only the owner's turns may use files; a guest's may read SKILL.md.")
        if any(_within(path, root) for root in _NOT_FILES):
            raise ToolError(
                f"{text} is not an ordinary file; file tools leave /proc and /dev alone."
            )
        if access is Access.READ and any(_within(path, root) for root in self.readable):
            return
        in_tmp = self.tmp is not None and _within(path, self.tmp)
        if not in_tmp and self.is_private(path):
            raise ToolError(
                f"{text} belongs to nanobot itself (configuration, keys, sessions); "
                "no tool may read or write it."
            )
        if self.restrict and not in_tmp and not _within(path, self.workspace):
            raise ToolError(
                f"{text} is outside the workspace {self.workspace}, "
                "and tools are restricted to the workspace."
            )
        if access is Access.WRITE and self._is_history(path):
            raise ToolError(
                "memory/HISTORY.md is written by nanobot alone; lasting facts go to "
                "memory/MEMORY.md."
            )
        with contextlib.suppress(OSError):
            self._refuse_hard_link(path.stat(), text)

    def _is_history(self, path: Path) -> bool:
        history = self.history_file
        try:
            return path == history or path.samefile(history)
        except OSError:
            return False

    def _refuse_hard_link(self, status: os.stat_result, name: str) -> None:
        """Refuse a hard link to a private file."""
        if status.st_nlink < 2 or stat.S_ISDIR(status.st_mode):
            return
        files = [*self._private_entries(), self.home / "cron" / "jobs.json"]
        if any(_is_same_file(status, file) for file in files):
            raise ToolError(f"{name} is a file of nanobot's own under another name.")

    def _private_entries(self) -> Iterator[Path]:
        for entry in self.home.iterdir() if self.home.is_dir() else ():
            if _is_private_name(entry.name):
                yield entry


def _is_private_name(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _PRIVATE)


def _absolute(path: Path) -> Path:
    # Not Path.absolute, which keeps "..".
    return Path(os.path.abspath(path))  # noqa: PTH100


def _real(path: Path) -> Path:
    # os.path rather than Path.resolve, which raises on loops: opening the file will say so.
    return Path(os.path.realpath(path))


def _within(path: Path, root: Path) -> bool:
    return path == root or root in path.parents


def _inside(path: Path, tmp: Path | None) -> Path:
    if tmp is None or not _within(path, tmp):
        return path
    return _TMP[0] / path.relative_to(tmp)


def _existing_parts(path: Path, root: Path) -> int:
    """How many names below ``root`` exist on the way to ``path``."""
    while path != root and not os.path.lexists(path):
        path = path.parent
    return len(path.parts) - len(root.parts)


def _lies_in_same(path: Path, root: Path) -> bool:
    """Whether an ancestor of ``path`` *is* ``root``: in another case (macOS), or a bind mount."""
    try:
        status = root.stat()
    except OSError:
        return False
    return any(_is_same_file(status, ancestor) for ancestor in (path, *path.parents))


def _is_same_file(status: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(status, path.stat())
    except OSError:
        return False


def _refuse_special(name: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise ToolError(f"{name} is a directory; use list_dir.")
    if not stat.S_ISREG(mode):
        raise ToolError(f"{name} is not a regular file (a link, pipe, socket or device).")


def _refuse_moved(descriptor: int, path: Path, name: str) -> None:
    actual = _path_of(descriptor)
    if actual is not None and actual != path:
        raise ToolError(f"{name} was moved or replaced by a link while it was opened; try again.")


def _path_of(descriptor: int) -> Path | None:
    """The kernel's path of an open descriptor; None if it has none."""
    if sys.platform == "darwin":
        buffer: bytes = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024))
        return Path(os.fsdecode(buffer.rstrip(b"\0")))
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return None


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a symbolic link that leads nowhere or in a circle"
    return error.strerror or str(error)


def existing(paths: Paths, text: str, access: Access = Access.READ) -> Path:
    """Resolve a path that must exist; the error names the nearest matches."""
    path = paths.resolve(text, access)
    if not os.path.lexists(path):
        raise ToolError(_missing(paths, path))
    return path


def _missing(paths: Paths, path: Path) -> str:
    ancestor = path.parent
    while not ancestor.is_dir():
        ancestor = ancestor.parent
    wanted = path.relative_to(ancestor).parts[0]
    try:
        with os.scandir(ancestor) as entries:
            names = [entry.name for entry, _ in zip(entries, range(5000), strict=False)]
    except OSError:
        names = []
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(wanted.casefold(), folded, n=3, cutoff=0.6)
    place = paths.show(ancestor)
    where = "the workspace" if place == "." else place
    if ancestor != path.parent:
        where = f"{where} has no {wanted}/"
    else:
        where = f"nothing of that name is in {where}"
    hint = f"; nearest: {', '.join(folded[name] for name in near)}" if near else ""
    return f"{paths.show(path)} does not exist ({where}{hint})."
