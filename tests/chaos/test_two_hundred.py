"""Two hundred configs, half of them bad in every way: each has its outcome, and the best one wins."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import TableRow
from tests.chaos.watching import Baseline, ChaosDaemon
from tests.e2e.harness import make_kernel_text
from tests.fake_tensors import REFERENCE

KINDS = (
    ("hang", 20, "hung"),
    ("segfault", 5, "crashed"),
    ("abort", 5, "crashed"),
    ("exit", 5, "crashed"),
    ("overflow", 5, "crashed"),
    ("wrong", 20, "mismatch"),
    ("compile_error", 20, "compile_error"),
    ("compile_child", 9, "compile_timeout"),
    ("compile_detached", 1, "compile_timeout"),
    ("eat", 5, "crashed"),
    ("chatter", 5, "measured"),
    ("work", 100, "measured"),
)
"""What configs do, how many do it, and how they must end."""

DEADLINE_S = 5.0
"""What each config that hangs costs here: more than one that works takes on a busy machine."""

TAKE_OVER_S = 1.5
"""What a hung config may cost its lane beyond its deadline."""

MEMORY = "bench_memory_gib = 0.45\n"
"""Little more than the 0.24 GiB of a worker: on a busy machine, eating more takes longer than a first launch may."""
OPTIONS = {
    "deadlines": f"dict(compile={DEADLINE_S}, first_launch={DEADLINE_S}, floor={DEADLINE_S})",
    "early_stop": "100.0",
}


def make_configs(*, healthy_only: bool = False) -> list[dict[str, Any]]:
    """Return the configs; the best healthy one takes less than half the time of the next, and bad ones promise more."""
    configs: list[dict[str, Any]] = []
    for does, count, outcome in KINDS:
        for index in range(count):
            if outcome == "measured":
                configs.append({"us": 300.0 + 5 * len(configs), "does": does, "tag": f"{does}{index}"})
            elif not healthy_only:
                configs.append({"us": 1.0, "does": does, "tag": f"{does}{index}"})
    configs[-1]["us"] = 120.0
    return configs


def measure_losses(daemon: ChaosDaemon) -> list[float]:
    """Return the time in s that each hung trial cost its lane beyond the deadline, until the next measurement."""
    trials = [daemon.fetch_trial(trial["id"]) for trial in daemon.fetch_trials().values()]
    opened = [trial for trial in trials if "open_s" in trial["detail"]["profile"]]
    on_lane = sorted(opened, key=lambda trial: trial["updated"])
    return [
        trial["lane_s"] + after["detail"]["profile"]["open_s"] - trial["detail"]["failure"]["after_s"]
        for trial, after in itertools.pairwise(on_lane)
        if trial["outcome"] == "hung"
    ]


def find_clean_winner(directory: Path, healthy: list[dict[str, Any]]) -> Mapping[str, Any] | None:
    """Return the winner of a run without bad configs."""
    with ChaosDaemon(directory) as clean:
        job = clean.tune_one(
            path=clean.write_kernel(make_kernel_text(f"space({healthy})", reference=REFERENCE, **OPTIONS))
        )
        assert job["outcomes"] == {"measured": len(healthy)}
        return clean.look_up().config


@pytest.mark.timeout(600)
def test_two_hundred_configs_end_in_their_outcomes(tmp_path: Path, seed: int, table_row: TableRow) -> None:
    """The winner is that of a clean run, a hang costs little, and nothing stays."""
    winner = find_clean_winner(tmp_path / "clean", make_configs(healthy_only=True))
    configs = make_configs()
    with ChaosDaemon(tmp_path / "chaos", config=MEMORY) as daemon:
        cold_s = daemon.tune_once()
        before = Baseline(daemon)
        text = make_kernel_text(f"space({configs})", seed=str(seed), reference=REFERENCE, **OPTIONS)
        path = daemon.write_kernel(text)
        job = daemon.tune_one(path=path)
        trials = daemon.fetch_trials()
        expected = {
            config["tag"]: next(outcome for does, _, outcome in KINDS if does == config["does"]) for config in configs
        }
        outcomes = {tag: trial["outcome"] for tag, trial in trials.items()}
        lost = measure_losses(daemon)
        leaks = before.find_leaks(daemon)
        table_row |= {
            "configs": len(configs),
            "right outcomes": sum(outcomes.get(tag) == outcome for tag, outcome in expected.items()),
            "outcomes": dict(sorted(Counter(outcomes.values()).items())),
            "lost per hang beyond its deadline": f"median {statistics.median(lost):.2f} s, worst {max(lost):.2f} s",
            "a cold lane opens in": f"{cold_s:.2f} s",
            "job": {name: job["cost"].get(name) for name in ("wall_s", "lane_s", "open_s", "compile_s")},
            **leaks,
            "daemon's RSS growth, MiB": before.measure_growth_mib(daemon),
        }
        assert outcomes == expected
        assert job["state"] == "done"
        assert daemon.look_up().config == winner
        assert not any(leaks.values()), daemon.list_stray_files()
        check_crashes(daemon, trials)
    assert not daemon.list_processes()
    assert not list((daemon.home / "cache").glob("tmp/*"))
    assert max(lost) <= TAKE_OVER_S


def check_crashes(daemon: ChaosDaemon, trials: dict[str, dict[str, Any]]) -> None:
    """Check that each kind of crash has its signal."""
    segfault, overflow, abort = (
        daemon.fetch_trial(trials[f"{does}0"]["id"]) for does in ("segfault", "overflow", "abort")
    )
    assert segfault["detail"]["failure"]["signal"] == overflow["detail"]["failure"]["signal"] == "SIGSEGV"
    assert abort["detail"]["failure"]["signal"] == "SIGABRT"
    assert "code 3" in trials["exit0"]["message"]
    assert "out of memory" in trials["eat0"]["message"]
