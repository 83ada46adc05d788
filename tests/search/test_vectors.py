"""Constraints asked about many configs at once: the verdict on each is what it is alone, whatever Python they use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.search.vectors import MAX_CALLS, NotVectorizable, VectorizedConstraints
from ktuned.spec.user_values import Values

AXES: Mapping[str, Any] = {
    "a": [0, 1, 2, 3, 7, 64],
    "b": range(-3, 9, 2),
    "f": [0.5, 1.0, 2.5],
    "on": [False, True],
    "layout": ["row", "column"],
    "big": [1, 2**31, 2**61],
}
CODES = np.array(list(itertools.product(*(range(len(axis)) for axis in AXES.values())))).T


def loop(c: Any) -> object:
    """Branch, loop, and leave early."""
    total = 0
    for knob in ("a", "b"):
        if c[knob] < 0:
            return False
        total += c[knob] * 3
        while total > 40:
            total -= 17
    return total % 5 == 2


def caught(c: Any) -> object:
    """Divide, and mind the zero."""
    try:
        return 12 // c.a > c.b
    except ZeroDivisionError:
        return c.on


CONSTRAINTS: Mapping[str, Any] = {
    "arithmetic": lambda c: (c.a * 3 - c.b) % 4 == 1 or c.f / 2 > c.b,
    "one value": lambda c: True,
    "truthy number": lambda c: c.a * c.b,
    "reflected": lambda c: 7 - c.b > c.a >= 2 - c.f and 10 // (1 + c.a) == 1,
    "guarded": lambda c: c.a != 0 and c.b % c.a == 0,
    "chained": lambda c: 0 < c.a < c.b < 9,
    "not": lambda c: not (c.on and c.layout == "row"),
    "names": lambda c: c.layout in ("row", "diagonal") and c.layout.startswith("r") and "o" in c.layout,
    "truth values add up": lambda c: c.on + c.on + (c.a > 2) == 3,
    "flags": lambda c: (c.a > 1) & (c.b < 5) | ~c.on & 1,
    "max": lambda c: max(c.a, c.b, 2) == c.a and min((c.a, c.f)) < 2,
    "sum": lambda c: sum([c.a, c.b, c.f]) > 6,
    "math": lambda c: math.log2(c.a + 1).is_integer() and math.gcd(c.a, abs(c.b)) < 3 and math.prod([c.a, c.b]) < 9,
    "rounding": lambda c: round(c.f) + math.ceil(c.f) + int(c.f) + -c.f // 1 > 1,
    "hash": lambda c: (c.a, c.layout) in {(1, "row"), (7, "column")} or {c.b: 1}.get(5) == 1,
    "text": lambda c: f"{c.a}{c.layout:>8}"[:2] == "7 " or str(c.on) == "True",
    "bits": lambda c: (c.a & (c.a - 1)) == 0 and (c.a ^ 3) | 4 > 5 and (1 << c.a) > 8 and c.b >> 1 < 2,
    "powers": lambda c: 2**c.a > 100 or c.f**2 < 1.5 or c.a**3 == 27,
    "negative powers": lambda c: 2**c.b < 1,
    "large": lambda c: c.big * c.big * 8 % 1000 == 8 or c.big * c.big > 2**100 - c.a,
    "large and exact": lambda c: (c.big + 1) / 3 == c.big / 3 or c.big + c.f == c.big,
    "range": lambda c: c.a in range(2, 8) and len(range(c.a)) == c.a,
    "loop": loop,
    "caught": caught,
    "None": lambda c: c.a == None or c.b != None,  # noqa: E711 - that a constraint may do so is the point
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_verdicts_are_those_of_single_configs(name: str) -> None:
    """Over all combinations of integers, fractions, flags, names and integers beyond 64 bits."""
    constraint = CONSTRAINTS[name]
    verdicts = VectorizedConstraints(AXES, [lambda values: constraint(Values(values, "knob"))]).admit_configs(CODES)
    assert verdicts.tolist() == [bool(constraint(Values(config, "knob"))) for config in configs()]


def configs() -> list[dict[str, Any]]:
    """Return the configs of all codes."""
    return [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]


OPERATORS = ["+", "-", "*", "//", "%", "/", "<", "==", ">=", "and", "or", "&", "|"]


@given(st.lists(st.tuples(st.sampled_from("abf"), st.sampled_from(OPERATORS)), min_size=2, max_size=7), st.integers())
def test_any_expression_agrees(parts: list[tuple[str, str]], number: int) -> None:
    """Random expressions, written without brackets; those that raise for some config cannot be asked at once."""
    text = " ".join(f"{knob} {operator}" for knob, operator in parts) + f" ({number % 5 + 1})"

    def one(config: Mapping[str, Any]) -> object:
        return eval(text, {}, dict(config))

    try:
        expected = [bool(one(config)) for config in configs()]
    except (ArithmeticError, TypeError):
        with pytest.raises(NotVectorizable):
            VectorizedConstraints(AXES, [one]).admit_configs(CODES)
    else:
        assert VectorizedConstraints(AXES, [one]).admit_configs(CODES).tolist() == expected


def test_all_constraints_count() -> None:
    """A config passes if each constraint admits it; later ones are asked about what earlier ones left."""
    asked = []

    def second(values: Mapping[str, Any]) -> object:
        asked.append(len(values["a"]._array))
        return values["a"] > 5

    verdicts = VectorizedConstraints(AXES, [lambda values: values["on"], second]).admit_configs(CODES)
    assert int(verdicts.sum()) == CODES.shape[1] // 6
    assert asked == [CODES.shape[1] // 2]


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (lambda c: 1 // c["a"], "it raises ZeroDivisionError"),
        (lambda c: c["nothing"], "it raises KeyError"),
        (lambda c: 9 ** (9 ** c["a"]), "a power of large numbers"),
        (lambda c: 10 << (c["wide"] * 9), "more than 4096 bits"),
        (lambda c: hash((c["n"], c["m"])) % 7, "paths"),
        (lambda c: hash(c["wide"]) % 7, "cases"),
    ],
    ids=["raises", "no such knob", "a power", "a shift", "too many paths", "too many cases"],
)
def test_constraint_that_cannot_be_asked_at_once_is_refused(constraint: Any, words: str) -> None:
    """Within a bounded number of calls, and without integers that fill the memory."""
    axes = {**AXES, "n": range(100), "m": range(100), "wide": range(10_000)}
    dice = np.random.RandomState(0)
    codes = np.array([dice.randint(0, len(axis), 3 * MAX_CALLS) for axis in axes.values()])
    with pytest.raises(NotVectorizable, match=words):
        VectorizedConstraints(axes, [constraint]).admit_configs(codes)
