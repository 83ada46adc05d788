"""More made-up kernels, kept apart from those that a strategy's constants were chosen on: it is judged on these alone.

They differ in kind from the first family: few configs in which only a handful are good, loops of a CPU whose knobs have
names, knobs that matter only beside others, a sort with steps, and a landscape that no kernel explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from benchmarks.synthetic_spaces import Config, Demand, Kernel, Machine, configs, latency_us, normal


def attention(machine: Machine, scale: int) -> Iterator[tuple[Config, float | None]]:
    """Fused attention: two products in turn and a soft maximum between; a few hundred configs."""
    length, heads, width = 1024 * scale, 16, 64
    knobs: Mapping[str, list[Any]] = {
        "BLOCK_M": [16, 32, 64, 128, 256], "BLOCK_N": [16, 32, 64, 128], "warps": [1, 2, 4, 8], "stages": [1, 2, 3, 4],
        "keep_q": [False, True],
    }  # fmt: skip
    for c in configs(knobs):
        threads = 32 * c["warps"]
        rows, columns = c["BLOCK_M"], c["BLOCK_N"]
        if rows * columns < 16 * threads or rows // 16 < c["warps"] // 4:
            continue
        registers = 32 + (rows * width + rows * columns) // threads + (rows * width // threads // 2) * c["keep_q"]
        bubbles = 1 + 0.5 / c["stages"] ** 2 + 12 / columns + 0.1 * (c["warps"] == 8 and rows < 128)
        yield c, latency_us(machine, Demand(
            flops=4.0 * heads * length * length * width * (1 if c["keep_q"] else 1.06),
            traffic=heads * length * width * 4 * (2 + 2 * length / rows), blocks=heads * -(-length // rows),
            threads=threads, registers=registers, shared=4 * width * (columns * c["stages"] + rows * (not c["keep_q"])),
            parallelism=rows * columns / threads / 8, slowdown=bubbles,
        ))  # fmt: skip


def transposition(machine: Machine, scale: int) -> Iterator[tuple[Config, float | None]]:
    """A copy through shared memory, where padding or a swizzle matters only for some tiles."""
    size = 2048 * scale
    knobs: Mapping[str, list[Any]] = {
        "tile": [8, 16, 24, 32, 48, 64, 96, 128], "rows": [1, 2, 4, 8, 16, 32], "vector": [1, 2, 4],
        "layout": ["plain", "padded", "swizzled"], "order": ["rows", "columns", "diagonal", "morton"], "evict": [0, 1],
    }  # fmt: skip
    for c in configs(knobs):
        threads = c["tile"] * c["rows"] // c["vector"]
        if not 32 <= threads <= 1024 or c["rows"] > c["tile"] or c["tile"] % c["vector"]:
            continue
        if c["layout"] == "swizzled" and c["tile"] & (c["tile"] - 1):
            continue
        conflicts = machine.conflict**2 if c["layout"] == "plain" and c["tile"] % 32 == 0 else 1.0
        camping = {"rows": 1.25, "columns": 1.3, "diagonal": 1.0, "morton": 1.04}[c["order"]]
        coalesced = 1 if c["tile"] * 4 % 128 == 0 else 1.35 if c["tile"] * 4 % 64 == 0 else 1.9
        index = {"plain": 1.0, "padded": 1.02, "swizzled": 1.05}[c["layout"]]
        evicted = 0.96 if c["evict"] and c["order"] in ("rows", "columns") else 1.0
        yield c, latency_us(machine, Demand(
            flops=size * size * 4.0 / c["vector"], traffic=size * size * 8.0 * coalesced,
            blocks=(-(-size // c["tile"])) ** 2, threads=threads, registers=14 + 2 * c["tile"] // c["rows"],
            shared=4 * c["tile"] * (c["tile"] + (c["layout"] == "padded")),
            parallelism=c["tile"] // c["rows"] * c["vector"], slowdown=conflicts * camping * index * evicted,
        ))  # fmt: skip


def loops(machine: Machine, scale: int) -> Iterator[tuple[Config, float | None]]:
    """A product on a CPU: three tile sizes against two caches, the order of its loops, unrolling, threads, packing."""
    size = 384 * scale
    near, far = machine.shared // 2, machine.shared * 16
    cores = machine.units // 4
    knobs: Mapping[str, list[Any]] = {
        "ti": [8, 16, 32, 64, 128, 256], "tj": [8, 16, 32, 64, 128, 256], "tk": [8, 16, 32, 64, 128, 256],
        "order": ["ijk", "ikj", "jik", "jki", "kij", "kji"], "unroll": [1, 2, 4, 8, 16], "pack": [False, True],
        "threads": [cores // 2, cores, 2 * cores],
    }  # fmt: skip
    for c in configs(knobs):
        held = 4 * (c["ti"] * c["tk"] + c["tk"] * c["tj"] + c["ti"] * c["tj"])
        inner = 4 * (c["tk"] * c["tj"] if c["order"][0] == "i" else c["ti"] * c["tk"])
        stride = {"j": 1.0, "k": 1.7, "i": 3.0}[c["order"][2]]
        if c["pack"]:
            stride = 1 + 0.25 * (stride - 1)
        misses = 1 + 2.5 * _above(held, far) + 0.8 * _above(inner, near)
        unrolled = 1 + 0.6 / c["unroll"] + 0.4 * _above(c["unroll"] * (2 if c["order"][2] == "j" else 3), 24)
        pieces = math.ceil(size / c["ti"]) * (math.ceil(size / c["tj"]) if c["order"][0] != "k" else 1)
        used = min(c["threads"], cores * 1.1)
        balance = math.ceil(pieces / c["threads"]) * c["threads"] / pieces
        overhead = 1 + 16 / c["tk"] + 8 / c["tj"] + (0.08 + 6 / c["ti"]) * c["pack"]
        seconds = 2.0 * size**3 / (machine.flops / 60 * used / cores) * stride * misses * unrolled * balance * overhead
        yield c, machine.launch_us + seconds * 1e6


def sort(machine: Machine, scale: int) -> Iterator[tuple[Config, float | None]]:
    """A radix sort: passes that come in steps, and knobs that belong to one algorithm each."""
    number = 2**21 * scale
    knobs: Mapping[str, list[Any]] = {
        "bits": [2, 3, 4, 5, 6, 7, 8], "threads": [64, 128, 192, 256, 384, 512], "each": list(range(2, 25)),
        "rank": ["match", "atomic", "scan"], "scatter": ["direct", "shared"],
    }  # fmt: skip
    for c in configs(knobs):
        passes = -(-32 // c["bits"])
        bins = 2 ** c["bits"]
        tile = c["threads"] * c["each"]
        ranking = {"match": 1 + 0.09 * c["bits"], "atomic": 1.2 + 8 / bins, "scan": 0.9 + bins / 48}[c["rank"]]
        if c["rank"] == "scan" and c["bits"] > 6:
            continue
        scattered = 1.1 if c["scatter"] == "shared" else 1 + 0.7 * min(1.0, 4 * bins / tile * 4)
        odd = 1.0 if c["each"] % 2 else 1.04
        shared = 4 * tile * (c["scatter"] == "shared") + 4 * bins * (c["threads"] // 32 if c["rank"] != "scan" else 16)
        yield c, latency_us(machine, Demand(
            flops=number * passes * 24.0 * ranking, traffic=number * passes * 8.0 * scattered * (1 + 6 * bins / tile),
            blocks=-(-number // tile), threads=c["threads"], registers=24 + 4 * c["each"], shared=shared,
            parallelism=c["each"], slowdown=odd,
        ))  # fmt: skip


def rugged(machine: Machine, scale: int) -> Iterator[tuple[Config, float | None]]:
    """A landscape of random main effects and pairs, smooth along half of the knobs, without any order on the others."""
    knobs: Mapping[str, list[Any]] = {
        "a": [1, 2, 4, 8, 16], "b": [1, 2, 4, 8], "c": [0, 1, 2, 3, 4, 5], "d": ["p", "q", "r", "s"], "e": [0, 1],
        "f": ["u", "v", "w"],
    }  # fmt: skip
    names = list(knobs)
    salt = f"rugged {machine.seed} {scale}"
    pairs = [(one, other) for number, one in enumerate(names) for other in names[: number + 1]]
    tables = {}
    for pair in pairs:
        dice = Random(f"{salt} {pair}")
        size = 0.12 * dice.expovariate(1.0)
        smooth = [dice.uniform(0, 1) for _ in range(4)]
        for first, one in enumerate(knobs[pair[0]]):
            for second, other in enumerate(knobs[pair[1]]):
                wave = math.sin(3 * (smooth[0] + first * smooth[1]) + 3 * (smooth[2] + second * smooth[3]) * 0.7)
                is_smooth = pair[0] in "abc" and pair[1] in "abc"
                tables[*pair, one, other] = size * (wave if is_smooth else dice.gauss(0, 1))
    for c in configs(knobs):
        effect = sum(tables[one, other, c[one], c[other]] for one, other in pairs)
        yield c, 100 * math.exp(effect + 0.05 * normal(salt, c))


def _above(size: float, limit: float) -> float:
    """Return by how many doublings a size exceeds a limit, rounded off below it."""
    return math.log2(1 + (size / limit) ** 2) / 2


UNSEEN: Mapping[str, Kernel] = {
    "attention": attention,
    "transposition": transposition,
    "loops": loops,
    "sort": sort,
    "rugged": rugged,
}
