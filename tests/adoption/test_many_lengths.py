"""Five hundred lengths of one function, replayed on what an H200 took for each of them with each config."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from ktuned.adoption.key_choice import MAX_TUNED, KeyChoice
from ktuned.model import PORTFOLIO_CONFIGS
from ktuned.portfolio import Matrix, find_leaf, fit_portfolio, list_leaves, weigh_by_launches

Latencies = dict[int, dict[str, float]]
"""By length and config, in µs."""

RECORDED = Path(__file__).parent.parent / "fixtures" / "many_lengths.json"


@cache
def load_latencies() -> tuple[Latencies, Latencies]:
    """Return what was measured, twice: what tuning sees, and what the application then takes."""
    document = json.loads(RECORDED.read_text())
    first, second = (
        {
            length: dict(zip(document["configs"], row, strict=True))
            for length, row in zip(document["lengths"], document[name], strict=True)
        }
        for name in ("first", "second")
    )
    return first, second


def find_best(latencies: dict[str, float]) -> str:
    """Return the config that takes least."""
    return min(latencies, key=lambda config: latencies[config])


def tune_chosen(measured: Latencies) -> KeyChoice:
    """Have keys come and be tuned until no further one is chosen."""
    choice = KeyChoice([])
    for length in measured:
        choice.take_in_key({"length": length}, "a call")
    while True:
        for problem in choice.unlearned:
            choice.selection.record_tuning(problem)
            neighbour, own = choice.selection.find_neighbour(problem), measured[int(problem["length"])]
            theirs = None if neighbour is None else find_best(measured[int(neighbour["length"])])
            choice.record_loss(problem, None if theirs is None else own[theirs] / own[find_best(own)] - 1.0)
        if choice.choose_next() is None:
            return choice


def lose_step(chosen: dict[int, str], taken: Latencies) -> float:
    """Return what a step over all lengths loses against the best config of each."""
    return (
        sum(taken[length][config] for length, config in chosen.items())
        / sum(min(row.values()) for row in taken.values())
        - 1.0
    )


def test_a_step_over_500_lengths_is_within_3_percent_of_having_tuned_them_all() -> None:
    """With at most 40 tunings; the portfolio loses no more than the nearest tuned key's config, which it replaces."""
    measured, taken = load_latencies()
    assert len(measured) == 500
    choice = tune_chosen(measured)
    tuned = [length for length in measured if not choice.is_waiting({"length": length})]
    assert len(tuned) <= MAX_TUNED
    rows = tuple(measured[length] for length in tuned)
    problems = tuple({"length": length} for length in tuned)
    weights = weigh_by_launches(problems, [({"length": length}, 1) for length in measured])
    tree = fit_portfolio(Matrix(problems, tuple(weights), rows), PORTFOLIO_CONFIGS)
    served = {length: find_leaf(tree, {"length": length}).config for length in measured}
    neighbours = {length: choice.selection.find_neighbour({"length": length}) or {} for length in measured}
    nearest = {
        length: find_best(measured[length if length in tuned else int(neighbours[length]["length"])])
        for length in measured
    }
    assert lose_step(served, taken) < 0.03
    assert lose_step(served, taken) < lose_step(nearest, taken) + 0.002
    assert (
        lose_step(dict.fromkeys(measured, max(list_leaves(tree), key=lambda leaf: leaf.problems).config), taken) > 0.05
    )
