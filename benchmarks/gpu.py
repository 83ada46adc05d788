"""The GPU backends: grouped compiles, the pipeline, the winner, many lanes, and compile load beside a timing.

``grouped`` runs anywhere; the others are skipped without a GPU.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.direct import Quiet, Space, burning, compile_seconds, in_new_process
from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.report import show
from ktuned.backends.contract import Absent
from ktuned.backends.cuda import DEFAULT_TARGET, cuda_devices
from ktuned.backends.registry import Registry
from ktuned.model.device import Device

ROOT = Path(__file__).parent.parent
GEMM = ROOT / "examples/gpu_gemm"
SOFTMAX = ROOT / "examples/cuda_softmax"

GROUPED_GOAL = 2.7
PIPELINE_GOAL = 1.15
WINNER_GOAL = 1.01
LANES_GOAL = 0.95

Rows = Sequence[Mapping[str, Any]]


def grouped(arguments: argparse.Namespace) -> tuple[str, Rows]:
    """Compile the same configs alone and in groups of 4; precompiled headers help both."""
    reduce = [
        {"entry": f"row_sums<{threads}, {items}>"}
        for threads in (32, 64, 96, 128, 192, 256, 384, 512)
        for items in (2, 4, 8, 16)
    ]
    gemm, softmax = Space.of(GEMM / "tune_gemm.py"), Space.of(SOFTMAX / "tune_softmax.py")
    cases = {
        "nvrtc: row sums with CUB": ("nvrtc", [str(ROOT / "benchmarks/reduce.cu")], reduce, (False, True)),
        "nvrtc: examples/gpu_gemm": ("nvrtc", *_spread(gemm, 32), (False, True)),
        "tvm_ffi: examples/cuda_softmax": ("tvm_ffi_cuda", *_spread(softmax, 16), (False,)),
    }
    rows = []
    for what, (backend, sources, builds, modes) in cases.items():
        if arguments.only not in what:
            continue
        some = builds[: arguments.configs]
        for headers in modes if arguments.headers == "both" else [arguments.headers == "once"]:
            (alone_s, alone_cpu_s), (together_s, together_cpu_s) = (
                in_new_process(compile_seconds, backend, sources, some, DEFAULT_TARGET, size, headers)
                for size in (1, 4)
            )
            rows.append(
                {
                    "what": what + (", headers precompiled" if headers else ""),
                    "configs": len(some),
                    "alone_cpu_s": alone_cpu_s,
                    "groups_cpu_s": together_cpu_s,
                    "alone_s": alone_s,
                    "groups_of_4_s": together_s,
                    "times": alone_s / together_s,
                    "times_cpu": alone_cpu_s / together_cpu_s,
                    "in_goal": alone_s >= GROUPED_GOAL * together_s,
                }
            )
    return f"grouped compile (goal: {GROUPED_GOAL} times less)", rows


def pipeline(arguments: argparse.Namespace) -> tuple[str, Rows]:
    """Tune the GEMM's whole space without artifacts: in a new daemon, then in one with warm workers."""
    rows = []
    for _ in range(arguments.runs):
        with private_home() as home, serving(home) as daemon:
            project = _project(home, GEMM)
            for state in ("cold", "warm"):
                tuned = _tune(daemon, project, arguments.preset)
                cost = tuned.job["cost"]
                bound_s = max(cost["compile_s"] / tuned.slots, cost["lane_s"] / tuned.lanes)
                rows.append(
                    {
                        "workers": state, "configs": tuned.job["done"], "compile_s": cost["compile_s"],
                        "slots": tuned.slots, "lane_s": cost["lane_s"], "lanes": tuned.lanes,
                        "open_s": cost.get("open_s", 0.0), "first_s": tuned.told[0], "bound_s": bound_s,
                        "trying_s": tuned.trying_s, "ratio": tuned.trying_s / bound_s, "wall_s": cost["wall_s"],
                        "in_goal": tuned.trying_s <= PIPELINE_GOAL * bound_s,
                    }
                )  # fmt: skip
                _make_new(daemon, project)
    return f"pipeline (goal: {PIPELINE_GOAL} times the bound)", rows


