"""read_file, write_file, edit_file, list_dir: what they do and what the model reads of it."""

from __future__ import annotations

import codecs
import io
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from nanobot.core.errors import ToolError
from nanobot.core.messages import Role, Trust
from nanobot.core.text import readable_size
from nanobot.core.tool import ToolOutput
from nanobot.internet.reading import DocumentReader
from nanobot.safety.paths import PathResolver
from nanobot.safety.redaction import MASK
from nanobot.store.home import Home
from nanobot.tools import files, images
from nanobot.tools.files import (
    EditFile,
    EditFileArguments,
    ListDir,
    ListDirArguments,
    ReadFile,
    ReadFileArguments,
    WriteFile,
    WriteFileArguments,
)
from nanobot.tools.images import Pictures
from tests.fakes.pdf import pdf
from tests.fakes.tool_turns import tool_turn


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path.resolve() / "home")
    home.default_workspace.mkdir(parents=True)
    return home


@pytest.fixture
def workspace(home: Home) -> Path:
    return home.default_workspace


async def read(home: Home, path: str, **options: object) -> str:
    return (await read_output(home, path, **options)).text


async def read_output(home: Home, path: str, **options: object) -> ToolOutput:
    args = ReadFileArguments.model_validate({"path": path, **options})
    return await read_file(home).run(args, tool_turn(home.default_workspace))


def read_file(home: Home, *, restrict: bool = False) -> ReadFile:
    return ReadFile(PathResolver(home, restrict=restrict), Pictures(home), DocumentReader())


async def write(home: Home, path: str, content: str) -> str:
    tool = WriteFile(PathResolver(home, restrict=False))
    args = WriteFileArguments(path=path, content=content)
    return (await tool.run(args, tool_turn(home.default_workspace))).text


async def edit(home: Home, path: str, old: str, new: str, *, replace_all: bool = False) -> str:
    tool = EditFile(PathResolver(home, restrict=False))
    args = EditFileArguments(path=path, old_text=old, new_text=new, replace_all=replace_all)
    return (await tool.run(args, tool_turn(home.default_workspace))).text


async def listed(home: Home, path: str = ".") -> str:
    tool = ListDir(PathResolver(home, restrict=False))
    return (await tool.run(ListDirArguments(path=path), tool_turn(home.default_workspace))).text


# --- read_file ----------------------------------------------------------------------------------


