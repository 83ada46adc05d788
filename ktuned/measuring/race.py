"""The race: each config is sampled only as long as it can still win. No IO.

A timer asks the race how many samples to take next, until the race has ended for one of these reasons:

===============  ====================================================================================================
``KNOWN``        the median is known to 1 %, or is known well enough to be slower than the incumbent
``OUT_OF_TIME``  the preset's time for timing is over
``BEATEN``       the median is above the incumbent's interval by more than its own uncertainty and a margin; the config
                 keeps the latency and the wide interval that it has at that point
``HOPELESS``     even the fastest sample is above the latency at which a config is given up
===============  ====================================================================================================

Batches grow, and the race decides after each of them. This is a Hoeffding race (Maron and Moore, "Hoeffding
Races", NIPS 1993), with ranks in place of bounds, as in F-Race (Birattari et al., GECCO 2002). The uncertainty of a few
samples comes from the noise that was seen in earlier configs (:class:`ktuned.measuring.noise.Noise`). With six samples
or more, it also comes from the order statistics of the config's own samples.

The tests replay the same object on recorded samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from ktuned.ipc import replies
from ktuned.measuring.noise import Noise
from ktuned.measuring.samples import FEWEST_FOR_CI, Samples
from ktuned.model import FrozenStruct, Preset

RELATIVE_CI = 0.01
"""Half-width of the median's 95 % confidence interval, relative to the median, at which sampling stops."""

MARGIN = 0.1
"""Relative distance from the incumbent within which no config is given up.

Few configs are that close, and clock changes between trials seldom move the best config's latency by more.
"""

FEW_MARGIN = 0.13
"""The margin while a config has few samples: all of them may have been taken in one spell of a slow clock.

On an RTX A4000 whose clock changed by up to a fifth, this nearly halved the number of close configs that were given up,
at a cost of 1 % of the time of full sampling.
"""

FEW_BEHIND = 0.08
"""Relative distance from the incumbent beyond which few samples may be enough for the ending ``KNOWN``."""

FALSE_END = 0.001
"""Chance of giving up a config within the margin because of the noise of its samples."""

MISSED = 0.02
"""Chance, on each side, that an interval from the noise of other configs misses the median. It is less than 2.5 %
because the medians of those configs are uncertain, too. In all, the interval covers 95 %."""

QUICK_US = 5_000.0
"""A first launch up to this says enough about a config's pace to begin sampling without a warm-up."""

FAR = 3.0
"""Multiple of the hopeless latency beyond which one sample after the warm-up is enough."""

FAR_AFTER_S = 0.01
"""Least sampling time before :data:`FAR` may decide: a shorter sample may have been interrupted, like the warm-up."""

LOOK_AFTER_S = 0.001
"""Least sampling time before a config may be beaten: a single interruption could cover all of a shorter time."""

BATCH = 10
"""Fewest samples in a batch, once the preset's number of samples was taken."""


Cost = Callable[[float], float | None]
"""Returns what a latency in µs costs by an objective; ``None`` if it has no cost."""


class Ending(Enum):
    """Why the sampling of a config ended; see the module."""

    KNOWN = auto()
    OUT_OF_TIME = auto()
    BEATEN = auto()
    HOPELESS = auto()


class RaceRules(FrozenStruct):
    """Everything that one config's sampling depends on, except its timer.

    Attributes:
        preset: how many samples are wanted, and the time for them.
        stop_above_us: the latency in µs above which a config is hopeless.
        incumbent: the interval of the best config so far: of its cost if there is a ``cost``, else of its latency.
        cost: returns the cost of a latency, if the objective is not the latency itself.
        first_us: upper bound of the checked launch's time, in µs. After a short one, no warm-up is needed.
        noise: the noise of earlier configs.
    """

    preset: Preset
    stop_above_us: float = math.inf
    incumbent: replies.CostRange | None = None
    cost: Cost | None = None
    first_us: float | None = None
    noise: Noise = msgspec.field(default_factory=Noise)


