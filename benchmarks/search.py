"""Strategies on recorded and on made-up spaces: mean of best found ÷ optimum − 1 after 25, 50, 100 and 200 configs.

A folder holds Kernel Tuner cache files or T4 files. Where its ``README.md`` has a table of other tuners' figures (a
strategy, then best ÷ optimum after the same counts), the best single one at each count is printed beside ours, and the
budgets are: at most 0.9 times that after 25 configs, 0.7 times after the others, and no space worse than random after
25. A proposal takes at most 20 ms of processor time in the mean and 200 ms at worst. Failed configs count as tried, and
nothing is carried from one space to another.

Without a folder the spaces are synthetic: kernels by analytic models on made-up devices (``--machines``).

``--transfer`` is the other way round: how many configs a search needs to come within 5 % of the optimum, with nothing
known, and after a search of the same kernel for another device, another problem, or before an edit. A folder's spaces
are transferred where they belong to one kernel, as ``KERNEL-DEVICE.json.gz``. It takes a minute or two for each ten
transfers and five seeds; after ``--minutes`` no further transfer is begun, and a last row says so.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from time import monotonic
from typing import Any

from benchmarks.report import show
from benchmarks.synthetic_spaces import KERNELS, Machine, synthetic
from ktuned.model import Config, EarlierSearch
from ktuned.search import RecordedSpace, SearchRun, mean_relative_best, read_recorded_space, replay_search
from ktuned.tuning.prior_results import BEST_OF_NEAREST

COUNTS = (25, 50, 100, 200)
BUDGETS = {25: 0.9, 50: 0.7, 100: 0.7, 200: 0.7}
MEAN_BUDGET_MS, WORST_BUDGET_MS = 20.0, 200.0
OURS = "guided"
WITHIN = 0.05


def main() -> None:
    """Print one row for each strategy and one for each space, or for each transfer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="recorded spaces, and perhaps others' figures")
    parser.add_argument("--strategy", action="append", help=f"default: {OURS} and random")
    parser.add_argument("--seeds", type=int, help="default: 20, of transfers 5")
    parser.add_argument("--machines", type=int, default=2, help="made-up devices, where no folder is given")
    parser.add_argument("--spaces", action="store_true", help="a row for each space too")
    parser.add_argument("--transfer", action="store_true", help="configs needed with and without what is known")
    parser.add_argument("--minutes", type=float, default=10, help="limit of --transfer")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.transfer:
        seeds = arguments.seeds or 5
        title = f"configs until within {WITHIN:.0%} of the optimum, {seeds} seeds"
        transfers = _recorded_transfers(arguments.folder) if arguments.folder else _made_up(arguments.machines)
        show(title, _all_needed(transfers, seeds, arguments.minutes * 60), as_json=arguments.json)
        return
    seeds = arguments.seeds or 20
    spaces = _recorded(arguments.folder) if arguments.folder else _synthetic(arguments.machines)
    if not spaces:
        parser.error(f"{arguments.folder} holds no recorded space")
    rows = _compared(spaces, arguments.strategy or [OURS, "random"], seeds, with_spaces=arguments.spaces)
    if arguments.folder:
        rows += _budgets(arguments.folder)
    show(f"best ÷ optimum − 1, {len(spaces)} spaces, {seeds} seeds", rows, as_json=arguments.json)


def _recorded(folder: Path) -> list[RecordedSpace]:
    found = [*folder.glob("*.json.gz"), *folder.glob("*.json")]
    return [read_recorded_space(path) for path in sorted(found) if ".T1." not in path.name]


def _synthetic(machines: int) -> list[RecordedSpace]:
    return [
        synthetic(name, kernel, Machine.drawn(seed)) for name, kernel in KERNELS.items() for seed in range(machines)
    ]


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


@dataclass(frozen=True)
class Transfer:
    """A space that was searched, and one whose search begins with what is known of it.

    An edit keeps the problem and the device: all that was measured before comes first, the fastest first.
    """

    what: str
    source: RecordedSpace
    target: RecordedSpace
    is_edit: bool = False


