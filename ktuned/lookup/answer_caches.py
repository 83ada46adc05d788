"""Caches of answers, and the one place where they are invalidated. The only IO is the table of winners.

All results of lookups that are reused are kept here, so that a change of a kernel invalidates all of them at once: in
this daemon's memory and, through the table, in every client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ktuned.lookup.shortcuts import Shortcuts
from ktuned.lookup.winner_table import WinnerTable
from ktuned.model import Observation, extend_digest
from ktuned.store import Winner


class AnswerCaches:
    """The caches.

    Attributes:
        table: The table of winners, for clients.
        when_changed: Called after each change that clients can see.
        shortcuts: Answers, by the bytes of their questions.
        winners: Winners as lookups serve them, by kernel; ``None`` if they are in the table, but not kept here.
    """

    def __init__(self, table: WinnerTable) -> None:
        self.table = table
        self.when_changed: Callable[[], None] = lambda: None
        self.shortcuts = Shortcuts()
        self.winners: dict[str, list[Winner] | None] = {}

    def forget_answers(self, kernel: str) -> None:
        """Forget a kernel's answers, because its winners or their context have changed.

        Kernels of the same short name may share its winners, so their answers are forgotten, too.
        """
        short = kernel.rpartition(":")[2]
        for other in [name for name in self.winners if name.rpartition(":")[2] == short]:
            del self.winners[other]
            if other != kernel:
                self.table.bump_generation(other)
        self.shortcuts.forget_responses()
        self.table.bump_generation(kernel)
        self.when_changed()

    def rename_contexts(self, kernel: str, winners: list[Winner], names: Sequence[Observation]) -> None:
        """Keep answers although a kernel's contexts are renamed in the store because it has learned names."""
        self.winners[kernel] = [
            replace(winner, context=replace(winner.context, digest=extend_digest(winner.context.digest, names)))
            for winner in winners
        ]
        self.shortcuts.forget_responses()

    def forget_all_answers(self) -> None:
        """Forget all answers, because any kernel may have changed."""
        self.winners.clear()
        self.shortcuts.forget_responses()
        self.table.bump_all_generations()
        self.when_changed()
