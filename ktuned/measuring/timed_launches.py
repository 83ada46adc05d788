"""The timed launches of one config: each must do its work, and some of them, chosen at random, are judged.

The timed launches must do the same as the checked one. Three kinds of kernels were seen to break that rule: kernels
that return at once if their output already holds the answer, as it does after an earlier launch; kernels that are wrong
in some of their launches; and kernels that are wrong from some launch on. Against them:

- **Every timed launch begins on poisoned outputs**, and with its inputs restored if ``setup`` asks for that. A launch
  that skips its work leaves the poison. A kernel that works only when it finds the poison is timed at work. Launches
  that are shorter than the clock can time are timed together, as a *ring*: each has outputs of its own, so that none
  runs twice on the same outputs without poison in between.
- **Launches are compared at random**, each independently of the others, so that no rhythm of the kernel can evade it.
  The outputs are compared bit by bit with those of the launch that was judged right; if bits differ, the whole check
  decides. The first :data:`SURE_COMPARED` launches are all compared, unless comparing takes longer than launching. Of
  the later ones, a share is compared.
- **A config that may win is compared more often**: until :data:`SURE_COMPARED` of its launches were compared, or
  :data:`FINALIST_COMPARED` of a finalist's, if the preset's time for timing allows. A kernel that is wrong once in n
  launches is caught with probability 1 - (1 - 1/n)^k after k comparisons: 99 % for n = 20 and k = 90. This k is stored
  with the result (``compared``).

On a GPU the comparison is enqueued behind the launch and leaves a flag, which is read once the batch is over. So it
costs the host no further wait.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ktuned.backends import Launch
from ktuned.checking import Verdict

if TYPE_CHECKING:
    from ktuned.checking import JudgedOutputs

SURE_COMPARED = 90
"""Compared launches of a config that may win: ln 0.01 / ln 0.95, which finds one wrong launch in 20 with 99 %."""

FINALIST_COMPARED = 2 * SURE_COMPARED
"""Compared launches of a finalist: finds one wrong launch in 100 with 84 %."""

LATER_SHARE = 0.125
"""Share of the later launches that is compared: a kernel that is wrong from its 5,000th launch on is found soon."""

LEAST_SHARE = 0.02
"""Share of launches that is compared even if comparing takes much longer than launching."""

FREE_NS = 2_000_000
"""Time in ns that is added to the time of launching when the affordable share of comparisons is computed, so that the
first comparisons are free."""

FLAGS_AT_ONCE = 20
"""Launches that a GPU compares before the host waits; as many as in a piece of a timing."""

FEWEST_OF_A_GPU, MOST_OF_A_GPU = 0.25, 8
"""Share of a GPU's batch that is compared until :data:`SURE_COMPARED` launches were, and the most comparisons in one
batch: enqueueing a comparison takes the host as long as enqueueing a launch."""


class WrongLaunch(Exception):
    """A timed launch left wrong outputs, though the first one was right."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class TimedLaunches:
    """A config's launches, as a timer uses them.

    For each sample the timer calls :meth:`prepare_ring`, then each launch of the :attr:`ring`, which it times, and then
    :meth:`compare_ring`.

    Args:
        launch: the launch on the problem's own outputs.
        restore: restores the inputs that a launch overwrites; runs before each launch.
        judged: the outputs that were judged right, with which others are compared.
        bind: returns a launch on another copy of the outputs, by the copy's number from 1 on.
        most_copies: how many launches the ring may have on outputs of their own.
        compared: how many of the config's launches were compared before.
        meanwhile: called at most once, while a GPU works on the first batch of samples. All events of the batch are in
            the GPU's queue by then, so that the host cannot disturb the timing.

    Attributes:
        leave_own_outputs: whether the last timed launch left its outputs in the problem's own tensors, where they can
            be judged without another launch.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        restore: Callable[[], None] | None = None,
        judged: JudgedOutputs | None = None,
        bind: Callable[[int], Launch] | None = None,
        most_copies: int = 1,
        compared: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self.ring: list[Launch] = [launch]
        self.restore = restore
        self.compared = compared
        self.meanwhile = meanwhile
        self.leave_own_outputs = False
        self._judged = judged
        self._bind = bind
        self._most_copies = most_copies
        self._random = random.Random()
        self._launching_ns = 0
        self._comparing_ns = 0

    @property
    def restores(self) -> bool:
        """True if something is restored before each launch."""
        return self.restore is not None

    @property
    def has_differed(self) -> bool:
        """True if launches left different bits, all of them right."""
        return self._judged is not None and self._judged.has_differed

    def widen_ring(self, count: int) -> None:
        """Put up to ``count`` launches into the ring. Without outputs to poison, it repeats a single launch."""
        if (self._judged is None or not self._judged.poisons) and not self.restores:
            self.ring = self.ring[:1] * count
        elif self._bind is not None and not self.restores:
            while len(self.ring) < min(count, self._most_copies):
                self.ring.append(self._bind(len(self.ring)))
            del self.ring[count:]

    def prepare_ring(self) -> None:
        """Poison the outputs of the ring's launches, and restore the inputs that ``setup`` names."""
        if self._judged is not None:
            self._judged.poison_output_sets(len(self.ring))
        if self.restore is not None:
            self.restore()

    def compare_ring(self, launching_ns: int) -> None:
        """Compare some of the ring's launches, which have just taken ``launching_ns`` together.

        Raises:
            WrongLaunch: one of them is wrong.
        """
        if self._judged is None or not self._judged.is_comparable:
            return
        self._launching_ns += launching_ns
        began = perf_counter_ns()
        for place in range(min(len(self.ring), self._judged.copies)):
            if self._random.random() < self._choose_compared_share():
                self._judge_launch(place)
        self._comparing_ns += perf_counter_ns() - began

    def _judge_launch(self, place: int) -> None:
        assert self._judged is not None
        verdict = self._judged.judge_output_set(place)
        self.compared += 1
        if not verdict.ok:
            raise WrongLaunch(verdict)

    def _choose_compared_share(self) -> float:
        wanted = 1.0 if self.compared < SURE_COMPARED else LATER_SHARE
        afforded = (self._launching_ns + FREE_NS) / max(1, 2 * self._comparing_ns)
        return max(LEAST_SHARE, min(wanted, afforded))

    def top_up_comparisons(
        self, count: int, limit_s: float, synchronize: Callable[[], None], *, by_flags: bool = False
    ) -> None:
        """Launch as for a sample until ``count`` launches have been compared, or ``limit_s`` is over.

        With ``by_flags`` the device compares :data:`FLAGS_AT_ONCE` launches, and the host waits once for all of them.
        A wait for each launch would be a turn of every other program that works on the device.

        Raises:
            WrongLaunch: one of them is wrong.
        """
        if self._judged is None or not self._judged.is_comparable:
            return
        began = perf_counter_ns()
        while (missing := count - self.compared) > 0 and perf_counter_ns() - began < limit_s * 1e9:
            places = range(min(len(self.ring), self._judged.copies))
            flags: list[Any] = []
            while by_flags and len(flags) < min(missing, FLAGS_AT_ONCE):
                self._launch_ring()
                flags += [self.make_right_flag(place) for place in places]
                by_flags = all(flag is not None for flag in flags)
            if by_flags:
                self.judge_flags(flags, limit_s, synchronize)
                continue
            self._launch_ring()
            synchronize()
            for place in places:
                self._judge_launch(place)

    def _launch_ring(self) -> None:
        self.prepare_ring()
        for launch in self.ring:
            launch()

    def draw_launches_to_compare(self, count: int) -> frozenset[int]:
        """Choose the numbers of the launches in a GPU's batch of ``count`` that will be compared."""
        if self._judged is None or not self._judged.is_comparable or not count:
            return frozenset()
        share = FEWEST_OF_A_GPU if self.compared < SURE_COMPARED else LATER_SHARE
        wanted = min(MOST_OF_A_GPU, math.ceil(count * share))
        return frozenset(self._random.sample(range(count), min(wanted, count)))

    def draw_ring_place(self) -> int:
        """Choose one of the ring's launches at random, by its place."""
        return self._random.randrange(min(len(self.ring), 1 if self._judged is None else self._judged.copies))

    def make_right_flag(self, place: int) -> Any:
        """Return a flag on the device that is true if a launch left the right outputs, for :meth:`judge_flags`."""
        return None if self._judged is None else self._judged.make_right_flag(place)

    def judge_flags(self, flags: Sequence[Any], limit_s: float, synchronize: Callable[[], None]) -> None:
        """Read the flags of launches that are over.

        An unset flag does not prove a wrong launch: bits also differ if sums were added in another order. So further
        launches are judged one by one, which also gives a message about what is wrong.

        Raises:
            WrongLaunch: one of the launches is wrong.
        """
        if self._judged is None or not flags:
            return
        right = self._judged.read_flags(flags)
        self.compared += sum(right)
        if all(right):
            return
        self.top_up_comparisons(self.compared + SURE_COMPARED, limit_s, synchronize)
        if self._judged.is_flag_certain:
            wrong = len(right) - sum(right)
            raise WrongLaunch(Verdict(False, f"{wrong} of {len(right)} timed launches left outputs out of tolerance"))
        self._judged.accept_other_bits()
