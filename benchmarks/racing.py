"""The race for a lane's time: full samples of a space are recorded once, and jobs are replayed on them many times.

``--record FILE`` times every config of a kernel on this machine's first device of its backend. ``--replay FILE`` draws
jobs from that: the share of winners within 1 % of the best, and the lane's time beside that of full sampling.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.direct import Space
from benchmarks.race_replay import Recorded, Recording, Replays
from benchmarks.report import show
from ktuned.backends.contract import Absent, Backend, Launch, Unit
from ktuned.backends.registry import Registry
from ktuned.checking.problem_data import ProblemData
from ktuned.measuring.cuda_timer import GRAPH, GRAPH_LAUNCHES, KNOWN_TO_US, CudaTimer
from ktuned.measuring.host_timer import HostTimer, count_launches_per_sample
from ktuned.measuring.race import RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import PRESETS, Device, Preset

WITHIN = 0.01
GOAL = 0.99
LANE_GOAL = 0.4
"""Share of full sampling's lane time that a race may take."""

LEAD_IN_US = 300.0
"""Time of a batch besides its samples on a GPU: the flushes before it, and the host's wait for it."""

PER_ROUND = 20
"""Samples of each config in one round of a recording: as many as a trial takes."""

MOST_S = 0.5
"""Seconds that one config may take in one round."""


@dataclass
class _Taken:
    """One config's samples so far, and the wall time of a launch in each round."""

    config: Mapping[str, Any]
    launch: Launch
    samples_us: list[float] = field(default_factory=list)
    walls_us: list[float] = field(default_factory=list)