def _make_new(daemon: PrivateDaemon, project: Path) -> None:
    """Delete all trials, and edit the source so that everything is compiled again."""
    with daemon.client() as client:
        client.call("forget", kernel="gemm")
    (source,) = project.glob("*.cu")
    source.write_text(source.read_text() + "\nstatic const int another = 1;\n")


def winner(arguments: argparse.Namespace) -> tuple[str, Rows]:
    """Compare the winners of several jobs with the best of all configs, timed on an idle machine."""
    space = Space.of(GEMM / "tune_gemm.py")
    winners = []
    for _ in range(arguments.runs):
        with private_home() as home, serving(home) as daemon:
            _tune(daemon, _project(home, GEMM), arguments.preset)
            with daemon.client() as client:
                found = client.lookup("gemm", dict(space.kernel.list_problems()[0]))
            winners.append(space.configs.index(dict(found.config or {})))
    with tempfile.TemporaryDirectory() as scratch:
        quiet = Quiet(space, _device(), Path(scratch))
        best = quiet.optimum()
        latencies = quiet.in_turns(list(dict.fromkeys([next(iter(best)), *winners])), 25)
    optimum = min(latencies.values())
    rows = [
        {
            "run": number, "winner_us": latencies[index], "optimum_us": optimum, "ratio": latencies[index] / optimum,
            "in_goal": latencies[index] <= WINNER_GOAL * optimum, "config": _words(space.configs[index]),
        }
        for number, index in enumerate(winners, 1)
    ]  # fmt: skip
    return f"winner (goal: {WINNER_GOAL} times the quiet optimum)", rows


def lanes(arguments: argparse.Namespace) -> tuple[str, Rows]:
    """Measure the GEMM's space, compiled beforehand, on one GPU and on several."""
    devices = cuda_devices()
    assert not isinstance(devices, Absent)
    counts = [count for count in (1, 2, 4, 8) if count <= len(devices)]
    rows: list[dict[str, Any]] = []
    for count in counts:
        visible = ",".join(map(str, range(count)))
        with private_home() as home, _environment(CUDA_VISIBLE_DEVICES=visible), serving(home) as daemon:
            project = _project(home, GEMM)
            _tune(daemon, project, "fast")
            with daemon.client() as client:
                client.call("forget", kernel="gemm")
            tuned = _tune(daemon, project, arguments.preset)
        cost = tuned.job["cost"]
        speedup = tuned.trials_per_s / (rows[0]["trials_per_s"] if rows else tuned.trials_per_s)
        rows.append(
            {
                "gpus": count, "lanes": tuned.lanes, "configs": tuned.job["done"], "lane_s": cost["lane_s"],
                "open_s": cost.get("open_s", 0.0), "trying_s": tuned.trying_s, "wall_s": cost["wall_s"],
                "trials_per_s": tuned.trials_per_s, "times": speedup, "of_n": speedup / count,
                "in_goal": speedup >= LANES_GOAL * count,
            }
        )  # fmt: skip
    return f"lanes (goal: {LANES_GOAL} n times faster measuring)", rows


