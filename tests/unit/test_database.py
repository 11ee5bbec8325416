"""The state database: one writer, group commit, and what happens when things go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nanobot.core.errors import StoreError, StoreUnavailable
from nanobot.store.database import EXIT_WRITER_DIED, Database
from nanobot.store.schema import MIGRATIONS


def _insert(key: str) -> Callable[[sqlite3.Connection], str]:
    def write(connection: sqlite3.Connection) -> str:
        connection.execute(
            "INSERT INTO session (key, created_at, updated_at) VALUES (?, 0, 0)", (key,)
        )
        return key

    return write


def _keys(connection: sqlite3.Connection) -> list[str]:
    return [key for (key,) in connection.execute("SELECT key FROM session ORDER BY key")]


async def test_a_read_sees_every_finished_write(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")

    written = [await database.write(_insert(key)) for key in ("a", "b")]
    read = await database.read(_keys)

    database.close()
    assert (written, read) == (["a", "b"], ["a", "b"])


async def test_a_write_that_raises_is_undone_alone(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO session (key, created_at, updated_at) VALUES ('x', 0, 0)")
        raise LookupError("on purpose")

    results = await asyncio.gather(
        database.write(_insert("a")),
        database.write(fails),
        database.write(_insert("a")),
        database.write(_insert("b"), durable=True),
        return_exceptions=True,
    )

    kept = await database.read(_keys)
    database.close()
    assert [type(result) for result in results] == [
        str,
        LookupError,
        sqlite3.IntegrityError,
        str,
    ]
    assert kept == ["a", "b"]


async def test_a_damaged_file_is_put_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is no database at all" * 100)

    database = Database(path)

    await database.write(_insert("fresh"))
    database.close()
    assert database.quarantined is not None
    assert database.quarantined.read_bytes().startswith(b"this is no database")


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    before = path.read_bytes()

    with pytest.raises(StoreError, match="newer nanobot"):
        Database(path)

    assert path.read_bytes() == before


def test_an_older_schema_is_migrated_with_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as connection:
        for statement in MIGRATIONS[0].split(";\n"):
            connection.execute(statement)
        connection.execute("INSERT INTO session (key, created_at, updated_at) VALUES ('a', 0, 0)")
        connection.execute("PRAGMA user_version=1")
    connection.close()

    Database(path).close()

    with sqlite3.connect(path) as migrated:
        version = migrated.execute("PRAGMA user_version").fetchone()
        keys = _keys(migrated)
    migrated.close()
    assert (version, keys) == ((len(MIGRATIONS),), ["a"])
    assert (tmp_path / "state.db.v1.bak").exists() == (len(MIGRATIONS) > 1)


async def test_the_death_of_the_writer_is_fatal(tmp_path: Path) -> None:
    died = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_fatal() -> None:
        loop.call_soon_threadsafe(died.set)

    database = Database(tmp_path / "state.db", on_fatal=on_fatal)

    def dies(connection: sqlite3.Connection) -> None:
        raise SystemExit

    waiting = asyncio.ensure_future(database.write(dies))
    await asyncio.wait_for(died.wait(), 5)

    waiting.cancel()
    database.close()
    assert died.is_set()


def test_a_process_whose_writer_dies_leaves_with_a_status_of_its_own(tmp_path: Path) -> None:
    """So that its supervisor starts it again; it must not go on deaf to its own writes."""
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from nanobot.store.database import Database\n"
        "def dies(connection):\n"
        "    raise SystemExit\n"
        "asyncio.run(Database(Path(sys.argv[1])).write(dies))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "state.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == EXIT_WRITER_DIED
    assert "the state database's writer died" in done.stderr


async def test_a_closed_database_says_so(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    database.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        await database.write(_keys)


async def test_a_full_disk_fails_the_write_and_changes_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    await database.write(_insert("a"))

    def fill(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA max_page_count=1")
        connection.execute(
            "INSERT INTO session (key, created_at, updated_at, settings) VALUES ('b', 0, 0, ?)",
            ("x" * 1_000_000,),
        )

    with pytest.raises(StoreUnavailable, match="full"):
        await database.write(fill)

    await database.write(lambda connection: connection.execute("PRAGMA max_page_count=100000"))
    await database.write(_insert("c"))
    kept = await database.read(_keys)
    database.close()
    assert kept == ["a", "c"]


def _filled(path: Path, rows: int) -> None:
    """A database whose log fills many pages."""
    database = Database(path)

    def fill(connection: sqlite3.Connection) -> None:
        connection.executemany(
            "INSERT INTO log (session, kind, inbound_id, principal, trust, at, payload) "
            "VALUES ('s', 'user', ?, 'owner', 'trusted', 0, ?)",
            [(f"in-{number}", f"{number} " + "x" * 500) for number in range(rows)],
        )

    asyncio.run(database.write(fill))
    database.close()


def _damage(path: Path, *, root_of: str) -> None:
    """Overwrite a page in the middle of what follows the root of a table."""
    with sqlite3.connect(path) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (root_of,)
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek(size * ((page + pages) // 2))
        file.write(b"\xff" * size)


def _logged(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT inbound_id FROM log ORDER BY seq")]


async def test_a_page_found_damaged_by_a_read_costs_the_rows_on_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await asyncio.to_thread(_filled, path, 400)
    _damage(path, root_of="log")
    database = Database(path)

    names = await database.read(_logged)

    await database.write(_insert("after"))
    after = await database.read(_keys)
    database.close()
    assert len(names) in range(380, 400)
    assert set(names) < {f"in-{number}" for number in range(400)}
    assert after == ["after"]
    assert database.quarantined is not None
    assert database.quarantined.stat().st_size > 400 * 500


async def test_a_page_found_damaged_by_a_write_does_not_fail_the_write(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await asyncio.to_thread(_filled, path, 400)
    _damage(path, root_of="log")
    database = Database(path)

    changed = await database.write(
        lambda connection: connection.execute("UPDATE log SET at = 1").rowcount
    )

    database.close()
    assert changed in range(380, 400)
    assert database.quarantined is not None


async def test_reads_after_a_rebuild_see_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await asyncio.to_thread(_filled, path, 400)
    database = Database(path)
    before = await database.read(_keys)
    _damage(path, root_of="log")

    await database.write(lambda connection: connection.execute("UPDATE log SET at = 1"))
    await database.write(_insert("new"))
    seen = await database.read(_keys)

    database.close()
    assert (before, seen) == ([], ["new"])
    with contextlib.closing(sqlite3.connect(path)) as stored:
        assert _keys(stored) == ["new"]


@pytest.mark.parametrize("rows", [400, 0], ids=["some rows saved", "nothing saved"])
async def test_after_a_rebuild_no_number_is_given_out_again(tmp_path: Path, rows: int) -> None:
    """Readers that go by the numbers would take a new row for one they have had."""
    path = tmp_path / "state.db"
    await asyncio.to_thread(_filled, path, 400)
    if rows:
        _damage(path, root_of="log")
    else:
        path.write_bytes(b"this is no database at all" * 100)
    database = Database(path)
    await database.read(_logged)

    number = await database.write(
        lambda connection: (
            connection.execute(
                "INSERT INTO log (session, kind, inbound_id, principal, trust, at, payload) "
                "VALUES ('s', 'user', 'new', 'owner', 'trusted', 0, '{}')"
            ).lastrowid
        )
    )

    database.close()
    assert database.quarantined is not None
    assert (number or 0) > 400


def test_a_rebuild_that_a_crash_cut_off_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    _filled(path, 3)
    path.replace(tmp_path / "state.db.rebuilt")
    (tmp_path / "state.db.corrupt-20260301T120000000000").write_bytes(b"damaged")

    database = Database(path)

    names = asyncio.run(database.read(_logged))
    database.close()
    assert names == ["in-0", "in-1", "in-2"]
    assert database.quarantined == tmp_path / "state.db.corrupt-20260301T120000000000"


async def test_a_wrong_statement_is_its_own_fault_and_fails_nobody_else(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")

    results = await asyncio.gather(
        database.write(_insert("a")),
        database.write(lambda connection: connection.execute("SELECT * FROM nowhere")),
        database.write(_insert("b")),
        return_exceptions=True,
    )

    kept = await database.read(_keys)
    database.close()
    assert [type(result) for result in results] == [str, sqlite3.OperationalError, str]
    assert (kept, database.trouble) == (["a", "b"], "")


async def test_a_write_that_failed_is_the_trouble_until_one_succeeds(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")

    def full(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA max_page_count=1")
        connection.execute("CREATE TABLE big AS SELECT randomblob(100000)")

    with pytest.raises(StoreUnavailable):
        await database.write(full)
    trouble = database.trouble
    await database.write(lambda connection: connection.execute("PRAGMA max_page_count=100000"))

    database.close()
    assert ("full" in trouble, database.trouble) == (True, "")
