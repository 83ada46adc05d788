"""The race of configs for a lane's time: each is sampled only as long as it can still win. No IO.

A timer asks for the size of the next batch until the race has an end for its config. After each batch the interval of
the median is compared with the incumbent's: a config that is slower beyond both and a margin has lost, and keeps the
figure and the wider interval that it has by then. Close ones are sampled until their median is known to 1 %. The same
object is replayed on recorded samples by ``benchmarks/racing.py`` and by its tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto

from ktuned.ipc import requests
from ktuned.model import Preset
from ktuned.worker.samples import FEWEST_FOR_CI, Samples

RELATIVE_CI = 0.01
"""Half-width of the median's 95 % confidence interval, relative to the median, at which sampling stops."""

MARGIN = 0.1
"""Distance from the incumbent, relative to it, within which no config is given up: those are sampled to the end.

Few configs are as close as that, and clocks that differ from one trial to the next seldom make more of the best one.
"""

FEW_MARGIN = 0.3
"""The same for half as many samples as have an interval: more than chance makes of the best config."""

FAR = 3.0
"""Times the hopeless latency from which on one sample after the warm-up is enough."""

FAR_AFTER_S = 0.01
"""Time that such a sample takes: a shorter one may have been interrupted, like the warm-up."""

LOOK_AFTER_S = 0.001
"""Sampling for less costs less than loading the config did, and an interruption may lie over all of it."""

BATCH = 10


Cost = Callable[[float], float | None]
"""Returns what a latency in µs, or an energy in J, costs by an objective; ``None`` if it has no cost."""


class Ending(Enum):
    """The reason why the sampling of a config ended."""

    KNOWN = auto()
    OUT_OF_TIME = auto()
    BEATEN = auto()
    HOPELESS = auto()


class Race:
    """One config's part in the race: its samples so far, and how many to take next.

    ``stop_above_us`` is the latency that is hopeless; ``resolution_us`` the clock's, which a median needs not be known
    better than. ``cost`` is what a latency costs by another objective, as the ``incumbent`` does then. ``warm_counts``
    is whether the warm-up is timed as the samples are, so that it may be compared.
    """

    def __init__(
        self,
        preset: Preset,
        *,
        stop_above_us: float | None = None,
        incumbent: requests.Incumbent | None = None,
        resolution_us: float = 0.0,
        warm_counts: bool = True,
        cost: Cost | None = None,
    ) -> None:
        self.samples = Samples()
        self.warm = Samples()
        self.ending: Ending | None = None
        self._preset = preset
        self._stop_above_us = math.inf if stop_above_us is None else stop_above_us
        self._incumbent = incumbent
        self._cost = cost
        self._resolution_us = resolution_us
        self._warm_counts = warm_counts
        self._least = max(FEWEST_FOR_CI, preset.repetitions // 2)
        # What races was launched to be checked just before.
        is_racing = incumbent is not None or stop_above_us is not None
        self._warm_ups = max(1, preset.warmup - is_racing)

    def wants_warm_up(self, elapsed_s: float) -> bool:
        """Return whether to launch once more before sampling begins."""
        return len(self.warm) < self._warm_ups and (not len(self.warm) or elapsed_s < self._preset.timing_s)

    def gives_up(self, elapsed_s: float) -> bool:
        """Return whether the warm-up alone took the preset's time, and was hopeless however it was timed."""
        if elapsed_s >= self._preset.timing_s and self.warm.sorted_us[0] > self._stop_above_us:
            self.samples, self.ending = self.warm, Ending.HOPELESS
        return self.ending is not None

    def next_batch(self, elapsed_s: float) -> int:
        """Return how many samples to take next, ``elapsed_s`` after the first one began; 0 at the end."""
        self.ending = self._end(elapsed_s)
        if self.ending is not None:
            return 0
        n, repetitions = len(self.samples), self._preset.repetitions
        if n == 0 and len(self.warm) and self.warm.sorted_us[0] > FAR * self._stop_above_us:
            return 1
        for target in (self._least // 2, self._least, repetitions):
            if n < target:
                return target - n
        return max(BATCH, repetitions, n // 2)

    def _end(self, elapsed_s: float) -> Ending | None:
        n = len(self.samples)
        if n == 0:
            return None
        is_late = elapsed_s >= self._preset.timing_s
        is_far = elapsed_s >= FAR_AFTER_S and self._fastest_us > FAR * self._stop_above_us
        if self._fastest_us > self._stop_above_us and (is_late or is_far or n >= self._least // 2):
            return Ending.HOPELESS
        if elapsed_s >= LOOK_AFTER_S and self._is_beaten:
            return Ending.BEATEN
        if is_late:
            return Ending.OUT_OF_TIME
        if n >= self._preset.repetitions and self._is_known:
            return Ending.KNOWN
        return None

    @property
    def _fastest_us(self) -> float:
        fastest = self.samples.sorted_us[0]
        return min(fastest, self.warm.sorted_us[0]) if self._warm_counts and len(self.warm) else fastest

    @property
    def _is_known(self) -> bool:
        return self.samples.relative_ci <= RELATIVE_CI or self.samples.ci_us <= self._resolution_us

    @property
    def _is_beaten(self) -> bool:
        """True if the median is beyond the incumbent's interval by more than its own uncertainty and a margin."""
        if self._incumbent is None or len(self.samples) < self._least // 2:
            return False
        margin = FEW_MARGIN if len(self.samples) < self._least else MARGIN
        low, high = self.samples.interval_us
        least: float | None = low - self._resolution_us
        if self._cost is not None:
            # By some metrics a longer launch is the better one.
            costs = [self._cost(end) for end in (low - self._resolution_us, high + self._resolution_us)]
            least = min((cost for cost in costs if cost is not None), default=None)
        return least is not None and least > self._incumbent.high * (1 + margin)
