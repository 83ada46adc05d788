"""A GEMM's time on a GPU by a simple model: waves of tiles, padding, and loads that need alignment.

It stands for no device. Its best configs change with the shape as those of real ones do, and it is exact, so that what
a choice loses on it is the choice's fault alone.
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


def time_us(problem: Problem, config: Config) -> float:
    """Return the modelled time; a config whose tiles take more memory than there is fails."""
    m, n, k = (int(problem[name]) for name in "MNK")
    bm, bn, bk, stages = (int(config[name]) for name in ("BM", "BN", "BK", "stages"))
    if (bm + bn) * bk * stages * 2 > 200_000:
        return FAILED
    # A small tile reuses less of what it loads; a deep pipeline hides more of that, once it is full.
    intensity = bm * bn / (bm + bn)
    efficiency = intensity / (intensity + 12) * (0.93 if stages == 2 else 1.0)
    steps = math.ceil(k / bk)
    fill = (stages - 1) * 0.1
    aligned = 1.0 if k % 8 == 0 and n % 8 == 0 else 1.6 if bk == 32 else 1.8
    tile_us = (steps * bm * bn * bk / 9.5e6) / efficiency * aligned + fill + 0.02 * steps
    resident = max(1, min(4, 228_000 // ((bm + bn) * bk * stages * 2)))
    tiles = math.ceil(m / bm) * math.ceil(n / bn) / PROCESSORS
    # The last wave is cut off in part only: blocks do not end at once.
    waves = 0.8 * max(1.0, tiles) + 0.2 * math.ceil(tiles / resident) * resident
    return 2.0 + waves * tile_us


def shapes(count: int, seed: int) -> Iterator[Problem]:
    """Yield shapes as models have them: batches of any size, widths of a few kinds, some of them odd."""
    chance = random.Random(seed)
    for _ in range(count):
        m = round(2 ** chance.uniform(0, 13))
        n, k = (chance.choice((1, 1, 1, 3, 5, 7)) * 2 ** chance.randint(7, 12) for _ in range(2))
        yield {"M": m, "N": n + (chance.random() < 0.15), "K": k}


def matrix(problems: list[Problem], weights: list[float] | None = None) -> Matrix:
    """Return all times of some problems."""
    costs = tuple({canonical(config): time_us(problem, config) for config in CONFIGS} for problem in problems)
    return Matrix(tuple(problems), tuple(weights or [1.0] * len(problems)), costs)
