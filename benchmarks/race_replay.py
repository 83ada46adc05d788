"""Replay of a job's race on recorded samples: would the same rule have found the same winner, and at what cost?

A recording holds many samples of every config, in the order in which they were taken: in rounds, in each of which all
configs had their turn, so that a pace that lasts (a clock, a neighbour) is shared by what was timed together. A replay
draws a round for each trial, and one for each of the finalists' rounds, where all meet the same pace as they do in a
job. A recording without rounds (Kernel Tuner's) is entered at a random place. Trials, the race between them and the
final round are those of a job; the time of loading, of checks and of the reference is not in it.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ktuned.ipc import replies
from ktuned.measuring.noise import Noise
from ktuned.measuring.race import Ending, Race, RaceRules
from ktuned.model import Preset
from ktuned.tuning.finalists import (
    Range,
    are_rounds_contradictory,
    choose_finalists,
    compute_figures,
    find_remaining_rivals,
)

CLOSE = 0.02
"""A config that is this close to the best must not be given up."""


@dataclass(frozen=True)
class Recorded:
    """One config's samples in µs, in order.

    ``cost_us`` is how much longer a sample takes than it says, ``batch_us`` what a batch of samples takes besides.
    """

    samples_us: tuple[float, ...]
    launches: int = 1
    cost_us: float = 0.0
    batch_us: float = 0.0

    @property
    def median_us(self) -> float:
        """The median of all samples."""
        return statistics.median(self.samples_us)


@dataclass(frozen=True)
class Recording:
    """All configs of a space on one device, and the resolution of its clock.

    ``per_round`` is how many samples each config has in one round, 0 if they were taken one config after the other.
    ``is_quick`` is whether a launch that was checked makes a warm-up needless, as it does on a GPU by events.
    """

    what: str
    configs: tuple[Recorded, ...]
    resolution_us: float = 0.0
    per_round: int = 0
    is_quick: bool = False

    @property
    def rounds(self) -> int:
        """The number of whole rounds."""
        return min(len(one.samples_us) for one in self.configs) // self.per_round if self.per_round else 0

    def truth_us(self) -> list[float]:
        """Return the figure that each config deserves: the median of all its samples, or where there are rounds that of
        its rounds' medians, each compared with the others of its round, as a job decides.
        """
        if not self.rounds:
            return [one.median_us for one in self.configs]
        each = self.per_round
        rounds: list[dict[int | None, float]] = [
            {
                index: statistics.median(one.samples_us[turn * each : (turn + 1) * each])
                for index, one in enumerate(self.configs)
            }
            for turn in range(self.rounds)
        ]
        found = compute_figures(rounds, range(len(self.configs)))
        return [found[index].latency_us for index in range(len(self.configs))]

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a compressed JSON file that has the fields of this class and of :class:`Recorded`."""
        data = json.loads(gzip.decompress(file.read_bytes()))
        configs = tuple(Recorded(tuple(one["samples_us"]), one["launches"], one["cost_us"]) for one in data["configs"])
        return cls(data["what"], configs, data["resolution_us"])


@dataclass(frozen=True)
class Replay:
    """One replay: the winner's distance from the best config, the lane's seconds before the final round and in it, and
    how many configs were given up, and how many of these are within 2 % of the best.
    """

    regret: float
    lane_s: float
    final_s: float
    beaten: int
    wronged: int


def steady(dice: random.Random) -> Iterator[tuple[float, float]]:
    """Yield one pace for good: that of the recording."""
    yield math.inf, 1.0


class _Device:
    """The device's time in a replay, and its pace."""

    def __init__(self, paces: Iterator[tuple[float, float]]) -> None:
        self._paces = paces
        self._until_us, self._slower = 0.0, 1.0
        self.now_us = 0.0

    def take(self, sample_us: float, launches: int, cost_us: float) -> float:
        """Spend the time of one sample, and return it as it is at this pace."""
        while self.now_us >= self._until_us:
            lasts_s, self._slower = next(self._paces)
            self._until_us += lasts_s * 1e6
        sample_us *= self._slower
        self.now_us += sample_us * launches + cost_us
        return sample_us


