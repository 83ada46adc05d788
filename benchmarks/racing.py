"""The race for a lane's time: full samples of a space are recorded once, and jobs are replayed on them many times.

``--record FILE`` times every config of a kernel on this machine's first device of its backend. ``--replay FILE`` draws
jobs from that: the share of winners within 1 % of the best, and the lane's time beside that of full sampling.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.direct import Space
from benchmarks.race_replay import Recorded, Recording, Replays
from benchmarks.report import show
from ktuned.backends.contract import Absent
from ktuned.backends.registry import Registry
from ktuned.model import PRESETS, Device, Preset
from ktuned.worker.cuda_timer import GRAPH, GRAPH_LAUNCHES, KNOWN_TO_US, CudaTimer
from ktuned.worker.problem import ProblemData
from ktuned.worker.timing import HostTimer, launches_per_sample

WITHIN = 0.01
GOAL = 0.99
LANE_GOAL = 0.4
"""Share of full sampling's lane time that a race may take."""

MOST_S = 1.0
"""Seconds that one config's recording may take."""


def record(file: Path, count: int, wanted: Mapping[str, str]) -> Recording:
    """Time all configs of the kernel file's first problem, or those with the ``wanted`` knobs, ``count`` times each.

    Raises:
        SystemExit: its backend has no device here.
    """
    space = Space.of(file)
    backend, kernel = Registry().load(space.backend), space.kernel
    devices = backend.devices()
    if isinstance(devices, Absent):
        raise SystemExit(devices.message)
    device = devices[0]
    in_graph = device.kind == "cuda" and kernel.timing == GRAPH
    timer = CudaTimer(device.name, kernel.timing) if device.kind == "cuda" else HostTimer()
    data = ProblemData(kernel, kernel.problem_list()[0], device)
    in_graph = in_graph and not data.restores
    preset = Preset("record", warmup=2, repetitions=count, timing_s=MOST_S, finalists=0, finalist_rounds=0)
    chosen = [
        place
        for place, config in enumerate(space.configs)
        if all(str(config.get(knob)) == value for knob, value in wanted.items())
    ]
    recorded = []
    with tempfile.TemporaryDirectory() as scratch:
        units = [space.units(device.target)[place] for place in chosen]
        for start in range(0, len(units), backend.group_size):
            group = units[start : start + backend.group_size]
            for unit in group:
                Path(scratch, unit.key).mkdir()
            compiled = list(backend.compile(group, Path(scratch)))
            for unit, result in zip(group, compiled, strict=True):
                config = dict(space.configs[int(unit.key)])
                if result.outcome is not None:
                    print(f"left out: {config}: {result.message}")
                    continue
                try:
                    launch = backend.load(Path(scratch, unit.key), unit, device).bind(data.tensors)
                    began = perf_counter()
                    timing = timer.time(launch, preset, restore=data.restore if data.restores else None)
                except Exception as error:
                    print(f"left out: {config}: {error}")
                    continue
                wall_us = (perf_counter() - began) * 1e6
                samples = timing.samples
                launches = GRAPH_LAUNCHES if in_graph else _launches(samples.median_us, device, data)
                cost_us = max(0.0, wall_us / len(samples) - samples.median_us * launches)
                recorded.append(Recorded(config, tuple(samples.taken_us[:count]), launches, cost_us))
                print(f"{len(recorded)}/{len(units)}: {samples.median_us:.2f} µs  {config}", flush=True)
    resolution_us = 0.0 if device.kind == "cpu" else KNOWN_TO_US / (GRAPH_LAUNCHES if in_graph else 1)
    return Recording(f"{kernel.name} on {device.model}", tuple(recorded), resolution_us)


def _launches(median_us: float, device: Device, data: ProblemData) -> int:
    return 1 if device.kind == "cuda" else launches_per_sample(int(median_us * 1000), restores=data.restores)


def replay(recording: Recording, preset: Preset, times: int) -> dict[str, Any]:
    """Replay jobs on a recording."""
    raced = [Replays(recording, preset).run(seed) for seed in range(times)]
    full = [Replays(recording, preset, races=False).run(seed) for seed in range(max(1, times // 5))]
    lane_s = sum(one.lane_s for one in raced) / len(raced)
    full_s = sum(one.lane_s for one in full) / len(full)
    within = sum(one.regret <= WITHIN for one in raced) / times
    return {
        "what": recording.what,
        "configs": len(recording.configs),
        "replays": times,
        "within_1_percent": within,
        "full_within": sum(one.regret <= WITHIN for one in full) / len(full),
        "worst": max(one.regret for one in raced),
        "beaten": sum(one.beaten for one in raced) / times,
        "lane_s": lane_s,
        "full_s": full_s,
        "of_full": lane_s / full_s,
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