async def test_a_file_is_read_as_it_is(home: Home, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n\n  three: grüße\n")

    assert await read(home, "a.txt") == "one\n\n  three: grüße"


async def test_line_numbers_come_on_request(home: Home, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\ntwo\nthree")

    assert await read(home, "a.txt", line_numbers=True) == "1\tone\n2\ttwo\n3\tthree"
    assert await read(home, "a.txt", line_numbers=True, offset=3) == "3\tthree\n[lines 3-3 of 3]"


async def test_a_part_is_read_by_lines_and_says_how_to_go_on(home: Home, workspace: Path) -> None:
    (workspace / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))

    assert await read(home, "a.txt", offset=3, limit=2) == (
        "line 3\nline 4\n[lines 3-4 of 10; continue with offset=5]"
    )
    assert await read(home, "a.txt", offset=10) == "line 10\n[lines 10-10 of 10]"
    with pytest.raises(ToolError, match="has 10 lines; offset 11 is beyond"):
        await read(home, "a.txt", offset=11)


async def test_reading_on_as_told_gives_the_whole_file_once(home: Home, workspace: Path) -> None:
    lines = [f"{n}: {'x' * (n * 7 % 400)}" for n in range(400)]
    (workspace / "a.txt").write_text("\n".join(lines))
    seen: list[str] = []
    offset = 1

    while offset:
        text = await read(home, "a.txt", offset=offset)
        assert len(text) < files.READ_CHARACTERS + 200
        *part, note = text.split("\n")
        seen += part
        offset = int(note.partition("offset=")[2].rstrip("]") or 0)

    assert seen == lines


async def test_a_line_without_end_is_cut_and_said_to_be(home: Home, workspace: Path) -> None:
    (workspace / "min.js").write_text("x" * 1_000_000 + "\nend")

    text = await read(home, "min.js")

    body, *notes = text.split("\n")
    assert body == "x" * files.READ_CHARACTERS
    assert notes == [
        "[lines 1-1 of 2; continue with offset=2]",
        "[line 1 has 1,000,000 characters, of which the first 15,000 are shown; "
        "search it with grep or cut it with exec]",
    ]


async def test_a_huge_file_is_not_counted_to_its_end(
    home: Home, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_COUNTED_BYTES", 100)
    (workspace / "huge.log").write_text("entry\n" * 1000)

    assert (await read(home, "huge.log", limit=2)).endswith(
        "[lines 1-2 of more than 3; continue with offset=3]"
    )


async def test_an_empty_file_is_said_to_be_empty(home: Home, workspace: Path) -> None:
    (workspace / "a.txt").touch()

    assert await read(home, "a.txt") == "a.txt is empty."


@pytest.mark.parametrize(
    ("bom", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
async def test_a_byte_order_mark_tells_the_encoding_and_is_not_shown(
    home: Home, workspace: Path, bom: bytes, encoding: str
) -> None:
    text = "grüße 😀\n" * 20_000
    (workspace / "a.txt").write_bytes(bom + text.encode(encoding))

    assert (await read(home, "a.txt", limit=2)).startswith("grüße 😀\ngrüße 😀\n[lines 1-2 of ")


async def test_bytes_that_are_not_utf8_are_shown_as_such(home: Home, workspace: Path) -> None:
    (workspace / "latin.txt").write_bytes("grüße\nok".encode("latin-1"))
    (workspace / "decoder.py").write_text("# \ufffd stands for what cannot be decoded")

    assert await read(home, "latin.txt") == (
        "gr\ufffd\ufffde\nok\n[not valid UTF-8: bytes that cannot be read are shown as \ufffd]"
    )
    assert "not valid" not in await read(home, "decoder.py")


async def test_a_character_on_the_border_of_two_reads_is_whole(home: Home, workspace: Path) -> None:
    text = "x" * 65_535 + "\n" + "€" * 100
    (workspace / "a.txt").write_text(text)
    (workspace / "b.txt").write_text("y" * 65_534 + "\n" + "€" * 100)

    for name in ("a.txt", "b.txt"):
        assert await read(home, name, offset=2) == "€" * 100 + "\n[lines 2-2 of 2]"


async def test_carriage_returns_are_not_shown(home: Home, workspace: Path) -> None:
    (workspace / "dos.txt").write_bytes(b"one\r\ntwo\r\n")

    assert await read(home, "dos.txt") == "one\ntwo"


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("thing", b"PK\x03\x04" + b"\0" * 20, "a ZIP archive (24 B)"),
        ("thing", b"abc\0def", "binary (7 B)"),
        ("a.mp4", b"\0\0\0\x18ftypmp42", "video or audio (12 B)"),
    ],
)
async def test_what_is_not_text_is_named_and_refused(
    home: Home, workspace: Path, name: str, data: bytes, kind: str
) -> None:
    (workspace / name).write_bytes(data)

    with pytest.raises(ToolError) as refused:
        await read(home, name)
    assert str(refused.value) == (
        f"{name} is {kind}; read_file reads text, PDF and pictures (PNG, JPEG, GIF, WebP)."
    )


@pytest.mark.parametrize(
    ("name", "data", "kind", "hint"),
    [
        ("cv.docx", b"PK\x03\x04\0", "a Word document", "Convert it to text or PDF with exec"),
        ("a.XLSX", b"PK\x03\x04\0", "an Excel workbook", "Convert it to text or PDF with exec"),
        (
            "old.doc",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0",
            "an office document in an old",
            "pandoc",
        ),
        ("cat.heic", b"\0\0\0\x18ftypheic", "a HEIC picture", "Convert it to PNG with exec"),
        ("scan.tif", b"II*\0\x08", "a TIFF picture", "Convert it to PNG with exec"),
    ],
)
async def test_what_could_be_read_if_it_were_converted_says_so(
    home: Home, workspace: Path, name: str, data: bytes, kind: str, hint: str
) -> None:
    (workspace / name).write_bytes(data)

    with pytest.raises(ToolError) as refused:
        await read(home, name)
    assert str(refused.value).startswith(f"{name} is {kind}")
    assert hint in str(refused.value)


# --- read_file: pictures and PDF ------------------------------------------------------------------


async def test_a_picture_is_read_as_a_picture(home: Home, workspace: Path) -> None:
    file = io.BytesIO()
    Pillow.new("RGB", (3000, 1500), "red").save(file, "PNG")
    (workspace / "red.txt").write_bytes(file.getvalue())  # the bytes decide, not the name

    output = await read_output(home, "red.txt")

    (image,) = output.images
    assert output.text == (
        "red.txt: a PNG picture of 3,000 × 1,500 pixels, shown at 1,516 × 758 pixels."
    )
    assert Path(image.path).parent == home.media_of("cli:direct")
    assert Path(image.path).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (output.trust, image.mime) == (Trust.TRUSTED, "image/png")


async def test_a_picture_shown_before_can_be_looked_at_again_but_is_not_trusted(
    home: Home, workspace: Path
) -> None:
    Pillow.new("RGB", (4, 4), "red").save(workspace / "red.png")
    (image,) = (await read_output(home, "red.png")).images

    output = await read_output(home, image.path)

    assert (output.images, output.trust) == ((image,), Trust.UNTRUSTED)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 20, r"The picture is damaged \(\w+\)"),
        (b"%PDF-1.7\n" + b"\0" * 20, "The document is damaged"),
        (pdf("secret", encrypted=True), "The document is encrypted with a password"),
        (pdf(""), "The document holds no text that can be read, only pictures perhaps"),
    ],
)
async def test_a_picture_or_pdf_that_cannot_be_read_says_why(
    home: Home, workspace: Path, data: bytes, problem: str
) -> None:
    (workspace / "thing").write_bytes(data)

    with pytest.raises(ToolError, match=rf"^thing cannot be read\. {problem}\.$"):
        await read(home, "thing")


