"""The file tools: read_file, write_file, edit_file, list_dir."""

from __future__ import annotations

import asyncio
import codecs
import difflib
import heapq
import os
import re
import stat
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from pydantic import Field

from nanobot.core.errors import ToolError
from nanobot.core.text import readable_size
from nanobot.core.tool import ArgumentsT, Effect, Tool, ToolArguments, ToolContext, ToolOutput
from nanobot.internet.reading import DocumentReader
from nanobot.safety.paths import Access, PathResolver, Paths, existing
from nanobot.safety.redaction import MASK
from nanobot.store.files import alone_with_files, file_stamp
from nanobot.tools.images import SOURCE_BYTES, Pictures, mime_of, too_large
from nanobot.tools.search_worker import bom_of, encoding_of

READ_LINES = 2000
READ_CHARACTERS = 15_000
PAGE_CHARACTERS = 500_000
"""Limit for a single page of a PDF; a result too long to show is spilled into a file."""
PDF_BYTES = 100_000_000
LIST_ENTRIES = 500

_CHUNK = 65536
_COUNTED_BYTES = 64 * 1024 * 1024
_EDITED_BYTES = 10 * 1024 * 1024
_NEAREST_LIMIT_S = 0.5
_SHOWN_LINE = 300

_KINDS = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office document in an old format"),
    (b"II*\0", "a TIFF picture"),
    (b"MM\0*", "a TIFF picture"),
    (b"BM", "a BMP picture"),
    (b"\x1f\x8b", "gzip-compressed"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"OggS", "Ogg audio"),
    (b"ID3", "MP3 audio"),
)
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"mif1", b"msf1"), "a HEIC picture"),
    **dict.fromkeys((b"avif", b"avis"), "an AVIF picture"),
}
_OFFICE = {
    ".docx": "a Word document",
    ".xlsx": "an Excel workbook",
    ".pptx": "a PowerPoint presentation",
    ".odt": "an OpenDocument text",
    ".ods": "an OpenDocument spreadsheet",
    ".odp": "an OpenDocument presentation",
    ".epub": "an e-book",
}


class ReadFileArguments(ToolArguments):
    path: str
    offset: int = Field(default=1, ge=1, description="first line, from 1 (of a PDF: page)")
    limit: int = Field(default=READ_LINES, ge=1, description="number of lines or pages")
    line_numbers: bool = False


class ReadFile(Tool[ReadFileArguments]):
    name = "read_file"
    description = "Read a text file, whole or some of its lines; a PDF's text; look at a picture."
    effect = Effect.READ
    arguments = ReadFileArguments

    def __init__(self, resolver: PathResolver, pictures: Pictures, reader: DocumentReader) -> None:
        self._resolver = resolver
        self._pictures = pictures
        self._reader = reader

    async def run(self, args: ReadFileArguments, context: ToolContext) -> ToolOutput:
        paths = self._resolver.for_context(context)
        path = existing(paths, args.path)
        name, trust = paths.show(path), paths.trust_of(path)
        read = await asyncio.to_thread(_read, paths, path, args)
        if isinstance(read, str):
            return ToolOutput(read, trust)
        try:
            if mime_of(read[:12]) is None:
                return ToolOutput(await self._pdf_text(read, args), trust)
            image, description = await self._pictures.keep(read, context.session_key)
        except ToolError as error:
            raise ToolError(f"{name} cannot be read. {error}") from error
        return ToolOutput(f"{name}: {description}.", trust, (image,))

    async def _pdf_text(self, data: bytes, args: ReadFileArguments) -> str:
        limit = PAGE_CHARACTERS if args.limit == 1 else READ_CHARACTERS
        reading = await self._reader.pdf(data, limit=limit, first=args.offset, pages=args.limit)
        notes = [reading.note] if reading.note else []
        if reading.total > len(reading.text):
            notes.append("the last page is cut; limit=1 gives a page whole")
        if notes:
            notes.append("offset and limit count pages")
        title = f"Title: {reading.title}" if reading.title else ""
        note = f"[{'; '.join(notes)}]" if notes else ""
        return "\n".join(filter(None, (title, reading.text, note)))


