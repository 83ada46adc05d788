"""Table of pins: the answer to each question that was asked under a pin, for good."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from ktuned.model import Config, Problem, UsageError, WinnerKey, canonical, parse_key_problem, strip_numerics
from ktuned.store import rows
from ktuned.store.reader import Reader

T = TypeVar("T")


class Write(Protocol):
    """Runs an operation on the writer's connection and returns its result once that is on the disk."""

    def __call__(self, operation: Callable[[sqlite3.Connection], T]) -> Awaitable[T]:
        """Run it."""


class PinnedAnswers:
    """The store's pins; an answer is a text, its question another, of which one answer may have several."""

    def __init__(self, reader: Reader, write: Write) -> None:
        self._reader = reader
        self._write = write

    def find_answer(self, pin: str, question: str) -> str | None:
        """Return the answer that a pin holds for a question."""
        return self._reader.fetch_value(
            rows.decode_answer, "SELECT pin, answer FROM pins WHERE pin = ? AND question = ?", pin, question
        )

    def find_config(self, pin: str, key: WinnerKey) -> Config | None:
        """Return the config that a pin holds for a kernel's problem on a device, by whatever objective it was asked."""
        for objective in (None, key.objective, strip_numerics(key.objective)):
            question = pinned_question(key.kernel, parse_key_problem(key.problem), key.device, objective)
            if (held := self.find_answer(pin, question)) is not None:
                config: Config | None = json.loads(held).get("config")
                return config
        return None

    def list_pins(self) -> list[tuple[str, int, float]]:
        """Return each pin, how many questions it holds answers to, and since when (Unix seconds), by name."""
        return [
            (pin, count, created)
            for pin, count, created in self._reader.fetch_rows(
                "SELECT pin, count(*), min(created) FROM pins GROUP BY pin ORDER BY pin"
            )
        ]

    async def hold_answer(self, pin: str, questions: Sequence[str], answer: str, *, now: float, limit: int) -> str:
        """Hold an answer to several wordings of a question; return the one that holds, which may be an earlier one.

        Raises:
            UsageError: the pins hold ``limit`` answers already.
        """

        def hold_answer(connection: sqlite3.Connection) -> str:
            holds = answer
            for question in questions:
                row = connection.execute(
                    "SELECT answer FROM pins WHERE pin = ? AND question = ? AND json_valid(answer)", (pin, question)
                ).fetchone()
                if row is not None:
                    (holds,) = row
                    break
            (count,) = connection.execute("SELECT count(*) FROM pins").fetchone()
            if count + len(questions) > limit:
                raise UsageError(
                    f"the pins hold {count} answers, and may hold {limit}",
                    hint="give some up: `ktuned lookup --release`",
                )
            connection.executemany(
                """INSERT INTO pins (pin, question, answer, created) VALUES (?, ?, ?, ?)
                ON CONFLICT DO UPDATE SET answer = excluded.answer WHERE NOT json_valid(answer)""",
                [(pin, question, holds, now) for question in questions],
            )
            return holds

        return await self._write(hold_answer)

    async def give_up(self, pin: str) -> int:
        """Forget a pin, and return how many questions it held answers to."""
        return await self._write(
            lambda connection: connection.execute("DELETE FROM pins WHERE pin = ?", (pin,)).rowcount
        )


def pinned_question(kernel: str, problem: Problem, device: str | None, objective: str | None) -> str:
    """Return the text that a pin keeps its answer under: the question, as it was asked."""
    asked = {"kernel": kernel, "problem": dict(problem), "device": device}
    # A question that names none is as it was before there were several.
    return canonical(asked if objective is None else asked | {"objective": objective})
