"""A lane's seconds: live jobs from nothing, where their lane's time went, and what full sampling would have taken.

Each run has a new daemon, and a new home; ``wall_of_bound`` is of a second job in it, after an edit of the sources,
when all workers are warm. ``sampling_s`` is the part of the lane's time in which configs were timed; ``full_s`` is the
lane's time with that replaced by what the same timer takes to sample the same artifacts in full, in this process. The
winners of all runs are timed again at the end, in turns with the best of all configs.
"""

import argparse
import os
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any

from benchmarks.direct import Space, timer_for
from benchmarks.private_daemon import private_home, serving
from benchmarks.report import show
from benchmarks.sides import in_turns
from ktuned.backends import Absent, Launch, Registry, Unit
from ktuned.checking.problem_data import ProblemData
from ktuned.ipc.places import locate_artifact
from ktuned.measuring.host_timer import HostTimer
from ktuned.measuring.race import RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import PRESETS, Device
from ktuned_client import Client

LANE_GOAL = 0.4
"""Share of full sampling's lane time that a job may take."""

WALL_GOAL = 1.10
COLD_GOAL_S = 3.0
WINNER_GOAL = 1.01
RETIMED = 8
"""The fastest configs by any run's figures that are timed again beside the winners."""

ROUNDS = 15
_PAGE = 100


@dataclass(frozen=True)
class Run:
    """One job from nothing, its trials with their details, when the first of them was measured, and its winner; and the
    cost of the same job with warm workers.
    """

    first_s: float
    job: Mapping[str, Any]
    warm_cost: Mapping[str, float]
    slots: int
    lanes: int
    trials: Sequence[Mapping[str, Any]]
    winner: Mapping[str, Any]
    artifacts: Path

    @property
    def phases(self) -> Mapping[str, float]:
        """The lane's seconds by phase; what lies between is ``other``."""
        spent: Counter[str] = Counter()
        for trial in self.trials:
            spent.update(trial["detail"].get("profile", {}).get("phase_s") or {})
        lane_s = float(self.job["cost"]["lane_s"])
        return {**{name: round(seconds, 4) for name, seconds in spent.items()}, "other": lane_s - spent.total()}


class Direct:
    """The configs of a kernel file, loaded in this process from the artifacts of a job, and a timer."""

    def __init__(self, file: Path, artifacts: Path, trials: Sequence[Mapping[str, Any]], preset: str) -> None:
        space = Space.of(file)
        backend, kernel = Registry().load(space.backend), space.kernel
        found = backend.devices()
        if isinstance(found, Absent):
            raise SystemExit(found.message)
        self.device: Device = found[0]
        self._preset = PRESETS[preset]
        self._timer = timer_for(kernel, backend, self.device)
        self._data = ProblemData(kernel, kernel.list_problems()[0], self.device)
        units = space.units(self.device.target)
        self.launches: dict[str, Launch] = {}
        for trial in trials:
            if trial["outcome"] == "measured":
                unit: Unit = units[space.configs.index(trial["config"])]
                loaded = backend.load(locate_artifact(artifacts, trial["artifact"]), unit, self.device)
                self.launches[_words(trial["config"])] = loaded.bind(self._data.tensors)

    def full_sampling_s(self) -> float:
        """Return the seconds that sampling every config in full takes, after one launch of each."""
        restore = self._data.restore_inputs if self._data.restores else None
        spent_s = 0.0
        for launch in self.launches.values():
            launch()
            self._timer.synchronize()
            began = perf_counter()
            self._timer.time_launches(TimedLaunches(launch, restore=restore), RaceRules(self._preset))
            spent_s += perf_counter() - began
        return spent_s

    def in_turns_us(self, configs: Sequence[str]) -> dict[str, float]:
        """Return the medians of configs that are timed in turns."""
        if isinstance(self._timer, HostTimer):
            rules = RaceRules(self._preset)
            timed = [self._timer.time_launches(TimedLaunches(self.launches[one]), rules) for one in configs]
            found = [timing.samples.median_us for timing in timed]
        else:
            found = in_turns([self.launches[one] for one in configs], self.device.name, ROUNDS)
        return dict(zip(configs, found, strict=True))


def run(file: Path, preset: str, home: Path) -> Run:
    """Tune a kernel file's whole space in a new daemon.

    Raises:
        RuntimeError: the job fails.
    """
    project = home / "project"
    shutil.copytree(
        file.parent, project, ignore=lambda _, names: [name for name in names if not _is_needed(file, name)]
    )
    _edit(project)
    with serving(home) as daemon, daemon.client() as client:
        began = perf_counter() - daemon.ready_s
        job, first_at = _tune(client, project / file.name, preset)
        trials = list(_trials(client, job["kernel"]))
        status = client.call("status")
        used = sum(lane["device"].startswith("cuda:") for lane in status["lanes"]) or 1
        winner = client.lookup(job["kernel"], job["problem"]).config or {}
        _edit(project)
        again, _ = _tune(client, project / file.name, preset)
    artifacts = Path(status["artifacts"]["directory"])
    return Run(first_at - began, job, again["cost"], status["compile_slots"], used, trials, winner, artifacts)