async def test_what_is_too_large_is_not_loaded(
    home: Home, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "SOURCE_BYTES", 1_000_000)
    monkeypatch.setattr(files, "SOURCE_BYTES", 1_000_000)
    monkeypatch.setattr(files, "PDF_BYTES", 1_000_000)
    (workspace / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(2_000_000))
    (workspace / "a.pdf").write_bytes(b"%PDF-1.7\n" + bytes(2_000_000))

    with pytest.raises(
        ToolError, match=r"a\.png cannot be read\. The picture has 2 MB; more than 1"
    ):
        await read(home, "a.png")
    with pytest.raises(ToolError, match=r"a\.pdf has 2\.0 MB: too large a PDF to be read"):
        await read(home, "a.pdf")


async def test_the_text_of_a_pdf_is_read(home: Home, workspace: Path) -> None:
    (workspace / "one.pdf").write_bytes(pdf("Only one", title=""))
    (workspace / "two.pdf").write_bytes(pdf("Hello there", "Second page"))

    assert await read(home, "one.pdf") == "Only one"
    assert await read(home, "two.pdf") == (
        "Title: A report\n[page 1]\nHello there\n\n[page 2]\nSecond page"
    )


async def test_offset_and_limit_count_the_pages_of_a_pdf(home: Home, workspace: Path) -> None:
    (workspace / "a.pdf").write_bytes(pdf(*(f"text {number}" for number in range(1, 8)), title=""))

    assert await read(home, "a.pdf", offset=3, limit=2) == (
        "[page 3]\ntext 3\n\n[page 4]\ntext 4\n[pages 3-4 of 7; offset and limit count pages]"
    )
    assert await read(home, "a.pdf", offset=7) == (
        "[page 7]\ntext 7\n[pages 7-7 of 7; offset and limit count pages]"
    )
    with pytest.raises(ToolError, match=r"It has 7 pages; page 8 is beyond its end\."):
        await read(home, "a.pdf", offset=8)


