"""Recorded spaces: every config of a kernel with its result, so that a search can be replayed without a device.

Two file formats are read, each also compressed (``.gz``):

- a Kernel Tuner cache file: ``{"tune_params_keys": […], "cache": {"…": {"BM": 32, …, "time": 1.25}}}``, where the
  objective of a failed config is a string;
- a T4 file of the autotuning community (https://github.com/autotuning/schemas): ``{"results": [{"configuration": …,
  "measurements": [{"name": "time", "value": 1.25}], "invalidity": "correct"}]}``.
"""

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import process_time
from typing import Any

from ktuned.declaration import BoundSpace, space
from ktuned.model import Config, Outcome, Plan, canonical
from ktuned.search import choose_strategy

NEVER = 1e18
"""Larger values stand for failures, in files that cannot mark them in another way."""

MAX_FRUITLESS = 1_000
"""A strategy counts as ended after this many questions without a proposal: it cannot be waiting for outcomes here."""


@dataclass(frozen=True)
class RecordedSpace:
    """The configs of a space with their objectives, smaller being better; ``None`` for those that failed."""

    name: str
    configs: tuple[Config, ...]
    objectives: tuple[float | None, ...]

    @property
    def optimum(self) -> float:
        """The smallest objective."""
        return min(value for value in self.objectives if value is not None)

    def to_space(self) -> BoundSpace:
        """Return the recorded configs as a space."""
        return space(list(self.configs)).bind({})

    def objectives_by_config(self) -> dict[str, float | None]:
        """Return the objectives by the configs' canonical texts."""
        return {canonical(config): value for config, value in zip(self.configs, self.objectives, strict=True)}


@dataclass(frozen=True)
class SearchRun:
    """One replayed search.

    Attributes:
        best: The best objective after each trial, failed ones included; ``None`` as long as all have failed.
        mean_s, worst_s: The strategy's processor time for a proposal.
    """

    best: tuple[float | None, ...]
    mean_s: float
    worst_s: float


def read_recorded_space(path: Path) -> RecordedSpace:
    """Read a Kernel Tuner cache file or a T4 file. If a config occurs twice, the last result counts."""
    raw = path.read_bytes()
    data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    found = _parse_kernel_tuner_cache(data) if "cache" in data else map(_parse_t4_result, data["results"])
    last = {canonical(config): (config, value) for config, value in found}
    return RecordedSpace(
        str(path), tuple(config for config, _ in last.values()), tuple(value for _, value in last.values())
    )


def _parse_kernel_tuner_cache(data: Mapping[str, Any]) -> list[tuple[Config, float | None]]:
    knobs, objective = data["tune_params_keys"], data.get("objective", "time")
    return [
        ({knob: row[knob] for knob in knobs}, _parse_objective(row.get(objective))) for row in data["cache"].values()
    ]


def _parse_t4_result(result: Mapping[str, Any]) -> tuple[Config, float | None]:
    wanted = (result.get("objectives") or ["time"])[0]
    measurements = {entry["name"]: entry["value"] for entry in result.get("measurements", ())}
    is_valid = result.get("invalidity", "correct") == "correct"
    return result["configuration"], _parse_objective(measurements.get(wanted)) if is_valid else None


def _parse_objective(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value < NEVER else None


def replay_search(recorded: RecordedSpace, strategy: str, seed: int, trials: int) -> SearchRun:
    """Search a recorded space for a number of trials, one at a time."""
    objectives = recorded.objectives_by_config()
    chosen = choose_strategy(recorded.to_space(), Plan(strategy, seed, trials=trials))
    tried: list[float | None] = []
    proposal_s: list[float] = []
    fruitless = 0
    while len(tried) < trials and not chosen.finished and fruitless < MAX_FRUITLESS:
        began = process_time()
        proposed = chosen.ask(1)
        for config in proposed:
            value = objectives[canonical(config)]
            outcome = Outcome.LAUNCH_ERROR if value is None else Outcome.MEASURED
            chosen.tell(config, outcome, value)
            tried.append(value)
        proposal_s.append(process_time() - began)
        fruitless = 0 if proposed else fruitless + 1
    best = accumulate((math.inf if value is None else value for value in tried), min)
    return SearchRun(
        tuple(None if value == math.inf else value for value in best),
        sum(proposal_s) / max(1, len(proposal_s)),
        max(proposal_s, default=0.0),
    )


def mean_relative_best(runs: Sequence[SearchRun], optimum: float, trials: int) -> float | None:
    """Return the mean of best ÷ optimum after a number of trials; ``None`` if a run had measured nothing by then."""
    found = [run.best[min(trials, len(run.best)) - 1] if run.best else None for run in runs]
    known = [value for value in found if value is not None]
    if len(known) < len(found) or not known:
        return None
    return sum(known) / len(known) / optimum
