"""Caches of answers, and the one place where they are invalidated. No IO but the generation table's.

All results of lookups that are reused lie here, so that a change of a kernel reaches all of them at once: this
daemon's memory, and through the generation table that of every client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ktuned.lookup.generations import Generations
from ktuned.lookup.shortcuts import Shortcuts
from ktuned.model import Observation, Winner, combine


class AnswerCaches:
    """``winners`` by kernel, ``shortcuts`` by the question's bytes; ``generations`` are for clients."""

    def __init__(self, generations: Generations) -> None:
        self.generations = generations
        self.shortcuts = Shortcuts()
        self.winners: dict[str, list[Winner]] = {}

    def changed(self, kernel: str) -> None:
        """Forget answers: a kernel's winners, or their context, have changed; kernels of its name may share them."""
        short = kernel.rpartition(":")[2]
        for other in [name for name in self.winners if name.rpartition(":")[2] == short]:
            del self.winners[other]
            if other != kernel:
                self.generations.bump(other)
        self.shortcuts.clear()
        self.generations.bump(kernel)

    def renamed(self, kernel: str, winners: list[Winner], names: Sequence[Observation]) -> None:
        """Keep answers while a kernel's contexts are renamed in the store, because it has learned names."""
        self.winners[kernel] = [
            replace(winner, context=replace(winner.context, digest=combine(winner.context.digest, names)))
            for winner in winners
        ]
        self.shortcuts.clear()

    def changed_all(self) -> None:
        """Forget all answers: any kernel may have changed."""
        self.winners.clear()
        self.shortcuts.clear()
        self.generations.bump_all()