async def test_a_long_pdf_is_read_in_parts_and_a_long_page_whole(
    home: Home, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_CHARACTERS", 80)
    (workspace / "a.pdf").write_bytes(pdf(*["word " * 10] * 4, title=""))

    part = await read(home, "a.pdf")
    page = await read(home, "a.pdf", offset=2, limit=1)

    words = "word " * 9 + "word"
    assert part == (
        f"[page 1]\n{words}\n\n[page 2]\nword word w\n[pages 1-2 of 4; the last page is cut; "
        "limit=1 gives a page whole; offset and limit count pages]"
    )
    assert page == f"[page 2]\n{words}\n[pages 2-2 of 4; offset and limit count pages]"


async def test_a_directory_is_sent_to_list_dir(home: Home, workspace: Path) -> None:
    with pytest.raises(ToolError, match="use list_dir"):
        await read(home, ".")


@pytest.mark.timeout(10)
async def test_a_pipe_does_not_block(home: Home, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")

    with pytest.raises(ToolError, match="not a regular file"):
        await read(home, "pipe")


async def test_a_missing_file_brings_the_nearest_names(home: Home, workspace: Path) -> None:
    (workspace / "docs").mkdir()
    for name in ("README.md", "notes.md", "docs/setup.md"):
        (workspace / name).touch()

    for path, text in {
        "readme.MD": "readme.MD does not exist (nothing of that name is in the workspace; "
        "nearest: README.md).",
        "docs/set-up.md": "docs/set-up.md does not exist (nothing of that name is in docs; "
        "nearest: setup.md).",
        "doc/setup.md": "doc/setup.md does not exist (the workspace has no doc/; nearest: docs).",
        "xyzzy": "xyzzy does not exist (nothing of that name is in the workspace).",
    }.items():
        with pytest.raises(ToolError) as missing:
            await read(home, path)
        assert str(missing.value) == text


async def test_spilled_results_are_read_but_not_trusted(home: Home) -> None:
    spilled = home.spill_of("cli:direct") / "page.txt"
    spilled.parent.mkdir(parents=True)
    spilled.write_text("a web page")
    tool = read_file(home, restrict=True)

    output = await tool.run(ReadFileArguments(path=str(spilled)), tool_turn(home.default_workspace))

    assert (output.text, output.trust) == ("a web page", Trust.UNTRUSTED)


async def test_a_guest_reads_no_file(home: Home, workspace: Path) -> None:
    (workspace / "a.txt").write_text("private")
    resolver = PathResolver(home, restrict=False)
    guest = tool_turn(workspace, role=Role.GUEST)

    with pytest.raises(ToolError, match="guest"):
        await read_file(home).run(ReadFileArguments(path="a.txt"), guest)
    with pytest.raises(ToolError, match="guest"):
        await WriteFile(resolver).run(WriteFileArguments(path="a.txt", content=""), guest)
    with pytest.raises(ToolError, match="guest"):
        await ListDir(resolver).run(ListDirArguments(path="."), guest)
    assert (workspace / "a.txt").read_text() == "private"


# --- write_file ---------------------------------------------------------------------------------


async def test_a_new_file_is_made_with_its_directories(home: Home, workspace: Path) -> None:
    assert await write(home, "a/b/c.txt", "eins\nzwei: ü") == ("Created a/b/c.txt: 2 lines, 13 B.")
    assert (workspace / "a" / "b" / "c.txt").read_bytes() == "eins\nzwei: ü".encode()
    assert sorted(path.name for path in (workspace / "a" / "b").iterdir()) == ["c.txt"]


async def test_a_file_is_replaced_and_keeps_its_mode(home: Home, workspace: Path) -> None:
    script = workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o750)

    assert await write(home, "run.sh", "#!/bin/sh\n") == "Replaced run.sh: 1 line, 10 B."
    assert (script.read_text(), stat.S_IMODE(script.stat().st_mode)) == ("#!/bin/sh\n", 0o750)


async def test_writing_through_a_link_keeps_the_link(home: Home, workspace: Path) -> None:
    (workspace / "real.txt").write_text("old")
    (workspace / "link.txt").symlink_to("real.txt")

    await write(home, "link.txt", "new")

    assert (workspace / "link.txt").is_symlink()
    assert (workspace / "real.txt").read_text() == "new"


async def test_what_cannot_be_written_is_refused_with_the_reason(
    home: Home, workspace: Path
) -> None:
    (workspace / "folder").mkdir()
    (workspace / "file").touch()

    for path in ("folder", "file/inside", "x" * 300, str(home.config_file), "memory/HISTORY.md"):
        with pytest.raises(ToolError):
            await write(home, path, "x")
    assert sorted(path.name for path in workspace.iterdir()) == ["file", "folder"]


async def test_a_masked_secret_is_not_written_over_the_real_one(
    home: Home, workspace: Path
) -> None:
    (workspace / ".env").write_text("KEY=sk-fake-0123456789abcdef0123\nMODE=1\n")

    with pytest.raises(ToolError, match="masked for you"):
        await write(home, ".env", f"KEY={MASK}\nMODE=2\n")
    with pytest.raises(ToolError, match="masked for you"):
        await edit(home, ".env", "MODE=1", f"MODE=2 # {MASK}")
    with pytest.raises(ToolError, match="masked for you"):
        await edit(home, ".env", f"KEY={MASK}", "KEY=")
    await edit(home, ".env", "MODE=1", "MODE=2")
    await write(home, "report.md", f"The log says {MASK}.")

    assert (workspace / ".env").read_text() == "KEY=sk-fake-0123456789abcdef0123\nMODE=2\n"


# --- edit_file ----------------------------------------------------------------------------------


async def test_a_text_that_occurs_once_is_replaced(home: Home, workspace: Path) -> None:
    (workspace / "a.py").write_text("a = 1\nb = 2\nc = 3\n")

    assert await edit(home, "a.py", "b = 2\n", "b = 20\nbb = 21\n") == "Replaced in a.py, line 2."
    assert (workspace / "a.py").read_text() == "a = 1\nb = 20\nbb = 21\nc = 3\n"


async def test_a_text_that_occurs_twice_needs_more_context_or_replace_all(
    home: Home, workspace: Path
) -> None:
    (workspace / "a.py").write_text("x\ny\nx\n")

    with pytest.raises(ToolError, match=r"occurs 2 times in a.py \(lines 1, 3\)"):
        await edit(home, "a.py", "x", "z")
    assert await edit(home, "a.py", "x", "z", replace_all=True) == (
        "Replaced 2 times in a.py, lines 1, 3."
    )
    assert (workspace / "a.py").read_text() == "z\ny\nz\n"


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("same", "same")])
async def test_an_edit_that_says_nothing_is_refused(
    home: Home, workspace: Path, old: str, new: str
) -> None:
    (workspace / "a.txt").write_text("same")

    with pytest.raises(ToolError):
        await edit(home, "a.txt", old, new)
    assert (workspace / "a.txt").read_text() == "same"


