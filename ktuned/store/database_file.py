"""Opening of the database: checks that it is ours, migrates it, and moves a damaged one aside.

Opening never scans the rows, so a million trials open as fast as none. A crash cannot damage a database in WAL mode,
so no check is needed after one. Damage is noticed when SQLite meets it. If that is during the opening, the file is
moved aside at once. If it is later, a marker file beside the database makes the next opening run SQLite's full check.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from ktuned.model import StoreError
from ktuned.store.faults import explain_database_error, explain_file_error, is_damage
from ktuned.store.schema import check_ours, is_unreleased, migrate_schema

WRITER_PATIENCE_S = 5.0
"""How long the writer waits for another process (a backup, an interactive ``sqlite3``) to release the database."""

READER_PATIENCE_S = 0.1
"""How long a reader, which blocks the event loop, waits for a lock. In WAL mode readers hardly ever meet one."""


class _Damaged(Exception):
    """SQLite's check found damage."""


class _Unreleased(Exception):
    """The database is from before the first release."""


def open_for_writing(
    path: Path, *, vfs: str | None, prepare: Callable[[sqlite3.Connection], None], patience_s: float
) -> tuple[sqlite3.Connection, str]:
    """Open, migrate and ``prepare`` the database; return it, and a notice if a damaged one was moved aside, else "".

    Raises:
        StoreError: no space, read-only, no locks, held by another process, not ours, a newer schema.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise explain_file_error(error, f"the directory {path.parent} cannot be made") from error
    try:
        try:
            return _open_and_prepare(path, vfs, prepare, patience_s), ""
        except _Unreleased:
            aside = _move_aside(path, "unreleased", "from before the first release")
            notice = f"the store {path} is from before the first release, so it was moved to {aside.name}"
        except _Damaged as error:
            notice = _move_damaged_aside(path, str(error))
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            notice = _move_damaged_aside(path, str(error))
        return _open_and_prepare(path, vfs, prepare, patience_s), notice
    except sqlite3.Error as error:
        raise explain_database_error(error, path) from error


def reopen_for_writing(path: Path, *, vfs: str | None) -> sqlite3.Connection:
    """Open a database that is in use once more; if it is damaged, it stays where it is.

    Raises:
        sqlite3.Error: the database cannot be opened.
        StoreError: its file system no longer supports WAL mode.
    """
    connection = _open_connection(path, vfs, "rw", WRITER_PATIENCE_S)
    try:
        _set_up(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path, *, vfs: str | None) -> sqlite3.Connection:
    """Open a second connection, which cannot write."""
    return _open_connection(path, vfs, "ro", READER_PATIENCE_S)


def identify_file(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at a path, to notice when it is replaced; ``None`` if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def mark_database_suspect(path: Path) -> None:
    """Make the next opening run a full check. If the marker cannot be written, SQLite will meet the damage again."""
    try:
        _marker_path(path).touch()
    except OSError:
        return


def _marker_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.suspect")


def _open_connection(path: Path, vfs: str | None, mode: str, patience_s: float) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={mode}" + (f"&vfs={vfs}" if vfs else "")
    # A connection is used by several threads (opening, writing, closing), but only by one at a time.
    return sqlite3.connect(uri, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False)


def _open_and_prepare(
    path: Path, vfs: str | None, prepare: Callable[[sqlite3.Connection], None], patience_s: float
) -> sqlite3.Connection:
    connection = _open_connection(path, vfs, "rwc", patience_s)
    try:
        if is_unreleased(connection):
            raise _Unreleased
        check_ours(connection, str(path))
        if _marker_path(path).exists():
            _check_integrity(connection)
            _marker_path(path).unlink()
        _set_up(connection, path)
        migrate_schema(connection)
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_integrity(connection: sqlite3.Connection) -> None:
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _Damaged(verdict)
    migrate_schema(connection)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        migrate_schema(fresh)
        if missing := _list_columns(fresh) - _list_columns(connection):
            table, column = min(missing)
            raise _Damaged(f"it has no column {column} in a table {table}")


def _list_columns(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return every pair of a table's name and one of its columns' names."""
    select = "SELECT tables.name, columns.name FROM sqlite_master tables, pragma_table_info(tables.name) columns"
    return set(connection.execute(f"{select} WHERE tables.type = 'table'"))


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"the store {path} is on a file system without the shared memory and locks that SQLite's WAL needs",
            hint="set KTUNED_HOME to a directory on a local disk",
        )
    # Published results must survive a power cut; NORMAL would lose the last commits.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _move_damaged_aside(path: Path, reason: str) -> str:
    aside = _move_aside(path, "damaged", f"damaged ({reason})")
    return (
        f"the store {path} was damaged ({reason}): it was moved to {aside.name} and a new store begun; "
        f"`sqlite3 {aside} .recover` may save its content"
    )


def _move_aside(path: Path, kind: str, state: str) -> Path:
    aside = path.with_name(f"{path.name}.{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    try:
        # The log keeps its name beside the database's, so that SQLite's recovery tools find both.
        for suffix in ("", "-wal"):
            if (source := path.with_name(path.name + suffix)).exists():
                source.rename(aside.with_name(aside.name + suffix))
        for leftover in (path.with_name(f"{path.name}-shm"), _marker_path(path)):
            leftover.unlink(missing_ok=True)
    except OSError as error:
        raise explain_file_error(error, f"the store {path} is {state} and cannot be moved aside") from error
    return aside