def _recorded_transfers(folder: Path) -> Iterator[Transfer]:
    by_name = {Path(space.name).name.partition(".")[0]: space for space in _recorded(folder)}
    for one, source in by_name.items():
        for other, target in by_name.items():
            if one != other and one.partition("-")[0] == other.partition("-")[0]:
                yield Transfer(f"device: {one} → {other.partition('-')[2]}", source, target)


def _made_up(machines: int) -> Iterator[Transfer]:
    for name, kernel in KERNELS.items():
        for seed in range(machines):
            machine = Machine.drawn(seed)
            source = synthetic(name, kernel, machine)
            yield Transfer(f"problem: {source.name}", source, synthetic(name, kernel, machine, scale=3))
            yield Transfer(f"device: {source.name}", source, synthetic(name, kernel, Machine.drawn(seed + machines)))
            yield Transfer(f"edit: {source.name}", source, synthetic(name, kernel, machine.edited()), is_edit=True)


def _all_needed(transfers: Iterator[Transfer], seeds: int, limit_s: float) -> list[dict[str, Any]]:
    """Return a row for each transfer that was begun in time, and one that says if some were not."""
    searches = _Searches()
    deadline = monotonic() + limit_s
    rows: list[dict[str, Any]] = []
    while monotonic() < deadline:
        transfer = next(transfers, None)
        if transfer is None:
            return rows
        rows.append(_needed(transfer, seeds, searches))
    return [*rows, {"what": f"stopped after {limit_s / 60:g} minutes (--minutes)"}]


class _Searches:
    """Searches with nothing known: a space that several transfers begin or end with is searched once.

    Spaces are known by their identity, for some share a name, and so they are kept alive.
    """

    def __init__(self) -> None:
        self._kept: list[RecordedSpace] = []
        self._found: dict[tuple[int, int], SearchRun] = {}
        self._cold: dict[tuple[int, int], int] = {}

    def run(self, space: RecordedSpace, seed: int) -> SearchRun:
        """Return a whole search."""
        if (id(space), seed) not in self._found:
            self._kept.append(space)
            self._found[id(space), seed] = replay_search(space, OURS, seed, max(COUNTS))
        return self._found[id(space), seed]

    def needed(
        self, space: RecordedSpace, seed: int, first: Sequence[Config] = (), earlier: Sequence[EarlierSearch] = ()
    ) -> int:
        """Return the configs after which a search is close to the optimum."""
        goal = space.optimum * (1 + WITHIN)
        run = replay_search(space, OURS, seed, max(COUNTS), first, goal, earlier)
        return run.trials_within(goal) or max(COUNTS)

    def needed_cold(self, space: RecordedSpace, seed: int) -> int:
        """Return the configs that it takes with nothing known."""
        if (id(space), seed) not in self._cold:
            self._kept.append(space)
            self._cold[id(space), seed] = self.needed(space, seed)
        return self._cold[id(space), seed]


def _needed(transfer: Transfer, seeds: int, searches: _Searches) -> dict[str, Any]:
    cold, warm = [], []
    for seed in range(seeds):
        earlier = searches.run(transfer.source, seed).as_earlier_search()
        known = [config for _, config in sorted(zip(earlier.costs, earlier.configs, strict=True), key=itemgetter(0))]
        # An edit keeps the key: its job measures again what it knows, and other keys' searches have no say.
        first, similar = (known, []) if transfer.is_edit else (known[:BEST_OF_NEAREST], [earlier])
        # Another seed than the source's, or both searches would begin alike.
        cold.append(searches.needed_cold(transfer.target, seed + seeds))
        warm.append(searches.needed(transfer.target, seed + seeds, first, similar))
    return {
        "what": transfer.what,
        "nothing known": mean(cold), "median": median(cold), "known": mean(warm), "median known": median(warm),
    }  # fmt: skip


if __name__ == "__main__":
    main()
