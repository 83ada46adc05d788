"""The choice of the keys to tune, for a function that has many because of a length or a batch size. No IO.

::

    a key comes ─▶ one of the first 16 ─────────────────────────────────────────────────▶ tuned
               └─▶ a further one ─▶ waits ─▶ the one that is expected to lose most time ─▶ tuned, one after the other
                                      └────▶ little is left to gain, or 40 are tuned: served by the nearest winner

Most functions have few keys, and all of these are tuned. If a sequence length is part of the key, tuning all keys would
take hours, and each tuning would gain less than the one before. So further keys are chosen by the time that their
launches take, and by their expected loss with the config of the nearest tuned key. That loss is learned from each
tuning, including those of the first keys (:class:`~ktuned.adoption.key_selection.KeySelection`). Further keys are tuned
one after the other, because meanwhile launches are counted and losses learned.

Waiting keys are forgotten when the daemon ends. The next process that calls such a key leaves a record of it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ktuned.adoption.key_selection import KeySelection
from ktuned.model import FrozenStruct, Problem, canonical

MAX_TUNED_AS_THEY_COME = 16
"""Number of keys that are tuned as they come: a function with dtypes, flags and a few sizes has no more."""

MAX_TUNED = 40
"""Most keys that are tuned in total. The 24 further ones cover lengths from 64 to 4096 in quarters of an octave."""

ENOUGH_LOSS = 0.01
"""No further key is tuned if the expected mean loss over all launches is at most this, the error of a measurement."""

MAX_WAITING = 2_000
"""Most waiting keys of a function; beyond them the oldest is forgotten."""


class WaitingKey(FrozenStruct):
    """A key that may be tuned later.

    Attributes:
        problem: The key's values.
        call: The name of a recorded call with this key.
    """

    problem: Problem
    call: str


class KeyChoice:
    """The keys of one function on one device model.

    Args:
        tuned: The keys that have a winner already.

    Attributes:
        selection: All keys with their launches; it chooses the next one to tune.

    >>> choice = KeyChoice([])
    >>> all(choice.take_in_key({"length": 64 + number}, "…") for number in range(16))
    True
    >>> choice.take_in_key({"length": 8192}, "…"), choice.take_in_key({"length": 65}, "…")
    (False, True)
    >>> choice.choose_next()
    WaitingKey(problem={'length': 8192}, call='…')
    """

    def __init__(self, tuned: Iterable[Problem]) -> None:
        self.selection = KeySelection(MAX_TUNED, ENOUGH_LOSS)
        self._chosen: set[str] = set()
        self._waiting: dict[str, WaitingKey] = {}
        self._unlearned: dict[str, Problem] = {}
        for problem in tuned:
            self._choose_key(problem)

    @property
    def has_waiting(self) -> bool:
        """True if keys wait."""
        return bool(self._waiting)

    @property
    def unlearned(self) -> list[Problem]:
        """The chosen keys whose loss was not learned yet. The next key is chosen when their tunings have ended."""
        return list(self._unlearned.values())

    def is_waiting(self, problem: Problem) -> bool:
        """Return whether a key waits. Until it is tuned itself, it gets the config of a near key."""
        return canonical(problem) in self._waiting

    def take_in_key(self, problem: Problem, call: str) -> bool:
        """Take in a key that was called; return whether it is tuned at once."""
        text = canonical(problem)
        if text not in self._chosen and self.selection.tunings < MAX_TUNED_AS_THEY_COME:
            self._choose_key(problem)
        if text in self._chosen:
            self.selection.add_problem(problem, 1.0)
            return True
        if text not in self._waiting:
            self.selection.add_problem(problem, 1.0)
        self._waiting[text] = WaitingKey(problem, call)
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return False

    def choose_next(self) -> WaitingKey | None:
        """Return the key to tune next; ``None`` if enough are tuned."""
        problem = self.selection.choose_next_problem(among=self._waiting)
        if problem is None:
            return None
        text = canonical(problem)
        self._chosen.add(text)
        self._unlearned[text] = problem
        return self._waiting.pop(text)

    def record_loss(self, problem: Problem, lost: float | None) -> None:
        """Learn from a tuned key's loss with its neighbour's config, as a share; ``None`` if it is not known."""
        self._unlearned.pop(canonical(problem), None)
        if lost is not None:
            self.selection.record_loss(problem, lost)

    def _choose_key(self, problem: Problem) -> None:
        self._chosen.add(canonical(problem))
        self._unlearned[canonical(problem)] = problem
        self.selection.record_tuning(problem)
