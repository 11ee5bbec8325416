"""Which files a tool may touch, however the path to them is written."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from nanobot.core.errors import ToolError
from nanobot.core.messages import Role, Trust
from nanobot.safety import paths as paths_module
from nanobot.safety.paths import Access, DiskView, PathResolver, Paths
from nanobot.store.home import Home
from tests.fakes.tool_turns import tool_turn


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path.resolve() / "home")
    for directory in (home.default_workspace / "memory", home.logs, home.cron_jobs.parent):
        directory.mkdir(parents=True)
    home.config_file.write_text('{"secret": true}')
    home.database.write_bytes(b"SQLite format 3\0")
    home.cron_jobs.write_text("{}")
    return home


def paths_of(
    home: Home,
    *,
    restrict: bool = False,
    role: Role = Role.OWNER,
    skills: tuple[Path, ...] = (),
    workspace: Path | None = None,
    session: str = "cli:direct",
) -> Paths:
    resolver = PathResolver(home, restrict=restrict, skills=lambda _: skills)
    context = tool_turn(workspace or home.default_workspace, role=role, session=session)
    return resolver.for_context(context)


def test_relative_paths_start_at_the_workspace(home: Home) -> None:
    paths = paths_of(home)

    assert [paths.resolve(text) for text in ("a.txt", "./b/../a.txt", ".")] == [
        home.default_workspace / "a.txt",
        home.default_workspace / "a.txt",
        home.default_workspace,
    ]


def test_a_tilde_is_the_users_home(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.resolve()))

    assert paths_of(home).resolve("~/notes.txt") == tmp_path.resolve() / "notes.txt"


@pytest.mark.parametrize("text", ["", "  ", "a\0b", "\0"])
def test_what_cannot_be_a_path_is_refused(home: Home, text: str) -> None:
    with pytest.raises(ToolError):
        paths_of(home).resolve(text)


@pytest.mark.parametrize("access", list(Access))
@pytest.mark.parametrize(
    "inside",
    [
        *("", "config.json", "config.json.bak-1", "pairing.json", "state.db", "recall.db"),
        *("audit.jsonl", "cron/jobs.json", "run/gateway.sock", "logs/nanobot.log", "cache/x"),
        *("spill/telegram%3A2/x.txt", "media/telegram%3A2/photo.jpg", "something-new"),
    ],
)
def test_nanobots_own_files_are_neither_read_nor_written(
    home: Home, inside: str, access: Access
) -> None:
    with pytest.raises(ToolError, match="belongs to nanobot"):
        paths_of(home).resolve(str(home.root / inside), access)


@pytest.mark.parametrize(
    "text", ["../config.json", "../workspace/../config.json", "memory/../../state.db", "../../home"]
)
def test_dots_do_not_lead_out_of_the_workspace_into_the_home(home: Home, text: str) -> None:
    with pytest.raises(ToolError, match="belongs to nanobot"):
        paths_of(home).resolve(text)


def test_a_link_to_a_private_file_is_seen_through(home: Home) -> None:
    (home.default_workspace / "innocent.json").symlink_to(home.config_file)
    (home.default_workspace / "folder").symlink_to(home.root)

    for text in ("innocent.json", "folder/config.json", "folder/not-yet.json"):
        with pytest.raises(ToolError, match="belongs to nanobot"):
            paths_of(home).resolve(text)


@pytest.mark.parametrize("name", ["config.json", "state.db", "cron/jobs.json"])
def test_a_hard_link_to_a_private_file_is_recognised(home: Home, name: str) -> None:
    (home.default_workspace / "other-name").hardlink_to(home.root / name)

    for access in Access:
        with pytest.raises(ToolError, match="under another name"):
            paths_of(home).resolve("other-name", access)


def test_a_hard_link_to_an_ordinary_file_is_an_ordinary_file(home: Home) -> None:
    (home.default_workspace / "a").write_text("a")
    (home.default_workspace / "b").hardlink_to(home.default_workspace / "a")

    assert paths_of(home).resolve("b") == home.default_workspace / "b"


@pytest.mark.parametrize(
    "text", ["/proc/self/environ", "/proc/1/environ", "/proc", "/dev/zero", "/dev/stdin"]
)
def test_the_daemons_environment_and_devices_are_out_of_reach(home: Home, text: str) -> None:
    with pytest.raises(ToolError):
        paths_of(home).resolve(text)


def test_without_restriction_other_places_are_open(home: Home, tmp_path: Path) -> None:
    paths = paths_of(home)

    assert paths.resolve("/etc/hostname") == Path("/etc/hostname")
    assert paths.resolve("../../outside.txt", Access.WRITE) == tmp_path.resolve() / "outside.txt"


@pytest.mark.parametrize("access", list(Access))
@pytest.mark.parametrize(
    "text",
    [
        *("/etc/hostname", "../../outside.txt", "~/x", "/", "../workspace_evil/x"),
        *("link/x", "link", "memory/../link/x", "dangling"),
    ],
)
def test_the_restriction_holds(home: Home, tmp_path: Path, text: str, access: Access) -> None:
    workspace = home.default_workspace
    (tmp_path / "elsewhere").mkdir()
    (workspace / "link").symlink_to(tmp_path / "elsewhere")
    (workspace / "dangling").symlink_to(tmp_path / "not-there-yet")

    with pytest.raises(ToolError):
        paths_of(home, restrict=True).resolve(text, access)


def test_a_sibling_with_the_same_beginning_is_outside(tmp_path: Path) -> None:
    workspace, evil = tmp_path.resolve() / "workspace", tmp_path.resolve() / "workspace_evil"
    workspace.mkdir()
    evil.mkdir()
    paths = paths_of(Home(tmp_path / "home"), restrict=True, workspace=workspace)

    with pytest.raises(ToolError, match="outside the workspace"):
        paths.resolve(str(evil / "x"))


def test_links_within_the_workspace_are_followed_under_the_restriction(home: Home) -> None:
    (home.default_workspace / "real").mkdir()
    (home.default_workspace / "link").symlink_to("real")

    assert paths_of(home, restrict=True).resolve("link/new.txt", Access.WRITE) == (
        home.default_workspace / "real" / "new.txt"
    )


def test_a_linked_workspace_is_known_by_its_real_place(home: Home, tmp_path: Path) -> None:
    link = tmp_path.resolve() / "link"
    link.symlink_to(home.default_workspace)
    paths = paths_of(home, restrict=True, workspace=link)

    assert paths.resolve(str(link / "a.txt")) == home.default_workspace / "a.txt"
    assert paths.view().writable == (home.default_workspace, link)


def test_skills_spilled_results_and_media_are_readable_under_any_restriction(
    home: Home, tmp_path: Path
) -> None:
    folder = tmp_path.resolve() / "builtin" / "weather"
    folder.mkdir(parents=True)
    paths = paths_of(home, restrict=True, skills=(folder,))
    readable = (
        folder / "SKILL.md",
        home.shared_skills / "x" / "SKILL.md",
        home.spill_of("cli:direct") / "r.txt",
        home.media_of("cli:direct") / "photo.jpg",
    )

    assert tuple(paths.resolve(str(path)) for path in readable) == readable
    for path in readable:
        with pytest.raises(ToolError):
            paths.resolve(str(path), Access.WRITE)


def test_another_sessions_media_are_not_readable(home: Home) -> None:
    paths = paths_of(home, session="telegram:1")

    with pytest.raises(ToolError, match="belongs to nanobot"):
        paths.resolve(str(home.media_of("telegram:2") / "photo.jpg"))


def test_a_skill_that_links_out_of_the_workspace_opens_nothing(home: Home, tmp_path: Path) -> None:
    private = tmp_path.resolve() / "private"
    private.mkdir()
    (home.default_workspace / "skills").mkdir()
    skill = home.default_workspace / "skills" / "evil"
    skill.symlink_to(private)

    with pytest.raises(ToolError, match="outside the workspace"):
        paths_of(home, restrict=True, skills=(skill,)).resolve("skills/evil/id_ed25519")


def test_a_skill_folder_above_the_home_does_not_open_the_home(home: Home, tmp_path: Path) -> None:
    paths = paths_of(home, skills=(tmp_path, home.root))

    with pytest.raises(ToolError, match="belongs to nanobot"):
        paths.resolve(str(home.config_file))


def test_history_is_readable_but_not_writable(home: Home) -> None:
    history = home.default_workspace / "memory" / "HISTORY.md"
    paths = paths_of(home)

    assert paths.resolve("memory/HISTORY.md") == history
    with pytest.raises(ToolError, match="written by nanobot alone"):
        paths.resolve("memory/HISTORY.md", Access.WRITE)


def test_history_is_not_writable_under_another_name(home: Home) -> None:
    history = home.default_workspace / "memory" / "HISTORY.md"
    history.write_text("[2026-01-01 00:00] Hello.")
    (home.default_workspace / "soft").symlink_to(history)
    (home.default_workspace / "hard").hardlink_to(history)

    for text in ("soft", "hard"):
        with pytest.raises(ToolError, match="written by nanobot alone"):
            paths_of(home).resolve(text, Access.WRITE)


def test_a_guest_reads_skills_and_nothing_else(home: Home, tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "builtin" / "weather"
    folder.mkdir(parents=True)
    (home.default_workspace / "a.txt").write_text("mine")
    paths = paths_of(home, role=Role.GUEST, skills=(folder,))

    assert paths.resolve(str(folder / "SKILL.md")) == folder / "SKILL.md"
    for text in ("a.txt", ".", str(folder), str(folder / "scripts" / "x.py"), "/etc/hostname"):
        with pytest.raises(ToolError, match="guest"):
            paths.resolve(text)
    with pytest.raises(ToolError, match="guest"):
        paths.resolve(str(folder / "SKILL.md"), Access.WRITE)


def test_a_workspace_that_holds_the_home_does_not_open_it(home: Home) -> None:
    paths = paths_of(home, workspace=home.root.parent, restrict=True)

    assert paths.resolve("notes.txt", Access.WRITE) == home.root.parent / "notes.txt"
    with pytest.raises(ToolError, match="belongs to nanobot"):
        paths.resolve("home/config.json")
    assert paths.view().hidden == (home.root,)


def test_a_workspace_that_is_the_home_keeps_what_is_private(home: Home) -> None:
    paths = paths_of(home, workspace=home.root)

    assert paths.resolve("notes.txt", Access.WRITE) == home.root / "notes.txt"
    for text in ("config.json", "state.db-wal", "recall.db", "cron/jobs.json", "logs/x"):
        with pytest.raises(ToolError, match="belongs to nanobot"):
            paths.resolve(text)
    assert set(paths.view().hidden) == {
        home.config_file,
        home.database,
        home.cron_jobs.parent,
        home.logs,
    }


def test_commands_see_the_workspace_and_the_history_read_only(home: Home) -> None:
    history = home.default_workspace / "memory" / "HISTORY.md"
    history.write_text("[2026-01-01 00:00] Hello.")
    home.shared_skills.mkdir()

    assert paths_of(home).view() == DiskView(
        writable=(home.default_workspace,),
        readable=(home.shared_skills, history),
        hidden=(home.root,),
    )


@pytest.fixture
def machines_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that plays the machine's /tmp; the home lies elsewhere."""
    folder = tmp_path.resolve() / "machines-tmp"
    folder.mkdir()
    monkeypatch.setattr(paths_module, "_TMP", (folder,))
    return folder


