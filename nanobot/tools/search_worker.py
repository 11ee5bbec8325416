"""A worker program that walks directories and searches files.

A regular expression holds the interpreter's lock while it matches and can take for ever, so
searches run in a process of their own that can be killed. The program
(``python -I search_worker.py``) reads one request as JSON from standard input and writes JSON
lines to standard output: hits (lists) as they are found, last a summary (an object). It has the
daemon's rights, but starts from a given descriptor and never follows a symbolic link. It imports
only the standard library, and pathspec where there is an ignore file.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import resource
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".ignore")  # the later rules
# Large and never searched: history, dependencies, caches.
_SKIPPED = frozenset(
    {
        *(".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".cache", ".npm"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox"),
    }
)
_MAX_DEPTH = 60
_MAX_MEMORY = 2 * 1024**3
_LARGE_FILE = 20_000_000
_SHOWN = 300
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins with the bytes of UTF-16's: must come first
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

Emit: TypeAlias = Callable[[object], None]


class Request(TypedDict):
    """What to search.

    ``descriptor`` is a directory or a file; ``pattern`` a regular expression, or None to find
    files; ``glob`` which files. ``hidden`` are paths below the directory to leave out.
    ``outer_rules`` are the ignore files above it: (the directory's path seen from there, text).
    """

    descriptor: int
    pattern: str | None
    glob: str | None
    ignore_case: bool
    context: int
    limit: int
    seconds: float
    hidden: list[str]
    outer_rules: list[tuple[str, str]]


class Summary(TypedDict):
    """How a search ended: ``end`` is done, limit, time or error (with ``reason``)."""

    end: str
    reason: str
    files: int
    skipped: int


class Ended(Exception):
    """The search stopped before it saw everything."""

    def __init__(self, end: str, reason: str = "") -> None:
        super().__init__(end)
        self.end = end
        self.reason = reason


class Rules:
    """The ignore files that apply to a directory, those nearest to it first."""

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    def with_file(self, prefix: str, text: str) -> Rules:
        """These rules and those of an ignore file; ``prefix`` leads from there to the paths."""
        from pathspec import GitIgnoreSpec

        try:
            spec = GitIgnoreSpec.from_lines(text.splitlines())
        except ValueError:  # not a rule git would understand
            return self
        return Rules(((prefix, spec), *self._specs))

    def below(self, name: str) -> Rules:
        """The same rules seen from a subdirectory."""
        return Rules(tuple((f"{prefix}{name}/", spec) for prefix, spec in self._specs))

    def ignore(self, name: str) -> bool:
        """Whether an entry of the directory is ignored; a directory's name ends with a slash."""
        for prefix, spec in self._specs:
            include = spec.check_file(prefix + name).include
            if include is not None:
                return bool(include)
        return False


class Search:
    """One search."""

    def __init__(self, request: Request, emit: Emit) -> None:
        self._request = request
        self._emit = emit
        self._deadline = time.monotonic() + request["seconds"]
        self._left = request["limit"]
        self._hidden = frozenset(request["hidden"])
        self.files = 0
        self.skipped = 0
        self._wanted = glob_matcher(request["glob"]) if request["glob"] else None
        self._expression: re.Pattern[str] | None = None
        self._literal: bytes | None = None
        if request["pattern"] is not None:
            flags = re.IGNORECASE if request["ignore_case"] else 0
            try:
                self._expression = re.compile(request["pattern"], flags)
            except (re.error, OverflowError, RecursionError) as error:
                raise Ended("error", f"not a regular expression: {error}") from error
            if not flags and re.escape(request["pattern"]) == request["pattern"]:
                self._literal = request["pattern"].encode()

    def run(self) -> None:
        descriptor = self._request["descriptor"]
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rules = Rules()
            for prefix, text in reversed(self._request["outer_rules"]):
                rules = rules.with_file(prefix, text)
            self._walk(descriptor, "", rules, 0)
        else:
            self._search_file(os.dup(descriptor), "", explicit=True)

    def _walk(self, directory: int, path: str, rules: Rules, depth: int) -> None:
        try:
            with os.scandir(directory) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError:
            self.skipped += 1
            return
        for name in IGNORE_FILES:
            if any(entry.name == name for entry in entries):
                text = ignore_file_text(name, directory)
                rules = rules.with_file("", text) if text else rules
        for entry in entries:
            self._check_time()
            place = path + entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if place in self._hidden or rules.ignore(entry.name + "/" * is_directory):
                continue
            if is_directory:
                if entry.name not in _SKIPPED and depth < _MAX_DEPTH:
                    self._descend(directory, entry.name, path, rules, depth)
            elif entry.is_file(follow_symlinks=False) and (
                self._wanted is None or self._wanted(place)
            ):
                self._visit(directory, entry.name, place)

    def _descend(self, directory: int, name: str, path: str, rules: Rules, depth: int) -> None:
        try:
            inner = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=directory)
        except OSError:
            self.skipped += 1
            return
        try:
            self._walk(inner, f"{path}{name}/", rules.below(name), depth + 1)
        finally:
            os.close(inner)

    def _visit(self, directory: int, name: str, path: str) -> None:
        self.files += 1
        if self._expression is None:
            self._hit([path])
            return
        try:
            descriptor = os.open(name, _OPEN, dir_fd=directory)
        except OSError:
            self.skipped += 1
            return
        self._search_file(descriptor, path, explicit=False)

    def _search_file(self, descriptor: int, path: str, *, explicit: bool) -> None:
        assert self._expression is not None
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            if size > _LARGE_FILE and not explicit:
                self.skipped += 1
                return
            stream: io.BufferedReader | io.BytesIO = file
            head = file.peek(8192)[:8192]
            encoding = encoding_of(head)
            if encoding is None:
                if explicit:
                    raise Ended("error", "the file is binary")
                return
            file.read(len(bom_of(head)))
            if size <= _LARGE_FILE:
                data = file.read()
                if self._literal is not None and encoding == "utf-8" and self._literal not in data:
                    return
                stream = io.BytesIO(data)
            lines = io.TextIOWrapper(stream, encoding, "replace", newline="\n")
            self._search_lines(path, lines)

    def _search_lines(self, path: str, lines: io.TextIOWrapper) -> None:
        assert self._expression is not None
        before: deque[tuple[int, str]] = deque(maxlen=self._request["context"])
        after = 0
        for number, ended in enumerate(lines, 1):
            if not number % 1000:
                self._check_time()
            line = ended.rstrip("\r\n")
            match = self._expression.search(line)
            if match is not None:
                if not self._left:
                    raise Ended("limit")
                for earlier, text in before:
                    self._emit([path, earlier, _excerpt(text, 0), False])
                before.clear()
                self._hit([path, number, _excerpt(line, match.start()), True])
                after = self._request["context"]
            elif after:
                self._emit([path, number, _excerpt(line, 0), False])
                after -= 1
            else:
                before.append((number, line))

    def _hit(self, hit: Sequence[object]) -> None:
        if not self._left:
            raise Ended("limit")
        self._left -= 1
        self._emit(hit)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise Ended("time")


