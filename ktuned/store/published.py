"""Table of shared winners: which decisions a team's storage has, so that none is lost and none is sent twice.

What is to be sent is no queue: it is each final winner whose present decision the table does not have. A daemon that is
killed between sending and noting sends the same bytes under the same name again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from ktuned.model import Winner
from ktuned.store import rows
from ktuned.store.pins import Write
from ktuned.store.reader import Reader

_DUE: Final = """winners.final = 1 AND (
    published_winners.decided IS NULL OR published_winners.decided <> winners.decided
    OR (published_winners.is_there = 1 AND published_winners.noted < ?)
    OR (published_winners.is_there = 0 AND published_winners.noted < ?))"""

_JOINED: Final = """LEFT JOIN published_winners ON published_winners.trial_id = winners.trial_id
    AND published_winners.objective = winners.objective AND published_winners.storage = ?"""


class PublishedWinners:
    """The store's account of what a storage has, by the storage's identity."""

    def __init__(self, reader: Reader, write: Write) -> None:
        self._reader = reader
        self._write = write

    def due(self, storage: str, *, there_before: float, left_before: float, limit: int) -> list[Winner]:
        """Return final winners that a storage lacks, the oldest decision first.

        Those that it has had since before ``there_before`` (Unix seconds) are to be sent again, and those that were
        left out before ``left_before`` are to be looked at again.
        """
        return self._reader.values(
            rows.winner,
            f"{rows.SELECT_WINNERS} {_JOINED} WHERE {_DUE} ORDER BY winners.decided LIMIT ?",
            storage,
            there_before,
            left_before,
            limit,
        )

    def count(self, storage: str) -> tuple[int, int]:
        """Return how many present winners a storage has, and how many it does not have yet."""
        ((there, waiting),) = self._reader.rows(
            f"""SELECT count(*) FILTER (WHERE is_there = 1 AND published_winners.decided = winners.decided),
                count(*) FILTER (WHERE final = 1
                    AND (published_winners.decided IS NULL OR published_winners.decided <> winners.decided))
            FROM winners {_JOINED}""",
            storage,
        )
        return int(there), int(waiting)

    async def note(self, storage: str, winners: Sequence[Winner], *, is_there: bool, now: float) -> None:
        """Remember that a storage has these decisions, or that they are left out as things are."""

        def note(connection: sqlite3.Connection) -> None:
            connection.executemany(
                """INSERT OR REPLACE INTO published_winners (trial_id, objective, storage, decided, is_there, noted)
                VALUES (?, ?, ?, ?, ?, ?)""",
                [(winner.trial, winner.objective, storage, winner.decided, is_there, now) for winner in winners],
            )

        await self._write(note)

    async def forget(self, storage: str, winners: Sequence[Winner]) -> bool:
        """Forget that a storage has some winners, which it lacks; return whether it was thought to have any of them."""
        keys = [(winner.trial, winner.objective, storage) for winner in winners]
        known = self._reader.rows(
            "SELECT trial_id, objective FROM published_winners WHERE storage = ? AND is_there = 1", storage
        )
        if {(int(trial), str(objective)) for trial, objective in known}.isdisjoint(key[:2] for key in keys):
            return False

        def forget(connection: sqlite3.Connection) -> None:
            connection.executemany(
                """DELETE FROM published_winners
                WHERE trial_id = ? AND objective = ? AND storage = ? AND is_there = 1""",
                keys,
            )

        await self._write(forget)
        return True

    async def tidy(self) -> None:
        """Forget decisions about trials that are gone."""

        def tidy(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM published_winners WHERE NOT EXISTS (SELECT 1 FROM trials WHERE trials.id = trial_id)"
            )

        await self._write(tidy)
