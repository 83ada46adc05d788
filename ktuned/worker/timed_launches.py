"""The launches of one config as they are timed: each has to do its work, and some of them, at random, are judged.

What is timed must be what is checked. Three ways around that were seen: a kernel that returns at once when its output
holds the answer already, as it does when the same launch is repeated; one that is wrong once in some launches; one that
is wrong from some launch on.

- **Every timed launch begins on poisoned outputs**, with what ``setup`` restores restored: skipping leaves the poison,
  and the figure of one that does its work on poison alone is that of working. A launch that is shorter than the clock
  can time is timed together with others, each of them on outputs of its own (a *ring* of copies), never twice on the
  same without poison between.
- **A launch is compared with probability p**, drawn for each one, so that no rhythm of the kernel's can meet it: bit by
  bit with what the launch left that was judged before, and where that differs, by the whole check. The first
  :data:`SURE_COMPARED` are compared, as far as comparing takes no longer than launching; later ones now and then.
- A config that may win is launched until :data:`SURE_COMPARED` of its launches have been compared, a finalist until
  :data:`FINALIST_COMPARED` have, within the time that its preset gives to timing: one that is wrong once in n launches
  is caught with the probability 1 - (1 - 1/n)^k, k being the count that is stored (``compared``): 99 % for n = 20 and
  k = 90.

On a GPU the comparison is enqueued behind the launch, and its flag is read when the batch is over: the host waits no
more often than it did.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ktuned.backends import Launch
from ktuned.worker.check import Verdict

if TYPE_CHECKING:
    from ktuned.worker.problem import JudgedOutputs

SURE_COMPARED = 90
"""Launches of a config that may win which are compared: ln 0.01 / ln 0.95 finds one wrong launch in 20 with 99 %."""

FINALIST_COMPARED = 2 * SURE_COMPARED
"""Launches of a finalist that are compared: with 84 % one that is wrong once in 100 is found."""

LATER_SHARE = 0.125
"""Share of the launches after those that are compared: one that is wrong from the 5,000th on is met soon."""

LEAST_SHARE = 0.02
"""Share that is compared however long it takes."""

FREE_NS = 2_000_000
"""Time for comparing that is not weighed against that of launching."""

FEWEST_OF_A_GPU, MOST_OF_A_GPU = 0.25, 8
"""Share of the first launches of a batch on a GPU, and the most of one: each takes as long to enqueue as a launch."""


class WrongLaunch(Exception):
    """A timed launch did not leave what the judged one did."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class TimedLaunches:
    """A config's launches, for a timer: it calls :meth:`prepare`, each of the :attr:`ring`, and :meth:`inspect`.

    ``judged`` are the outputs that were found right, if the kernel is judged; ``bind`` returns a launch on the outputs
    of the copy of a number, from 1 on, if there may be copies.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        restore: Callable[[], None] | None = None,
        judged: JudgedOutputs | None = None,
        bind: Callable[[int], Launch] | None = None,
        most_copies: int = 1,
        key: str = "",
    ) -> None:
        self.key = key
        self.ring: list[Launch] = [launch]
        self.compared = 0
        self.restores = restore is not None
        self._restore = restore
        self._judged = judged
        self._bind = bind
        self._most = most_copies
        self._random = random.Random()
        self._launching_ns = 0
        self._comparing_ns = 0

    @classmethod
    def of(cls, launch: Launch | TimedLaunches, restore: Callable[[], None] | None = None) -> TimedLaunches:
        """Return launches that nothing is known of, such as a reference's: nothing is poisoned or compared."""
        return launch if isinstance(launch, TimedLaunches) else cls(launch, restore=restore)

    @property
    def has_differed(self) -> bool:
        """True if right launches were seen to leave different bits."""
        return self._judged is not None and self._judged.has_differed

    def widen(self, count: int) -> None:
        """Have up to ``count`` launches in the ring. Without outputs to poison they are the same one."""
        if (self._judged is None or not self._judged.poisons) and not self.restores:
            self.ring = self.ring[:1] * count
        elif self._bind is not None and not self.restores:
            while len(self.ring) < min(count, self._most):
                self.ring.append(self._bind(len(self.ring)))
            del self.ring[count:]

    def prepare(self) -> None:
        """Poison the outputs that the ring's launches write, and restore what ``setup`` asks for."""
        if self._judged is not None:
            self._judged.poison(len(self.ring))
        if self._restore is not None:
            self._restore()

    def inspect(self, launching_ns: int) -> None:
        """Compare some of the launches that the ring has just done, in ``launching_ns``.

        Raises:
            WrongLaunch: one of them is wrong.
        """
        if self._judged is None or not self._judged.is_comparable:
            return
        self._launching_ns += launching_ns
        began = perf_counter_ns()
        for place in range(min(len(self.ring), self._judged.copies)):
            if self._random.random() < self._share():
                self._compare(place)
        self._comparing_ns += perf_counter_ns() - began

    def _compare(self, place: int) -> None:
        assert self._judged is not None
        verdict = self._judged.compare(place)
        self.compared += 1
        if not verdict.ok:
            raise WrongLaunch(verdict)

    def _share(self) -> float:
        wanted = 1.0 if self.compared < SURE_COMPARED else LATER_SHARE
        afforded = (self._launching_ns + FREE_NS) / max(1, 2 * self._comparing_ns)
        return max(LEAST_SHARE, min(wanted, afforded))

    def top_up(self, count: int, limit_s: float, synchronize: Callable[[], None]) -> None:
        """Launch, as for a sample, until ``count`` launches have been compared, or the time is over.

        Raises:
            WrongLaunch: one of them is wrong.
        """
        if self._judged is None or not self._judged.is_comparable:
            return
        began = perf_counter_ns()
        while self.compared < count and perf_counter_ns() - began < limit_s * 1e9:
            self.prepare()
            for launch in self.ring:
                launch()
            synchronize()
            for place in range(min(len(self.ring), self._judged.copies)):
                self._compare(place)

    def draw_for_batch(self, count: int) -> frozenset[int]:
        """Return which of a batch's launches on a GPU are to be compared."""
        if self._judged is None or not self._judged.is_comparable or not count:
            return frozenset()
        share = FEWEST_OF_A_GPU if self.compared < SURE_COMPARED else LATER_SHARE
        wanted = min(MOST_OF_A_GPU, math.ceil(count * share))
        return frozenset(self._random.sample(range(count), min(wanted, count)))

    def draw_place(self) -> int:
        """Return one of the ring's launches at random."""
        return self._random.randrange(min(len(self.ring), 1 if self._judged is None else self._judged.copies))

    def flag(self, place: int) -> Any:
        """Return a flag on the device that a launch has left what it should; it is read by :meth:`inspect_flags`."""
        return None if self._judged is None else self._judged.flag(place)

    def inspect_flags(self, flags: Sequence[Any], limit_s: float, synchronize: Callable[[], None]) -> None:
        """Read the flags of launches that are over.

        Where one is not set, more launches are judged one by one: to show what is wrong, or because a flag by bits is
        not set for outputs that differ in the last ones, as sums in any order do.

        Raises:
            WrongLaunch: one of the launches is wrong.
        """
        if self._judged is None or not flags:
            return
        right = self._judged.read_flags(flags)
        self.compared += sum(right)
        if all(right):
            return
        self.top_up(self.compared + SURE_COMPARED, limit_s, synchronize)
        if self._judged.is_flag_certain:
            wrong = len(right) - sum(right)
            raise WrongLaunch(Verdict(False, f"{wrong} of {len(right)} timed launches left outputs out of tolerance"))
        self._judged.expect_other_bits()
