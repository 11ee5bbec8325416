"""Archives, registries and git servers that mean harm to whoever installs a skill."""

from __future__ import annotations

import io
import os
import random
import socket
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nanobot.skills.frontmatter import SkillBroken
from nanobot.skills.install import install
from nanobot.skills.install.bundle import read_archive
from nanobot.skills.install.clawhub import Registry, RegistryError
from nanobot.skills.install.install import InstallError, Locked, SkillLock
from tests.fakes.skill_registry import SkillRegistry, serving, zipped
from tests.unit.test_skills_install import FILES, TEXT, desk_at, tarred

Talk = Callable[[socket.socket], None]


@contextmanager
def speaking(talk: Talk) -> Iterator[str]:
    """A server whose every connection is ``talk`` after the request; gives its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                talk(connection)
            except OSError:
                """The client has gone, which is what it should do."""

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for thread in (accepting, *threads):
            thread.join()


# --- archives --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_of_the_folder_itself_is_installed(tmp_path: Path, mode: str) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        here = tarfile.TarInfo("./")
        here.type = tarfile.DIRTYPE
        archive.addfile(here)
        entry = tarfile.TarInfo("./SKILL.md")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT.encode()))
    source = tmp_path / "tidy.tar"
    source.write_bytes(stream.getvalue())
    desk = desk_at(tmp_path)

    target = desk.install(str(source))

    assert (target / "SKILL.md").read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["x\x1b[2Jy"], "cannot be shown"),
        (["x\x9b31my"], "cannot be shown"),
        (["a\nb"], "cannot be shown"),
        (["gpj\u202eexe"], "cannot be shown"),
        (["\u00e9" * 150], "too long"),
        (["/".join(["d" * 100] * 40)], "too long"),
        (["\u00e9.md", "e\u0301.md"], "there twice"),
        (["Stra\u00dfe", "STRASSE"], "there twice"),
        (["a", "a/b"], "there twice"),
        (["a/b", "A"], "there twice"),
        ([f"node_modules/{n}" for n in range(10_001)], "more than 10000 entries"),
    ],
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_names_that_no_folder_can_hold_are_refused(
    kind: str, names: list[str], reason: str
) -> None:
    entries = {"SKILL.md": TEXT, **dict.fromkeys(names, "x")}
    data = zipped(entries) if kind == "zip" else tarred(entries)

    with pytest.raises(SkillBroken, match=reason):
        read_archive(data)


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(SkillBroken, match="cannot be shown"):
        read_archive(tarred({"SKILL.md": TEXT, "a\udcffb": "x"}))


def test_folders_without_end_are_refused() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for number in range(10_001):
            folder = tarfile.TarInfo(f"d{number}")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)

    with pytest.raises(SkillBroken, match="entries"):
        read_archive(stream.getvalue())


@pytest.mark.parametrize("kind", ["zip", "zip-lzma", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_damaged_archive_is_refused_whatever_the_damage(kind: str) -> None:
    whole = {
        "zip": lambda: zipped(FILES),
        "zip-lzma": lambda: _zip(zipfile.ZIP_LZMA),
        "tar": lambda: tarred({**FILES, "\u00e9" * 80: "x"}, mode="w"),
        "tar.gz": lambda: tarred(FILES),
        "tar.bz2": lambda: tarred(FILES, mode="w:bz2"),
        "tar.xz": lambda: tarred(FILES, mode="w:xz"),
    }[kind]()
    chance = random.Random(kind)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.2:
            del data[chance.randrange(1, len(data)) :]
        try:
            read_archive(bytes(data))
        except SkillBroken:
            refused += 1

    assert refused > 0


def _zip(compression: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for path, text in FILES.items():
            archive.writestr(path, text)
    return stream.getvalue()


# --- registries ------------------------------------------------------------------------------


def test_a_registry_that_drips_is_given_up_at_the_deadline() -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not over.wait(0.05):
            connection.sendall(b"X-More: and more\r\n")

    with speaking(drip) as url, Registry(url, deadline_s=0.5) as registry:
        with pytest.raises(RegistryError, match="does not answer in time"):
            registry.latest("tidy")

        assert not over.is_set()
        over.set()


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("302 Found\r\nLocation: http://169.254.169.254/latest", "redirects where it may not"),
        ("302 Found\r\nLocation: http://10.1.2.3/", "redirects where it may not"),
        ("302 Found\r\nLocation: http://localhost:1/", "redirects where it may not"),
        ("302 Found\r\nLocation: /again", "redirects more than 3 times"),
        ("200 OK\r\nContent-Encoding: gzip", "compresses its answer"),
        ("200 OK\r\nContent-Length: 1000", "cannot be reached"),
    ],
)
def test_a_registry_that_leads_astray_is_refused(head: str, reason: str) -> None:
    answer = f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{{}}".encode()

    with (
        speaking(lambda connection: connection.sendall(answer)) as url,
        Registry(url, deadline_s=5) as registry,
        pytest.raises(RegistryError, match=reason),
    ):
        registry.latest("tidy")


@pytest.mark.parametrize("version", ["1.0\x1b[2J", "../1", "", 7, "1 0"])
def test_a_version_that_is_no_version_is_refused(version: object) -> None:
    served = SkillRegistry(latest={"latestVersion": {"version": version}})

    with (
        serving(served) as registry,
        Registry(registry.url) as client,
        pytest.raises(RegistryError, match="names no version"),
    ):
        client.latest("tidy")


@pytest.mark.parametrize("source", ["tidy", "tidy@1.0.0"])
def test_what_the_registry_has_blocked_is_not_installed(tmp_path: Path, source: str) -> None:
    latest = {"latestVersion": {"version": "1.0.0"}, "moderation": {"isMalwareBlocked": True}}
    with serving(SkillRegistry({"tidy": {"1.0.0": FILES}}, latest=latest)) as registry:
        desk = desk_at(tmp_path, registry.url)

        with pytest.raises(RegistryError, match="as malware"):
            desk.install(source)

    assert not desk.root.exists()


# --- git -------------------------------------------------------------------------------------


def test_a_git_server_that_hangs_is_given_up_with_all_that_git_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "GIT_S", 1.0)
    over = threading.Event()

    def hang(connection: socket.socket) -> None:
        over.wait(30)

    with speaking(hang) as url:
        address = f"{url}/skills.git"

        with pytest.raises(InstallError, match="not done after 1 s"):
            desk_at(tmp_path).install(address)

        left = subprocess.run(["pgrep", "-f", address], capture_output=True, check=False).stdout
        over.set()
    assert left == b""


# --- the lock and the files ------------------------------------------------------------------


def test_installations_at_once_are_all_in_the_lock(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    start = threading.Barrier(8)

    def put(number: int) -> None:
        lock = SkillLock(tmp_path / "skills.lock.json")
        start.wait()
        lock.put(root, f"skill-{number}", Locked("registry:x", "1", "2026-03-01", {}))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    installed = SkillLock(tmp_path / "skills.lock.json").installed(root)
    assert sorted(installed) == [f"skill-{number}" for number in range(8)]


def test_a_pipe_among_the_files_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "tidy").mkdir()
    (tmp_path / "tidy" / "SKILL.md").write_text(TEXT, encoding="utf-8")
    os.mkfifo(tmp_path / "tidy" / "pipe")

    with pytest.raises(InstallError, match="no ordinary file"):
        desk_at(tmp_path).install(str(tmp_path / "tidy"))
