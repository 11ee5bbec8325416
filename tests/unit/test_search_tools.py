"""find_files and grep: what is found, what is left out, and that no pattern stops the daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from nanobot.core.errors import ToolError
from nanobot.core.messages import Role, Trust
from nanobot.safety.paths import PathResolver
from nanobot.shell.supervisor import descendants
from nanobot.store.home import Home
from nanobot.tools.search import FindFiles, FindFilesArguments, Grep, GrepArguments
from nanobot.tools.search_worker import Request, Summary, glob_matcher, search
from tests.fakes.tool_turns import tool_turn


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path.resolve() / "home")
    home.default_workspace.mkdir(parents=True)
    return home


@pytest.fixture
def workspace(home: Home) -> Path:
    return home.default_workspace


def lay(root: Path) -> None:
    """A small project: what is in it, what is ignored, what nobody looks for."""
    for path, text in {
        "README.md": "# Nanobot\nA small helper.\n",
        "src/app.py": "import os\n\ndef main():\n    print('hello')\n",
        "src/lib/tools.py": "def helper():\n    return 1\n",
        "tests/test_app.py": "def test_main():\n    main()\n",
        ".gitignore": "*.log\nbuild/\n!keep.log\n",
        "run.log": "hello log\n",
        "keep.log": "hello kept\n",
        "build/out.py": "print('hello')\n",
        "src/.gitignore": "/generated.py\n!run.log\n",
        "src/generated.py": "hello generated\n",
        "src/run.log": "hello nested\n",
        "src/lib/generated.py": "hello deeper\n",
        ".git/HEAD": "hello git\n",
        "node_modules/x/index.js": "hello modules\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


async def find(home: Home, pattern: str, **options: object) -> str:
    args = FindFilesArguments.model_validate({"pattern": pattern, **options})
    tool = FindFiles(PathResolver(home, restrict=True))
    return (await tool.run(args, tool_turn(home.default_workspace))).text


async def grep(home: Home, pattern: str, *, restrict: bool = True, **options: object) -> str:
    args = GrepArguments.model_validate({"pattern": pattern, **options})
    tool = Grep(PathResolver(home, restrict=restrict))
    return (await tool.run(args, tool_turn(home.default_workspace))).text


# --- find_files ---------------------------------------------------------------------------------


async def test_a_name_is_found_at_any_depth_in_order(home: Home, workspace: Path) -> None:
    lay(workspace)

    assert await find(home, "*.py") == (
        "src/app.py\nsrc/lib/generated.py\nsrc/lib/tools.py\ntests/test_app.py"
    )


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("src/*.py", "src/app.py"),
        ("src/**/*.py", "src/app.py\nsrc/lib/generated.py\nsrc/lib/tools.py"),
        ("**/test_*.py", "tests/test_app.py"),
        ("./README.md", "README.md"),
        ("*.{md,log}", "README.md\nkeep.log\nsrc/run.log"),
        ("[Rk]*", "README.md\nkeep.log"),
        ("nothing*", "No file matches nothing*."),
    ],
)
async def test_globs_mean_what_shells_make_of_them(
    home: Home, workspace: Path, pattern: str, found: str
) -> None:
    lay(workspace)

    assert await find(home, pattern) == found


async def test_only_a_directory_can_be_searched(home: Home, workspace: Path) -> None:
    lay(workspace)

    assert await find(home, "*.py", path="src/lib") == "src/lib/generated.py\nsrc/lib/tools.py"
    assert await find(home, "*.md", path="src") == "No file matches *.md in src."
    for options in ({"path": "README.md"}, {"path": "missing"}, {"path": "/etc"}, {"path": ".."}):
        with pytest.raises(ToolError):
            await find(home, "*", **options)
    with pytest.raises(ToolError, match="relative to path"):
        await find(home, "/etc/*")


async def test_a_long_list_of_files_says_that_there_are_more(home: Home, workspace: Path) -> None:
    for number in range(10):
        (workspace / f"{number}.txt").touch()

    assert await find(home, "*", limit=2) == (
        "0.txt\n1.txt\n[only the first 2 are shown; narrow the search or raise limit]"
    )
    assert "[only" not in await find(home, "*", limit=10)


async def test_names_that_are_not_utf8_can_be_found(home: Home, workspace: Path) -> None:
    (workspace / os.fsdecode(b"gr\xfc\xdfe.txt")).touch()

    assert await find(home, "*.txt") == "gr??e.txt"


# --- grep ---------------------------------------------------------------------------------------


async def test_lines_are_found_with_file_and_number(home: Home, workspace: Path) -> None:
    lay(workspace)

    assert await grep(home, "hello") == (
        "keep.log:1: hello kept\n"
        "src/app.py:4:     print('hello')\n"
        "src/lib/generated.py:1: hello deeper\n"
        "src/run.log:1: hello nested"
    )


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"pattern": r"def \w+\(\)", "glob": "*.py", "path": "src"},
         "src/app.py:3: def main():\nsrc/lib/tools.py:1: def helper():"),
        ({"pattern": "NANOBOT"}, "No line matches (9 files searched)."),
        ({"pattern": "NANOBOT", "ignore_case": True}, "README.md:1: # Nanobot"),
        ({"pattern": r"hel+o", "path": "src/app.py"}, "src/app.py:4:     print('hello')"),
        ({"pattern": "^import os$"}, "src/app.py:1: import os"),
        ({"pattern": r"os(?!\s)"}, "src/app.py:1: import os"),
    ],
)  # fmt: skip
async def test_a_search_can_be_narrowed(
    home: Home, workspace: Path, options: dict[str, object], found: str
) -> None:
    lay(workspace)

    assert await grep(home, **options) == found  # type: ignore[arg-type]


async def test_lines_round_a_match_are_marked_as_such(home: Home, workspace: Path) -> None:
    (workspace / "a.txt").write_text("\n".join("abXcdeXfXghi"))

    assert await grep(home, "X", context=1) == (
        "a.txt-2- b\na.txt:3: X\na.txt-4- c\n--\na.txt-6- e\na.txt:7: X\na.txt-8- f\n"
        "a.txt:9: X\na.txt-10- g"
    )


async def test_many_matches_are_cut_and_said_to_be(home: Home, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\n" * 50)

    assert await grep(home, "x", limit=2) == (
        "a.txt:1: x\na.txt:2: x\n[only the first 2 are shown; narrow the search or raise limit]"
    )
    assert "[only" not in await grep(home, "x", limit=50)


async def test_of_a_long_line_the_part_with_the_match_is_shown(home: Home, workspace: Path) -> None:
    (workspace / "min.js").write_text("a" * 100_000 + "needle" + "b" * 100_000)

    text = await grep(home, "needle")

    assert "aneedleb" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    "pattern", ["(", "a{2,1}", "[z-a]", "*a", "(?P<1>x)", "a" * 10 + "(?<=b+)"]
)
async def test_what_is_no_regular_expression_is_said_to_be_none(
    home: Home, workspace: Path, pattern: str
) -> None:
    with pytest.raises(ToolError, match="Not a regular expression"):
        await grep(home, pattern)


async def test_other_encodings_are_searched_and_binary_files_are_not(
    home: Home, workspace: Path
) -> None:
    (workspace / "wide.txt").write_bytes(b"\xff\xfe" + "one\r\ngrüße\r\n".encode("utf-16-le"))
    (workspace / "bom.txt").write_bytes(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe")
    (workspace / "latin.txt").write_bytes("vor grüße".encode("latin-1") + b" gr")
    (workspace / "binary").write_bytes(b"gr\0")

    assert await grep(home, "^gr") == "bom.txt:1: grüße\nwide.txt:2: grüße"
    assert await grep(home, " gr$") == "latin.txt:1: vor gr\ufffd\ufffde gr"
    with pytest.raises(ToolError, match="The file is binary"):
        await grep(home, "gr", path="binary")


@pytest.mark.timeout(30)
async def test_a_pattern_that_never_ends_is_stopped_and_stops_nothing(
    home: Home, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("found aa\n")
    (workspace / "b.txt").write_text("a" * 100 + "b\n")
    tool = Grep(PathResolver(home, restrict=True), seconds=0.3)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    output = await tool.run(GrepArguments(pattern=r"(a+)+$"), tool_turn(home.default_workspace))
    ticking.cancel()

    assert output.text == (
        "a.txt:1: found aa\n"
        "[the search took too long and was stopped; narrow it, or simplify the pattern]"
    )
    assert ticks > 50
    assert not descendants(os.getpid())


async def test_cancelling_a_search_ends_its_process(home: Home, workspace: Path) -> None:
    (workspace / "b.txt").write_text("a" * 100 + "b\n")
    task = asyncio.create_task(grep(home, r"(a+)+$"))
    deadline = time.monotonic() + 5
    while not descendants(os.getpid()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not descendants(os.getpid())


async def test_links_are_not_followed(home: Home, workspace: Path) -> None:
    outside = home.root.parent / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("hello secret")
    (workspace / "folder").symlink_to(outside)
    (workspace / "file.txt").symlink_to(outside / "secret.txt")
    (workspace / "loop").symlink_to(".")

    assert await grep(home, "hello") == "No line matches (0 files searched)."
    assert await find(home, "*.txt") == "No file matches *.txt."
    with pytest.raises(ToolError, match="outside the workspace"):
        await grep(home, "hello", path="folder")


async def test_pipes_do_not_block(home: Home, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")

    assert await grep(home, "x") == "No line matches (0 files searched)."
    with pytest.raises(ToolError, match="not a regular file"):
        await grep(home, "x", path="pipe")


async def test_nanobots_own_files_are_not_searched_from_above(home: Home, workspace: Path) -> None:
    home.config_file.write_text('{"apiKey": "hello"}')
    beside = home.root.parent / "beside.txt"
    beside.write_text("hello beside")

    found = await grep(home, "hello", restrict=False, path=str(home.root.parent))

    assert found == f"{beside}:1: hello beside"
    with pytest.raises(ToolError, match="belongs to nanobot"):
        await grep(home, "hello", restrict=False, path=str(home.root))


async def test_nanobots_own_files_are_not_searched_in_a_workspace_that_is_the_home(
    home: Home,
) -> None:
    home.config_file.write_text("hello")
    home.logs.mkdir()
    (home.logs / "x.log").write_text("hello")
    (home.root / "notes.txt").write_text("hello")
    tool = Grep(PathResolver(home, restrict=True))

    output = await tool.run(GrepArguments(pattern="hello"), tool_turn(home.root))

    assert output.text == "notes.txt:1: hello"


async def test_rules_above_the_directory_searched_hold_in_it(home: Home, workspace: Path) -> None:
    lay(workspace)

    assert await find(home, "*.log", path="src") == "src/run.log"
    assert await find(home, "gen*", path="src/lib") == "src/lib/generated.py"
    (workspace / "src" / "x.log").touch()
    assert await find(home, "*.log", path="src") == "src/run.log"


async def test_who_names_an_ignored_directory_means_it(home: Home, workspace: Path) -> None:
    lay(workspace)

    assert await find(home, "*", path="build") == "build/out.py"
    assert await find(home, "*", path="node_modules") == "node_modules/x/index.js"


async def test_a_dot_ignore_file_has_the_last_word(home: Home, workspace: Path) -> None:
    lay(workspace)
    (workspace / ".ignore").write_text("!run.log\nREADME.md\n")

    assert await find(home, "*.{log,md}") == "keep.log\nrun.log\nsrc/run.log"


async def test_rules_are_those_of_git(home: Home, workspace: Path) -> None:
    lay(workspace)
    (workspace / ".gitignore").write_text("*.log\nbuild/\n!keep.log\n/src/lib/*\n!/src/lib/t*.py\n")
    (workspace / ".git" / "HEAD").unlink()
    (workspace / ".git").rmdir()
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    found = (await find(home, "*")).split("\n")

    assert sorted(found) == sorted(known_to_git(workspace))


def known_to_git(root: Path) -> list[str]:
    """The files that git would add, but for node_modules."""
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull}
    for arguments in (["init", "-q"], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            check=True,
            env=environment,
            capture_output=True,
            text=True,
        )
    return [path for path in done.stdout.split("\n") if path and "node_modules" not in path]


async def test_what_cannot_be_searched_is_counted(home: Home, workspace: Path) -> None:
    with (workspace / "large.bin").open("wb") as file:
        file.truncate(30_000_000)
    (workspace / "a.txt").write_text("x")

    assert await grep(home, "x") == "a.txt:1: x\n[1 too large or unreadable left out]"


async def test_a_large_file_that_is_named_is_searched(home: Home, workspace: Path) -> None:
    with (workspace / "large.log").open("w") as file:
        for _ in range(300):
            file.write("entry " * 16_000 + "\n")
        file.write("the needle\n")

    assert await grep(home, "needle", path="large.log") == "large.log:301: the needle"


async def test_spilled_results_are_searched_but_not_trusted(home: Home) -> None:
    spilled = home.spill_of("cli:direct") / "page.txt"
    spilled.parent.mkdir(parents=True)
    spilled.write_text("one\ntwo")
    tool = Grep(PathResolver(home, restrict=True))

    output = await tool.run(
        GrepArguments(pattern="two", path=str(spilled)), tool_turn(home.default_workspace)
    )

    assert (output.text, output.trust) == (f"{spilled}:2: two", Trust.UNTRUSTED)


async def test_a_guest_searches_nothing(home: Home, workspace: Path) -> None:
    guest = tool_turn(workspace, role=Role.GUEST)
    resolver = PathResolver(home, restrict=False)

    with pytest.raises(ToolError, match="guest"):
        await Grep(resolver).run(GrepArguments(pattern="x"), guest)
    with pytest.raises(ToolError, match="guest"):
        await FindFiles(resolver).run(FindFilesArguments(pattern="x"), guest)


async def test_searching_leaves_no_descriptor_behind(home: Home, workspace: Path) -> None:
    lay(workspace)
    await grep(home, "hello")
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(5):
        await grep(home, "hello")
        with pytest.raises(ToolError):
            await grep(home, "(")

    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- the worker ---------------------------------------------------------------------------------


def test_a_directory_tree_without_end_is_left_at_some_depth(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(80):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "a.txt").touch()
    (tmp_path / "b.txt").touch()
    hits: list[object] = []

    outcome = worked(tmp_path, hits)

    assert (hits, outcome["end"]) == ([["b.txt"]], "done")


def test_a_search_ends_with_its_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()

    assert worked(tmp_path, [], seconds=-1.0)["end"] == "time"


def worked(root: Path, hits: list[object], seconds: float = 10.0) -> Summary:
    descriptor = os.open(root, os.O_RDONLY)
    try:
        return search(
            Request(
                descriptor=descriptor,
                pattern=None,
                glob=None,
                ignore_case=False,
                context=0,
                limit=10,
                seconds=seconds,
                hidden=[],
                outer_rules=[],
            ),
            hits.append,
        )
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.py", "a/b.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("a/**", "a/b/c.py", True),
        ("**", "a/b", True),
        ("a?c", "abc", True),
        ("a/?", "a/b/", False),
        ("[!a]b", "ab", False),
        ("[]]", "]", True),
        ("a[", "a[", True),
        ("{a,b", "{a,b", True),
        ("x.{py,js}", "d/x.js", True),
        ("a.c", "abc", False),
        ("a\nb", "a\nb", True),
    ],
)
def test_a_glob_matches(glob: str, path: str, matches: bool) -> None:
    assert glob_matcher(glob)(path) is matches
