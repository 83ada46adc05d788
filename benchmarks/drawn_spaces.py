"""Made-up kernels that a seed draws, knobs and all: as many as are wanted, so that a constant can be judged on them.

Each has tiles, work for each thread, warps and stages that trade reuse against occupancy, flags and names that matter
only beside other knobs, steps where a cache or alignment ends, 10 to 60 % of configs that fail for want of resources,
and some per cent that no feature explains. A device and a problem of the same kernel are draws of their own, and share
all that belongs to the kernel.

Seeds below :data:`UNSEEN_FROM` are for choosing constants; those from there on are for judging them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.synthetic_spaces import Config, Machine, configs, normal, unit
from ktuned.search import RecordedSpace, record_space

UNSEEN_FROM = 1_000

MAX_CONFIGS = 5_000
"""Configs of one space; a larger one is thinned evenly."""

NAMES = ("rows", "columns", "diagonal", "morton", "blocked")


@dataclass(frozen=True)
class DrawnKernel:
    """A kernel's knobs, and the coefficients of its cost."""

    seed: int
    knobs: Mapping[str, list[Any]]
    failing: float
    unexplained: float
    dice: Mapping[str, float]

    @classmethod
    def of(cls, seed: int) -> DrawnKernel:
        """Draw a kernel."""
        draw = Random(f"kernel {seed}")
        sizes = [8, 16, 32, 64, 128, 256]
        if draw.random() < 0.3:
            sizes = [16, 24, 32, 48, 64, 96, 128]
        low = draw.randrange(2)
        tiles = draw.choice([2, 2, 3])
        knobs: dict[str, list[Any]] = {f"tile_{axis}": sizes[low : low + draw.choice([4, 5])] for axis in "mnk"[:tiles]}
        knobs["work"] = [1, 2, 4, 8] if draw.random() < 0.6 else list(range(1, 9))
        knobs["warps"] = [1, 2, 4, 8, 16][: draw.choice([4, 5])]
        if draw.random() < 0.8:
            knobs["stages"] = list(range(1, draw.choice([4, 5, 6])))
        if draw.random() < 0.7:
            knobs["vector"] = [1, 2, 4]
        if draw.random() < 0.4:
            knobs["unroll"] = [1, 2, 4, 8, 16]
        if draw.random() < 0.6:
            knobs["layout"] = list(NAMES[: draw.choice([3, 4, 5])])
        for flag in range(draw.choice([0, 1, 2])):
            knobs[f"flag_{flag}"] = [False, True]
        names = (
            "reuse", "depth", "latency", "bubble", "vector", "unroll", "layout", "flag_0", "flag_1", "cliff",
            "cliff_at", "align", "tail", "registers", "shared",
        )  # fmt: skip
        return cls(
            seed, knobs, draw.uniform(0.1, 0.6), draw.uniform(0.01, 0.06), {name: draw.random() for name in names}
        )

    def resources(self, c: Config) -> float:
        """Return what one block asks of registers and shared memory, the larger one, without a unit."""
        elements = c["tile_m"] * c["tile_n"]
        registers = 24 * 32 * c["warps"] + elements * (1 + self.dice["registers"]) + 64 * c["warps"] * c["work"]
        shared = (c["tile_m"] + c["tile_n"]) * c.get("tile_k", 16) * c.get("stages", 2) * (0.5 + self.dice["shared"])
        return float(max(registers, shared))

    def latency_us(self, c: Config, machine: Machine, size: int) -> float:
        """Return the time of one config that runs."""
        dice = self.dice
        elements, threads = c["tile_m"] * c["tile_n"], 32 * c["warps"]
        each = elements / threads
        blocks = math.ceil(size / c["tile_m"]) * math.ceil(size / c["tile_n"])
        padded = blocks * elements / size**2
        resident = max(1, min(16, machine.threads // threads, int(200_000 / self.resources(c))))
        waves = math.ceil(blocks / (machine.units * resident))
        filled = blocks / (waves * machine.units * resident)
        occupancy = min(1.0, resident * threads / machine.threads)
        parallel = 1 + math.log2(1 + min(each, 4.0 * c["work"]))
        hidden = 1 - math.exp(-(1.5 + 3 * dice["latency"]) * occupancy * parallel)
        compute = padded / (machine.flops / 1e13 * hidden * filled) * (1 + abs(math.log2(each / c["work"] / 4)) * 0.12)
        reused = 1 / c["tile_m"] + 1 / c["tile_n"]
        traffic = (0.2 + (8 + 24 * dice["reuse"]) * reused) / (machine.bytes_s / 1e12 * min(1.0, 0.25 + filled))
        longer, shorter = max(compute, traffic), min(compute, traffic)
        work = size**2 / 2e4 * (longer + (1 - machine.overlap) * shorter)
        return float(machine.launch_us + work * self._slowdown(c, machine, elements))

    def _slowdown(self, c: Config, machine: Machine, elements: int) -> float:
        dice = self.dice
        slow = 1 + (0.2 + dice["bubble"]) / c.get("stages", 2) + 0.02 * c.get("stages", 2) ** 2 * dice["tail"]
        slow *= 1 + (4 + 8 * dice["depth"]) / c.get("tile_k", 32)
        if c["tile_n"] % (8 * c.get("vector", 1)):
            slow *= 1.1 + dice["align"]
        slow *= 1 + 0.5 * dice["vector"] / c.get("vector", 1)
        slow *= 1 + 0.1 * dice["unroll"] * abs(math.log2(c.get("unroll", 4) * c["work"] / 16))
        if elements * c.get("tile_k", 32) > 2 ** (15 + 5 * dice["cliff_at"]) * machine.shared / 65_536:
            slow *= 1.2 + 2 * dice["cliff"]
        layout = NAMES.index(c.get("layout", NAMES[0]))
        wave = math.sin(7 * dice["layout"] + 2.1 * layout + (c["tile_n"] >= 64) + 0.6 * machine.conflict)
        slow *= 1 + (machine.conflict - 1) * (1 + wave) / 2
        # A flag helps where another knob is large, and costs elsewhere.
        if c.get("flag_0"):
            slow *= 1 + (0.25 if c["work"] <= 2 else -0.2) * dice["flag_0"]
        if c.get("flag_1"):
            slow *= 1 + (0.2 if c["warps"] < 8 else -0.25) * dice["flag_1"] + 0.05 * (machine.overlap - 0.6)
        return float(slow)


def drawn(seed: int, device: int = 0, size: int = 2048) -> RecordedSpace:
    """Return a whole space of the kernel of a seed, for one of its devices and a size of its problem."""
    kernel = DrawnKernel.of(seed)
    found = [c for c in configs(kernel.knobs) if c["tile_m"] * c["tile_n"] >= 32 * c["warps"]]
    if len(found) > MAX_CONFIGS:
        # The same configs for every device and size.
        found = sorted(found, key=lambda c: unit(f"thin {seed}", c))[:MAX_CONFIGS]
    asked = sorted(kernel.resources(c) for c in found)
    limit = asked[min(len(asked) - 1, int((1 - kernel.failing) * len(asked)))]
    if device:
        limit *= Random(f"limit {seed} {device}").uniform(0.6, 1.6)
    machine = Machine.drawn(seed * 100 + device)
    salt = f"drawn {seed} {device} {size}"
    return record_space(
        f"drawn-{seed}-{device}-{size}",
        [
            (c, None if kernel.resources(c) > limit else kernel.latency_us(c, machine, size) * _luck(kernel, salt, c))
            for c in found
        ],
    )


def _luck(kernel: DrawnKernel, salt: str, config: Config) -> float:
    return math.exp(kernel.unexplained * normal(salt, config))