class _DiskTool(Tool[ArgumentsT]):
    """A tool whose work is a blocking function of the turn's paths and its arguments."""

    def __init__(self, resolver: PathResolver) -> None:
        self._resolver = resolver

    async def run(self, args: ArgumentsT, context: ToolContext) -> ToolOutput:
        paths = self._resolver.for_context(context)
        return ToolOutput(await asyncio.to_thread(self._run_blocking, paths, args))

    def _run_blocking(self, paths: Paths, args: ArgumentsT) -> str:
        if self.effect is Effect.READ:
            return self._work(paths, args)
        with alone_with_files():  # consolidation edits MEMORY.md
            return self._work(paths, args)

    @abstractmethod
    def _work(self, paths: Paths, args: ArgumentsT) -> str: ...


class WriteFileArguments(ToolArguments):
    path: str
    content: str


class WriteFile(_DiskTool[WriteFileArguments]):
    name = "write_file"
    description = "Write a file, replacing what is there; makes missing directories."
    effect = Effect.WRITE
    arguments = WriteFileArguments

    def _work(self, paths: Paths, args: WriteFileArguments) -> str:
        path = paths.resolve(args.path, Access.WRITE)
        name = paths.show(path)
        is_new = not os.path.lexists(path)
        if MASK in args.content and not is_new:
            with os.fdopen(paths.open_file(path), "rb") as file:
                _refuse_mask(name, args.content, file.read(_EDITED_BYTES))
        data = args.content.encode()
        paths.write_file(path, data)
        lines = args.content.count("\n") + (not args.content.endswith("\n") and bool(data))
        done = "Created" if is_new else "Replaced"
        counted = "1 line" if lines == 1 else f"{lines} lines"
        return f"{done} {name}: {counted}, {readable_size(len(data))}."


class EditFileArguments(ToolArguments):
    path: str
    old_text: str = Field(description="exact text, occurring once")
    new_text: str
    replace_all: bool = False


class EditFile(_DiskTool[EditFileArguments]):
    name = "edit_file"
    description = "Replace a piece of text in a file."
    effect = Effect.WRITE
    arguments = EditFileArguments

    def _work(self, paths: Paths, args: EditFileArguments) -> str:
        if not args.old_text:
            raise ToolError("old_text is empty; use write_file to make or replace a file.")
        if args.old_text == args.new_text:
            raise ToolError("old_text and new_text are the same; nothing to change.")
        path = existing(paths, args.path, Access.WRITE)
        name = paths.show(path)
        with os.fdopen(paths.open_file(path), "rb") as file:
            before = file_stamp(os.fstat(file.fileno()))
            data = file.read(_EDITED_BYTES + 1)
        if len(data) > _EDITED_BYTES:
            raise ToolError(
                f"{name} is larger than {readable_size(_EDITED_BYTES)}; edit it with exec."
            )
        encoding, bom = encoding_of(data), bom_of(data)
        if encoding is None:
            raise ToolError(f"{name} is not text.")
        _refuse_mask(name, args.new_text, data)
        try:
            # Bytes that are not UTF-8 come through unharmed.
            errors = "surrogateescape" if encoding == "utf-8" else "strict"
            text = data[len(bom) :].decode(encoding, errors)
        except UnicodeDecodeError as error:
            raise ToolError(
                f"{name} is not valid {encoding.upper()}; edit it with exec."
            ) from error
        found = list(_occurrences(text, args.old_text))
        lines = [text.count("\n", 0, match.start()) + 1 for match in found]
        if not found:
            raise ToolError(f"old_text does not occur in {name}. {_nearest(text, args.old_text)}")
        if len(found) > 1 and not args.replace_all:
            raise ToolError(
                f"old_text occurs {len(found)} times in {name} (lines {_numbers(lines)}); "
                "give more of the text around it, or set replace_all."
            )
        edited = _replaced(text, found, args.new_text)
        if file_stamp(path.stat()) != before:
            raise ToolError(f"{name} was changed by somebody else meanwhile; read it again.")
        paths.write_file(path, bom + edited.encode(encoding, errors))
        times = "" if len(found) == 1 else f" {len(found)} times"
        where = "line" if len(found) == 1 else "lines"
        return f"Replaced{times} in {name}, {where} {_numbers(lines)}."


class ListDirArguments(ToolArguments):
    path: str


