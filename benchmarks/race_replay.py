"""Replay of a job's race on recorded samples: would the same rule have found the same winner, and at what cost?

A recording holds many samples of every config, in the order in which they were taken. A replay draws each trial's
samples from a random place of its config's recording on, so that what lasts (a clock, a neighbour) lasts in the replay
too. Trials, the race between them and the finalists' rounds are those of a job.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ktuned.ipc import requests
from ktuned.model import Preset
from ktuned.tuning.finalists import ROUNDS_TIMES, Range, chosen, figures, is_open
from ktuned.worker.race import Ending, Race
from ktuned.worker.samples import Samples


@dataclass(frozen=True)
class Recorded:
    """One config's samples in µs, in order; ``cost_us`` is how much longer a sample takes than it says."""

    config: dict[str, Any]
    samples_us: tuple[float, ...]
    launches: int = 1
    cost_us: float = 0.0

    @property
    def median_us(self) -> float:
        """The figure that the config deserves."""
        return statistics.median(self.samples_us)


@dataclass(frozen=True)
class Recording:
    """All configs of a space on one device, and the resolution of its clock."""

    what: str
    configs: tuple[Recorded, ...]
    resolution_us: float = 0.0

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read what :meth:`save` wrote, or a cache file of Kernel Tuner, which keeps its samples as well."""
        data = json.loads(gzip.decompress(file.read_bytes()))
        if "cache" in data:
            knobs = data["tune_params_keys"]
            measured = [one for one in data["cache"].values() if isinstance(one["time"], float)]
            return cls(
                f"{data['kernel_name']} on {data['device_name']}",
                tuple(
                    Recorded({knob: one[knob] for knob in knobs}, tuple(time_ms * 1e3 for time_ms in one["times"]))
                    for one in measured
                ),
            )
        configs = tuple(
            Recorded(one["config"], tuple(one["samples_us"]), one["launches"], one["cost_us"])
            for one in data["configs"]
        )
        return cls(data["what"], configs, data["resolution_us"])

    def sample(self, count: int) -> Self:
        """Return the recording of at most this many of its configs, always the same ones."""
        picked = random.Random(0).sample(self.configs, min(count, len(self.configs)))
        return replace(self, configs=tuple(picked))

    def save(self, file: Path) -> None:
        """Write a compressed JSON file."""
        configs = [
            {
                "config": one.config,
                "samples_us": [float(f"{value:.5g}") for value in one.samples_us],
                "launches": one.launches,
                "cost_us": round(one.cost_us, 2),
            }
            for one in self.configs
        ]
        data = {"what": self.what, "resolution_us": self.resolution_us, "configs": configs}
        file.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))


@dataclass(frozen=True)
class Replay:
    """One replay: the winner's distance from the best config, and the lane's seconds before the final round."""

    regret: float
    lane_s: float
    beaten: int


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
        self._medians = [one.median_us for one in recording.configs]

    def run(self, seed: int) -> Replay:
        """Tune once."""
        dice = random.Random(seed)
        configs = self._recording.configs
        order = dice.sample(range(len(configs)), len(configs))
        incumbent: requests.Incumbent | None = None
        found: dict[int, Samples] = {}
        beaten = 0
        device = _Device(self._clock(dice))
        for index in order:
            race = Race(
                self._preset,
                stop_above_us=incumbent.cost * self._early_stop if incumbent and self._races else None,
                incumbent=incumbent if self._races else None,
                resolution_us=self._recording.resolution_us,
            )
            self._sample(race, configs[index], device, dice)
            if race.ending is Ending.HOPELESS:
                continue
            found[index] = race.samples
            median_us = race.samples.median_us
            if race.ending is Ending.BEATEN:
                beaten += 1
            elif incumbent is None or median_us < incumbent.cost:
                incumbent = requests.Incumbent(median_us, *race.samples.interval_us)
        lane_s = device.now_us / 1e6
        ranked = sorted(found, key=lambda index: found[index].median_us)
        ranges = [Range.of(one.median_us, one.spread_us, one.interval_us) for one in map(found.__getitem__, ranked)]
        finalists = [ranked[place] for place in chosen(ranges, self._preset.finalists)]
        winner = self._final_round(finalists, device, dice)
        return Replay(self._medians[winner] / min(self._medians) - 1, lane_s, beaten)

    def _final_round(self, finalists: Sequence[int], device: _Device, dice: random.Random) -> int:
        rounds: list[dict[int | None, float]] = []
        for turn in range(self._preset.finalist_rounds * ROUNDS_TIMES):
            if turn >= self._preset.finalist_rounds and not is_open(rounds, finalists):
                break
            first = turn % len(finalists)
            rounds.append({})
            for index in (*finalists[first:], *finalists[:first]):
                race = Race(self._preset, resolution_us=self._recording.resolution_us)
                self._sample(race, self._recording.configs[index], device, dice)
                rounds[-1][index] = race.samples.median_us
        decided = figures(rounds, finalists)
        return min(finalists, key=lambda index: decided[index].latency_us)

    def _sample(self, race: Race, recorded: Recorded, device: _Device, dice: random.Random) -> None:
        """Let a config take its part."""
        samples, launches, cost_us = recorded.samples_us, recorded.launches, recorded.cost_us
        place = dice.randrange(len(samples))
        began = device.now_us
        while race.wants_warm_up((device.now_us - began) / 1e6):
            race.warm.add(device.take(samples[place - 1], 1, cost_us))
        began, end = device.now_us, device.now_us + self._preset.timing_s * 1e6
        while batch := race.next_batch((device.now_us - began) / 1e6):
            for _ in range(batch):
                race.samples.add(device.take(samples[place], launches, cost_us))
                place = (place + 1) % len(samples)
                if device.now_us >= end:
                    break
