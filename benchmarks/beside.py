"""Tuning beside a training program: how long twelve keys take, and what they cost the program's steps.

A step is matrix products of torch that take the GPU ``--step-ms``, and a launch of each of twelve keys of three
autotuned functions. First the program launches the keys' first configs without a tuner, which gives the step that all
others are compared with. Then it calls the tuners under ``ktuned run`` until all keys have their winners, and then the
first configs again.
``--ranks 2`` makes two processes on two GPUs, which add up a tensor in every step, so that each waits for the other.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

ALONE_S = 4.0
"""Time for the steps that the others are compared with."""

WARM_UP_S = 3.0
KEYS = 12
TOKENS = 1024
STOP_DEADLINE_S = 30.0


def main() -> None:
    """Run the program under ``ktuned run``, or be a rank of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=10.0, help="time of a step on the GPU alone")
    parser.add_argument("--pause-every", type=int, default=0, help="steps between two pauses; 0 for none")
    parser.add_argument("--pause-s", type=float, default=1.0, help="length of such a pause, in seconds")
    parser.add_argument("--seconds", type=float, default=120.0, help="longest time that the program waits for winners")
    parser.add_argument("--ranks", type=int, default=1, help="number of processes, each on a GPU of its own")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank >= 0:
        step_until_tuned(options)
    elif "KTUNED_RUN_SUMMARY" in os.environ:
        arguments = [sys.executable, "-m", "benchmarks.beside", *sys.argv[1:], "--rank"]
        ranks = [subprocess.Popen([*arguments, str(rank)]) for rank in range(options.ranks)]
        sys.exit(max(rank.wait() for rank in ranks))
    else:
        run_under_ktuned()


def run_under_ktuned() -> None:
    """Run this module under ``ktuned run`` with a daemon of its own, whose store is empty."""
    with tempfile.TemporaryDirectory(prefix="ktuned-bench-") as name:
        home = Path(name)
        own = {
            "KTUNED_HOME": str(home / "state"),
            "KTUNED_SOCKET": str(home / "run/ktuned.sock"),
            "TRITON_CACHE_DIR": str(home / "cache"),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29511",
        }
        ktuned = [sys.executable, "-m", "ktuned"]
        subprocess.run([*ktuned, "start", "--log-level", "debug"], env=os.environ | own, check=True)
        try:
            subprocess.run(
                [*ktuned, "run", sys.executable, "-m", "benchmarks.beside", *sys.argv[1:]],
                env=os.environ | own,
                check=False,
            )
        finally:
            subprocess.run([*ktuned, "stop"], env=os.environ | own, timeout=STOP_DEADLINE_S, check=False)


