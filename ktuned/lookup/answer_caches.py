"""Caches of answers, and the one place where they are invalidated. No IO but the generation table's.

Everything that a lookup found out and may give again lies here, so that a change of a kernel reaches all of it at once:
this daemon's memory, and through the generation table that of every client.
"""

from __future__ import annotations

from ktuned.lookup.generations import Generations
from ktuned.lookup.shortcuts import Shortcuts
from ktuned.model import Winner


class AnswerCaches:
    """``winners`` by kernel, ``shortcuts`` by the question's bytes; ``generations`` are for clients."""

    def __init__(self, generations: Generations) -> None:
        self.generations = generations
        self.shortcuts = Shortcuts()
        self.winners: dict[str, list[Winner]] = {}

    def changed(self, kernel: str) -> None:
        """Forget what was answered: a kernel's winners, or what they stand on, have changed."""
        self.winners.pop(kernel, None)
        self.shortcuts.clear()
        self.generations.bump(kernel)

    def changed_all(self) -> None:
        """Forget what was answered: any kernel may be another, or its answer."""
        self.winners.clear()
        self.shortcuts.clear()
        self.generations.bump_all()
