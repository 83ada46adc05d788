"""Constraints written as functions: arithmetic gets an equal text, anything else stays code."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from ktuned import space
from ktuned.declaration.constraint_syntax import write_constraint
from ktuned.declaration.user_values import Values
from ktuned.model import Expression, SpaceInfo

KNOBS = ("BM", "BN")
LIMIT = 64
TILE_SIZES = (16, 32)
NEGATIVE = -3
INFINITE = math.inf


def accept_by_guards(p: Any, c: Any) -> bool:
    """Accept a config by several guards."""
    area = c.BM * c["BN"]
    if area > LIMIT * 16:
        return False
    if not (c.BM <= p.M and p["M"] % c.BM == 0):
        return False
    return c.BN in TILE_SIZES or min(p.M, LIMIT) < c.BN


def accept_by_loop(p: Any, c: Any) -> bool:
    """Accept a config by a loop, which no expression can say."""
    for value in c.values():
        if value > p.M:
            print(value)
            return False
    return True


ARITHMETIC: list[Callable[[Any, Any], object]] = [
    lambda p, c: c.BM <= p.M,
    lambda problem, config: problem.M % config.BN == 0 and config.BM * config.BN <= LIMIT * 8,
    lambda p, c: not (c.BM > p.M or c.BN < 32),
    lambda p, c: c.BN - NEGATIVE**2 > 0 and math.log2(c.BM) >= abs(NEGATIVE),
    lambda p, c: bool(c.BM if p.M > LIMIT else c.BN > 16) and p["M"] >= max(c.BM, c["BN"]),
    accept_by_guards,
]


@pytest.mark.parametrize("where", ARITHMETIC, ids=range(len(ARITHMETIC)))
def test_a_function_of_arithmetic_has_an_equal_text(where: Callable[[Any, Any], object]) -> None:
    """The text decides as the function does, for all problems and configs."""
    text = write_constraint(where, KNOBS)
    assert text is not None
    for m, bm, bn in itertools.product((8, 48, 64, 256), (8, 16, 32, 128), (16, 32, 128)):
        problem, config = {"M": m}, {"BM": bm, "BN": bn}
        expected = bool(where(Values(problem, "problem key"), Values(config, "knob")))
        assert Expression(text)(problem, config) is expected, (text, problem, config)


NOT_ARITHMETIC: list[Callable[[Any, Any], object]] = [
    lambda p, c: all(value <= p.M for value in c.values()),
    lambda p, c: c.BM <= p.BN,
    lambda p, c: c.M <= p.M,
    lambda p, c: c.BM <= INFINITE,
    lambda p, c: str(c.BM).startswith("1"),
    lambda p, c: random.random() < c.BM,
    lambda p, c: isinstance(c.BM, int),
    lambda p, c: round(number=c.BM),
    lambda p, c: c,
    lambda *both: True,
    functools.partial(accept_by_guards),
    accept_by_loop,
]


@pytest.mark.parametrize("where", NOT_ARITHMETIC, ids=range(len(NOT_ARITHMETIC)))
def test_what_only_code_can_say_has_no_text(where: Callable[[Any, Any], object]) -> None:
    """Examples: calls of other functions, loops, ambiguous names, values that are no literals."""
    assert write_constraint(where, KNOBS) is None


def test_a_space_has_the_texts_of_all_its_constraints_or_none() -> None:
    """The texts include the conditions of knobs. One constraint that is code leaves the space without texts."""
    when = {"BN": lambda p, c: c.BM > p.M}
    described = space(BM=[16, 32], BN=[1, 2], where=["BM * BN < 99", lambda p, c: c.BM > 1], when=when).describe_space()
    texts = ("BM * BN < 99", "(BM > 1)", "((BM > M)) or BN == 1")
    assert described == SpaceInfo(
        "cartesian", {"BM": (16, 32), "BN": (1, 2)}, constrained=True, constraints=texts, size=4
    )
    assert space(BM=[16], BN=[1], where=["BM > 1", accept_by_loop]).describe_space().constraints == ()
    assert space(BM=[16], where=["BM > " + "1" * 3000] * 3).describe_space().constraints == ()
