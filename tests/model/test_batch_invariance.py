"""Batch invariance: groups of problems, the class that spans one at the least cost, and what breaks it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ktuned.model import Candidate, Member, choose_equal_rows_class, find_batch_fault, find_groups

FIELDS = ("M",)


def _problem(size: int) -> str:
    return f'{{"M":{size}}}'


def _small(size: int, *configs: tuple[str, float, str], weight: float = 1.0) -> Member:
    """Return a smaller problem's member: a name, a cost and the bits of each of its configs."""
    return Member(_problem(size), weight, tuple(Candidate(name, cost, tuple(bits)) for name, cost, bits in configs))


def _large(size: int, *configs: tuple[str, float, dict[int, str]], weight: float = 1.0) -> Member:
    """Return the largest problem's member: each config has the bits of the rows of each smaller size."""
    return Member(
        _problem(size),
        weight,
        tuple(
            Candidate(name, cost, ("whole",), {_problem(at): tuple(bits) for at, bits in rows.items()})
            for name, cost, rows in configs
        ),
    )


def test_the_class_of_the_least_weighted_total_is_chosen() -> None:
    """Its configs may differ from problem to problem; weights decide between the classes."""
    small = [("plain", 1.0, "aa"), ("lanes", 9.0, "bb")]
    large = _large(64, ("plain", 50.0, {1: "aa"}), ("lanes", 45.0, {1: "bb"}), ("turning", 30.0, {1: "cc"}))
    found = choose_equal_rows_class(FIELDS, [_small(1, *small), large])
    assert dict(found.configs) == {_problem(1): "plain", _problem(64): "plain"}
    assert (found.total, found.fastest, found.broken_by) == (51.0, 31.0, "")
    assert found.describe() == (
        "batch-invariant under M = 1, 64; that costs 65 % more than the best config of each does"
    )
    heavy = choose_equal_rows_class(
        FIELDS,
        [
            _small(1, *small, weight=0.1),
            _large(64, ("plain", 50.0, {1: "aa"}), ("lanes", 45.0, {1: "bb"}), weight=10.0),
        ],
    )
    assert dict(heavy.configs) == {_problem(1): "lanes", _problem(64): "lanes"}
    assert heavy.total == pytest.approx(450.9)


def test_a_class_without_a_config_for_one_problem_is_not_chosen() -> None:
    """However fast it is; and the problem is named where all are out, by the class that the most problems have."""
    middle = _small(8, ("plain", 1.0, "pp"), ("fast", 0.5, "xx"))
    large = _large(64, ("plain", 5.0, {1: "aa", 8: "pp"}), ("fast", 1.0, {1: "bb", 8: "qq"}))
    found = choose_equal_rows_class(FIELDS, [_small(1, ("plain", 1.0, "aa"), ("fast", 0.5, "bb")), middle, large])
    assert dict(found.configs) == {_problem(size): "plain" for size in (1, 8, 64)}
    broken = choose_equal_rows_class(FIELDS, [_small(1, ("fast", 0.5, "bb")), middle, large])
    assert (broken.configs, broken.broken_by, broken.agreeing) == ({}, _problem(8), 2)
    assert broken.describe() == (
        "not batch-invariant under M = 1, 8, 64: M = 8 breaks it, where no measured config has the bits that "
        "2 of 3 problems can agree on"
    )


def test_a_largest_problem_without_bits_breaks_its_group() -> None:
    """As it does where nothing there is deterministic."""
    found = choose_equal_rows_class(FIELDS, [_small(1, ("a", 1.0, "aa")), Member(_problem(2), 1.0, ())])
    assert (found.broken_by, found.agreeing) == (_problem(2), 0)
    alone = choose_equal_rows_class(FIELDS, [_large(4, ("a", 2.0, {}), ("b", 1.0, {}))])
    assert dict(alone.configs) == {_problem(4): "b"}


