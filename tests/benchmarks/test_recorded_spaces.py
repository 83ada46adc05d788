"""Recorded spaces and their replay, by which search is judged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recorded_spaces import mean_relative_best, read_recorded_space, replay_search

SPACE = Path(__file__).parent / "tiles.json.gz"
"""A synthetic space of 2,088 configs of a tiled kernel on an imagined GPU, 164 of which fail."""


def cache(**rows: Any) -> dict[str, Any]:
    """Return a Kernel Tuner cache of configs of one knob."""
    return {
        "tune_params_keys": ["A"],
        "objective": "time",
        "cache": {name: {"A": place, "time": time, "times": [1]} for place, (name, time) in enumerate(rows.items())},
    }


def t4(**rows: Any) -> dict[str, Any]:
    """Return a T4 file of configs of one knob."""
    return {
        "schema_version": "1.0.0",
        "results": [
            {
                "configuration": {"A": place},
                "measurements": [{"name": "time", "value": time, "unit": "ms"}] if isinstance(time, float) else [],
                "objectives": ["time"],
                "invalidity": "correct" if isinstance(time, float) else time,
            }
            for place, time in enumerate(rows.values())
        ],
    }


@pytest.mark.parametrize("make", [cache, t4])
@pytest.mark.parametrize("packed", [False, True])
def test_formats_mean_the_same(tmp_path: Path, make: Any, packed: bool) -> None:
    """A cache file and a T4 file, compressed or not, give configs, objectives and failures."""
    text = json.dumps(make(a=2.5, b="RuntimeFailedConfig", c=1.5)).encode()
    path = tmp_path / "space.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    found = read_recorded_space(path)
    assert found.configs == ({"A": 0}, {"A": 1}, {"A": 2})
    assert found.objectives == (2.5, None, 1.5)
    assert found.optimum == 1.5


def test_runs_count_failures_and_never_rise() -> None:
    """Each trial has its entry, failed ones too, and the best never gets worse."""
    found = read_recorded_space(SPACE)
    for name in ("random", "guided"):
        run = replay_search(found, name, 0, 60)
        assert len(run.best) == 60
        known = [value for value in run.best if value is not None]
        assert run.best[-len(known) :] == tuple(known)
        assert known == sorted(known, reverse=True)
        assert known[-1] >= found.optimum


def test_space_that_ends_ends_the_run() -> None:
    """More trials than configs try them all, and find the optimum."""
    found = read_recorded_space(SPACE)
    run = replay_search(found, "auto", 0, 10_000)
    assert (len(run.best), run.best[-1], run.chosen) == (len(found.configs), found.optimum, "exhaustive")


def test_guided_needs_fewer_configs_than_chance() -> None:
    """After 50 configs guided search is much nearer to the optimum than random search after 100."""
    found = read_recorded_space(SPACE)
    guided = mean_relative_best([replay_search(found, "guided", seed, 50) for seed in range(5)], found.optimum, 50)
    chance = mean_relative_best([replay_search(found, "random", seed, 100) for seed in range(5)], found.optimum, 100)
    assert guided is not None
    assert chance is not None
    assert guided - 1 < 0.6 * (chance - 1)
