"""The host's time for a launch of an autotuned function whose key is decided: with 1, 5 and 20 arguments.

Prints one line of JSON. Run alone it measures Triton's autotuner, under ``ktuned run --wait`` ktuned's.
"""

import json
import statistics
from collections.abc import Callable
from time import perf_counter

import torch
import triton
import triton.language as tl

from benchmarks.library_program import need_gpu

BATCHES, LAUNCHES = 41, 300
"""A batch is short, so that the GPU's queue never fills: a launch into a full queue waits."""

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=1) for block in (32, 64)]


@triton.autotune(CONFIGS, key=[])
@triton.jit
def launch_1(x, BLOCK: tl.constexpr):
    """Write one block."""
    tl.store(x + tl.arange(0, BLOCK), 1.0)


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def launch_5(x, y, n, stride, scale, BLOCK: tl.constexpr):
    """Write one block of a sum."""
    place = tl.arange(0, BLOCK)
    tl.store(x + place * stride, tl.load(y + place * stride) * scale, mask=place < n)


@triton.autotune(CONFIGS, key=["n", "m", "k"])
@triton.jit
def launch_20(
    a, b, c, d, e, f, n, m, k, s0, s1, s2, s3, s4, s5, s6, s7, s8, scale, bias, BLOCK: tl.constexpr
):  # fmt: skip
    """Write one block of a sum of five tensors."""
    place = tl.arange(0, BLOCK)
    total = tl.load(b + place * s0) + tl.load(c + place * s1) + tl.load(d + place * s2) + tl.load(e + place * s3)
    total += tl.load(f + place * s4) + s5 + s6 + s7 + s8 + m + k
    tl.store(a + place, total * scale + bias, mask=place < n)


def time_launch(launch: Callable[[], object]) -> float:
    """Return the median of a launch's time on the host in µs."""
    batches = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(LAUNCHES):
            launch()
        batches.append(1e6 * (perf_counter() - began) / LAUNCHES)
    return statistics.median(batches)


def main() -> None:
    """Decide each key, then time it."""
    need_gpu()
    a, b, c, d, e, f = (torch.ones(1024, device="cuda") for _ in range(6))
    strides = (1, 1, 1, 1, 1, 2, 3, 4, 5)
    launches: dict[str, Callable[[], object]] = {
        "1": lambda: launch_1[(1,)](a),
        "5": lambda: launch_5[(1,)](a, b, 64, 1, 0.5),
        "20": lambda: launch_20[(1,)](a, b, c, d, e, f, 64, 64, 64, *strides, 0.5, 1.5),
    }
    for launch in launches.values():
        launch()
    print(json.dumps({"launch_us": {name: time_launch(launch) for name, launch in launches.items()}}), flush=True)


if __name__ == "__main__":
    main()
