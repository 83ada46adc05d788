"""Configs as vectors in which kernels behave smoothly: logarithms of sizes, their products, divisibility.

================  ==================================================================================================
``main``          a number's logarithm if its axis spans a factor of three, else the number; 0 to 1 along the axis
``power``         the largest power of two that divides a number, unless it only repeats the numbers' order
``pair``          the logarithm of the product of two sizes: a block's threads, a tile's elements
``choice``        an indicator for each value of a knob with two values, or with names
================  ==================================================================================================

Imported only by strategies that need NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ktuned.model import FrozenStruct, Scalar

Floats = NDArray[np.float64]

MAX_PAIRED = 8
"""With more sizes than this, products are no features: eight have 28 products, and each costs the model time."""

MAX_TABLE = 65_536
"""Most values of an axis in a table, which takes half a megabyte. On a longer axis, positions stand for the values."""

MAX_CHOICES = 32
"""Most indicators of one knob; further names share the last one."""

LARGEST_POWER = 6
"""Divisibility beyond 2 to this power makes no difference to any device."""


class Column(FrozenStruct):
    """One feature: the sum, over some axes, of a number for each value."""

    kind: str
    tables: tuple[tuple[int, Floats], ...]


class Features:
    """The features of a product of axes."""

    def __init__(self, axes: Sequence[Sequence[Scalar]]) -> None:
        self._columns: list[Column] = []
        logarithms: dict[int, Floats] = {}
        for place, axis in enumerate(axes):
            if len(axis) < 2:
                continue
            numbers = _axis_as_numbers(axis)
            if numbers is None:
                self._add_choices(place, len(axis))
                continue
            scaled = _scale_numbers(numbers)
            if numbers.min() > 0 and numbers.max() >= 3 * numbers.min():
                logarithms[place] = np.log2(numbers)
            self._columns.append(Column("main", ((place, _scale_to_unit(scaled)),)))
            powers = _powers_of_two(numbers)
            if powers is not None:
                self._columns.append(Column("power", ((place, powers),)))
        self._add_pairs(logarithms)
        self.kinds = tuple(column.kind for column in self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __call__(self, points: NDArray[np.intp]) -> Floats:
        """Return the features of points (one a row), one row each."""
        found = np.zeros((len(points), len(self._columns)))
        for number, column in enumerate(self._columns):
            for place, table in column.tables:
                found[:, number] += table[np.minimum(points[:, place], len(table) - 1)]
        return found

    def _add_choices(self, place: int, length: int) -> None:
        if length == 2:
            self._columns.append(Column("choice", ((place, np.array([0.0, 1.0])),)))
            return
        shown = min(length, MAX_CHOICES)
        # Two different choices have a distance of one, like the two ends of a number's axis.
        self._columns += [
            Column("choice", ((place, (np.arange(shown) == chosen) / math.sqrt(2)),)) for chosen in range(shown)
        ]

    def _add_pairs(self, logarithms: dict[int, Floats]) -> None:
        places = list(logarithms)
        if len(places) > MAX_PAIRED:
            return
        for number, one in enumerate(places):
            for other in places[:number]:
                span = float(np.ptp(logarithms[one]) + np.ptp(logarithms[other]))
                self._columns.append(Column("pair", ((one, logarithms[one] / span), (other, logarithms[other] / span))))


def _axis_as_numbers(axis: Sequence[Scalar]) -> Floats | None:
    """Return an axis's values as numbers; ``None`` for names, flags, and anything with two values."""
    if len(axis) > MAX_TABLE:
        return np.arange(MAX_TABLE, dtype=float)
    if len(axis) == 2 or not all(type(value) in (int, float) for value in axis):
        return None
    return np.array([float(value) for value in axis])


def _scale_numbers(numbers: Floats) -> Floats:
    if numbers.min() > 0 and numbers.max() >= 3 * numbers.min():
        return np.asarray(np.log2(numbers))
    if numbers.min() == 0 and numbers.max() >= 8:
        return np.asarray(np.log2(1 + numbers))
    return numbers


def _scale_to_unit(numbers: Floats) -> Floats:
    span = float(np.ptp(numbers))
    return (numbers - numbers.min()) / span if span else np.zeros_like(numbers)


def _powers_of_two(numbers: Floats) -> Floats | None:
    """Return how often each number can be halved, scaled; ``None`` if that only repeats their order."""
    if not np.all(numbers == np.floor(numbers)) or np.abs(numbers).max() > 2**53:
        return None
    powers = np.array(
        [LARGEST_POWER if number == 0 else min(LARGEST_POWER, _count_halvings(int(number))) for number in numbers],
        float,
    )
    is_monotone = bool(np.all(np.diff(powers[np.argsort(numbers, kind="stable")]) >= 0))
    return None if is_monotone or np.ptp(powers) == 0 else _scale_to_unit(powers)


def _count_halvings(number: int) -> int:
    return (number & -number).bit_length() - 1