def record(file: Path, count: int, wanted: Mapping[str, str]) -> Recording:
    """Time all configs of the kernel file's first problem, or those with the ``wanted`` knobs, ``count`` times each: in
    rounds, in each of which every config has its turn.

    Raises:
        SystemExit: its backend has no device here.
    """
    space = Space.of(file)
    backend, kernel = Registry().load(space.backend), space.kernel
    devices = backend.devices()
    if isinstance(devices, Absent):
        raise SystemExit(devices.message)
    device = devices[0]
    is_gpu = device.kind == "cuda" and not backend.times_on_host
    timer = CudaTimer(device.name, kernel.timing) if is_gpu else HostTimer()
    data = ProblemData(kernel, kernel.list_problems()[0], device)
    in_graph = is_gpu and kernel.timing == GRAPH and not data.restores
    restore = data.restore_inputs if data.restores else None
    chosen = [
        place
        for place, config in enumerate(space.configs)
        if all(str(config.get(knob)) == value for knob, value in wanted.items())
    ]
    with tempfile.TemporaryDirectory() as scratch:
        units = [space.units(device.target)[place] for place in chosen]
        configs = {unit.key: space.configs[int(unit.key)] for unit in units}
        taken = [_Taken(configs[key], launch) for key, launch in _launches(backend, units, device, data, Path(scratch))]
        each = min(PER_ROUND, count)
        preset = Preset("record", warmup=1, repetitions=each, timing_s=MOST_S, finalists=0, finalist_rounds=0)
        for turn in range(-(-count // each)):
            for one in taken:
                began = perf_counter()
                samples = timer.time_launches(TimedLaunches(one.launch, restore=restore), RaceRules(preset)).samples
                one.walls_us.append((perf_counter() - began) * 1e6 / (len(samples) + 1))
                one.samples_us += _exactly(each, samples.taken_us)
            print(f"round {turn + 1} of {-(-count // each)}", flush=True)
    recorded = [_recorded(one, is_gpu, in_graph, restores=data.restores) for one in taken]
    resolution_us = KNOWN_TO_US / (GRAPH_LAUNCHES if in_graph else 1) if is_gpu else 0.0
    what = f"{kernel.name} on {device.model}"
    return Recording(what, tuple(recorded), resolution_us, each, is_quick=is_gpu and not in_graph)


def _launches(
    backend: Backend, units: Sequence[Unit], device: Device, data: ProblemData, scratch: Path
) -> Iterator[tuple[str, Launch]]:
    """Compile and load the units; yield those that run, by their keys."""
    for start in range(0, len(units), backend.group_size):
        group = units[start : start + backend.group_size]
        for unit in group:
            Path(scratch, unit.key).mkdir()
        for unit, result in zip(group, list(backend.compile(group, scratch)), strict=True):
            if result.outcome is not None:
                print(f"left out: {unit.build}: {result.message}")
                continue
            try:
                launch = backend.load(Path(scratch, unit.key), unit, device).bind(data.tensors)
                launch()
            except Exception as error:
                print(f"left out: {unit.build}: {error}")
                continue
            yield unit.key, launch


def _exactly(count: int, samples_us: Sequence[float]) -> list[float]:
    """Return so many samples of one round; those of a config for which there was no time for so many come again."""
    return [*islice(cycle(samples_us), count)]


def _recorded(taken: _Taken, is_gpu: bool, in_graph: bool, *, restores: bool) -> Recorded:
    median_us = statistics.median(taken.samples_us)
    launches = 1
    if in_graph:
        launches = GRAPH_LAUNCHES
    elif not is_gpu:
        launches = count_launches_per_sample(int(median_us * 1000), restores=restores)
    cost_us = max(0.0, statistics.median(taken.walls_us) - median_us * launches)
    return Recorded(dict(taken.config), tuple(taken.samples_us), launches, cost_us, LEAD_IN_US if is_gpu else 0.0)


def replay(recording: Recording, preset: Preset, times: int) -> dict[str, Any]:
    """Replay jobs on a recording."""
    raced = [Replays(recording, preset).run(seed) for seed in range(times)]
    full = [Replays(recording, preset, races=False).run(seed) for seed in range(max(1, times // 5))]
    lane_s = statistics.fmean(one.lane_s for one in raced)
    full_s = statistics.fmean(one.lane_s for one in full)
    within = sum(one.regret <= WITHIN for one in raced) / times
    return {
        "what": recording.what,
        "configs": len(recording.configs),
        "replays": times,
        "within_1_percent": within,
        "full_within": sum(one.regret <= WITHIN for one in full) / len(full),
        "worst": max(one.regret for one in raced),
        "beaten": statistics.fmean(one.beaten for one in raced),
        "close_ones_beaten": sum(one.wronged for one in raced),
        "lane_s": lane_s,
        "full_s": full_s,
        "of_full": lane_s / full_s,
        "final_s": statistics.fmean(one.final_s for one in raced),
        "full_final_s": statistics.fmean(one.final_s for one in full),
        "in_goal": within >= GOAL and lane_s <= LANE_GOAL * full_s,
    }


def main() -> None:
    """Record or replay, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, metavar="FILE", help="time every config, and write FILE (.json.gz)")
    what.add_argument("--replay", type=Path, metavar="FILE", help="replay jobs on FILE (Kernel Tuner's caches, too)")
    parser.add_argument(
        "--kernel", type=Path, default=Path("examples/gpu_gemm/tune_gemm.py"), help="kernel file (default: %(default)s)"
    )
    parser.add_argument("--samples", type=int, default=300, help="of each config (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="KNOB=VALUE", help="configs to record")
    parser.add_argument("--replays", type=int, default=1_000, help="(default: %(default)s)")
    parser.add_argument("--configs", type=int, default=250, help="of the recording (default: %(default)s)")
    parser.add_argument("--preset", choices=PRESETS, default="default", help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.record:
        wanted = dict(pair.split("=", 1) for pair in arguments.only)
        recording = record(arguments.kernel.resolve(), arguments.samples, wanted)
        recording.save(arguments.record)
        print(f"{len(recording.configs)} configs: {arguments.record}")
        return
    recording = Recording.load(arguments.replay).sample(arguments.configs)
    row = replay(recording, PRESETS[arguments.preset], arguments.replays)
    show(f"racing: ≥ {GOAL:.0%} within {WITHIN:.0%}, ≤ {LANE_GOAL:.0%} of full", [row], as_json=arguments.json)


if __name__ == "__main__":
    main()
