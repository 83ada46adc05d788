"""Values as text: with their types, their order and their full content."""

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

LONG_ARRAY = numpy.arange(5000)


def change_middle_element(values: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Return a copy with one element changed that an abridged text would omit."""
    values = values.copy()
    values[2500] = 7
    return values


def make_closure(value: object) -> Callable[[], object]:
    """Return a function that holds a value in its closure."""
    return lambda: value


class Color(enum.Enum):
    """An enumeration."""

    RED = 1
    GREEN = 2


@dataclass
class Point:
    """A dataclass of the project."""

    x: object = 0


class TaggedDict(dict[str, int]):
    """A dict with an attribute."""

    tag = 0


def make_tagged_dict(tag: int) -> TaggedDict:
    tagged = TaggedDict(a=1)
    tagged.tag = tag
    return tagged


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
        (functools.partial(max, LONG_ARRAY), functools.partial(max, change_middle_element(LONG_ARRAY))),
        (functools.partial(max, key=abs), functools.partial(max, default=abs)),
        (LONG_ARRAY, change_middle_element(LONG_ARRAY)),
        (LONG_ARRAY, LONG_ARRAY.astype("int32")),
        (LONG_ARRAY, LONG_ARRAY.reshape(2, -1)),
        (numpy.array([{"a": 1}], dtype=object), numpy.array([{"a": 2}], dtype=object)),
        (numpy.float32(1), numpy.float64(1)),
        (array.array("i", [1]), array.array("i", [2])),
        (bytearray(b"1"), bytearray(b"2")),
        (make_closure([1]), make_closure([2])),
        (Color.RED, Color.GREEN),
        (Point({"a": 1, "b": 2}), Point({"b": 2, "a": 1})),
        (make_tagged_dict(1), make_tagged_dict(2)),
        pytest.param(eval("lambda: 1"), eval("lambda: 2"), id="code without a file"),
    ],
)
def test_different_values_have_different_texts(one: object, other: object) -> None:
    """Type, order and full content count at any depth."""
    assert describe_value(one) != describe_value(other)
    assert describe_value({"in": [one]}) != describe_value({"in": [other]})


def test_equal_values_have_equal_texts() -> None:
    """The order of a set's elements does not matter."""
    assert describe_value({"b", "a", "c"}) == describe_value({"c", "b", "a"})
    assert describe_value(eval("lambda x: x in {'a', 'b', 'c'}")) == describe_value(
        eval("lambda x: x in {'c', 'b', 'a'}")
    )
    assert describe_value(make_closure(LONG_ARRAY)) == describe_value(make_closure(LONG_ARRAY.copy()))
    assert describe_value(Point(object())) == describe_value(Point(object()))


def test_a_value_that_contains_itself_has_a_text() -> None:
    circle: list[object] = [1]
    circle.append({"me": circle})
    point = Point()
    point.x = point
    assert describe_value(circle) != describe_value([1, {"me": []}])
    assert describe_value(point)


def test_tensors_that_differ_in_one_element_have_different_texts() -> None:
    """This holds for any dtype, and for tensors that require gradients, are conjugated or sparse."""
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
    """A global's current value is part of the function's text, because no file may say it."""
    project.write_file(
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
    (kernel,) = project.load_file().kernels
    function = kernel.inputs
    before = describe_value(function)
    factors = function.__globals__["FACTORS"]
    factors["a"] = factors.pop("a")
    assert describe_value(function) != before
    assert str(project.root) not in before


def test_paths_are_described_relative_to_the_project(project: Project) -> None:
    """So a project in another directory has the same digests."""
    project.write_file("tune_it.py", "")
    project.load_file()
    assert str(project.root) not in describe_value([str(project.root / "data"), Path(project.root / "data")])