@pytest.mark.parametrize(
    ("name", "restrict", "whose"),
    [
        ("", False, "own"),
        ("new", False, "own"),
        ("new/new", False, "own"),
        ("both", False, "own"),
        ("only-own/new", False, "own"),
        ("theirs", False, "machines"),
        ("only-theirs/new", False, "machines"),
        ("theirs", True, "own"),
        ("only-theirs/new", True, "own"),
    ],
)
def test_of_a_name_in_tmp_the_assistants_own_file_is_meant_first(
    home: Home, machines_tmp: Path, name: str, restrict: bool, whose: str
) -> None:
    resolver = PathResolver(home, restrict=restrict, own_tmp=lambda: True)
    paths = resolver.for_context(tool_turn(home.default_workspace))
    (machines_tmp / "only-theirs").mkdir()
    (home.tmp / "only-own").mkdir()
    for place in (machines_tmp / "theirs", machines_tmp / "both", home.tmp / "both"):
        place.touch()

    path = paths.resolve(str(machines_tmp / name), Access.WRITE)

    assert path == {"own": home.tmp, "machines": machines_tmp}[whose] / name
    assert paths.show(path) == str(machines_tmp / name)
    assert paths.view().inside(path) == machines_tmp / name


def test_a_command_is_shown_what_file_tools_wrote_elsewhere_while_it_is_there(
    home: Home, tmp_path: Path
) -> None:
    resolver = PathResolver(home, restrict=False, own_tmp=lambda: True)
    context = tool_turn(home.default_workspace)
    outside = tmp_path.resolve() / "outside.txt"
    for path in (outside, home.default_workspace / "a.txt", home.tmp / "b.txt"):
        resolver.for_context(context).write_file(path, b"x")

    shown = resolver.for_context(context).view().readable
    outside.unlink()

    assert shown == (outside,)
    assert resolver.for_context(context).view().readable == ()


