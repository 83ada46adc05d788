"""Table of captured inputs: for each kernel and problem the digest of a file of tensors."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from ktuned.store.pins import Write
from ktuned.store.reader import Reader


class Capture(NamedTuple):
    """One problem's captured inputs; ``problem`` is canonical text, ``created`` Unix time in s."""

    kernel: str
    problem: str
    digest: str
    bytes: int
    created: float


class CaptureTable:
    """The store's captures; the tensors themselves are files."""

    def __init__(self, reader: Reader, write: Write) -> None:
        self._reader = reader
        self._write = write

    def list_captures(self) -> list[Capture]:
        """Return every capture, by kernel and problem."""
        return [
            Capture(*row)
            for row in self._reader.fetch_rows(
                "SELECT kernel, problem, digest, bytes, created FROM captures ORDER BY kernel, problem"
            )
        ]

    async def save_capture(self, capture: Capture) -> None:
        """Remember a capture in the place of its problem's last one."""
        await self._write(
            lambda connection: (
                connection.execute("INSERT OR REPLACE INTO captures VALUES (?, ?, ?, ?, ?)", capture).rowcount
            )
        )

    async def remove_capture(self, kernel: str, problem: str) -> int:
        """Forget a capture; return how many there were."""

        def remove_capture(connection: sqlite3.Connection) -> int:
            values = (kernel, problem)
            return connection.execute("DELETE FROM captures WHERE kernel = ? AND problem = ?", values).rowcount

        return await self._write(remove_capture)
