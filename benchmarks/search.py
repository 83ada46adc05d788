"""Strategies on recorded spaces: mean of best found ÷ optimum − 1 after 25, 50, 100 and 200 configs.

The folder holds Kernel Tuner cache files or T4 files. Where its ``README.md`` has a table of other tuners' figures (a
strategy, then best ÷ optimum after the same counts), the best single one at each count is printed beside ours, and the
budgets are: at most 0.9 times that after 25 configs, 0.7 times after the others, and no space worse than random after
25. A proposal takes at most 20 ms of processor time in the mean and 200 ms at worst. Failed configs count as tried, and
nothing is carried from one space to another.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.report import show
from ktuned.search import RecordedSpace, Run, read_recorded, relative, simulate

COUNTS = (25, 50, 100, 200)
BUDGETS = {25: 0.9, 50: 0.7, 100: 0.7, 200: 0.7}
MEAN_BUDGET_MS, WORST_BUDGET_MS = 20.0, 200.0
OURS = "guided"


def main() -> None:
    """Print one row for each strategy and one for each space."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recorded spaces, and perhaps a README.md with others' figures")
    parser.add_argument("--strategy", action="append", help=f"default: {OURS} and random")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--spaces", action="store_true", help="a row for each space too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    spaces = [read_recorded(path) for path in _files(arguments.folder)]
    if not spaces:
        parser.error(f"{arguments.folder} holds no recorded space")
    rows: list[dict[str, Any]] = []
    for name in arguments.strategy or [OURS, "random"]:
        runs = [[simulate(space, name, seed, max(COUNTS)) for seed in range(arguments.seeds)] for space in spaces]
        rows.append(_row(name, [_excess(several, space) for several, space in zip(runs, spaces, strict=True)], runs))
        if arguments.spaces:
            rows += [
                _row(f"  {Path(space.name).name}", [_excess(several, space)], [several])
                for several, space in zip(runs, spaces, strict=True)
            ]
    others = _others(arguments.folder / "README.md")
    if others:
        best = [min(figures[place] for figures in others.values()) for place in range(len(COUNTS))]
        rows.append({"what": "best of the others", **_figures(best), "mean ms": None, "worst ms": None})
        limits = [value * BUDGETS[count] for value, count in zip(best, COUNTS, strict=True)]
        rows.append({"what": "budget", **_figures(limits), "mean ms": MEAN_BUDGET_MS, "worst ms": WORST_BUDGET_MS})
        rows += [
            {"what": name, **_figures(figures), "mean ms": None, "worst ms": None} for name, figures in others.items()
        ]
    show(f"best ÷ optimum − 1, {len(spaces)} spaces, {arguments.seeds} seeds", rows, as_json=arguments.json)


def _files(folder: Path) -> list[Path]:
    found = [*folder.glob("*.json.gz"), *folder.glob("*.json")]
    return sorted(path for path in found if ".T1." not in path.name)


def _excess(runs: Sequence[Run], space: RecordedSpace) -> list[float]:
    found = [relative(runs, space.optimum, count) for count in COUNTS]
    return [float("inf") if value is None else value - 1 for value in found]


def _row(name: str, excesses: Sequence[Sequence[float]], runs: Sequence[Sequence[Run]]) -> dict[str, Any]:
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
