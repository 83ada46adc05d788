"""Values as text: typed, in their order, in full."""

from __future__ import annotations

import array
import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest

from ktuned.declaration.value_text import describe_value
from tests.declaration.conftest import Project

LONG = numpy.arange(5000)


def changed_inside(values: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Return an array with one element changed, where no abridged text has it."""
    values = values.copy()
    values[2500] = 7
    return values


def closing_over(value: object) -> Callable[[], object]:
    """Return a function that holds a value."""
    return lambda: value


class Color(enum.Enum):
    """Numbers with names."""

    RED = 1
    GREEN = 2


@dataclass
class Point:
    """A value of the project."""

    x: object = 0


class Tagged(dict[str, int]):
    """A map with a field."""

    tag = 0


def tagged(tag: int) -> Tagged:
    """Return a map that differs in a field alone."""
    found = Tagged(a=1)
    found.tag = tag
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("1", b"1"),
        ((1, 2), [1, 2]),
        (0.0, -0.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "a"}, {"1": "a"}),
        ([1, [2, 3]], [1, [3, 2]]),
        ({1, 2}, frozenset({1, 2})),
        (functools.partial(max, LONG), functools.partial(max, changed_inside(LONG))),
        (functools.partial(max, key=abs), functools.partial(max, default=abs)),
        (LONG, changed_inside(LONG)),
        (LONG, LONG.astype("int32")),
        (LONG, LONG.reshape(2, -1)),
        (numpy.array([{"a": 1}], dtype=object), numpy.array([{"a": 2}], dtype=object)),
        (numpy.float32(1), numpy.float64(1)),
        (array.array("i", [1]), array.array("i", [2])),
        (bytearray(b"1"), bytearray(b"2")),
        (closing_over([1]), closing_over([2])),
        (Color.RED, Color.GREEN),
        (Point({"a": 1, "b": 2}), Point({"b": 2, "a": 1})),
        (tagged(1), tagged(2)),
        pytest.param(eval("lambda: 1"), eval("lambda: 2"), id="code without a file"),
    ],
)
def test_different_values_have_different_texts(one: object, other: object) -> None:
    """Type, order and full content count, however deep in a value they are."""
    assert describe_value(one) != describe_value(other)
    assert describe_value({"in": [one]}) != describe_value({"in": [other]})


def test_equal_values_have_equal_texts() -> None:
    """Whatever they are made of, and in whatever order a set has its elements."""
    assert describe_value({"b", "a", "c"}) == describe_value({"c", "b", "a"})
    assert describe_value(eval("lambda x: x in {'a', 'b', 'c'}")) == describe_value(
        eval("lambda x: x in {'c', 'b', 'a'}")
    )
    assert describe_value(closing_over(LONG)) == describe_value(closing_over(LONG.copy()))
    assert describe_value(Point(object())) == describe_value(Point(object()))


def test_a_value_that_contains_itself_has_a_text() -> None:
    """What holds itself is described once."""
    circle: list[object] = [1]
    circle.append({"me": circle})
    point = Point()
    point.x = point
    assert describe_value(circle) != describe_value([1, {"me": []}])
    assert describe_value(point)


def test_tensors_that_differ_in_one_element_have_different_texts() -> None:
    """Of any dtype, also where they require gradients, are conjugated or sparse."""
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float8_e5m2, torch.float32, torch.int8, torch.bool, torch.complex64):
        one = torch.zeros(5000).to(dtype)
        other = one.clone()
        other[2500] = 1
        assert describe_value(one) != describe_value(other)
        assert describe_value(one) == describe_value(one.clone())
    weights = torch.zeros(5000, requires_grad=True)
    learned = weights.detach().clone().index_fill(0, torch.tensor([2500]), 1.0).requires_grad_()
    assert describe_value(weights) != describe_value(learned)
    number = torch.tensor([1 + 2j])
    assert describe_value(number.conj()) != describe_value(number)
    assert describe_value(torch.eye(3).to_sparse()) != describe_value((2 * torch.eye(3)).to_sparse())
    assert describe_value(torch.empty(3, device="meta")) != describe_value(torch.empty(4, device="meta"))


def test_globals_that_a_function_mentions_count(project: Project) -> None:
    """A variable may hold what no file says: the function's text has what it is now."""
    project.write(
        "tune_it.py",
        """
        import os
        FACTORS = {name: 1 for name in os.environ.get("ORDER", "a b").split()}
        HERE = os.path.dirname(__file__)

        @kernel(backend="fake", space=space(A=[1]), inputs=lambda p: dict(A=tensor(1 + len(helped()))), check=None)
        def it(p, c):
            return Fake(c.A)

        def helped():
            return [HERE, *FACTORS]
        """,
    )
    (kernel,) = project.load().kernels
    function = kernel.inputs
    before = describe_value(function)
    factors = function.__globals__["FACTORS"]
    factors["a"] = factors.pop("a")
    assert describe_value(function) != before
    assert str(project.root) not in before


def test_paths_are_described_relative_to_the_project(project: Project) -> None:
    """A project elsewhere has the same digests."""
    project.write("tune_it.py", "")
    project.load()
    assert str(project.root) not in describe_value([str(project.root / "data"), Path(project.root / "data")])