class Replays:
    """Replays of one recording with one preset.

    ``races`` is whether configs race or are all sampled to the end, the hopeless ones too. ``clock`` yields how long
    the device keeps its pace, in s, and how much slower than recorded that is.
    """

    def __init__(
        self,
        recording: Recording,
        preset: Preset,
        *,
        early_stop: float = 3.0,
        races: bool = True,
        clock: Callable[[random.Random], Iterator[tuple[float, float]]] = steady,
    ) -> None:
        self._recording = recording
        self._preset = preset
        self._early_stop = early_stop
        self._races = races
        self._clock = clock
        self._truth_us = recording.truth_us()

    def run(self, seed: int) -> Replay:
        """Tune once."""
        dice = random.Random(seed)
        configs = self._recording.configs
        order = dice.sample(range(len(configs)), len(configs))
        incumbent: replies.CostRange | None = None
        found: dict[int, Race] = {}
        noise = Noise()
        device = _Device(self._clock(dice))
        for index in order:
            place = self._place(configs[index], dice)
            first_us = configs[index].samples_us[place - 1] + configs[index].cost_us
            rules = RaceRules(
                self._preset,
                stop_above_us=incumbent.cost * self._early_stop if incumbent and self._races else math.inf,
                incumbent=incumbent if self._races else None,
                first_us=first_us if self._recording.is_quick else None,
                noise=noise,
            )
            race = Race(rules, resolution_us=self._recording.resolution_us)
            self._sample(race, configs[index], device, place)
            if race.ending is Ending.HOPELESS:
                continue
            found[index] = race
            median_us = race.samples.median_us
            if race.is_full:
                noise.add_config(race.samples, first_us)
            if race.ending is not Ending.BEATEN and (incumbent is None or median_us < incumbent.cost):
                incumbent = replies.CostRange(median_us, *race.interval_us)
        lane_s = device.now_us / 1e6
        ranked = sorted(found, key=lambda index: found[index].samples.median_us)
        ranges = [
            Range.from_measurement(one.samples.median_us, one.samples.spread_us, one.interval_us)
            for one in map(found.__getitem__, ranked)
        ]
        finalists = [ranked[place] for place in choose_finalists(ranges, self._preset.finalists)]
        winner = self._final_round(finalists, device, dice)
        best_us = min(self._truth_us)
        beaten = [index for index, race in found.items() if race.ending is Ending.BEATEN]
        return Replay(
            self._truth_us[winner] / best_us - 1,
            lane_s,
            device.now_us / 1e6 - lane_s,
            len(beaten),
            sum(self._truth_us[index] <= best_us * (1 + CLOSE) for index in beaten),
        )

    def _place(self, recorded: Recorded, dice: random.Random) -> int:
        """Return where a trial begins: with a round, or anywhere."""
        if self._recording.rounds:
            return dice.randrange(self._recording.rounds) * self._recording.per_round
        return dice.randrange(len(recorded.samples_us))

    def _final_round(self, finalists: Sequence[int], device: _Device, dice: random.Random) -> int:
        rounds: list[dict[int | None, float]] = []
        for turn in range(self._preset.most_rounds):
            if turn >= self._preset.finalist_rounds and not are_rounds_contradictory(rounds, finalists):
                break
            left = find_remaining_rivals(rounds, finalists)
            first = turn % len(left)
            rounds.append({})
            shared = self._place(self._recording.configs[0], dice)
            for index in (*left[first:], *left[:first]):
                recorded = self._recording.configs[index]
                race = Race(RaceRules(self._preset), resolution_us=self._recording.resolution_us)
                place = shared if self._recording.rounds else self._place(recorded, dice)
                self._sample(race, recorded, device, place)
                rounds[-1][index] = race.samples.median_us
        decided = compute_figures(rounds, finalists)
        return min(finalists, key=lambda index: decided[index].latency_us)

    def _sample(self, race: Race, recorded: Recorded, device: _Device, place: int) -> None:
        """Let a config take its part, from a place of its samples on."""
        samples, launches, cost_us = recorded.samples_us, recorded.launches, recorded.cost_us
        began = device.now_us
        while race.wants_warm_up((device.now_us - began) / 1e6):
            race.warm.add_sample(device.take(samples[place - 1], 1, cost_us + recorded.batch_us))
        began, end = device.now_us, device.now_us + self._preset.timing_s * 1e6
        while batch := race.choose_next_batch((device.now_us - began) / 1e6):
            device.now_us += recorded.batch_us
            for _ in range(batch):
                race.samples.add_sample(device.take(samples[place], launches, cost_us))
                place = (place + 1) % len(samples)
                if device.now_us >= end:
                    break
