"""A real kernel that is measured here: sorting numbers by several algorithms, compiled by a C compiler."""

import ctypes
import random
import subprocess
from pathlib import Path
from time import thread_time_ns

from ktuned.model import Config, Problem, canonical
from ktuned.portfolio import Matrix

SOURCE = """
#include <stdint.h>
#include <string.h>
static void insertion(uint32_t *x, long n) {
    for (long i = 1; i < n; i++) {
        uint32_t value = x[i];
        long j = i;
        for (; j > 0 && x[j - 1] > value; j--) x[j] = x[j - 1];
        x[j] = value;
    }
}
static void merge(uint32_t *x, uint32_t *spare, long n, long cutoff) {
    if (n <= cutoff) { insertion(x, n); return; }
    long half = n / 2, i = 0, j = half, k = 0;
    merge(x, spare, half, cutoff);
    merge(x + half, spare, n - half, cutoff);
    memcpy(spare, x, n * sizeof *x);
    while (i < half && j < n) x[k++] = spare[j] < spare[i] ? spare[j++] : spare[i++];
    while (i < half) x[k++] = spare[i++];
    while (j < n) x[k++] = spare[j++];
}
static void radix(uint32_t *x, uint32_t *spare, long n, int bits) {
    static long counts[65536];
    for (int shift = 0; shift < 32; shift += bits) {
        uint32_t mask = (1u << bits) - 1;
        memset(counts, 0, (mask + 1) * sizeof *counts);
        for (long i = 0; i < n; i++) counts[x[i] >> shift & mask]++;
        for (long i = 0, sum = 0; i <= mask; i++) { long count = counts[i]; counts[i] = sum; sum += count; }
        for (long i = 0; i < n; i++) spare[counts[x[i] >> shift & mask]++] = x[i];
        memcpy(x, spare, n * sizeof *x);
    }
}
void sort(const uint32_t *given, uint32_t *x, uint32_t *spare, long n, int is_radix, long size, long times) {
    while (times--) {
        memcpy(x, given, n * sizeof *x);
        if (is_radix) radix(x, spare, n, size); else merge(x, spare, n, size);
    }
}
"""
CONFIGS: list[Config] = [
    *({"algorithm": "merge", "size": cutoff} for cutoff in (1, 8, 24, 100_000)),
    *({"algorithm": "radix", "size": bits} for bits in (4, 8, 11)),
]
"""Merge sorts that leave pieces up to ``size`` to an insertion sort, and radix sorts by ``size`` bits at once."""

ROUNDS = 9
"""Rounds over all problems and configs; the least time of each counts, because other load varies."""

MAX_NUMBERS = 1 << 12


def measure_sorting(directory: Path, count: int, seed: int) -> Matrix:
    """Return the least times of all configs for some problems."""
    library = directory / "sort.so"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)], input=SOURCE, text=True, check=True
    )
    sort = ctypes.CDLL(str(library)).sort
    sort.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    rng = random.Random(seed)
    problems: list[Problem] = [
        {"N": round(2 ** rng.uniform(2, 12)), "order": rng.choice(["random", "sorted"])} for _ in range(count)
    ]
    inputs = []
    for problem in problems:
        values = [rng.getrandbits(32) for _ in range(int(problem["N"]))]
        inputs.append((ctypes.c_uint32 * len(values))(*(sorted(values) if problem["order"] == "sorted" else values)))
    x, scratch = ((ctypes.c_uint32 * MAX_NUMBERS)() for _ in range(2))
    costs = [dict.fromkeys(map(canonical, CONFIGS), float("inf")) for _ in problems]
    for _ in range(ROUNDS):
        for problem, given, least_us in zip(problems, inputs, costs, strict=True):
            n = int(problem["N"])
            repetitions = max(1, 2_000 // n)
            for config in CONFIGS:
                text = canonical(config)
                if n > 1_000 and config["size"] == 100_000 and problem["order"] == "random":
                    # It takes n² steps, so a lower bound of its time suffices.
                    least_us[text] = n * n / 1e4
                    continue
                start = thread_time_ns()
                sort(given, x, scratch, n, config["algorithm"] == "radix", config["size"], repetitions)
                least_us[text] = min(least_us[text], (thread_time_ns() - start) / 1000 / repetitions)
    return Matrix(tuple(problems), (1.0,) * count, tuple(costs))