def bom_of(head: bytes) -> bytes:
    """The byte order mark that a file begins with, if any."""
    return next((bom for bom, _ in _BOMS if head.startswith(bom)), b"")


def encoding_of(head: bytes) -> str | None:
    """The encoding of a text by its first bytes: by its byte order mark, else UTF-8.

    None for what is not text: it has NUL bytes, which no text in UTF-8 has.
    """
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            return encoding
    return None if b"\0" in head else "utf-8"


def glob_matcher(glob: str) -> Callable[[str], bool]:
    """Tests paths (relative, with slashes) by a glob pattern.

    A pattern without a slash is about the name alone. ``*`` and ``?`` stop at slashes, ``**/``
    is any number of directories, ``[…]`` one character of a set, ``{a,b}`` one or the other.
    """
    glob = glob.removeprefix("./")
    matches = re.compile("".join(_translated(glob)), re.DOTALL).fullmatch
    if "/" in glob:
        return lambda path: matches(path) is not None
    return lambda path: matches(path.rpartition("/")[2]) is not None


def _translated(glob: str) -> Iterator[str]:
    position = 0
    braces = 0
    while position < len(glob):
        character = glob[position]
        position += 1
        if glob.startswith("**/", position - 1):
            yield "(?:.*/)?"
            position += 2
        elif glob.startswith("**", position - 1):
            yield ".*"
            position += 1
        elif character == "*":
            yield "[^/]*"
        elif character == "?":
            yield "[^/]"
        elif character == "[" and (end := glob.find("]", position + 1)) > 0:
            content = glob[position:end].replace("\\", r"\\").replace("[", r"\[")
            yield f"[^/{content[1:]}]" if content[0] in "!^" else f"[{content}]"
            position = end + 1
        elif character == "{" and glob.find("}", position) > 0:
            yield "(?:"
            braces += 1
        elif character == "}" and braces:
            yield ")"
            braces -= 1
        elif character == "," and braces:
            yield "|"
        else:
            yield re.escape(character)
    yield ")" * braces


def ignore_file_text(path: str, directory: int | None = None) -> str:
    """An ignore file's text, ``path`` seen from ``directory``; "" unless a small regular file."""
    try:
        descriptor = os.open(path, _OPEN, dir_fd=directory)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > 1_000_000:
            return ""
        return file.read().decode("utf-8", "replace")


def _excerpt(line: str, start: int) -> str:
    """A line, of a long one the part round character ``start``."""
    if len(line) <= _SHOWN:
        return line
    begin = max(0, min(start - _SHOWN // 4, len(line) - _SHOWN))
    end = begin + _SHOWN
    return "…" * (begin > 0) + line[begin:end] + "…" * (end < len(line))


def search(request: Request, emit: Emit) -> Summary:
    """Run a search; hits go to ``emit`` as they are found."""
    found: Search | None = None
    end, reason = "done", ""
    try:
        found = Search(request, emit)
        found.run()
    except Ended as ended:
        end, reason = ended.end, ended.reason
    except (re.error, MemoryError, RecursionError) as error:
        end, reason = "error", f"{type(error).__name__}: {error}"
    return Summary(
        end=end,
        reason=reason,
        files=found.files if found else 0,
        skipped=found.skipped if found else 0,
    )


def main() -> None:
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(
            resource.RLIMIT_AS, (_MAX_MEMORY if most < 0 else min(_MAX_MEMORY, most), most)
        )
    request: Any = json.load(sys.stdin)

    def emit(line: object) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    emit(search(request, emit))


if __name__ == "__main__":
    main()
