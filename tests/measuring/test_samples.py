"""Statistics of samples, compared with brute force."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.measuring.samples import make_samples

SAMPLE_LISTS = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50)


@given(SAMPLE_LISTS)
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    """Samples stay sorted, whatever the order in which they are taken."""
    samples = make_samples(values)
    assert samples.sorted_us == sorted(values)
    assert samples.median_us == pytest.approx(statistics.median(values))
    assert (samples.compute_quantile(0.0), samples.compute_quantile(1.0)) == (min(values), max(values))


@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=50))
def test_quantiles_are_those_of_the_literature(values: list[float]) -> None:
    """The quartiles are the standard library's inclusive ones (linear between the closest ranks)."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    assert make_samples(values).spread_us == pytest.approx(high - low, abs=1e-6)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    """By brute force over the binomial, the interval holds the true median in at least 95 % for every size.

    The sample at rank r is below the median with the odds of at least r of n fair coins; a uniform grid 0, 1, 2, …
    makes the interval's width report its ranks.
    """
    for n in range(6, 400):
        samples = make_samples(range(1, n + 1))
        first, last = samples.interval_us
        low = (n - 1 - (last - first)) / 2
        assert low == pytest.approx(round(low)), f"the ranks of n={n} are not symmetric"
        tail = sum(math.comb(n, k) for k in range(round(low) + 1)) / 2**n
        assert 1 - 2 * tail >= 0.95, f"n={n} covers {1 - 2 * tail}"


def test_the_interval_is_not_much_wider_than_needed() -> None:
    """At most two ranks on each side beyond the narrowest interval that still covers 95 %: sampling must end."""
    for n in range(10, 400):
        samples = make_samples(range(1, n + 1))
        first, last = samples.interval_us
        low = round((n - 1 - (last - first)) / 2)
        tail = sum(math.comb(n, k) for k in range(low + 3)) / 2**n
        assert 1 - 2 * tail < 0.95, f"n={n}"


def test_the_interval_of_few_samples_is_their_range() -> None:
    """Below six no interval covers 95 %."""
    assert make_samples(range(1, 6)).interval_us == (1.0, 5.0)
    assert make_samples([1.0] * 6).interval_us == (1.0, 1.0)
