"""Objectives: their names, their figures, and the cost of a figure."""

from __future__ import annotations

import pytest

from ktuned.model.errors import UsageError
from ktuned.model.objective import (
    LATENCY,
    Objective,
    choose_search_objective,
    compute_gain,
    convert_to_cost,
    maximize,
    minimize,
    name_figure,
    read_objective,
    select_figure,
)


@pytest.mark.parametrize("text", [LATENCY, maximize("tflops"), minimize("energy")])
def test_an_objectives_name_is_read_unchanged(text: str) -> None:
    """Kernel files, the command line and the protocol use the same words."""
    assert read_objective(text) == text


@pytest.mark.parametrize(
    "text", ["", "tflops", "max:", "max:a b", "min:max:x", "max:latency.x", "fastest", "energy", "min:latency"]
)
def test_any_other_text_is_no_objective(text: str) -> None:
    """A metric needs its direction."""
    with pytest.raises(UsageError, match="there is no objective"):
        read_objective(text)


def test_each_figure_is_found_by_its_name() -> None:
    """The latency is a field of its own; other figures are metrics."""
    metrics = {"tflops": 3.0, "energy": 0.5}
    figures = {name: select_figure(Objective(name), 7.0, metrics) for name in ("latency", "min:energy", "max:tflops")}
    assert figures == {"latency": 7.0, "min:energy": 0.5, "max:tflops": 3.0}
    assert select_figure(maximize("gbps"), 7.0, metrics) is None
    assert name_figure(maximize("tflops")) == "tflops"


def test_less_cost_is_better_and_ratios_stay() -> None:
    """A figure that is twice as good costs half, in either direction; a figure that is not positive has no cost."""
    by_bytes = minimize("bytes")
    assert convert_to_cost(by_bytes, 4.0) == 2 * (convert_to_cost(by_bytes, 2.0) or 0)
    assert convert_to_cost(maximize("tflops"), 2.0) == 2 * (convert_to_cost(maximize("tflops"), 4.0) or 0)
    assert [convert_to_cost(LATENCY, figure) for figure in (None, 0.0, -1.0)] == [None, None, None]
    assert (
        compute_gain(LATENCY, 10.0, 5.0),
        compute_gain(maximize("tflops"), 5.0, 10.0),
        compute_gain(by_bytes, None, 1.0),
    ) == (2.0, 2.0, None)


@pytest.mark.parametrize(
    ("objective", "searched"),
    [
        ("latency", "latency"),
        ("exact:latency", "exact:latency"),
        ("max:tflops", "max:tflops"),
        ("exact:max:tflops", "exact:max:tflops"),
        ("min:energy", "latency"),
        ("exact:min:energy", "exact:latency"),
    ],
)
def test_a_metric_with_launches_of_its_own_does_not_steer_the_search(objective: str, searched: str) -> None:
    """Configs are compared by latency with the same numerics."""
    assert choose_search_objective(Objective(objective)) == searched