class Race:
    """One config's part in the race: its samples so far, and how many to take next.

    Args:
        rules: what the sampling depends on.
        resolution_us: the clock's resolution; no median need be known better.
        warm_counts: whether the warm-up is timed like the samples, so that the two may be compared.

    Attributes:
        samples: the samples so far.
        warm: the times of the warm-up.
        ending: why sampling has ended; ``None`` before.
    """

    def __init__(self, rules: RaceRules, *, resolution_us: float = 0.0, warm_counts: bool = True) -> None:
        self.samples = Samples()
        self.warm = Samples()
        self.ending: Ending | None = None
        self._preset = preset = rules.preset
        self._stop_above_us = rules.stop_above_us
        self._incumbent = rules.incumbent
        self._cost = rules.cost
        self._resolution_us = resolution_us
        self._warm_counts = warm_counts
        self._noise = rules.noise
        self._first_us = first_us = rules.first_us
        self._interval_count = max(FEWEST_FOR_CI, preset.repetitions // 2)
        self._deciding_count = self._count_deciding_samples()
        # A config in a race has just been launched for its check, so it needs less warm-up.
        is_racing = rules.incumbent is not None or rules.stop_above_us < math.inf
        is_quick = first_us is not None and first_us <= min(QUICK_US, FAR * self._stop_above_us)
        self._warm_ups = 0 if is_racing and is_quick else max(1, preset.warmup - is_racing)

    def wants_warm_up(self, elapsed_s: float) -> bool:
        """Return whether to launch once more before sampling begins."""
        return len(self.warm) < self._warm_ups and (not len(self.warm) or elapsed_s < self._preset.timing_s)

    def ends_after_warm_up(self, elapsed_s: float) -> bool:
        """Return whether to stop after the warm-up: it took all of the preset's time, and was hopelessly slow."""
        if elapsed_s >= self._preset.timing_s and len(self.warm) and self.warm.sorted_us[0] > self._stop_above_us:
            self.samples, self.ending = self.warm, Ending.HOPELESS
        return self.ending is not None

    def choose_next_batch(self, elapsed_s: float) -> int:
        """Return how many samples to take next, ``elapsed_s`` after the first one began; 0 at the end."""
        self.ending = self._find_ending(elapsed_s)
        if self.ending is not None:
            return 0
        n, repetitions = len(self.samples), self._preset.repetitions
        if n == 0 and len(self.warm) and self.warm.sorted_us[0] > FAR * self._stop_above_us:
            return 1
        for target in (self._deciding_count, self._interval_count // 2, self._interval_count, repetitions):
            if n < target:
                return target - n
        return max(BATCH, repetitions, n // 2)

    def _find_ending(self, elapsed_s: float) -> Ending | None:
        n = len(self.samples)
        if n == 0:
            return None
        is_late = elapsed_s >= self._preset.timing_s
        is_far = elapsed_s >= FAR_AFTER_S and self._fastest_us > FAR * self._stop_above_us
        if self._fastest_us > self._stop_above_us and (is_late or is_far or n >= self._interval_count // 2):
            return Ending.HOPELESS
        if elapsed_s >= LOOK_AFTER_S and self._is_beaten:
            return Ending.BEATEN
        if is_late:
            return Ending.OUT_OF_TIME
        is_behind = elapsed_s >= LOOK_AFTER_S and self._is_behind
        if n >= (self._interval_count // 2 if is_behind else self._preset.repetitions) and self._is_known:
            return Ending.KNOWN
        return None

    def _count_deciding_samples(self) -> int:
        """Return how many samples it takes to call the config beaten: fewer if its checked launch was slow already."""
        most = self._interval_count // 2
        if self._incumbent is None or self._cost is not None or self._first_us is None:
            return most
        return self._noise.count_deciding_samples(
            self._first_us, self._find_beaten_above_us(FEW_MARGIN), FALSE_END, most
        )

    @property
    def _is_behind(self) -> bool:
        """True if the median is surely above the incumbent's, so that fewer samples are enough."""
        if self._incumbent is None or self._cost is not None:
            return False
        margin = 0.0 if len(self.samples) >= self._interval_count else FEW_BEHIND
        return self.interval_us[0] > self._find_beaten_above_us(margin)

    def _find_beaten_above_us(self, margin: float) -> float:
        """Return the latency above which a config is beaten."""
        assert self._incumbent is not None
        return self._incumbent.high * (1 + margin) + self._resolution_us

    @property
    def is_hopeless(self) -> bool:
        """True if the config was given up as hopelessly slow, so that its figure is only a rough one."""
        return self.ending is Ending.HOPELESS

    @property
    def may_win(self) -> bool:
        """True unless the config was given up, or the whole interval of its median costs more than the incumbent."""
        if self.ending in (Ending.BEATEN, Ending.HOPELESS):
            return False
        if self._incumbent is None:
            return True
        costs = self.interval_us if self._cost is None else map(self._cost, self.interval_us)
        return min((cost for cost in costs if cost is not None), default=0.0) <= self._incumbent.high

    @property
    def is_full(self) -> bool:
        """True if sampling was not cut short, and there are enough samples for an interval of their own."""
        return self.ending in (Ending.KNOWN, Ending.OUT_OF_TIME) and len(self.samples) >= FEWEST_FOR_CI

    @property
    def _fastest_us(self) -> float:
        fastest = self.samples.sorted_us[0]
        return min(fastest, self.warm.sorted_us[0]) if self._warm_counts and len(self.warm) else fastest

    @property
    def _is_known(self) -> bool:
        if len(self.samples) < FEWEST_FOR_CI and not self._noise.is_informative(len(self.samples), MISSED):
            return False
        low_us, high_us = self.interval_us
        median_us = self.samples.median_us
        # A median of 0 is below the clock's resolution, and more samples will not change that.
        return not median_us or (high_us - low_us) / 2 <= max(RELATIVE_CI * median_us, self._resolution_us)

    @property
    def interval_us(self) -> tuple[float, float]:
        """The 95 % interval of the median, in µs.

        It comes from the config's own samples, or from the noise of other configs if those are too few. If too little
        is known of the noise, it is the samples' range.
        """
        if len(self.samples) >= FEWEST_FOR_CI or not self._noise.is_informative(len(self.samples), MISSED):
            return self.samples.interval_us
        return self._noise.find_lowest_median_us(self.samples, MISSED), self._noise.find_highest_median_us(
            self.samples, MISSED
        )

    @property
    def _is_beaten(self) -> bool:
        """True if the median is above the incumbent's interval by more than its own uncertainty and a margin."""
        if self._incumbent is None or len(self.samples) < self._deciding_count:
            return False
        is_sampled = len(self.samples) >= self._interval_count
        margin = MARGIN if is_sampled else FEW_MARGIN
        if self._cost is None:
            beyond_us = self._find_beaten_above_us(margin)
            is_beyond = is_sampled and self.samples.interval_us[0] > beyond_us
            return is_beyond or self._noise.is_median_above(self.samples, beyond_us, FALSE_END, self._first_us)
        beyond = self._incumbent.high * (1 + margin)
        # By another objective a longer launch may be cheaper, so both ends of the interval count.
        low_us = self._noise.find_lowest_median_us(self.samples, FALSE_END)
        high_us = self._noise.find_highest_median_us(self.samples, FALSE_END)
        if is_sampled:
            sampled_us = self.samples.interval_us
            low_us, high_us = max(low_us, sampled_us[0]), min(high_us, sampled_us[1])
        costs = [self._cost(end) for end in (low_us - self._resolution_us, high_us + self._resolution_us)]
        return min((cost for cost in costs if cost is not None), default=beyond) > beyond
