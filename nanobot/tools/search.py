"""The search tools: find_files and grep."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from nanobot.core.errors import ToolError
from nanobot.core.tool import Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.safety.paths import PathResolver, Paths, existing
from nanobot.shell.process_tree import run_worker
from nanobot.tools import search_worker
from nanobot.tools.search_worker import IGNORE_FILES, Request, Summary

SEARCH_SECONDS = 15.0

_KILL_AFTER_S = 2.0


class FindFilesArguments(ToolArguments):
    pattern: str = Field(min_length=1, description="glob, such as *.md or src/**/test_*.py")
    path: str = Field(default=".", description="directory")
    limit: int = Field(default=200, ge=1, le=2000)


class FindFiles(Tool[FindFilesArguments]):
    """Finds files by name, in the order of their paths."""

    name = "find_files"
    description = "Find files by name. Ignored files are left out."
    effect = Effect.READ
    arguments = FindFilesArguments

    def __init__(self, resolver: PathResolver, seconds: float = SEARCH_SECONDS) -> None:
        self._resolver = resolver
        self._seconds = seconds

    async def run(self, args: FindFilesArguments, context: ToolContext) -> ToolOutput:
        if args.pattern.startswith(("/", "~")):
            raise ToolError("pattern is relative to path; put the directory into path.")
        paths = self._resolver.for_context(context)
        root = existing(paths, args.path)
        if root.is_file():
            raise ToolError(f"{paths.show(root)} is a file; path is a directory.")
        found = await _search(
            paths, root, glob=args.pattern, limit=args.limit, seconds=self._seconds
        )
        lines = [_under(paths, root, hit[0]) for hit in found.hits]
        where = "" if root == paths.workspace else f" in {paths.show(root)}"
        text = "\n".join(lines) or f"No file matches {args.pattern}{where}."
        return ToolOutput(text + found.remark(args.limit), paths.trust_of(root))


class GrepArguments(ToolArguments):
    pattern: str = Field(min_length=1, description="Python regular expression, a line at a time")
    path: str = Field(default=".", description="directory or file")
    glob: str = Field(default="", description="only these files")
    ignore_case: bool = False
    context: int = Field(default=0, ge=0, le=20, description="lines round each match")
    limit: int = Field(default=100, ge=1, le=1000)


class Grep(Tool[GrepArguments]):
    """Searches the lines of text files."""

    name = "grep"
    description = "Search the contents of files. Ignored and binary files are left out."
    effect = Effect.READ
    arguments = GrepArguments

    def __init__(self, resolver: PathResolver, seconds: float = SEARCH_SECONDS) -> None:
        self._resolver = resolver
        self._seconds = seconds

    async def run(self, args: GrepArguments, context: ToolContext) -> ToolOutput:
        paths = self._resolver.for_context(context)
        root = existing(paths, args.path)
        found = await _search(
            paths,
            root,
            pattern=args.pattern,
            glob=args.glob or None,
            ignore_case=args.ignore_case,
            context=args.context,
            limit=args.limit,
            seconds=self._seconds,
        )
        lines: list[str] = []
        last: tuple[str, int] | None = None
        for path, number, line, is_match in found.hits:
            if args.context and last and last != (path, number - 1):
                lines.append("--")
            last = (path, number)
            mark = ":" if is_match else "-"
            lines.append(f"{_under(paths, root, path)}{mark}{number}{mark} {line}")
        text = "\n".join(lines) or f"No line matches ({found.summary['files']} files searched)."
        return ToolOutput(text + found.remark(args.limit), paths.trust_of(root))


@dataclass(frozen=True, slots=True)
class _Found:
    """The hits of a search as the worker wrote them, and its summary."""

    hits: Sequence[list[Any]]
    summary: Summary

    def remark(self, limit: int) -> str:
        """A remark for the model on a search that did not see everything."""
        remarks = {
            "limit": f"only the first {limit} are shown; narrow the search or raise limit",
            "time": "the search took too long and was stopped; narrow it, or simplify the pattern",
        }
        remark = remarks.get(self.summary["end"])
        if remark is None and self.summary["skipped"]:
            remark = f"{self.summary['skipped']} too large or unreadable left out"
        return f"\n[{remark}]" if remark else ""


async def _search(
    paths: Paths,
    root: Path,
    *,
    glob: str | None,
    limit: int,
    seconds: float,
    pattern: str | None = None,
    ignore_case: bool = False,
    context: int = 0,
) -> _Found:
    with _opened(paths, root) as descriptor:
        request = Request(
            descriptor=descriptor,
            pattern=pattern,
            glob=glob,
            ignore_case=ignore_case,
            context=context,
            limit=limit,
            seconds=seconds,
            hidden=[str(path.relative_to(root)) for path in paths.hidden() if root in path.parents],
            outer_rules=await asyncio.to_thread(_outer_rules, paths, root),
        )
        answer, exit_code = await run_worker(
            search_worker.__file__,
            json.dumps(request).encode(),
            seconds=seconds + _KILL_AFTER_S,
            pass_fds=(descriptor,),
        )
    *lines, _ = answer.split(b"\n")  # the last is empty, or was cut off when the worker was killed
    messages = [json.loads(line) for line in lines]
    if messages and isinstance(messages[-1], dict):
        summary: Summary = messages.pop()
    elif exit_code is None:
        summary = Summary(end="time", reason="", files=0, skipped=0)
    else:
        summary = Summary(end="error", reason="the search broke off", files=0, skipped=0)
    if summary["end"] == "error":
        raise ToolError(f"{summary['reason'].capitalize()}.")
    return _Found(messages, summary)


@contextlib.contextmanager
def _opened(paths: Paths, root: Path) -> Iterator[int]:
    if root.is_dir():
        with paths.open_directory(root) as descriptor:
            yield descriptor
    else:
        descriptor = paths.open_file(root)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _outer_rules(paths: Paths, root: Path) -> list[tuple[str, str]]:
    """The ignore files above ``root``, nearest first: those of the workspace or repository.

    Empty if they ignore ``root`` itself, since the model asked for it by name.
    """
    rules: list[tuple[str, str]] = []
    directory = root
    while directory != paths.workspace and not (directory / ".git").exists():
        if directory.parent == directory:
            return []  # in no repository: what lies above does not concern it
        directory = directory.parent
        prefix = f"{root.relative_to(directory).as_posix()}/"
        for name in reversed(IGNORE_FILES):
            text = search_worker.ignore_file_text(str(directory / name))
            if text:
                rules.append((prefix, text))
    checked = search_worker.Rules()
    for prefix, text in reversed(rules):
        checked = checked.with_file(prefix, text)
    return [] if checked.ignore("") else rules


def _under(paths: Paths, root: Path, path: str) -> str:
    whole = paths.show(root / path if path else root)
    # A name that is not UTF-8 comes as lone surrogates, which no text may hold.
    return whole.encode("utf-8", "replace").decode()
