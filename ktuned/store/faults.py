"""Errors of a failing disk or database, in one line each: what happened, and how to fix it."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from ktuned.model import StoreDamaged, StoreError

_NO_SPACE = "free some space on its disk, then try again"
_WRITABLE = "make its directory writable, or set KTUNED_HOME to one that is"
_LOCAL = "set KTUNED_HOME to a directory on a local disk; network file systems cannot lock safely"

_DATABASE_FAULTS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_FULL: ("is full: no space is left on its disk", _NO_SPACE),
    sqlite3.SQLITE_READONLY: ("is read-only", _WRITABLE),
    sqlite3.SQLITE_PERM: ("may not be accessed", _WRITABLE),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", _WRITABLE),
    sqlite3.SQLITE_BUSY: ("is held by another process", "end the program that has it open (`fuser FILE` names it)"),
    sqlite3.SQLITE_LOCKED: ("is held by another process", "end the program that has it open (`fuser FILE` names it)"),
    sqlite3.SQLITE_PROTOCOL: ("cannot be locked", _LOCAL),
    sqlite3.SQLITE_NOLFS: ("is too large for its file system", _LOCAL),
    sqlite3.SQLITE_IOERR: ("cannot be read or written by its file system", _LOCAL),
    sqlite3.SQLITE_CORRUPT: ("is damaged", "restart ktuned: it checks the store and moves a damaged one aside"),
}

_FILE_FAULTS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("no space is left on its disk", _NO_SPACE),
    errno.EDQUOT: ("the disk quota is used up", _NO_SPACE),
    errno.EROFS: ("its file system is read-only", _WRITABLE),
    errno.EACCES: ("permission denied", _WRITABLE),
    errno.EPERM: ("permission denied", _WRITABLE),
    errno.ENOTDIR: ("a part of its path is a file, not a directory", _WRITABLE),
    errno.EEXIST: ("a file is where a directory must be", _WRITABLE),
}

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of the disk itself, for which no config is to blame."""


def read_primary_code(error: Exception) -> int:
    """Return SQLite's primary result code, or ``SQLITE_ERROR`` for an error that Python's module raised itself."""
    code: int = getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR
    return code & 0xFF


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Return whether the database's content is damaged, as opposed to a failure of the disk, a lock or a permission.

    SQLITE_ERROR counts: it means that a statement does not fit the schema, and our statements fit an intact schema.
    Text that is not UTF-8, or a message that quotes such text, is detected by Python, whose errors have no code.
    """
    if isinstance(error, UnicodeDecodeError) or is_undecodable(error):
        return True
    codes = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
    return getattr(error, "sqlite_errorcode", None) is not None and read_primary_code(error) in codes


def is_undecodable(error: sqlite3.Error) -> bool:
    """Return whether Python, and not SQLite, refused a text that is not UTF-8."""
    return str(error).startswith("Could not decode to UTF-8")


def explain_database_error(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StoreError:
    """Return the error that the user sees for an SQLite error."""
    code = sqlite3.SQLITE_CORRUPT if is_damage(error) else read_primary_code(error)
    what, hint = _DATABASE_FAULTS.get(code, ("refused", ""))
    kind = StoreDamaged if is_damage(error) else StoreError
    return kind(f"the store {path} {what} ({error})", hint=hint)


def explain_file_error(error: OSError, doing: str) -> StoreError:
    """Return the error that the user sees for an OS error in ``doing`` (``"artifact 12ab cannot be sealed"``)."""
    what, hint = _FILE_FAULTS.get(error.errno or 0, (error.strerror or str(error), ""))
    return StoreError(f"{doing}: {what}", hint=hint)
