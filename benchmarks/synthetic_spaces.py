"""Spaces of made-up kernels on made-up devices, so that search is judged on more than what was recorded.

Each is an analytic model: arithmetic and memory traffic against a device's limits, occupancy, waves of blocks, spills,
bank conflicts, launches that fail for want of resources, knobs that matter only beside others, and some per cent that
no feature explains. A seed draws the device and the coefficients.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from benchmarks.recorded_spaces import RecordedSpace
from ktuned.model import canonical

Config = Mapping[str, Any]

MAX_CONFIGS = 8_000
"""Configs of one space: more would only cost time; a larger one is thinned evenly."""

UNEXPLAINED = 0.04
"""Deviation of log latency that belongs to each config alone: alignment, scheduling, luck."""


@dataclass(frozen=True)
class Machine:
    """A device: its units, and what a block may have of each resource."""

    seed: int
    units: int
    flops: float
    bytes_s: float
    shared: int
    registers: int
    threads: int
    warp: int
    overlap: float
    spill: float
    conflict: float
    launch_us: float

    @classmethod
    def drawn(cls, seed: int) -> Machine:
        """Draw a device."""
        dice = Random(f"machine {seed}")
        return cls(
            seed=seed,
            units=dice.choice([16, 28, 48, 68, 108, 132]),
            flops=10 ** dice.uniform(12.5, 13.8),
            bytes_s=10 ** dice.uniform(11.4, 12.4),
            shared=dice.choice([32, 48, 64, 100, 164]) * 1024,
            registers=65_536,
            threads=dice.choice([1024, 1536, 2048]),
            warp=dice.choice([32, 32, 32, 64]),
            overlap=dice.uniform(0.3, 0.9),
            spill=dice.uniform(1.5, 5.0),
            conflict=dice.uniform(1.05, 2.0),
            launch_us=dice.uniform(2, 6),
        )


@dataclass(frozen=True)
class Demand:
    """Resources that one config asks of a device; ``slowdown`` is by other effects."""

    flops: float
    traffic: float
    blocks: int
    threads: int
    registers: int
    shared: int
    parallelism: float
    slowdown: float = 1.0


def latency_us(machine: Machine, demand: Demand) -> float | None:
    """Return the time of a launch; ``None`` if it fails."""
    if demand.shared > machine.shared or demand.threads > 1024:
        return None
    registers = min(255, demand.registers)
    if registers * demand.threads > machine.registers:
        return None
    threads = -(-demand.threads // machine.warp) * machine.warp
    resident = min(
        machine.threads // threads,
        machine.registers // (registers * threads),
        2 * machine.shared // demand.shared if demand.shared else 32,
        32,
    )
    resident = max(1, resident)
    waves = math.ceil(demand.blocks / (machine.units * resident))
    filled = demand.blocks / (waves * machine.units * resident)
    occupancy = min(1.0, resident * threads / machine.threads)
    hidden = 1 - math.exp(-3 * occupancy * (1 + math.log2(1 + demand.parallelism)))
    lanes = demand.threads / threads
    compute_s = demand.flops / (machine.flops * lanes * hidden * filled)
    memory_s = demand.traffic / (machine.bytes_s * (0.3 + 0.7 * hidden) * min(1.0, 0.25 + filled))
    longer, shorter = max(compute_s, memory_s), min(compute_s, memory_s)
    seconds = (longer + (1 - machine.overlap) * shorter) * demand.slowdown
    if demand.registers > 255:
        seconds *= machine.spill ** ((demand.registers - 255) / 128)
    return machine.launch_us + seconds * 1e6


def gemm(machine: Machine) -> Iterator[tuple[Config, float | None]]:
    """A matrix product with tiles in shared memory and registers, and pipeline stages."""
    m, n, k = 2048, 1536, 1024
    knobs: Mapping[str, list[Any]] = {
        "BM": [16, 32, 64, 128, 256], "BN": [16, 32, 64, 128, 256], "BK": [8, 16, 32, 64],
        "TM": [1, 2, 4, 8], "TN": [1, 2, 4, 8, 16], "STAGES": [1, 2, 3, 4], "VEC": [1, 2, 4], "SWIZZLE": [False, True],
    }  # fmt: skip
    for c in configs(knobs):
        threads = c["BM"] // c["TM"] * (c["BN"] // c["TN"])
        if not 32 <= threads <= 1024 or c["TN"] % c["VEC"] or c["BK"] * c["BM"] % threads:
            continue
        work = c["TM"] * c["TN"]
        loads = m * n * k * (1 / c["BM"] + 1 / c["BN"]) * 4
        slowdown = 1.0 if c["SWIZZLE"] or c["TN"] < 4 else machine.conflict
        slowdown *= 1 + 0.25 / c["STAGES"] + (0.08 if c["SWIZZLE"] else 0) + (0.2 / c["VEC"])
        slowdown *= 1 + 4 / c["BK"] + (1 / c["TM"] + 1 / c["TN"]) * 0.6
        yield c, latency_us(machine, Demand(
            flops=2.0 * -(-m // c["BM"]) * c["BM"] * -(-n // c["BN"]) * c["BN"] * k,
            traffic=loads / (2 if c["BM"] * c["BN"] > 4096 else 1),
            blocks=-(-m // c["BM"]) * -(-n // c["BN"]),
            threads=threads, registers=24 + work + 2 * (c["TM"] + c["TN"]) + 4 * c["VEC"] + 6 * c["STAGES"],
            shared=c["STAGES"] * (c["BM"] + c["BN"]) * c["BK"] * 4, parallelism=work, slowdown=slowdown,
        ))  # fmt: skip


def convolution(machine: Machine) -> Iterator[tuple[Config, float | None]]:
    """A two-dimensional filter with a halo in shared memory, padding, and a read-only path."""
    size, radius = 2048, 8
    knobs: Mapping[str, list[Any]] = {
        "block_x": [8, 16, 32, 48, 64, 96, 128, 256], "block_y": [1, 2, 4, 8, 16, 32],
        "tile_x": [1, 2, 3, 4, 5, 8], "tile_y": [1, 2, 3, 4, 8], "use_shared": [0, 1], "padding": [0, 1],
        "read_only": [0, 1], "unroll": [1, 3, 17],
    }  # fmt: skip
    for c in configs(knobs):
        threads = c["block_x"] * c["block_y"]
        if not 32 <= threads <= 1024 or (c["padding"] and not c["use_shared"]):
            continue
        wide, high = c["block_x"] * c["tile_x"], c["block_y"] * c["tile_y"]
        halo = (wide + 2 * radius) * (high + 2 * radius)
        reuse = (wide * high) / halo if c["use_shared"] else 0.12 + 0.1 * c["read_only"]
        has_conflicts = c["use_shared"] and not c["padding"] and c["block_x"] % 32
        slowdown = machine.conflict if has_conflicts else 1.0
        slowdown *= 1 + 0.4 / c["unroll"] + 0.3 / (c["tile_x"] * c["tile_y"])
        if c["block_x"] < 32 and not c["use_shared"]:
            slowdown *= 1.5
        blocks = -(-size // wide) * -(-size // high)
        yield c, latency_us(machine, Demand(
            flops=2.0 * blocks * wide * high * (2 * radius + 1) ** 2,
            traffic=size * size * 4 * (1 + 1 / reuse), blocks=blocks, threads=threads,
            registers=18 + 3 * c["tile_x"] * c["tile_y"] * (2 if c["unroll"] == 17 else 1) + c["unroll"],
            shared=c["use_shared"] * 4 * (wide + 2 * radius + c["padding"]) * (high + 2 * radius),
            parallelism=c["tile_x"] * c["tile_y"], slowdown=slowdown,
        ))  # fmt: skip


def stencil(machine: Machine) -> Iterator[tuple[Config, float | None]]:
    """A stencil in three dimensions, bound by memory, with temporal blocking and a plateau where nothing matters."""
    size = 256
    knobs: Mapping[str, list[Any]] = {
        "bx": [16, 32, 64, 128, 256], "by": [1, 2, 4, 8, 16], "bz": [1, 2, 4, 8], "steps": [1, 2, 3, 4],
        "method": ["global", "shared", "registers"], "loop": ["x", "z"], "prefetch": [0, 1, 2], "cache": [0, 1],
    }  # fmt: skip
    for c in configs(knobs):
        threads = c["bx"] * c["by"] * c["bz"]
        if not 64 <= threads <= 1024 or (c["steps"] > 1 and c["method"] == "global"):
            continue
        halo = 2 * c["steps"]
        swept = c["method"] == "registers" and c["loop"] == "z"
        depth = 16 * c["bz"] if swept else c["bz"]
        read = math.prod((side + halo) / side for side in (c["bx"], c["by"], depth))
        shared = {"global": 0, "shared": 1, "registers": 0.5}[c["method"]]
        traffic = size**3 * 8 * (read if c["method"] != "global" else 2.2 - 0.4 * c["cache"]) / c["steps"]
        slowdown = 1 + 0.15 * abs(c["prefetch"] - (1 if swept else 0)) + (0.1 if c["loop"] == "x" and swept else 0)
        yield c, latency_us(machine, Demand(
            flops=size**3 * 14 * read, traffic=traffic, blocks=math.ceil(size**3 / (c["bx"] * c["by"] * depth)),
            threads=threads,
            registers=22 + 12 * c["steps"] * (2 if c["method"] == "registers" else 1) + 6 * c["prefetch"],
            shared=int(shared * 4 * c["steps"] * (c["bx"] + halo) * (c["by"] + halo) * (c["bz"] + halo)),
            parallelism=c["steps"] + c["prefetch"], slowdown=slowdown,
        ))  # fmt: skip


def reduction(machine: Machine) -> Iterator[tuple[Config, float | None]]:
    """A sum over rows: few knobs, a memory bound that many configs reach, and steps at powers of two."""
    number = 2**23
    knobs: Mapping[str, list[Any]] = {
        "threads": list(range(32, 1025, 32)), "each": list(range(1, 17)), "vector": [1, 2, 4],
        "grid": [1, 2, 4, 8, 16, 32], "tree": ["shuffle", "shared", "atomic"],
    }  # fmt: skip
    for c in configs(knobs):
        blocks = machine.units * c["grid"]
        is_power = c["threads"] & (c["threads"] - 1) == 0
        slowdown = {"shuffle": 1.0, "shared": 1.05 if is_power else 1.4, "atomic": 1 + 0.03 * c["grid"]}[c["tree"]]
        slowdown *= 1 + 0.3 / (c["vector"] * c["each"]) + (0.2 if c["each"] % c["vector"] else 0)
        yield c, latency_us(machine, Demand(
            flops=number * 2.0, traffic=number * 4.0, blocks=blocks, threads=c["threads"],
            registers=16 + 3 * c["each"] * c["vector"], shared=c["threads"] * 4 * (c["tree"] == "shared"),
            parallelism=c["each"] * c["vector"], slowdown=slowdown,
        ))  # fmt: skip


Kernel = Callable[[Machine], Iterator[tuple[Config, float | None]]]

KERNELS: Mapping[str, Kernel] = {
    "gemm": gemm,
    "convolution": convolution,
    "stencil": stencil,
    "reduction": reduction,
}


def synthetic(name: str, kernel: Kernel, machine: Machine) -> RecordedSpace:
    """Return a whole space of a kernel, for a device."""
    found = list(kernel(machine))
    if len(found) > MAX_CONFIGS:
        # The same configs for every device.
        found = sorted(found, key=lambda pair: unit(f"thin {name}", pair[0]))[:MAX_CONFIGS]
    noisy = [
        None if value is None else value * math.exp(UNEXPLAINED * normal(f"{name} {machine.seed}", config))
        for config, value in found
    ]
    return RecordedSpace(f"{name}-{machine.seed}", tuple(config for config, _ in found), tuple(noisy))


def configs(knobs: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every combination of values."""
    for values in product(*knobs.values()):
        yield dict(zip(knobs, values, strict=True))


def unit(salt: str, config: Config) -> float:
    """Return a uniform number that belongs to a config."""
    digest = hashlib.blake2b(f"{salt} {canonical(config)}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64


def normal(salt: str, config: Config) -> float:
    """Return a standard normal number that belongs to a config (Box and Muller)."""
    radius = math.sqrt(-2 * math.log(unit(salt, config)))
    return radius * math.cos(2 * math.pi * unit(f"{salt} angle", config))
