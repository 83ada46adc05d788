"""Stored verdicts of spaces: whether a config is in a kernel's space for a problem, as a worker found it.

They let a daemon that has just started serve the winners of constrained spaces at once, without a worker.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from ktuned.store.pins import Write
from ktuned.store.reader import Reader

MAX_VERDICTS = 10_000
"""Verdicts of one kernel, some 200 bytes each: more than its winners; beyond that they are asked for again."""


class Verdict(NamedTuple):
    """One verdict; ``problem`` (the whole one) and ``config`` are canonical texts.

    It holds for what the space's code may have ``read``: digests by name, as canonical text.
    """

    problem: str
    config: str
    admitted: bool
    read: str = "{}"


class Admissions:
    """The store's verdicts, by kernel and the digest of its space."""

    def __init__(self, reader: Reader, write: Write) -> None:
        self._reader = reader
        self._write = write

    def load_verdicts(self, kernel: str, space: str) -> list[Verdict]:
        """Return the verdicts that are stored for a kernel's space."""
        return [
            Verdict(problem, config, bool(admitted), read)
            for problem, config, admitted, read in self._reader.fetch_rows(
                "SELECT problem, config, admitted, read FROM admissions WHERE kernel = ? AND space = ?", kernel, space
            )
        ]

    async def save_verdicts(self, kernel: str, space: str, verdicts: Sequence[Verdict]) -> None:
        """Store verdicts of a kernel's present space, and delete the ones of its earlier spaces."""

        def save_verdicts(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM admissions WHERE kernel = ? AND space <> ?", (kernel, space))
            (count,) = connection.execute("SELECT count(*) FROM admissions WHERE kernel = ?", (kernel,)).fetchone()
            if count + len(verdicts) > MAX_VERDICTS:
                connection.execute("DELETE FROM admissions WHERE kernel = ?", (kernel,))
            connection.executemany(
                "INSERT OR REPLACE INTO admissions (kernel, space, problem, config, admitted, read) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(kernel, space, *verdict) for verdict in verdicts[:MAX_VERDICTS]],
            )

        await self._write(save_verdicts)