async def test_a_miss_quotes_the_nearest_lines(home: Home, workspace: Path) -> None:
    (workspace / "a.py").write_text(
        "import os\n\ndef f(x):\n    y = x + 1\n    return y\n\ndef g():\n    pass\n"
    )

    for old, quoted in {
        "def f(x):\n  y = x + 1\n  return y": "Nearest (only white space differs):\n"
        "3\tdef f(x):\n4\t    y = x + 1\n5\t    return y",
        "def f(x):\n    y = x + 2\n    return y": "Nearest:\n"
        "3\tdef f(x):\n4\t    y = x + 1\n5\t    return y",
        "    yy = x + 1": "Nearest:\n4\t    y = x + 1",
        "completely different": "Nothing in it is similar.",
    }.items():
        with pytest.raises(ToolError) as missed:
            await edit(home, "a.py", old, "z")
        assert str(missed.value) == f"old_text does not occur in a.py. {quoted}"


@pytest.mark.timeout(10)
async def test_a_miss_in_a_large_file_is_told_soon(home: Home, workspace: Path) -> None:
    (workspace / "large.txt").write_text(
        "".join(f"{n} the quick brown fox jumps over the lazy dog {n}\n" for n in range(150_000))
    )

    with pytest.raises(ToolError, match="does not occur"):
        await edit(home, "large.txt", "the quack brawn fix jumps aver the lozy dig\nx", "")


