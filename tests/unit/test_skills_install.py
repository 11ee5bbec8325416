"""Installing skills: every kind of source, what is refused, updates, removal, the lock."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nanobot.core.errors import NanobotError, StoreCorrupt
from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.install.bundle import Limits, read_archive, read_folder
from nanobot.skills.install.clawhub import Registry, RegistryError
from nanobot.skills.install.install import Installer, InstallError, SkillLock, address_of
from tests.fakes.skill_registry import SkillRegistry, serving, zipped

TEXT = "---\nname: tidy\ndescription: Tidies.\n---\n\nTidy up with scripts/tidy.sh.\n"
FILES = {"SKILL.md": TEXT, "scripts/tidy.sh": "echo tidy\n"}


@dataclass(slots=True)
class Desk:
    """An installer with a home and a workspace of its own."""

    installer: Installer
    lock: SkillLock
    root: Path
    home: Path

    def install(self, source: str) -> Path:
        return self.installer.install(self.installer.fetch(source), self.root)

    def update(self, name: str, *, force: bool = False) -> Path | None:
        locked = self.lock.installed(self.root)[name]
        candidate = self.installer.fetch(address_of(locked))
        return self.installer.renew(candidate, self.root, name, force=force)

    def quarantined(self) -> list[Path]:
        folder = self.home / "cache" / "quarantine"
        return list(folder.iterdir()) if folder.exists() else []


def ticking() -> Callable[[], datetime]:
    moments = iter(datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(1000))
    return lambda: next(moments)


def desk_at(tmp_path: Path, url: str = "http://127.0.0.1:9", deadline_s: float = 5) -> Desk:
    home = tmp_path / "home"
    lock = SkillLock(home / "skills.lock.json")
    installer = Installer(
        home / "cache" / "quarantine",
        lock,
        lambda: Registry(url, deadline_s=deadline_s),
        ticking(),
    )
    return Desk(installer, lock, tmp_path / "workspace" / "skills", home)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return desk_at(tmp_path)


def source_folder(place: Path, files: dict[str, str] = FILES) -> Path:
    for path, text in files.items():
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return place


def tarred(entries: dict[str, str], *, mode: str = "w:gz") -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:  # type: ignore[call-overload]
        for path, text in entries.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


def repository(place: Path) -> Path:
    source_folder(place, {f"skills/tidy/{path}": text for path, text in FILES.items()})
    run_git(place, "init", "-q", "-b", "main")
    commit(place)
    return place


def commit(place: Path) -> None:
    run_git(place, "add", "-A")
    run_git(
        *(place, "-c", "user.name=Ann", "-c", "user.email=ann@example.org"),
        *("commit", "-q", "-m", "Change"),
    )


def run_git(place: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(place), *arguments], check=True, capture_output=True)


# --- every source ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz", "tar.xz", "skill", "git", "bare"])
def test_a_skill_is_installed_from_every_kind_of_source(
    tmp_path: Path, desk: Desk, kind: str
) -> None:
    source = tmp_path / f"source.{kind}"
    if kind == "folder":
        source_folder(source)
    elif kind in ("zip", "skill"):
        source.write_bytes(zipped({f"tidy/{path}": text for path, text in FILES.items()}))
    elif kind.startswith("tar"):
        mode = f"w:{kind.removeprefix('tar.')}"
        source.write_bytes(
            tarred({f"tidy/{path}": text for path, text in FILES.items()}, mode=mode)
        )
    else:
        repository(source)
    address = str(source)
    if kind == "bare":
        run_git(tmp_path, "clone", "-q", "--bare", str(source), "bare-copy.git")
        address = f"file://{tmp_path}/bare-copy.git"

    target = desk.install(address)

    assert target == desk.root / "tidy"
    assert (target / "SKILL.md").read_text(encoding="utf-8") == TEXT
    assert set(desk.lock.installed(desk.root)["tidy"].files) == set(FILES)
    assert (desk.lock.changes(desk.root, "tidy"), desk.quarantined()) == ((), [])


def test_a_skill_is_installed_and_updated_from_a_registry(tmp_path: Path) -> None:
    newer = {"SKILL.md": TEXT, "scripts/tidy.sh": "echo tidier\n"}
    with serving(SkillRegistry({"tidy": {"1.0.0": FILES}})) as registry:
        desk = desk_at(tmp_path, registry.url)
        target = desk.install("tidy")
        same = desk.update("tidy")
        registry.skills["tidy"]["1.1.0"] = newer
        backup = desk.update("tidy")

    locked = desk.lock.installed(desk.root)["tidy"]
    assert same is None and backup is not None
    assert (target / "scripts" / "tidy.sh").read_text(encoding="utf-8") == "echo tidier\n"
    assert (backup / "scripts" / "tidy.sh").read_text(encoding="utf-8") == "echo tidy\n"
    assert (locked.source, locked.version) == ("registry:tidy", "1.1.0")


def test_a_search_gives_what_the_registry_found(tmp_path: Path) -> None:
    with serving(SkillRegistry({"tidy": {"1.0": FILES}, "tidy-2": {"2.0": FILES}})) as served:
        with Registry(served.url) as registry:
            found = registry.search("tidy", 1)

    assert [(one.slug, one.version) for one in found] == [("tidy", "1.0")]


# --- a registry in trouble -------------------------------------------------------------------


def test_a_dead_registry_is_said_to_be_out_of_reach(desk: Desk) -> None:
    with pytest.raises(RegistryError, match="cannot be reached"):
        desk.install("tidy")

    assert (desk.root.exists(), desk.quarantined()) == (False, [])


def test_a_slow_registry_is_given_up(tmp_path: Path) -> None:
    with serving(SkillRegistry({"tidy": {"1": FILES}}, hold=threading.Event())) as registry:
        desk = desk_at(tmp_path, registry.url, deadline_s=0.3)

        with pytest.raises(RegistryError, match="does not answer in time"):
            desk.install("tidy")


@pytest.mark.parametrize("status", [500, 429, 404, 302])
def test_a_registry_that_refuses_is_quoted(tmp_path: Path, status: int) -> None:
    with serving(SkillRegistry({"tidy": {"1": FILES}}, status=status)) as registry:
        desk = desk_at(tmp_path, registry.url)

        with pytest.raises(RegistryError, match=r"status|knows nothing|cannot be reached"):
            desk.install("tidy")


def test_files_that_are_not_the_listed_ones_are_refused(tmp_path: Path) -> None:
    with serving(SkillRegistry({"tidy": {"1": FILES}}, wrong_hash=True)) as registry:
        desk = desk_at(tmp_path, registry.url)

        with pytest.raises(RegistryError, match="wrong hash"):
            desk.install("tidy")

    assert not desk.root.exists()


# --- archives that mean harm -----------------------------------------------------------------


def zip_of(name: str, data: bytes = b"x", mode: int = stat.S_IFREG | 0o644) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SKILL.md", TEXT)
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(entry, data)
    return stream.getvalue()


def tar_of(info: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    return stream.getvalue()


def tar_link(kind: bytes) -> bytes:
    info = tarfile.TarInfo("link")
    info.type, info.linkname = kind, "/etc/passwd"
    return tar_of(info)


def tar_large() -> bytes:
    info = tarfile.TarInfo("zeros")
    info.size = 40 * 1024**2
    return tar_of(info)


HARMFUL: dict[str, Callable[[], bytes]] = {
    "path traversal": lambda: zip_of("../../evil.sh"),
    "absolute path": lambda: zip_of("/etc/evil"),
    "backslashes": lambda: zip_of("a\\..\\evil"),
    "symlink": lambda: zip_of("link", b"/etc/passwd", stat.S_IFLNK | 0o777),
    "zip bomb": lambda: zip_of("zeros", bytes(40 * 1024**2)),
    "same file twice": lambda: zip_of("skill.MD"),
    "tar symlink": lambda: tar_link(tarfile.SYMTYPE),
    "tar hard link": lambda: tar_link(tarfile.LNKTYPE),
    "tar device": lambda: tar_link(tarfile.CHRTYPE),
    "tar traversal": lambda: tarred({"../evil": "x"}),
    "tar bomb": tar_large,
    "torn": lambda: zip_of("a")[:60],
    "no archive": lambda: b"hello",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, desk: Desk, name: str
) -> None:
    (tmp_path / "evil.zip").write_bytes(HARMFUL[name]())

    with pytest.raises(InstallError):
        desk.install(str(tmp_path / "evil.zip"))

    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["evil.zip"]
    assert desk.quarantined() == []


@pytest.mark.parametrize("name", ["path traversal", "zip bomb", "symlink"])
def test_a_registry_cannot_send_a_harmful_archive_either(tmp_path: Path, name: str) -> None:
    served = SkillRegistry({"tidy": {"1": FILES}}, archives={"tidy": HARMFUL[name]()})
    with serving(served) as registry:
        desk = desk_at(tmp_path, registry.url)

        with pytest.raises(NanobotError, match="refused"):
            desk.install("tidy")


def test_links_in_a_folder_are_refused(tmp_path: Path, desk: Desk) -> None:
    source_folder(tmp_path / "source")
    (tmp_path / "source" / "key").symlink_to("/etc/passwd")

    with pytest.raises(InstallError, match="key is a link"):
        desk.install(str(tmp_path / "source"))


def test_the_number_of_files_has_a_limit() -> None:
    data = zipped({f"{number}.md": "x" for number in range(11)})

    with pytest.raises(SkillBroken, match="more than 10 files"):
        read_archive(data, replace(Limits(), files=10))


def test_several_skills_need_a_choice(tmp_path: Path, desk: Desk) -> None:
    other = TEXT.replace("tidy", "other")
    source_folder(tmp_path / "source", {"skills/a/SKILL.md": TEXT, "skills/b/SKILL.md": other})

    with pytest.raises(InstallError, match="skills/a, skills/b: add #FOLDER"):
        desk.install(str(tmp_path / "source"))

    assert desk.install(f"{tmp_path}/source#skills/b").name == "other"


# --- changes by hand -------------------------------------------------------------------------


def test_every_change_by_hand_is_reported(tmp_path: Path, desk: Desk) -> None:
    target = desk.install(str(source_folder(tmp_path / "source")))
    (target / "SKILL.md").write_text(f"{TEXT}More.\n", encoding="utf-8")
    (target / "scripts" / "tidy.sh").unlink()
    (target / "notes.md").write_text("mine", encoding="utf-8")

    changes = desk.lock.changes(desk.root, "tidy")

    assert changes == ("changed: SKILL.md", "missing: scripts/tidy.sh", "added: notes.md")


def test_an_update_refuses_over_changes_by_hand_unless_forced(tmp_path: Path, desk: Desk) -> None:
    target = desk.install(str(source_folder(tmp_path / "source")))
    (target / "SKILL.md").write_text(f"{TEXT}Mine.\n", encoding="utf-8")

    with pytest.raises(InstallError, match=r"changed by hand \(changed: SKILL\.md\); --force"):
        desk.update("tidy")
    kept = (target / "SKILL.md").read_text(encoding="utf-8")
    backup = desk.update("tidy", force=True)

    assert kept.endswith("Mine.\n")
    assert backup is not None and (backup / "SKILL.md").read_text(encoding="utf-8") == kept
    assert (target / "SKILL.md").read_text(encoding="utf-8") == TEXT
    assert desk.lock.changes(desk.root, "tidy") == ()


def test_an_update_from_git_brings_the_new_commit(tmp_path: Path, desk: Desk) -> None:
    source = repository(tmp_path / "repository")
    target = desk.install(str(source))
    (source / "skills" / "tidy" / "more.md").write_text("more", encoding="utf-8")
    commit(source)

    desk.update("tidy")

    assert (target / "more.md").read_text(encoding="utf-8") == "more"


def test_a_skill_that_is_there_is_not_installed_over(tmp_path: Path, desk: Desk) -> None:
    source = str(source_folder(tmp_path / "source"))
    desk.install(source)

    with pytest.raises(InstallError, match="exists already"):
        desk.install(source)

    assert desk.quarantined() == []


def test_a_removed_skill_is_kept_aside_and_forgotten(tmp_path: Path, desk: Desk) -> None:
    target = desk.install(str(source_folder(tmp_path / "source")))

    backup = desk.installer.remove(desk.root, "tidy")

    assert (target.exists(), desk.lock.installed(desk.root)) == (False, {})
    assert set(read_folder(backup)) == set(FILES)


@pytest.mark.parametrize("name", ["..", "a/b", "", "absent"])
def test_nothing_but_a_skill_is_removed(desk: Desk, name: str) -> None:
    desk.root.mkdir(parents=True)

    with pytest.raises(InstallError, match="there is no skill"):
        desk.installer.remove(desk.root, name)

    assert desk.root.exists()


def test_a_damaged_lock_is_said_to_be_and_not_written_over(tmp_path: Path, desk: Desk) -> None:
    desk.home.mkdir()
    lock = desk.home / "skills.lock.json"
    lock.write_text(json.dumps({"roots": []}), encoding="utf-8")

    with pytest.raises(StoreCorrupt, match="is damaged"):
        desk.lock.installed(desk.root)