def test_the_shared_skills_are_one_mount_however_many_there_are(home: Home, tmp_path: Path) -> None:
    elsewhere = tmp_path.resolve() / "elsewhere"
    skills = tuple(home.shared_skills / name for name in ("one", "two"))
    for folder in (*skills, elsewhere):
        folder.mkdir(parents=True)

    paths = paths_of(home, restrict=True, skills=(*skills, elsewhere))

    assert paths.view().readable == (elsewhere, home.shared_skills)
    assert paths.resolve(str(skills[1] / "SKILL.md")) == skills[1] / "SKILL.md"


@pytest.mark.parametrize("role", [Role.OWNER, Role.GUEST])
def test_the_catalogue_of_skills_may_be_read_and_not_written(home: Home, role: Role) -> None:
    home.skills_catalogue.parent.mkdir()
    home.skills_catalogue.write_text("- weather")
    paths = paths_of(home, restrict=True, role=role)

    assert paths.resolve(str(home.skills_catalogue)) == home.skills_catalogue
    with pytest.raises(ToolError, match="guest" if role is Role.GUEST else "belongs to nanobot"):
        paths.resolve(str(home.skills_catalogue), Access.WRITE)


def test_what_others_made_is_not_trusted(home: Home) -> None:
    paths = paths_of(home)

    assert paths.trust_of(home.default_workspace / "a.txt") is Trust.TRUSTED
    assert paths.trust_of(home.spill_of("cli:direct") / "page.txt") is Trust.UNTRUSTED
    assert paths.trust_of(home.media_of("cli:direct") / "letter.txt") is Trust.UNTRUSTED


