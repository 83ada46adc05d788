"""Borders of a tree: problems on both sides of each."""

from __future__ import annotations

from ktuned.portfolio import Branch, Condition, Leaf, find_border_problems, list_leaves


def test_borders_are_whole_numbers_of_one_field() -> None:
    """Both sides of each, with the other fields of the nearest problem; a product has none."""
    small, large = Leaf("a", 0.0, 0.0, 2), Leaf("b", 0.0, 0.0, 2)
    problems = [{"m": 8, "n": 1}, {"m": 60, "n": 2}, {"m": 90, "n": 3}, {"m": 500, "n": 4}]
    tree = Branch(Condition(("m",), 70), small, Branch(Condition(("m", "n"), 300), large, small))
    assert find_border_problems(tree, problems) == [{"m": 70, "n": 2}, {"m": 71, "n": 2}]
    assert len(list(list_leaves(tree))) == 3


def test_borders_are_the_nearest_problems_that_can_be_measured_where_not_all_can() -> None:
    """On either side of each border, also of a product; a side that has none has none."""
    small, large = Leaf("a", 0.0, 0.0, 2), Leaf("b", 0.0, 0.0, 2)
    problems = [{"m": 8, "n": 1}, {"m": 60, "n": 2}, {"m": 90, "n": 3}, {"m": 500, "n": 4}]
    tree = Branch(Condition(("m",), 70), small, Branch(Condition(("m", "n"), 300), large, small))
    measurable = [{"m": 9, "n": 1}, {"m": 50, "n": 1}, {"m": 80, "n": 3}, {"m": 100, "n": 4}]
    sides = [{"m": 50, "n": 1}, {"m": 80, "n": 3}, {"m": 100, "n": 4}]
    assert find_border_problems(tree, problems, measurable) == sides
    assert find_border_problems(tree, problems, measurable[2:]) == sides[1:]