class Stretch:
    """The times of the steps in one stretch of the program."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._took: list[float] = []
        self._began = perf_counter()

    def add_step(self, seconds: float) -> None:
        """Add a step."""
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        """The time since the stretch began."""
        return perf_counter() - self._began

    def describe(self, *alone: "Stretch") -> dict[str, Any]:
        """Return the figures; with their ratios to the mean of others, because a GPU that works becomes slower."""
        found: dict[str, Any] = {
            "stretch": self._name,
            "seconds": sum(self._took),
            "steps": len(self._took),
            "median_ms": 1e3 * statistics.median(self._took),
            "mean_ms": 1e3 * statistics.fmean(self._took),
            "p90_ms": 1e3 * statistics.quantiles(self._took, n=10)[-1],
        }
        for name in ("median", "mean") if alone else ():
            found[f"{name}_ratio"] = found[f"{name}_ms"] / statistics.fmean(
                one.describe()[f"{name}_ms"] for one in alone
            )
        return found


def step_until_tuned(options: argparse.Namespace) -> None:
    """Make steps as one rank: alone, beside the tuning, and with the winners; print a line of JSON for each stretch."""
    import torch

    torch.cuda.set_device(options.rank)
    torch.manual_seed(options.rank)
    exchange = _join_ranks(options)
    plain, tuned, count_tuned = make_calls()
    work = _make_work(options.step_ms / 1e3)

    def take_steps(stretch: Stretch, calls: Sequence[Callable[[], object]], is_over: Callable[[], bool]) -> None:
        number = 0
        while True:
            began = perf_counter()
            for call in calls:
                call()
            work()
            # Ranks end a stretch together, by what all of them know.
            is_last = exchange(is_over())
            torch.cuda.synchronize()
            stretch.add_step(perf_counter() - began)
            number += 1
            if is_last:
                return
            if options.pause_every and number % options.pause_every == 0:
                Event().wait(options.pause_s)

    def report(**found: Any) -> None:
        print(json.dumps({"rank": options.rank, **found}), flush=True)

    began = perf_counter()
    for call in plain:
        call()
    torch.cuda.synchronize()
    report(stretch="first step", seconds=perf_counter() - began)
    take_steps(warm := Stretch("warm-up"), plain, lambda: warm.seconds > WARM_UP_S)
    take_steps(alone := Stretch("alone"), plain, lambda: alone.seconds > ALONE_S)
    report(**alone.describe())
    beside, switched = Stretch("beside"), 0

    def is_over() -> bool:
        nonlocal switched
        now = count_tuned()
        if now != switched:
            switched = now
            report(at_s=beside.seconds, keys=now)
        return now >= KEYS or beside.seconds > options.seconds

    take_steps(beside, tuned, is_over)
    keys = count_tuned()
    take_steps(again := Stretch("alone again"), plain, lambda: again.seconds > ALONE_S)
    report(**again.describe())
    report(keys=keys, **beside.describe(alone, again))


def _join_ranks(options: argparse.Namespace) -> Callable[[bool], bool]:
    """Return the function by which ranks wait for each other in each step, and agree on whether a stretch is over."""
    import torch

    if options.ranks == 1:
        return lambda is_over: is_over
    torch.distributed.init_process_group("nccl", rank=options.rank, world_size=options.ranks)
    gradients = torch.zeros(1 << 20, device="cuda")

    def exchange(is_over: bool) -> bool:
        gradients[0] = float(is_over)
        torch.distributed.all_reduce(gradients)
        return bool(gradients[0] == options.ranks)

    return exchange


def _make_work(seconds: float) -> Callable[[], None]:
    """Return matrix products that take the GPU so long."""
    import torch

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)

    def multiply(times: int) -> float:
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(times):
            torch.mm(a, a, out=out)
        torch.cuda.synchronize()
        return perf_counter() - began

    multiply(500)
    times = max(1, round(seconds / (multiply(500) / 500)))

    def work() -> None:
        for _ in range(times):
            torch.mm(a, a, out=out)

    return work


def make_calls() -> tuple[list[Callable[[], object]], list[Callable[[], object]], Callable[[], int]]:
    """Return a call of each key without its tuner, the same with it, and what counts the keys that have a winner."""
    import torch

    from benchmarks import beside_kernels as kernels

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.float16)

    calls: list[tuple[Any, tuple[Any, ...], Callable[[dict[str, Any]], tuple[int, ...]]]] = []
    for size in (256, 512, 768, 1024):
        x, y, wide = draw(TOKENS, size), draw(TOKENS, size), draw(size, size)
        calls.append((kernels.gate, (x, y, torch.empty_like(x), x.numel(), size), kernels.gate_grid))
        calls.append((kernels.normalise, (x, torch.empty_like(x), TOKENS, size), kernels.normalise_grid))
        calls.append((kernels.product, (x, wide, torch.empty_like(x), TOKENS, size, size), kernels.product_grid))

    def call_plainly(tuner: Any, arguments: tuple[Any, ...], grid: Any) -> Callable[[], object]:
        config = tuner.configs[0].all_kwargs()
        shape = grid(dict(zip(tuner.arg_names, arguments, strict=False)) | config)
        return lambda: tuner.fn[shape](*arguments, **config)

    def call_tuned(tuner: Any, arguments: tuple[Any, ...], grid: Any) -> Callable[[], object]:
        return lambda: tuner[grid](*arguments)

    def count_tuned() -> int:
        dropin = sys.modules.get("ktuned.dropin")
        return 0 if dropin is None else list(dropin.account.keys.values()).count("tuned")

    assert len(calls) == KEYS
    return [call_plainly(*one) for one in calls], [call_tuned(*one) for one in calls], count_tuned


if __name__ == "__main__":
    main()
