"""Caches of answers, and the one place where they are invalidated. No IO but the generation table's.

All results of lookups that are reused lie here, so that a change of a kernel reaches all of them at once: this
daemon's memory, and through the generation table that of every client.
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
        """Forget answers: a kernel's winners, or their context, have changed."""
        self.winners.pop(kernel, None)
        self.shortcuts.clear()
        self.generations.bump(kernel)

    def changed_all(self) -> None:
        """Forget all answers: any kernel may have changed."""
        self.winners.clear()
        self.shortcuts.clear()
        self.generations.bump_all()
