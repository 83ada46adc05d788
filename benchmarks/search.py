"""Strategies on recorded spaces: mean of best found ÷ optimum − 1 after 25, 50, 100 and 200 configs.

A folder holds Kernel Tuner cache files or T4 files. Where its ``README.md`` has a table of other tuners' figures (a
strategy, then best ÷ optimum after the same counts), the best single one at each count is printed beside ours, and the
budgets are: at most 0.9 times that after 25 configs, 0.7 times after the others, and no space worse than random after
25. A proposal takes at most 20 ms of processor time in the mean and 200 ms at worst. Failed configs count as tried.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.recorded_spaces import (
    RecordedSpace,
    SearchRun,
    mean_relative_best,
    read_recorded_space,
    replay_search,
)
from benchmarks.report import show

COUNTS = (25, 50, 100, 200)
BUDGETS = {25: 0.9, 50: 0.7, 100: 0.7, 200: 0.7}
MEAN_BUDGET_MS, WORST_BUDGET_MS = 20.0, 200.0
OURS = "guided"


def main() -> None:
    """Print one row for each strategy, and with ``--spaces`` one for each space."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recorded spaces, and perhaps others' figures")
    parser.add_argument("--strategy", action="append", help=f"default: {OURS} and random")
    parser.add_argument("--seeds", type=int, default=20, help="runs with the seeds 0, 1, …; default: 20")
    parser.add_argument("--spaces", action="store_true", help="a row for each space too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seeds = arguments.seeds
    spaces = _recorded(arguments.folder)
    if not spaces:
        parser.error(f"{arguments.folder} holds no recorded space")
    rows = _compared(spaces, arguments.strategy or [OURS, "random"], seeds, with_spaces=arguments.spaces)
    rows += _budgets(arguments.folder)
    show(f"best ÷ optimum − 1, {len(spaces)} spaces, {seeds} seeds", rows, as_json=arguments.json)


def _recorded(folder: Path) -> list[RecordedSpace]:
    found = [*folder.glob("*.json.gz"), *folder.glob("*.json")]
    return [read_recorded_space(path) for path in sorted(found) if ".T1." not in path.name]


def _compared(
    spaces: Sequence[RecordedSpace], strategies: Sequence[str], seeds: int, *, with_spaces: bool
) -> list[dict[str, Any]]:
    rows = []
    for name in strategies:
        runs = [[replay_search(space, name, seed, max(COUNTS)) for seed in range(seeds)] for space in spaces]
        rows.append(_row(name, [_excess(several, space) for several, space in zip(runs, spaces, strict=True)], runs))
        if with_spaces:
            rows += [
                _row(f"  {Path(space.name).name}", [_excess(several, space)], [several])
                for several, space in zip(runs, spaces, strict=True)
            ]
    return rows


def _budgets(folder: Path) -> list[dict[str, Any]]:
    others = _others(folder / "README.md")
    if not others:
        return []
    best = [min(figures[place] for figures in others.values()) for place in range(len(COUNTS))]
    limits = [value * BUDGETS[count] for value, count in zip(best, COUNTS, strict=True)]
    return [
        {"what": "best of the others", **_figures(best), "mean ms": None, "worst ms": None},
        {"what": "budget", **_figures(limits), "mean ms": MEAN_BUDGET_MS, "worst ms": WORST_BUDGET_MS},
        *({"what": name, **_figures(figures), "mean ms": None, "worst ms": None} for name, figures in others.items()),
    ]


def _excess(runs: Sequence[SearchRun], space: RecordedSpace) -> list[float]:
    found = [mean_relative_best(runs, space.optimum, count) for count in COUNTS]
    return [float("inf") if value is None else value - 1 for value in found]


def _row(name: str, excesses: Sequence[Sequence[float]], runs: Sequence[Sequence[SearchRun]]) -> dict[str, Any]:
    own = [run for several in runs for run in several]
    return {
        "what": name,
        **_figures([mean(excess[place] for excess in excesses) for place in range(len(COUNTS))]),
        "mean ms": mean(run.mean_s for run in own) * 1e3,
        "worst ms": max(run.worst_s for run in own) * 1e3,
    }


def _figures(values: Sequence[float]) -> dict[str, float]:
    return {str(count): value for count, value in zip(COUNTS, values, strict=True)}


def _others(readme: Path) -> dict[str, list[float]]:
    """Return the figures of other tuners' strategies from the folder's table, as excess over the optimum."""
    if not readme.exists():
        return {}
    row = re.compile(r"^\|\s*(\w+)\s*" + r"\|\s*([\d.]+)\s*" * len(COUNTS) + r"\|$", re.MULTILINE)
    rows = row.findall(readme.read_text())
    return {name: [float(value) - 1 for value in values] for name, *values in rows if name != "strategy"}


if __name__ == "__main__":
    main()
