from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.model.values import Problem
from ktuned.store.near import measure_distance

numbers = st.integers(1, 2**62) | st.floats(1e-300, 1e300)
problems = st.fixed_dictionaries({"M": numbers, "N": numbers})


@given(problems, problems)
def test_distance_is_symmetric_finite_and_zero_to_itself(left: Problem, right: Problem) -> None:
    distance = measure_distance(left, right)
    assert distance is not None
    assert distance == measure_distance(right, left)
    assert math.isfinite(distance)
    assert measure_distance(left, left) == 0


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"M": 1024}, {"M": 512}, 1.0),
        ({"M": 512}, {"M": 1024}, 1.0),
        ({"M": 2, "N": 2}, {"M": 1, "N": 4}, 2.0),
        ({"M": 2}, {"M": 2.0}, 0.0),
        ({"M": 0}, {"M": 0}, 0.0),
        ({"M": 0}, {"M": 1}, None),
        ({"M": -1}, {"M": 1}, None),
        ({"M": True}, {"M": 1}, None),
        ({"M": True}, {"M": False}, None),
        ({"M": "a"}, {"M": "b"}, None),
        ({"M": "a"}, {"M": 1}, None),
        ({"M": 1}, {"N": 1}, None),
        ({"M": 1}, {"M": 1, "N": 1}, None),
        ({"M": 1e308}, {"M": 5e-324}, math.log2(1e308) - math.log2(5e-324)),
    ],
)
def test_distance_between_problems(left: Problem, right: Problem, expected: float | None) -> None:
    """Numbers are compared by their ratio; values without a ratio must be equal."""
    assert measure_distance(left, right) == (None if expected is None else pytest.approx(expected))