def test_rows_are_compared_on_the_inputs_that_both_were_launched_on() -> None:
    """A thorough tuning has more of them."""
    large = _large(64, ("a", 1.0, {1: "aax"}))
    assert choose_equal_rows_class(FIELDS, [_small(1, ("a", 1.0, "aa")), large]).configs
    assert not choose_equal_rows_class(FIELDS, [_small(1, ("a", 1.0, "ab")), large]).configs
    assert not choose_equal_rows_class(FIELDS, [_small(1, ("a", 1.0, "")), large]).configs


def test_the_choice_equals_the_best_of_all_assignments() -> None:
    """Over all ways in which three configs of two problems may share two kinds of bits and two costs."""
    kinds = list(itertools.product("ab", (1.0, 3.0)))
    for (left, right), rows in itertools.product(
        itertools.product(itertools.product(kinds, repeat=2), repeat=2), itertools.product("abc", repeat=2)
    ):
        small = _small(1, *((f"s{place}", cost, bits) for place, (bits, cost) in enumerate(left)))
        large = _large(
            2,
            *((f"l{place}", cost, {1: bits}) for place, ((_, cost), bits) in enumerate(zip(right, rows, strict=True))),
        )
        totals = [
            one.cost + other.cost
            for one in small.candidates
            for other in large.candidates
            if one.bits == other.rows[small.problem]
        ]
        found = choose_equal_rows_class(FIELDS, [small, large])
        assert bool(found.configs) == bool(totals)
        assert bool(found.broken_by) != bool(totals)
        if totals:
            assert found.total == min(totals)


def test_the_order_of_equal_configs_does_not_change_the_choice() -> None:
    """Twins cost the same."""
    twins = [("a", 1.0, "aa"), ("b", 1.0, "aa")]
    large = [("a", 1.0, {1: "aa"}), ("b", 1.0, {1: "aa"})]
    either = choose_equal_rows_class(FIELDS, [_small(1, *twins), _large(2, *large)])
    assert either == choose_equal_rows_class(FIELDS, [_small(1, *twins[::-1]), _large(2, *large[::-1])])


def test_problems_that_differ_in_the_fields_alone_are_a_group() -> None:
    """From the smallest to the largest, whatever their order in the file."""
    problems: list[dict[str, Any]] = [dict(M=4, N=1), dict(M=1, N=2), dict(M=1, N=1), dict(M=2, N=1)]
    assert find_groups(problems, ("M",)) == [[dict(M=1, N=1), dict(M=2, N=1), dict(M=4, N=1)], [dict(M=1, N=2)]]
    assert find_groups([dict(B=2, S=8), dict(B=1, S=8)], ("B", "S")) == [[dict(B=1, S=8), dict(B=2, S=8)]]


@pytest.mark.parametrize(
    ("problems", "fields", "words"),
    [
        ([dict(M=1)], ("M",), ""),
        ([dict(M=1, B=2), dict(M=2, B=2)], ("M", "B"), ""),
        ([], ("M",), "batch_invariant takes 1 to 64 problems, and there are 0"),
        ([dict(N=1)], ("M",), "batch_invariant names 'M', which problem 0 does not have"),
        ([dict(M="8")], ("M",), "batch_invariant names 'M', which is '8' in problem 0, not a size >= 1"),
        ([dict(M=True)], ("M",), "which is True in problem 0"),
        ([dict(M=1), dict(M=0)], ("M",), "which is 0 in problem 1"),
        (
            [dict(M=1, B=4), dict(M=4, B=1)],
            ("M", "B"),
            "batch_invariant needs a problem that is the largest in all its fields: one with M=4, B=4",
        ),
    ],
)
def test_a_field_that_is_no_size_is_one_line(problems: list[Any], fields: tuple[str, ...], words: str) -> None:
    """And so is a group without a largest problem."""
    found = find_batch_fault(problems, fields)
    assert words in found
    assert bool(found) == bool(words)
    assert "\n" not in found