def test_a_pipe_is_refused_without_waiting_for_its_other_end(home: Home) -> None:
    pipe = home.default_workspace / "pipe"
    os.mkfifo(pipe)
    paths = paths_of(home)

    with pytest.raises(ToolError, match="not a regular file"):
        paths.open_file(paths.resolve("pipe"))
    with pytest.raises(ToolError, match="not a regular file"):
        paths.write_file(paths.resolve("pipe", Access.WRITE), b"x")


def test_a_link_put_in_place_of_a_resolved_file_is_noticed(home: Home) -> None:
    paths = paths_of(home)
    (home.default_workspace / "a.txt").write_text("a")
    path = paths.resolve("a.txt")
    path.unlink()
    path.symlink_to(home.config_file)

    with pytest.raises(ToolError):
        paths.open_file(path)


def test_a_link_put_in_place_of_a_directory_is_noticed(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "a.txt").write_text("outside")
    paths = paths_of(home)
    (home.default_workspace / "folder").mkdir()
    (home.default_workspace / "folder" / "a.txt").write_text("a")
    path = paths.resolve("folder/a.txt", Access.WRITE)
    (home.default_workspace / "folder").rename(home.default_workspace / "moved")
    (home.default_workspace / "folder").symlink_to(target)

    with pytest.raises(ToolError):
        paths.open_file(path)
    with pytest.raises(ToolError):
        paths.write_file(path, b"evil")
    assert (target / "a.txt").read_text() == "outside"


def test_a_loop_of_links_is_an_error_and_not_a_hang(home: Home) -> None:
    (home.default_workspace / "a").symlink_to("b")
    (home.default_workspace / "b").symlink_to("a")
    paths = paths_of(home)

    with pytest.raises(ToolError):
        paths.open_file(paths.resolve("a"))


def test_paths_are_shown_relative_to_the_workspace(home: Home) -> None:
    paths = paths_of(home)

    assert paths.show(home.default_workspace / "a" / "b.txt") == "a/b.txt"
    assert paths.show(Path("/etc/hostname")) == "/etc/hostname"


def test_the_home_is_recognised_under_another_spelling(home: Home, tmp_path: Path) -> None:
    # As on a file system that does not tell upper case from lower.
    spelling = tmp_path.resolve() / "HOME"
    spelling.symlink_to(home.root)
    paths = dataclasses.replace(paths_of(home), home=spelling)

    assert paths.is_private(home.config_file)