class ListDir(_DiskTool[ListDirArguments]):
    name = "list_dir"
    description = "List a directory: subdirectories, then files with their sizes."
    effect = Effect.READ
    arguments = ListDirArguments

    def _work(self, paths: Paths, args: ListDirArguments) -> str:
        path = existing(paths, args.path)
        name = paths.show(path)
        total = 0

        def ranked(entries: Iterator[os.DirEntry[str]]) -> Iterator[tuple[bool, str, str]]:
            nonlocal total
            for entry in entries:
                total += 1
                yield not entry.is_dir(follow_symlinks=False), entry.name, _entry(entry)

        with paths.open_directory(path) as directory, os.scandir(directory) as entries:
            first = heapq.nsmallest(LIST_ENTRIES, ranked(entries))
        if not total:
            return f"{name} is empty."
        lines = [line for _, _, line in first]
        if total > len(lines):
            lines.append(f"[{total - len(lines)} more; use find_files to narrow down]")
        return "\n".join(lines)


class _TextFile:
    """A text file decoded while it is read.

    After reading, ``lossy`` says whether some bytes were not valid in its encoding.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        head = file.read(_CHUNK)
        encoding = encoding_of(head)
        if encoding is None:
            raise _not_text(head, name, os.fstat(file.fileno()).st_size)
        self.encoding = encoding
        self.lossy = False
        self._file = file
        self._head = head[len(bom_of(head)) :]

    def chunks(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)()
        data = self._head
        while True:
            before = decoder.getstate()
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError:
                self.lossy = True
                decoder = codecs.getincrementaldecoder(self.encoding)("replace")
                decoder.setstate(before)
                text = decoder.decode(data, final=not data)
            yield text.replace("\0", "\ufffd")
            if not data:
                return
            data = self._file.read(_CHUNK)

    def lines(self) -> Iterator[tuple[str, int]]:
        """(line without its ending, of a long one the beginning; its whole length)."""
        kept, length = "", 0
        for chunk in self.chunks():
            *complete, rest = chunk.split("\n")
            for part in complete:
                yield (
                    (kept + part[: READ_CHARACTERS - len(kept)]).removesuffix("\r"),
                    (length + len(part)),
                )
                kept, length = "", 0
            kept += rest[: READ_CHARACTERS - len(kept)]
            length += len(rest)
        if length:
            yield kept, length


def _not_text(head: bytes, name: str, size: int) -> ToolError:
    kind = next((kind for magic, kind in _KINDS if head.startswith(magic)), "binary")
    hint = ""
    if kind == "a ZIP archive":
        kind = _OFFICE.get(Path(name).suffix.lower(), kind)
    elif head[4:8] == b"ftyp":
        kind = _BRANDS.get(head[8:12], "video or audio")
    if "picture" in kind:
        hint = " Convert it to PNG with exec to look at it."
    elif kind in _OFFICE.values() or "office" in kind:
        hint = " Convert it to text or PDF with exec (pandoc, libreoffice) if there is a program."
    return ToolError(
        f"{name} is {kind} ({readable_size(size)}); read_file reads text, PDF and pictures "
        f"(PNG, JPEG, GIF, WebP).{hint}"
    )


def _read(paths: Paths, path: Path, args: ReadFileArguments) -> str | bytes:
    """The text of a file as asked for; of a picture or a PDF document its bytes."""
    name = paths.show(path)
    with os.fdopen(paths.open_file(path), "rb") as file:
        head = file.read(1024)
        size = os.fstat(file.fileno()).st_size
        if mime_of(head) is not None:
            if size > SOURCE_BYTES:
                raise ToolError(f"{name} cannot be read. {too_large(size)}")
            return head + file.read(SOURCE_BYTES)
        if head.startswith(b"%PDF-"):
            if size > PDF_BYTES:
                raise ToolError(f"{name} has {readable_size(size)}: too large a PDF to be read.")
            return head + file.read(PDF_BYTES)
        file.seek(0)
        return _read_text(file, name, args)


def _read_text(file: BinaryIO, name: str, args: ReadFileArguments) -> str:
    shown: list[str] = []
    room = READ_CHARACTERS
    number = 0
    notes: list[str] = []
    text = _TextFile(file, name)
    is_whole = True
    for number, (line, length) in enumerate(text.lines(), 1):
        if number < args.offset:
            continue
        room -= len(line) + 1
        if shown and (room < 0 or len(shown) == args.limit):
            is_whole = False
            break
        shown.append(f"{number}\t{line}" if args.line_numbers else line)
        if length > len(line) + 1:
            notes.append(
                f"line {number} has {length:,} characters, of which the first {len(line):,} "
                "are shown; search it with grep or cut it with exec"
            )
    if is_whole:
        total = str(number)
    else:
        counted = _line_count(file) if text.encoding == "utf-8" else None
        total = str(counted) if counted else f"more than {number}"
    if not number:
        return f"{name} is empty."
    if not shown:
        raise ToolError(f"{name} has {total} lines; offset {args.offset} is beyond its end.")
    last = args.offset + len(shown) - 1
    if args.offset > 1 or not is_whole:
        notes.insert(
            0,
            f"lines {args.offset}-{last} of {total}"
            + ("" if is_whole else f"; continue with offset={last + 1}"),
        )
    if text.lossy:
        notes.append(
            f"not valid {text.encoding.upper()}: bytes that cannot be read are shown as \ufffd"
        )
    return "\n".join((*shown, *(f"[{note}]" for note in notes)))


def _line_count(file: BinaryIO) -> int | None:
    """How many lines a UTF-8 file has; None if it is too large to count."""
    if os.fstat(file.fileno()).st_size > _COUNTED_BYTES:
        return None
    file.seek(0)
    count, last = 0, b"\n"
    while chunk := file.read(_CHUNK):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")


def _refuse_mask(name: str, text: str, former: bytes) -> None:
    """Refuse to write the mask over a secret: files are shown with their secrets masked."""
    if MASK in text and MASK.encode() not in former:
        raise ToolError(
            f"{MASK} stands for a secret that was masked for you; {name} keeps the real one. "
            "Change other parts of the file with edit_file."
        )


def _occurrences(text: str, old: str) -> Iterator[re.Match[str]]:
    """The places of ``old``, with either kind of line ending."""
    parts = old.replace("\r\n", "\n").split("\n")
    return re.finditer(r"\r?\n".join(map(re.escape, parts)), text)


def _replaced(text: str, found: Sequence[re.Match[str]], new: str) -> str:
    new = new.replace("\r\n", "\n")
    if text.count("\r\n") * 2 > text.count("\n"):
        new = new.replace("\n", "\r\n")
    pieces: list[str] = []
    end = 0
    for match in found:
        pieces += (text[end : match.start()], new)
        end = match.end()
    return "".join((*pieces, text[end:]))


def _numbers(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:10]))
    return shown if len(lines) <= 10 else f"{shown} …"


def _nearest(text: str, old: str) -> str:
    """The lines of ``text`` most like ``old``, quoted, for the model to correct itself."""
    if MASK in old:
        return f"{MASK} stands for a secret that was masked for you; choose text without it."
    lines = text.split("\n")
    wanted = old.strip("\r\n").split("\n")
    start, equal = _best_start([line.strip() for line in lines], [line.strip() for line in wanted])
    if start is None:
        return "Nothing in it is similar."
    start = max(start, 0)
    quoted = "\n".join(
        f"{number}\t{line[:_SHOWN_LINE]}"
        for number, line in enumerate(lines[start : start + min(len(wanted), 20)], start + 1)
    )
    how = " (only white space differs)" if equal else ""
    return f"Nearest{how}:\n{quoted}"


def _best_start(lines: Sequence[str], wanted: Sequence[str]) -> tuple[int | None, bool]:
    """Where ``wanted`` would begin, and whether all its lines are there in this order."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line, []).append(number)
    votes = Counter(
        place - index
        for index, line in enumerate(wanted)
        if line
        for place in places.get(line, ())[:200]
    )
    if votes:
        start, count = min(votes.items(), key=lambda vote: (-vote[1], vote[0]))
        return start, count == sum(map(bool, wanted))
    index, longest = max(enumerate(wanted), key=lambda item: len(item[1]))
    place = _most_similar(lines, longest)
    return (None if place is None else place - index), False


def _most_similar(lines: Sequence[str], wanted: str) -> int | None:
    """The line most like ``wanted``, within a time that a large file cannot exceed."""
    deadline = time.monotonic() + _NEAREST_LIMIT_S
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[:_SHOWN_LINE])
    best, best_ratio = None, 0.5
    for number, line in enumerate(lines):
        if time.monotonic() > deadline:
            break
        matcher.set_seq1(line[:_SHOWN_LINE])
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = number, ratio
    return best


def _entry(entry: os.DirEntry[str]) -> str:
    name = entry.name.encode("utf-8", "replace").decode()
    try:
        if entry.is_dir(follow_symlinks=False):
            return f"{name}/"
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return name
    if stat.S_ISLNK(status.st_mode):
        return f"{name} (link)"
    if not stat.S_ISREG(status.st_mode):
        return f"{name} (pipe, socket or device)"
    return f"{name} ({readable_size(status.st_size)})"