def disturbance(arguments: argparse.Namespace) -> tuple[str, Rows]:
    """Time a short and a long config alone, beside compiles on all cores, and beside compiles placed by ktuned."""
    cores = os.sched_getaffinity(0)
    own = {min(cores)}
    ways = {
        "quiet": (0, None, 0),
        "compiles on all cores": (len(cores), None, 0),
        "niced, off the lane's core": (max(1, len(cores) - 1), cores - own or cores, 19),
    }
    rows = []
    for example in (SOFTMAX / "tune_softmax.py", GEMM / "tune_gemm.py"):
        space = Space.of(example)
        chosen = space.configs.index(dict(space.kernel.default or {}))
        one = Space(space.backend, space.kernel, (space.configs[chosen],), (space.builds[chosen],))
        with tempfile.TemporaryDirectory() as scratch:
            quiet = Quiet(one, _device(), Path(scratch))
            first = 0.0
            for how, (processes, where, nice) in ways.items():
                os.sched_setaffinity(0, own if where else cores)
                with burning(processes, cores=where, nice=nice):
                    samples = sorted(quiet.latency_us(0, "default") for _ in range(arguments.rounds))
                os.sched_setaffinity(0, cores)
                middle = samples[len(samples) // 2]
                first = first or middle
                rows.append(
                    {
                        "what": f"{example.parent.name}, {how}", "rounds": len(samples), "median_us": middle,
                        "lowest_us": samples[0], "highest_us": samples[-1], "against_quiet": middle / first,
                    }
                )  # fmt: skip
    return "disturbance: one config beside compile load", rows


def _spread(space: Space, count: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Return a space's sources, and Builds spread over it, as plain data."""
    step = max(1, len(space.builds) // count)
    return [str(path) for path in space.kernel.source_paths], [build.to_plain() for build in space.builds[::step]][
        :count
    ]


def _project(home: Path, example: Path) -> Path:
    project = home / example.name
    if not project.exists():
        shutil.copytree(example, project)
    return project


@dataclass(frozen=True)
class Tuned:
    """A finished job: its map, its slots and lanes, and the times of its trials' events after its start."""

    job: Mapping[str, Any]
    slots: int
    lanes: int
    told: Sequence[float]

    @property
    def trying_s(self) -> float:
        """Its wall seconds up to the finalists."""
        cost = self.job["cost"]
        return float(cost["wall_s"] - cost.get("finalists_s", 0.0))

    @property
    def trials_per_s(self) -> float:
        """Trials per second once every lane was open: after each lane's first two trials."""
        steady = self.told[2 * self.lanes :]
        return (len(steady) - 1) / (steady[-1] - steady[0])


def _tune(daemon: PrivateDaemon, project: Path, preset: str) -> Tuned:
    """Tune a project's kernel exhaustively."""
    with daemon.client() as client:
        began, told = 0.0, []
        with client.tune(path=project, preset=preset, strategy="exhaustive") as tuning:
            for event in tuning:
                if event["type"] == "job_started":
                    began = perf_counter()
                elif event["type"] == "trial_done":
                    told.append(perf_counter() - began)
        (job,) = tuning.jobs
        status = client.call("status")
    if job["state"] != "done":
        raise RuntimeError(f"the job is {job['state']}: {job['message']}")
    used = sum(lane["device"].startswith("cuda:") for lane in status["lanes"])
    return Tuned(job, status["compile_slots"], used, told)


def _device() -> Device:
    found = Registry().load("nvrtc").devices()
    assert not isinstance(found, Absent)
    return found[0]


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables of this process's environment for a block."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _words(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


MEASURES: dict[str, Callable[[argparse.Namespace], tuple[str, Rows]]] = {
    "grouped": grouped, "pipeline": pipeline, "winner": winner, "lanes": lanes, "disturbance": disturbance,
}  # fmt: skip


def main() -> None:
    """Run the named measurement and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("--preset", default="default", help="the jobs' preset (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="jobs of `pipeline` and `winner` (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="timings of `disturbance` (default: %(default)s)")
    parser.add_argument("--configs", type=int, default=32, help="limit of configs for `grouped` (default: %(default)s)")
    parser.add_argument("--only", default="", help="the cases of `grouped` whose name contains this")
    parser.add_argument(
        "--headers", choices=("both", "never", "once"), default="both", help="precompiled headers for `grouped`"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    absent = cuda_devices()
    if arguments.what != "grouped" and isinstance(absent, Absent):
        reason = f"skipped: {absent.message}"
        show(f"{arguments.what}: {reason}", [{"what": reason}], as_json=arguments.json)
        return
    title, rows = MEASURES[arguments.what](arguments)
    show(title, rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
