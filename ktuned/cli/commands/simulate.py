"""``ktuned simulate``: compares strategies on a recorded space, without a device."""

from __future__ import annotations

import math
import shutil
from itertools import cycle
from pathlib import Path

import click

from ktuned.cli import output
from ktuned.cli.options import WholeNumber, device_option, json_option, problem_option
from ktuned.cli.output import Exit
from ktuned.cli.trials import load_all_trials
from ktuned.model import Scalar, UsageError
from ktuned.protocol import ResultsParams
from ktuned.search import (
    RecordedSpace,
    SearchRun,
    mean_relative_best,
    read_recorded_space,
    record_space,
    replay_search,
)
from ktuned_client import Client

COUNTS = (10, 25, 50, 100, 200, 400, 800)
"""Numbers of trials for which the table shows the best config so far."""

DEFAULT_TRIALS = 200
DEFAULT_SEEDS = 20

PLOT_WIDTH, PLOT_HEIGHT = 64, 12
PLOT_MARGIN = 11
"""Columns of the axis on the left of the plot."""

MARKS = "●○▲△■□◆◇"


@click.command()
@click.argument("space", metavar="SPACE")
@click.option(
    "--strategy",
    "strategies",
    metavar="STRATEGY",
    multiple=True,
    help="A strategy; may be repeated. Default: auto and random.",
)
@click.option("--trials", type=WholeNumber(1), default=DEFAULT_TRIALS, show_default=True, help="Configs to try.")
@click.option("--seeds", type=WholeNumber(1), default=DEFAULT_SEEDS, show_default=True, help="Runs with seeds 0, 1, ….")
@problem_option
@device_option
@json_option
def simulate(
    space: str,
    strategies: tuple[str, ...],
    trials: int,
    seeds: int,
    problem: dict[str, Scalar],
    device: str | None,
    as_json: bool,
) -> int:
    """Compare search strategies on a recorded space.

    SPACE is a Kernel Tuner cache file, a T4 file (both may be compressed), or a kernel whose trials are in the store.
    Failed configs count as trials.
    """
    found = read_recorded_space(Path(space)) if _names_file(space) else _read_stored_space(space, problem, device)
    runs = {
        name: [replay_search(found, name, seed, trials) for seed in range(seeds)]
        for name in dict.fromkeys(strategies or ("auto", "random"))
    }
    if as_json:
        plain = [run.to_plain() for several in runs.values() for run in several]
        output.emit_json({"optimum": found.optimum, "runs": plain})
        return Exit.DONE
    failed = sum(value is None for value in found.objectives)
    output.emit_line(f"{len(found.configs)} configs, {failed} of them fail; optimum {found.optimum:.4g}; {seeds} seeds")
    output.emit_line()
    _print_comparison(runs, found, trials)
    output.emit_line()
    for line in plot_excess(runs, found.optimum, trials, shutil.get_terminal_size().columns):
        output.emit_line(line)
    return Exit.DONE


def _names_file(space: str) -> bool:
    # A directory does not count: a project's directory often has the name of its kernel.
    return Path(space).is_file() or "/" in space or space.endswith((".json", ".gz"))


def _read_stored_space(kernel: str, problem: dict[str, Scalar], device: str | None) -> RecordedSpace:
    """Read the trials of a kernel's current state for the named problem and device, or else the only ones tried."""
    with Client() as client:
        trials = load_all_trials(client, ResultsParams(kernel, problem or None, device, current=True))
    keys = {(str(trial.problem), trial.device) for trial in trials}
    if len(keys) > 1:
        raise UsageError(
            f"{kernel} was tuned for {len(keys)} problems and devices", hint="name them: -p KEY=VALUE, --device"
        )
    results = [(trial.config, trial.latency_us) for trial in trials if trial.outcome]
    return record_space(kernel, results)


def _print_comparison(runs: dict[str, list[SearchRun]], found: RecordedSpace, trials: int) -> None:
    counts = sorted({*(count for count in COUNTS if count < trials), trials})
    rows = []
    for name, several in runs.items():
        means = [mean_relative_best(several, found.optimum, count) for count in counts]
        chosen = several[0].chosen
        label = name if chosen == name else f"{name} ({chosen})"
        mean_s = sum(run.mean_s for run in several) / len(several)
        rows.append([label, *("" if value is None else f"{value:.3f}" for value in means), f"{mean_s * 1e3:.1f} ms"])
    columns = ["best ÷ optimum after", *map(str, counts), "own time"]
    output.print_table(columns, rows, right=columns[1:])


def plot_excess(runs: dict[str, list[SearchRun]], optimum: float, trials: int, width: int) -> list[str]:
    """Return a plot of how far the mean best is above the optimum, in logarithmic steps, over the trials.

    It is as wide as :data:`PLOT_WIDTH`, or narrower if a terminal of ``width`` columns has less room.
    """
    room = max(8, min(PLOT_WIDTH, width - PLOT_MARGIN))
    columns = [max(1, round((column + 1) * trials / room)) for column in range(room)]
    curves = {
        name: [mean_relative_best(several, optimum, count) for count in columns] for name, several in runs.items()
    }
    excess = [value - 1 for curve in curves.values() for value in curve if value is not None]
    if not excess:
        return ["nothing was found"]
    top = max(0.01, min(10.0, max(excess)))
    bottom = 0.001
    grid = [[" "] * room for _ in range(PLOT_HEIGHT)]
    marks = dict(zip(curves, cycle(MARKS), strict=False))
    for name, curve in curves.items():
        for column, value in enumerate(curve):
            if value is not None:
                grid[_find_plot_row(value - 1, bottom, top)][column] = marks[name]
    lines = []
    for row, cells in enumerate(grid):
        level = top * (bottom / top) ** (row / (PLOT_HEIGHT - 1))
        lines.append(f"{f'+{level:.1%}':>9} │{''.join(cells)}".rstrip())
    lines.append(f"{'':>9} └{'─' * room}")
    lines.append(f"{'':>9}  1{f'{trials} trials':>{room - 1}}")
    lines.append("  ".join(f"{mark} {name}" for name, mark in marks.items()))
    return lines


def _find_plot_row(excess: float, bottom: float, top: float) -> int:
    bounded = min(top, max(bottom, excess))
    return round(math.log(top / bounded) / math.log(top / bottom) * (PLOT_HEIGHT - 1))