def _edit(project: Path) -> None:
    """Give the sources other bytes, so that all is compiled again, while headers are found in the user's cache."""
    for source in (*project.glob("*.cu"), *project.glob("*.cc")):
        source.write_text(f"{source.read_text()}\nstatic const int run_{time_ns()} = 0;\n")


def _tune(client: Client, file: Path, preset: str) -> tuple[Mapping[str, Any], float]:
    """Return the job that tunes a kernel file's whole space, and when its first config was measured."""
    first_at = 0.0
    with client.tune(path=file, preset=preset, strategy="exhaustive", trials=10_000) as tuning:
        for event in tuning:
            if event["type"] == "trial_done" and not first_at:
                first_at = perf_counter()
    (job,) = tuning.jobs
    if job["state"] != "done":
        raise RuntimeError(f"the job is {job['state']}: {job['message']}")
    return job, first_at


def _trials(client: Client, kernel: str) -> Iterator[Mapping[str, Any]]:
    """Yield all trials with their details, page by page."""
    before: dict[str, int] = {}
    while page := client.call("results", kernel=kernel, limit=_PAGE, details=True, order="newest", **before)["trials"]:
        yield from page
        before = {"before": page[-1]["id"]}


def _is_needed(file: Path, name: str) -> bool:
    return name == file.name or not name.endswith(".py")


def measured(file: Path, preset: str, runs: int) -> list[dict[str, Any]]:
    """Return a row for each run, with its winner timed again."""
    rows: list[dict[str, Any]] = []
    winners: list[str] = []
    fastest: dict[str, float] = {}
    for number in range(1, runs + 1):
        with private_home() as home:
            one = run(file, preset, home)
            cost = one.job["cost"]
            warm = one.warm_cost
            bound_s = max(warm["compile_s"] / one.slots, warm["lane_s"] / one.lanes)
            winners.append(_words(one.winner))
            for trial in one.trials:
                if trial["latency_us"] is not None:
                    words = _words(trial["config"])
                    fastest[words] = min(trial["latency_us"], fastest.get(words, trial["latency_us"]))
            rows.append(
                {
                    "what": f"{one.job['kernel']} ({preset}), run {number}", "configs": one.job["done"],
                    "cold_start_s": one.first_s, "lane_s": cost["lane_s"], "final_s": cost.get("finalists_s", 0.0),
                    **_by_phase(one.phases),
                    "beaten": sum(bool(trial["detail"].get("timing", {}).get("beaten")) for trial in one.trials),
                    "wall_of_bound": (warm["wall_s"] - warm.get("finalists_s", 0.0)) / bound_s, "bound_s": bound_s,
                }
            )  # fmt: skip
            if number == runs:
                direct = Direct(file, one.artifacts, one.trials, preset)
                best = sorted(direct.launches, key=fastest.__getitem__)[:RETIMED]
                full_sampling_s = direct.full_sampling_s()
                again = direct.in_turns_us(list(dict.fromkeys([*best, *winners])))
    optimum_us = min(again.values())
    for row, winner in zip(rows, winners, strict=True):
        full_s = row["lane_s"] - row["sampling_s"] + full_sampling_s
        row |= {
            "full_s": full_s,
            "of_full": row["lane_s"] / full_s,
            "sampling_of_full": row["sampling_s"] / full_sampling_s,
            "winner_of_best": again[winner] / optimum_us,
            "winner": winner,
        }
    return rows


def _by_phase(phases: Mapping[str, float]) -> dict[str, float]:
    return {
        "loading_s": phases.get("load", 0.0),
        "first_launch_s": phases.get("first_launch", 0.0),
        "checks_s": phases.get("check", 0.0),
        "sampling_s": phases.get("timing", 0.0) + phases.get("load_next", 0.0),
        "other_s": phases["other"],
    }


def _words(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={config[name]}" for name in sorted(config))


def main() -> None:
    """Tune the named kernel files, and print where their lanes' time went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kernels", nargs="+", type=Path, metavar="FILE", help="kernel files of one kernel each")
    parser.add_argument("--preset", choices=PRESETS, default="default", help="(default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("PEER_SGEMM_SIZE", "2048")
    title = (
        f"lane seconds: ≤ {LANE_GOAL:.0%} of full, winner ≤ {WINNER_GOAL}, wall ≤ {WALL_GOAL} × bound, "
        f"cold start ≤ {COLD_GOAL_S:g} s"
    )
    for file in arguments.kernels:
        rows = measured(file.resolve(), arguments.preset, arguments.runs)
        lane_s = statistics.median(row["lane_s"] for row in rows)
        show(f"{title}; {file.name}: median {lane_s:.3f} s of lane", rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
