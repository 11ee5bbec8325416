"""Copies the readable rows of a damaged state database into a new one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from loguru import logger

_LARGEST_ROWID = 2**40
_PAGE = 1000
_MOST_FAULTS = 20_000
"""Failed queries after which a table is given up; a damaged page costs about 40."""

_Row: TypeAlias = tuple[Any, ...]


def salvage(damaged: Path, connection: sqlite3.Connection) -> int:
    """Copy every readable row of ``damaged`` into the empty tables of ``connection``.

    Virtual tables are left out, since they are derived from the others. Returns the number of rows
    saved. Unreadable rows are logged; raises sqlite3.Error when the new database cannot be written.
    """
    saved = 0
    with closing(sqlite3.connect(f"{damaged.as_uri()}?mode=ro", uri=True)) as source:
        source.text_factory = lambda data: data.decode("utf-8", "replace")
        for table, has_rowid in _tables(connection):
            columns = _common_columns(source, connection, table)
            if not columns:
                continue
            insert = (
                f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) "
                f"VALUES ({', '.join('?' for _ in columns)})"
            )
            pages = _by_rowid if has_rowid else _from_both_ends
            for rows in pages(source, table, columns):
                saved += connection.executemany(insert, rows).rowcount
    _go_on_counting(connection)
    return saved


def _go_on_counting(connection: sqlite3.Connection) -> None:
    """Set the row counters past every lost row, so that no number is given out twice.

    The damaged file's own counters are unreliable; the time in seconds is greater than any.
    """
    now = int(time.time())
    for (table,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"
    ).fetchall():
        (last,) = connection.execute(f"SELECT coalesce(max(seq), 0) FROM {table}").fetchone()
        connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        connection.execute(
            "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, max(last, now))
        )


def _tables(connection: sqlite3.Connection) -> list[tuple[str, bool]]:
    """Each ordinary table, and whether it has rowids."""
    return [
        (name, not without_rowid)
        for schema, name, kind, _, without_rowid, *_ in connection.execute("PRAGMA table_list")
        if schema == "main" and kind == "table" and not name.startswith("sqlite_")
    ]


def _columns(connection: sqlite3.Connection, table: str, *, keys: bool = False) -> list[str]:
    chosen = "pk > 0 ORDER BY pk" if keys else "TRUE ORDER BY cid"
    query = f"SELECT name FROM pragma_table_info(?) WHERE {chosen}"
    return [name for (name,) in connection.execute(query, (table,))]


def _common_columns(
    source: sqlite3.Connection, target: sqlite3.Connection, table: str
) -> list[str]:
    """The columns that both have; none when the source's table is missing or unreadable."""
    try:
        known = set(_columns(source, table))
    except sqlite3.DatabaseError as error:
        logger.error("table {} cannot be read: {}", table, error)
        return []
    return [column for column in _columns(target, table) if column in known]


def _by_rowid(source: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[list[_Row]]:
    """The rows; each unreadable range of rowids is halved until nothing is left of it."""
    select = (
        f"SELECT rowid, {', '.join(columns)} FROM {table} WHERE rowid BETWEEN ? AND ? "
        f"ORDER BY rowid LIMIT {_PAGE}"
    )
    ranges = [(0, _LARGEST_ROWID)]
    faults = 0
    while ranges and faults < _MOST_FAULTS:
        low, high = ranges.pop()
        try:
            rows = source.execute(select, (low, high)).fetchall()
        except sqlite3.DatabaseError as error:
            if not faults:
                logger.error("some rows of table {} cannot be read: {}", table, error)
            faults += 1
            if low < high:
                middle = (low + high) // 2
                ranges += [(middle + 1, high), (low, middle)]
            continue
        if len(rows) == _PAGE:
            ranges.append((rows[-1][0] + 1, high))
        yield [row[1:] for row in rows]


def _from_both_ends(
    source: sqlite3.Connection, table: str, columns: list[str]
) -> Iterator[list[_Row]]:
    """The rows of a table without rowids: from the start, and on an error from the end too."""
    for direction in ("ASC", "DESC"):
        rows: list[_Row] = []
        try:
            order = ", ".join(f"{key} {direction}" for key in _columns(source, table, keys=True))
            query = f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order or 1}"
            for row in source.execute(query):
                rows.append(row)
                if len(rows) == _PAGE:
                    yield rows
                    rows = []
        except sqlite3.DatabaseError as error:
            logger.error("some rows of table {} cannot be read: {}", table, error)
            yield rows
        else:
            yield rows
            return
