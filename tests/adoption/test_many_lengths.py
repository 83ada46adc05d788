"""Five hundred lengths of one function, replayed from an H200's latencies for each length and config."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from ktuned.adoption.key_choice import MAX_TUNED, KeyChoice

Latencies = dict[int, dict[str, float]]
"""Latencies in µs by length and config."""

RECORDED = Path(__file__).parent.parent / "fixtures" / "many_lengths.json"


@cache
def load_latencies() -> tuple[Latencies, Latencies]:
    """Return two sets of measurements: what tuning sees, and what the application takes."""
    document = json.loads(RECORDED.read_text())
    first, second = (
        {
            length: dict(zip(document["configs"], row, strict=True))
            for length, row in zip(document["lengths"], document[name], strict=True)
        }
        for name in ("first", "second")
    )
    return first, second


def find_fastest_config(latencies: dict[str, float]) -> str:
    return min(latencies, key=lambda config: latencies[config])


def tune_chosen_lengths(measured: Latencies) -> KeyChoice:
    """Bring all keys and tune the chosen ones until none is chosen."""
    choice = KeyChoice([])
    for length in measured:
        choice.take_in_key({"length": length}, "a call")
    while True:
        for problem in choice.unlearned:
            choice.selection.record_tuning(problem)
            neighbour, latencies = choice.selection.find_neighbour(problem), measured[int(problem["length"])]
            neighbour_config = None if neighbour is None else find_fastest_config(measured[int(neighbour["length"])])
            choice.record_loss(
                problem,
                None
                if neighbour_config is None
                else latencies[neighbour_config] / latencies[find_fastest_config(latencies)] - 1.0,
            )
        if choice.choose_next() is None:
            return choice


def compute_step_loss(chosen: dict[int, str], taken: Latencies) -> float:
    """Return what a step over all lengths loses against the best config of each length."""
    return (
        sum(taken[length][config] for length, config in chosen.items())
        / sum(min(row.values()) for row in taken.values())
        - 1.0
    )


def test_a_step_over_500_lengths_is_within_3_percent_of_having_tuned_them_all() -> None:
    """At most 40 lengths are tuned, and the others get the config of the nearest tuned length."""
    measured, taken = load_latencies()
    assert len(measured) == 500
    choice = tune_chosen_lengths(measured)
    tuned = [length for length in measured if not choice.is_waiting({"length": length})]
    assert len(tuned) <= MAX_TUNED
    neighbours = {length: choice.selection.find_neighbour({"length": length}) or {} for length in measured}
    served = {
        length: find_fastest_config(measured[length if length in tuned else int(neighbours[length]["length"])])
        for length in measured
    }
    assert compute_step_loss(served, taken) < 0.03
    assert compute_step_loss(dict.fromkeys(measured, served[tuned[0]]), taken) > 0.05
