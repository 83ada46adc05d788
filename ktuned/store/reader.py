"""Reads rows and decodes them into values; a row that cannot be decoded is left out, and reported.

SQLite checks the structure of its pages, but not their bytes: a flipped bit in a text is noticed only when it is read.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ktuned.model import StoreError
from ktuned.store import database_file
from ktuned.store.faults import explain_database_error, is_damage, is_undecodable

T = TypeVar("T")
Row = tuple[Any, ...]

MAX_TOLD = 1000
"""Damaged rows that are counted and logged; beyond this, an exact number is of no use."""

_log = structlog.get_logger()


class Reader:
    """Reads over its own connection, which cannot write.

    Raises:
        sqlite3.Error: the database cannot be opened.
    """

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        self._path = path
        self._connection = database_file.open_for_reading(path, vfs=vfs)
        self._left_out: set[tuple[str, Any]] = set()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @property
    def damaged(self) -> str:
        """A line for the user about the rows left out so far; empty if there are none."""
        if not self._left_out:
            return ""
        counts = sorted(Counter(kind for kind, _ in self._left_out).items())
        what = ", ".join(f"{count} × {kind}" for kind, count in counts)
        return f"rows of the store {self._path} are damaged and left out ({what}); their content is measured again"

    def fetch_rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows that a SELECT finds.

        Raises:
            StoreError: the disk or the database fails.
        """
        try:
            return self._connection.execute(sql, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if isinstance(error, UnicodeDecodeError) or not is_undecodable(error):
                raise self.explain_fault(error) from error
        return self._fetch_decodable_rows(sql, values)

    def fetch_values(self, decode: Callable[[Row], T], sql: str, *values: Any) -> list[T]:
        """Return the decoded rows of a SELECT; the notice of damaged rows gives the name of ``decode``.

        Raises:
            StoreError: the disk or the database fails.
        """
        made = []
        for row in self.fetch_rows(sql, *values):
            try:
                made.append(decode(row))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                self._report_damaged_row(decode.__name__, row[0], error)
        return made

    def fetch_value(self, decode: Callable[[Row], T], sql: str, *values: Any) -> T | None:
        """Return the value of the first row that ``decode`` can read, or ``None`` if there is none.

        Raises:
            StoreError: the disk or the database fails.
        """
        return next(iter(self.fetch_values(decode, sql, *values)), None)

    def explain_fault(self, error: sqlite3.Error | UnicodeDecodeError) -> StoreError:
        """Return the error that the user sees; if it is damage, the next opening will check the whole database."""
        if is_damage(error):
            database_file.mark_database_suspect(self._path)
        return explain_database_error(error, self._path)

    def _fetch_decodable_rows(self, sql: str, values: Row) -> list[Row]:
        """Return the rows, except those with a text that is not UTF-8; slower than :meth:`fetch_rows`."""
        self._connection.text_factory = _decode_text
        try:
            found: list[Row] = self._connection.execute(sql, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.explain_fault(error) from error
        finally:
            self._connection.text_factory = str
        for row in found:
            if _NO_TEXT in row:
                self._report_damaged_row("text", row[0] if row[0] is not _NO_TEXT else "", "not UTF-8")
        return [row for row in found if _NO_TEXT not in row]

    def _report_damaged_row(self, kind: str, key: Any, reason: object) -> None:
        if (kind, key) not in self._left_out and len(self._left_out) < MAX_TOLD:
            self._left_out.add((kind, key))
            _log.warning("damaged_row_left_out", kind=kind, key=str(key), reason=str(reason))


_NO_TEXT = object()


def _decode_text(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _NO_TEXT
