"""A matrix of measurements for portfolios, recorded on a device, and replayed: what a portfolio loses on new shapes.

``--record FILE`` tunes a kernel file's kernel for many shapes with the same configs each, through a private daemon, and
writes the matrix of all latencies; ``--replay FILE`` fits portfolios to a part of the shapes, and shows what they, one
config for all, and the config of the nearest shape lose on the others. Budget: at most 5 configs, a mean loss of 2 %.

The fixture of ``tests/portfolio`` is made by::

    python -m benchmarks.portfolio --record tests/fixtures/gemm_matrix.json

which takes some ten minutes on an H100 (``examples/gpu_gemm``, 100 shapes, 40 configs).
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.report import show
from ktuned.model import canonical
from ktuned.portfolio import FAILED, Matrix, compute_mean_loss, count_octaves, fit_portfolio
from ktuned.portfolio.matrix import choose_configs

ROOT = Path(__file__).parent.parent
KERNEL_FILE = ROOT / "examples/gpu_gemm/tune_gemm.py"
MAX_CONFIGS = 5
MAX_LOSS = 0.02
REPLAYS = 20

RECORD_DEADLINE_S = 120.0


def shapes(count: int, seed: int) -> Iterator[dict[str, int]]:
    """Yield products as models have them: any number of rows, and widths that are multiples of 64."""
    chance = random.Random(seed)
    for _ in range(count):
        rows = round(2 ** chance.uniform(0, 13))
        widths = [64 * round(2 ** chance.uniform(2, 7)) for _ in range(2)]
        yield {"M": rows, "N": widths[0], "K": widths[1]}


def record(kernel_file: Path, count: int, configs: int, seed: int, fields: Mapping[str, Any]) -> Iterator[Matrix]:
    """Tune the kernel for each shape with the configs that the strategy proposes first; yield all latencies so far."""
    problems = [{**fields, **shape} for shape in shapes(count, seed)]
    with private_home() as home, serving(home) as daemon:
        kernel, chosen = _configs(daemon, kernel_file, problems[0], configs)
        rows = []
        for number, problem in enumerate(problems, start=1):
            start = perf_counter()
            rows.append(_measured(daemon, kernel, problem, chosen))
            works = sum(cost < FAILED for cost in rows[-1].values())
            sys.stderr.write(f"{number} of {count}: {works} configs work, {perf_counter() - start:.1f} s\n")
            yield Matrix(tuple(problems[:number]), (1.0,) * number, tuple(rows))


def _configs(
    daemon: PrivateDaemon, kernel_file: Path, problem: Mapping[str, Any], count: int
) -> tuple[str, list[dict[str, Any]]]:
    """Return the kernel's name, and configs of its space that are spread over it: those of a random search."""
    with daemon.client() as client:
        with client.tune(path=kernel_file, problem=problem, trials=count, strategy="random", seed=3) as tuning:
            for _ in tuning:
                pass
        kernel = tuning.jobs[0]["kernel"]
        trials = client.call("results", kernel=kernel, limit=2000)["trials"]
    chosen = {canonical(trial["config"]): trial["config"] for trial in trials}
    return kernel, list(chosen.values())[:count]


def _measured(
    daemon: PrivateDaemon, kernel: str, problem: Mapping[str, Any], configs: list[dict[str, Any]]
) -> dict[str, float]:
    with daemon.client() as client:
        with client.tune(kernel, problem=problem, configs=configs) as tuning:
            for _ in tuning:
                pass
        answer = client.call("results", kernel=kernel, problem=problem, limit=2000, deadline_s=RECORD_DEADLINE_S)
    costs = {canonical(config): FAILED for config in configs}
    for trial in answer["trials"]:
        text = canonical(trial["config"])
        if text in costs and trial["latency_us"] is not None:
            costs[text] = min(costs[text], trial["latency_us"])
    return costs


def replay(matrix: Matrix, share: float = 0.8) -> list[dict[str, Any]]:
    """Fit portfolios to a part of the shapes, twenty times, and return the mean losses on the others."""
    losses: dict[str, list[float]] = {"portfolio": [], "nearest shape": [], "one config for all": []}
    configs, failures, expected = [], 0, []
    for seed in range(REPLAYS):
        order = list(range(len(matrix)))
        random.Random(seed).shuffle(order)
        count = round(share * len(order))
        fitted, held_out = matrix.select_rows(order[:count]), matrix.select_rows(order[count:])
        portfolio = fit_portfolio(fitted, MAX_CONFIGS, MAX_LOSS)
        configs.append(len(portfolio.configs))
        expected.append(portfolio.expected_loss)
        chosen = [portfolio.find_leaf(problem).config for problem in held_out.problems]
        failures += sum(not held_out.works(row, config) for row, config in enumerate(chosen))
        losses["portfolio"].append(compute_mean_loss(held_out, chosen))
        losses["one config for all"].append(compute_mean_loss(held_out, choose_configs(fitted, 1) * len(held_out)))
        near = [
            min(range(count), key=lambda row: count_octaves(problem, fitted.problems[row]))
            for problem in held_out.problems
        ]
        best = [min(fitted.costs[row], key=lambda config: fitted.costs[row][config]) for row in near]
        losses["nearest shape"].append(compute_mean_loss(held_out, best))
    rows = [
        {"what": what, "mean_loss": sum(found) / REPLAYS, "worst_loss": max(found), "in_budget": None}
        for what, found in losses.items()
    ]
    rows[0] |= {
        "configs": max(configs),
        "expected_loss": sum(expected) / REPLAYS,
        "failures": failures,
        "in_budget": sum(losses["portfolio"]) / REPLAYS <= MAX_LOSS and max(configs) <= MAX_CONFIGS and not failures,
    }
    return rows


def main() -> None:
    """Record or replay, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--record", type=Path, help="tune, and write the matrix there")
    parser.add_argument("--replay", type=Path, help="show what portfolios lose on a recorded matrix")
    parser.add_argument("--kernel-file", type=Path, default=KERNEL_FILE)
    parser.add_argument("--problem", type=json.loads, default={}, help="further fields of each problem, as JSON")
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--configs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    path = arguments.replay
    if arguments.record:
        options = arguments.kernel_file, arguments.shapes, arguments.configs, arguments.seed, arguments.problem
        for matrix in record(*options):
            arguments.record.write_text(json.dumps(matrix.to_wire(), indent=0))
        path = arguments.record
    if path is None:
        parser.error("give --record or --replay")
    matrix = Matrix.from_wire(json.loads(path.read_text()))
    show(
        f"portfolios on held-out shapes (budget: {MAX_CONFIGS} configs, {MAX_LOSS:.0%})",
        replay(matrix),
        as_json=arguments.json,
    )


if __name__ == "__main__":
    main()
