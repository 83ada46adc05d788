"""A GEMM's time on a GPU by a simple model: waves of tiles, padding, and loads that need alignment.

The model stands for no device. Its best configs change with the shape as on real devices, and it is exact: a loss
on it is the fault of the choice alone.
"""

import math
import random
from collections.abc import Iterator

from ktuned.model import Config, Problem, canonical
from ktuned.portfolio import FAILED, Matrix

PROCESSORS = 132
TILES = (16, 32, 64, 128, 256)
CONFIGS = [
    {"BM": bm, "BN": bn, "BK": bk, "stages": stages}
    for bm in TILES
    for bn in TILES
    for bk in (32, 64)
    for stages in (2, 4)
    if bm * bn <= 128 * 256
]


def compute_time_us(problem: Problem, config: Config) -> float:
    """Return the modelled time; a config whose tiles exceed the memory fails."""
    m, n, k = (int(problem[name]) for name in "MNK")
    bm, bn, bk, stages = (int(config[name]) for name in ("BM", "BN", "BK", "stages"))
    if (bm + bn) * bk * stages * 2 > 200_000:
        return FAILED
    # A small tile reuses less data; a deep pipeline hides more loads, once it is full.
    intensity = bm * bn / (bm + bn)
    efficiency = intensity / (intensity + 12) * (0.93 if stages == 2 else 1.0)
    steps = math.ceil(k / bk)
    fill = (stages - 1) * 0.1
    alignment_factor = 1.0 if k % 8 == 0 and n % 8 == 0 else 1.6 if bk == 32 else 1.8
    tile_us = (steps * bm * bn * bk / 9.5e6) / efficiency * alignment_factor + fill + 0.02 * steps
    resident = max(1, min(4, 228_000 // ((bm + bn) * bk * stages * 2)))
    tiles = math.ceil(m / bm) * math.ceil(n / bn) / PROCESSORS
    # The last wave is only partly lost, because blocks do not end at the same time.
    waves = 0.8 * max(1.0, tiles) + 0.2 * math.ceil(tiles / resident) * resident
    return 2.0 + waves * tile_us


def generate_shapes(count: int, seed: int) -> Iterator[Problem]:
    """Yield shapes as models have them: batches of any size, and a few kinds of widths, some of them odd."""
    rng = random.Random(seed)
    for _ in range(count):
        m = round(2 ** rng.uniform(0, 13))
        n, k = (rng.choice((1, 1, 1, 3, 5, 7)) * 2 ** rng.randint(7, 12) for _ in range(2))
        yield {"M": m, "N": n + (rng.random() < 0.15), "K": k}


def make_matrix(problems: list[Problem], weights: list[float] | None = None) -> Matrix:
    """Return the times of all configs for some problems."""
    costs = tuple({canonical(config): compute_time_us(problem, config) for config in CONFIGS} for problem in problems)
    return Matrix(tuple(problems), tuple(weights or [1.0] * len(problems)), costs)
