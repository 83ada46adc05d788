"""Trials as compressed columns of small integers, so that a page can hold 100,000 trials. No IO.

In a page of 3 MB there are 20 bytes for a trial. Knobs become codes into the list of their values; latencies become
steps on a logarithmic scale, at most 0.02 % apart for a range of six decades; times become steps since the trial
before.
"""

from __future__ import annotations

import base64
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

FINE = 65_534
"""Steps of the scale for figures that readers compare: latencies, metrics."""

COARSE = 1_022
"""Steps of the scale for figures that only explain: spreads, seconds of compilers and lanes. They need ten bits instead
of sixteen."""

MAX_CODES = 65_535
"""Most different values of one column: as many as 16 bits can hold."""

INSTANTS = 2**22
"""Steps of the scale for times: 20 ms each if the trials span a day."""


class Column(Struct, frozen=True):
    """Description of one column: ``codes`` into ``values``, ``whole`` numbers, or a ``log``, ``linear`` or ``time``
    scale.

    On a scale, code 0 stands for an absent value, and codes 1 to ``steps`` for ``low`` to ``high``. A ``time`` scale
    has no absent values. Its codes, like those of ``whole`` numbers, are differences to the value before; the first is
    the difference to ``low``.
    """

    name: str
    kind: str
    width: int
    values: Sequence[Any] = ()
    low: float = 0.0
    high: float = 0.0
    steps: int = 1


class PackedColumns(Struct, frozen=True):
    """The columns of ``count`` trials; ``data`` is base64 of zlib of their bytes, one column after the other."""

    count: int
    columns: Sequence[Column]
    data: str


class Packer:
    """Collects columns of ``count`` values each."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[Column] = []
        self._parts: list[bytes] = []

    def add_codes(self, name: str, values: Sequence[Any], known: Iterable[Any] = ()) -> None:
        """Add a column of any values; ``known`` values get the first codes, in their order."""
        places: dict[tuple[type, Any], int] = {}
        found: list[Any] = []
        for value in known:
            if (type(value), value) not in places:
                places[type(value), value] = len(found)
                found.append(value)
        coded = array("H", bytes(2 * self._count))
        for row, value in enumerate(values):
            # 1 and True are different values of a knob.
            key = (type(value), value)
            place = places.get(key)
            if place is None:
                place = min(len(found), MAX_CODES)
                if place < MAX_CODES:
                    places[key] = place
                    found.append(value)
                else:
                    place = 0
            coded[row] = place
        self._add_column(Column(name, "codes", 1 if len(found) <= 256 else 2, found), coded)

    def add_figures(self, name: str, values: Sequence[float | None], steps: int = FINE) -> None:
        """Add a column of figures; its scale is logarithmic if all are positive, else linear."""
        present = [value for value in values if value is not None and math.isfinite(value)]
        low, high = min(present, default=1.0), max(present, default=1.0)
        is_log = low > 0
        start, end = (math.log(low), math.log(high)) if is_log else (low, high)
        factor = (steps - 1) / (end - start) if end > start else 0.0
        coded = array("H", bytes(2 * self._count))
        log = math.log
        for row, value in enumerate(values):
            if value is not None and math.isfinite(value):
                coded[row] = 1 + round(((log(value) if is_log else value) - start) * factor)
        self._add_column(Column(name, "log" if is_log else "linear", 2, (), low, high, steps), coded)

    def add_times(self, name: str, values: Sequence[float]) -> None:
        """Add a column of Unix times in s."""
        low, high = min(values, default=0.0), max(values, default=0.0)
        span = max(high - low, 1e-3)
        steps = [round((value - low) / span * INSTANTS) for value in values]
        self._add_column(Column(name, "time", 4, (), low, low + span, INSTANTS), _code_differences(steps, 0))

    def add_whole_numbers(self, name: str, values: Sequence[int]) -> None:
        """Add a column of exact whole numbers; the greatest must be less than 2³¹ above the least."""
        low = min(values, default=0)
        self._add_column(Column(name, "whole", 4, (), low), _code_differences(values, low))

    def pack_columns(self) -> PackedColumns:
        """Return all columns."""
        data = zlib.compress(b"".join(self._parts))
        return PackedColumns(self._count, self._columns, base64.b64encode(data).decode("ascii"))

    def _add_column(self, column: Column, coded: array[int]) -> None:
        # All first bytes are stored together, then all second bytes, and so on: the high bytes hardly vary, so that
        # they compress to almost nothing.
        raw = coded.tobytes()
        size, width = coded.itemsize, column.width
        places = range(width) if sys.byteorder == "little" else range(size - 1, size - 1 - width, -1)
        self._columns.append(column)
        self._parts += [raw[place::size] for place in places]


def _code_differences(values: Sequence[int], first: int) -> array[int]:
    """Return each value's difference to the value before it, modulo 2³²."""
    return array("I", [(value - before) & 0xFFFFFFFF for before, value in pairwise([first, *values])])
