"""Sides of a comparison with a peer: processes that are timed from their start, and what they found."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parent.parent
PROCESS_DEADLINE_S = 900.0

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    """One tool's figures: seconds from nothing, and those of the tuning alone; the config that won.

    ``cold_s`` counts the start of all processes and their imports, ``warm_s`` the tuning in processes that run.
    """

    tool: str
    cold_s: float
    warm_s: float
    winner: Config
    configs: int


@dataclass(frozen=True)
class Comparison:
    """ktuned beside a peer, the winners' medians by one timer in µs, and further figures."""

    what: str
    ours: Side
    theirs: Side
    ours_us: float
    theirs_us: float
    cold_goal: float
    warm_goal: float
    notes: Mapping[str, float] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each side, and one for the ratios beside their goals."""
        rows: list[dict[str, Any]] = [
            {
                "what": f"{self.what}: {side.tool}",
                "configs": side.configs,
                "cold_s": side.cold_s,
                "warm_s": side.warm_s,
                "winner_us": latency_us,
                "config": " ".join(f"{name}={value}" for name, value in side.winner.items()),
            }
            for side, latency_us in ((self.theirs, self.theirs_us), (self.ours, self.ours_us))
        ]
        cold, warm = self.ours.cold_s / self.theirs.cold_s, self.ours.warm_s / self.theirs.warm_s
        met = cold <= self.cold_goal and warm <= self.warm_goal and self.ours_us <= SAME * self.theirs_us
        notes = " ".join(f"{name}={value:.4g}" for name, value in self.notes.items())
        goals = f"goals: cold {self.cold_goal:.3g} warm {self.warm_goal:.3g} winner {SAME:g}"
        rows.append(
            {
                "what": f"{self.what}: ktuned / peer ({'met' if met else 'NOT MET'})",
                "configs": self.ours.configs / self.theirs.configs,
                "cold_s": cold,
                "warm_s": warm,
                "winner_us": self.ours_us / self.theirs_us,
                "config": f"{goals} {notes}".strip(),
            }
        )
        return rows


SAME = 1.01
"""Two medians of one kernel differ by as much from one process to the next."""


class Unavailable(Exception):
    """A comparison cannot be made here; the message is the reason."""


def timed_process(
    script: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[float, dict[str, Any]]:
    """Run a Python script; return the seconds until it printed its result, a line of JSON, and that result.

    Raises:
        RuntimeError: it ends without a result.
    """
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    began = perf_counter()
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                took_s = perf_counter() - began
                process.wait(PROCESS_DEADLINE_S)
                return took_s, json.loads(line)
            sys.stderr.write(line)
    raise RuntimeError(f"{script.name} {' '.join(arguments)} ended with status {process.returncode}")


def in_turns(launches: Sequence[Any], device: str, rounds: int) -> list[float]:
    """Return the median of each launch's latency in µs, all timed by one timer, in turns."""
    from statistics import median

    from ktuned.model import PRESETS
    from ktuned.worker.cuda_timer import EVENTS, CudaTimer

    timer = CudaTimer(device, EVENTS)
    samples: list[list[float]] = [[] for _ in launches]
    for turn in range(rounds):
        for place in range(len(launches)):
            chosen = (place + turn) % len(launches)
            samples[chosen].append(timer.time(launches[chosen], PRESETS["default"]).samples.median_us)
    return [median(values) for values in samples]
