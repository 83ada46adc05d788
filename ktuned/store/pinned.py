"""What pins hold: the answer to each question that was asked under a pin, for good."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from ktuned.errors import UsageError

T = TypeVar("T")

Read = Callable[..., list[tuple[Any, ...]]]


class Write(Protocol):
    """Runs an operation on the writer's connection and returns its result once that is on the disk."""

    def __call__(self, operation: Callable[[sqlite3.Connection], T]) -> Awaitable[T]:
        """Run it."""


class Pinned:
    """The store's pins; an answer is a text, its question another, of which one answer may have several."""

    def __init__(self, read: Read, write: Write) -> None:
        self._read = read
        self._write = write

    def find(self, pin: str, question: str) -> str | None:
        """Return the answer that a pin holds for a question."""
        found = self._read("SELECT answer FROM pins WHERE pin = ? AND question = ?", pin, question)
        return found[0][0] if found else None

    def pins(self) -> list[tuple[str, int, float]]:
        """Return each pin, how many questions it holds answers to, and since when (Unix seconds), by name."""
        return [
            (pin, count, created)
            for pin, count, created in self._read(
                "SELECT pin, count(*), min(created) FROM pins GROUP BY pin ORDER BY pin"
            )
        ]

    async def hold(self, pin: str, questions: Sequence[str], answer: str, *, now: float, limit: int) -> str:
        """Hold an answer to several wordings of a question; return the one that holds, which may be an earlier one.

        Raises:
            UsageError: the pins hold ``limit`` answers already.
        """

        def hold(connection: sqlite3.Connection) -> str:
            holds = answer
            for question in questions:
                row = connection.execute(
                    "SELECT answer FROM pins WHERE pin = ? AND question = ?", (pin, question)
                ).fetchone()
                if row is not None:
                    (holds,) = row
                    break
            (count,) = connection.execute("SELECT count(*) FROM pins").fetchone()
            if count + len(questions) > limit:
                raise UsageError(
                    f"the pins hold {count} answers, and may hold {limit}", hint="give some up: `ktuned forget --pin`"
                )
            connection.executemany(
                "INSERT INTO pins (pin, question, answer, created) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [(pin, question, holds, now) for question in questions],
            )
            return holds

        return await self._write(hold)

    async def give_up(self, pin: str) -> int:
        """Forget a pin, and return how many questions it held answers to."""
        return await self._write(
            lambda connection: connection.execute("DELETE FROM pins WHERE pin = ?", (pin,)).rowcount
        )
