"""A function whose tuning key is a length: 500 lengths in one program. How many are tuned, and what do the others lose?

    python -m benchmarks.many_lengths [--lengths 500]

Under ``ktuned run`` a program calls an autotuned Triton function once for each length. When the daemon has nothing left
to tune, a second program calls it again, and times every config for every length, too: that is what tuning them all
would have found. Printed are the tunings, and the time of a step over all lengths with the configs that the program
got, with the first config alone, and with the best one of each length. A portfolio serves the lengths that were not
tuned.
"""

import argparse
import importlib
import json
import random
import subprocess
import sys
from threading import Event
from time import monotonic
from typing import Any

from benchmarks.private_daemon import installed_environment, private_home, serving

ROWS = 512
LONGEST = 16384
REPEATS = 3
LAUNCHES = 10
"""Launches in one timing, of which there are :data:`REPEATS` for each config; the median counts."""
PATIENCE_S = 400.0


def choose_lengths(count: int) -> list[int]:
    """Return different lengths, as many short ones as long ones by their logarithm."""
    chance = random.Random(7)
    found: dict[int, None] = {}
    while len(found) < count:
        found[round(2 ** chance.uniform(5, 14))] = None
    return list(found)


def make_function() -> Any:
    """Return the autotuned function, which divides rows by their sums."""
    from benchmarks.many_lengths_kernel import normalize_rows

    return normalize_rows


def call_all(lengths: list[int]) -> None:
    """Call the function once for each length."""
    import torch

    function = make_function()
    for length in lengths:
        x = torch.rand(ROWS, length, device="cuda")
        function[(ROWS,)](x, torch.empty_like(x), length)
    torch.cuda.synchronize()


def compare_all(lengths: list[int]) -> None:
    """Call the function again, and time each config for each length beside the one that it launched."""
    import torch

    function = make_function()
    totals = {"got": 0.0, "first": 0.0, "best": 0.0}
    losses = []
    for length in lengths:
        x = torch.rand(ROWS, length, device="cuda")
        y = torch.empty_like(x)
        function[(ROWS,)](x, y, length)
        got = str(function.best_config)
        chosen = min(function.configs, key=lambda config: time_config(function, config, x, y, length))
        # Timed again: the least of sixteen figures is also the luckiest.
        by_name = {str(config): config for config in function.configs}
        names = {"got": got, "first": str(function.configs[0]), "best": str(chosen)}
        again = {name: time_config(function, by_name[name], x, y, length) for name in {*names.values()}}
        for what, name in names.items():
            totals[what] += again[name]
        losses.append(again[got] / again[names["best"]] - 1)
    print(
        json.dumps(
            {
                "step_ms": {name: round(1e-3 * total, 3) for name, total in totals.items()},
                "lost": f"{100 * (totals['got'] / totals['best'] - 1):.2f} %",
                "first config lost": f"{100 * (totals['first'] / totals['best'] - 1):.1f} %",
                "mean loss": f"{100 * sum(losses) / len(losses):.2f} %",
                "worst loss": f"{100 * max(losses):.0f} %",
            }
        ),
        flush=True,
    )


def record_matrix(lengths: list[int]) -> None:
    """Print what each config takes for each length, in µs, as JSON: what ``tests/adoption`` replays."""
    import torch

    function = make_function()
    rows: dict[str, dict[str, float]] = {}
    for length in lengths:
        x = torch.rand(ROWS, length, device="cuda")
        y = torch.empty_like(x)
        rows[str(length)] = {
            f"{config.kwargs['BLOCK']}/{config.num_warps}": round(time_config(function, config, x, y, length), 2)
            for config in function.configs
        }
    print(json.dumps({"device": torch.cuda.get_device_name(), "latencies_us": rows}))


def time_config(function: Any, config: Any, x: Any, y: Any, length: int) -> float:
    """Return the median of a launch of one config, in µs."""
    cuda: Any = importlib.import_module("torch").cuda

    def launch() -> None:
        function.fn[(ROWS,)](x, y, length, **config.kwargs, num_warps=config.num_warps, num_stages=config.num_stages)

    launch()
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    taken = []
    for _ in range(REPEATS):
        # The device waits until all launches are enqueued.
        cuda._sleep(1_000_000)
        begin.record()
        for _ in range(LAUNCHES):
            launch()
        end.record()
        end.synchronize()
        taken.append(1e3 * begin.elapsed_time(end) / LAUNCHES)
    return float(sorted(taken)[REPEATS // 2])


def wait_until_idle(client: Any) -> list[dict[str, Any]]:
    """Wait until no job is queued or running, twice in a row; return all jobs."""
    end = monotonic() + PATIENCE_S
    is_idle = False
    while monotonic() < end:
        Event().wait(2.0)
        jobs: list[dict[str, Any]] = client.call("jobs", limit=2000)["jobs"]
        kernels = {job["kernel"] for job in jobs}
        builds = [build for kernel in kernels for build in client.call("portfolio", kernel=kernel)["making"]]
        was_idle, is_idle = is_idle, all(one["state"] not in ("queued", "running") for one in (*jobs, *builds))
        if was_idle and is_idle:
            break
    return jobs


def main() -> None:
    """Run both programs around the tuning, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, default=500)
    parser.add_argument("--role", choices=("call", "compare", "record"))
    options = parser.parse_args()
    lengths = choose_lengths(options.lengths)
    if options.role:
        {"call": call_all, "compare": compare_all, "record": record_matrix}[options.role](lengths)
        return
    with private_home() as home, serving(home) as daemon, daemon.client() as client:
        for role in ("call", "compare"):
            words = [sys.executable, "-m", "ktuned", "run", sys.executable, "-m", "benchmarks.many_lengths"]
            words += ["--lengths", str(options.lengths), "--role", role]
            subprocess.run(words, env=installed_environment() | daemon.environment, check=True)
            began = monotonic()
            jobs = wait_until_idle(client)
            tunings = sum(job["reason"] != "portfolio" for job in jobs)
            print(
                f"after {role}: {tunings} tunings of {options.lengths} lengths, and {len(jobs) - tunings} keys "
                f"measured with a portfolio's configs, {monotonic() - began:.0f} s",
                flush=True,
            )
            for kernel in {job["kernel"] for job in jobs}:
                for known in client.call("portfolio", kernel=kernel)["portfolios"]:
                    figures = {name: known[name] for name in ("problems", "expected_loss", "single_loss")}
                    print(f"portfolio of {len(known['configs'])} configs: {json.dumps(figures)}", flush=True)


if __name__ == "__main__":
    main()
