"""Shape buckets: which problem represents which."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.model import apply_bucket_rules, find_rule_fault
from ktuned_client.table_answers import apply_bucket_rule

RULES = st.one_of(
    st.just("pow2"),
    st.integers(1, 1000),
    st.lists(st.integers(0, 5000), min_size=1, unique=True).map(sorted),
)


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("pow2", {0: 0, 1: 1, 2: 2, 3: 4, 1000: 1024, 1024: 1024, 1025: 2048}),
        (64, {1: 64, 64: 64, 65: 128}),
        ((16, 64, 256), {1: 16, 16: 16, 17: 64, 256: 256, 9999: 256}),
    ],
)
def test_a_rule_maps_values_to_their_bucket(rule: Any, values: dict[int, int]) -> None:
    """Only the rule's own key changes, and only ints."""
    for value, representative in values.items():
        mapped = apply_bucket_rules({"M": rule}, {"M": value, "N": 7, "dtype": "float16"})
        assert mapped == {"M": representative, "N": 7, "dtype": "float16"}
    assert apply_bucket_rules({"M": rule}, {"M": 2.5, "N": True}) == {"M": 2.5, "N": True}


@given(rule=RULES, value=st.integers(-10, 10_000))
def test_a_representative_stands_for_itself(rule: Any, value: int) -> None:
    """A second mapping changes nothing, and the client, which reads exported winners, maps equally."""
    mapped = apply_bucket_rules({"M": rule}, {"M": value})
    assert apply_bucket_rules({"M": rule}, mapped) == mapped
    assert apply_bucket_rule(rule, value) == mapped["M"]


@pytest.mark.parametrize("rule", ["pow3", 0, -4, 2.5, [], [4, 2], [2, 2], ["a"], None, True])
def test_an_invalid_rule_names_its_error(rule: object) -> None:
    assert "M" in find_rule_fault("M", rule)