async def test_line_endings_and_byte_order_mark_stay_as_they_are(
    home: Home, workspace: Path
) -> None:
    (workspace / "dos.txt").write_bytes(codecs.BOM_UTF8 + b"one\r\ntwo\r\nthree\r\n")
    (workspace / "wide.txt").write_bytes(codecs.BOM_UTF16_LE + "one\r\ntwo".encode("utf-16-le"))
    (workspace / "unix.txt").write_bytes(b"one\ntwo\n")

    await edit(home, "dos.txt", "one\ntwo", "1\n2\n2b")
    await edit(home, "wide.txt", "one\ntwo", "1\n2")
    await edit(home, "unix.txt", "one\r\ntwo", "1\r\n2")

    assert (workspace / "dos.txt").read_bytes() == (codecs.BOM_UTF8 + b"1\r\n2\r\n2b\r\nthree\r\n")
    assert (workspace / "wide.txt").read_bytes() == (
        codecs.BOM_UTF16_LE + "1\r\n2".encode("utf-16-le")
    )
    assert (workspace / "unix.txt").read_bytes() == b"1\n2\n"


async def test_bytes_that_are_not_utf8_survive_an_edit(home: Home, workspace: Path) -> None:
    (workspace / "latin.txt").write_bytes(b"gr\xfc\xdfe\nend")

    await edit(home, "latin.txt", "end", "Ende")

    assert (workspace / "latin.txt").read_bytes() == b"gr\xfc\xdfe\nEnde"


async def test_what_cannot_be_edited_is_refused(home: Home, workspace: Path) -> None:
    (workspace / "binary").write_bytes(b"a\0b")
    (workspace / "memory").mkdir()
    (workspace / "memory" / "HISTORY.md").write_text("then")
    home.config_file.write_text("{}")

    for path in ("binary", "missing", ".", "memory/HISTORY.md", str(home.config_file)):
        with pytest.raises(ToolError):
            await edit(home, path, "a", "b")


@given(
    st.text(st.sampled_from("ab\n"), max_size=30),
    st.text(st.sampled_from("ab\n"), min_size=1, max_size=4),
    st.text(st.sampled_from("xy\n"), max_size=4),
)
def test_replacing_is_what_python_calls_replacing(text: str, old: str, new: str) -> None:
    found = list(files._occurrences(text, old))

    assert files._replaced(text, found, new) == text.replace(old, new)


# --- list_dir -----------------------------------------------------------------------------------


async def test_a_directory_is_listed_directories_first(home: Home, workspace: Path) -> None:
    for name in ("zoo", "attic"):
        (workspace / name).mkdir()
    (workspace / "b.txt").write_text("x" * 1234)
    (workspace / "A.txt").touch()
    (workspace / "link").symlink_to("zoo")
    os.mkfifo(workspace / "pipe")

    assert await listed(home) == (
        "attic/\nzoo/\nA.txt (0 B)\nb.txt (1.2 KB)\nlink (link)\npipe (pipe, socket or device)"
    )
    assert await listed(home, "attic") == "attic is empty."


async def test_a_long_list_is_cut_and_counted(
    home: Home, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LIST_ENTRIES", 3)
    for number in range(10):
        (workspace / f"{number}.txt").touch()

    assert await listed(home) == (
        "0.txt (0 B)\n1.txt (0 B)\n2.txt (0 B)\n[7 more; use find_files to narrow down]"
    )


async def test_names_that_are_not_utf8_do_not_break_the_list(home: Home, workspace: Path) -> None:
    (workspace / os.fsdecode(b"gr\xfc\xdfe")).touch()

    assert (await listed(home)).encode() == b"gr??e (0 B)"


async def test_a_file_and_the_home_are_not_listed(home: Home, workspace: Path) -> None:
    (workspace / "a.txt").touch()

    with pytest.raises(ToolError, match="is not a directory"):
        await listed(home, "a.txt")
    with pytest.raises(ToolError, match="belongs to nanobot"):
        await listed(home, "..")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (999_949, "999.9 KB"),
        (999_999, "1.0 MB"),
        (5_000_000_000, "5.0 GB"),
        (7_000_000_000_000, "7.0 TB"),
    ],
)
def test_sizes_read_as_people_write_them(size: int, text: str) -> None:
    assert readable_size(size) == text
