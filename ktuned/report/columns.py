"""Trials as compressed columns, so that a page can hold 100,000 trials. No IO.

In a page of 3 MB there are 20 bytes for a trial. Knobs become codes into the list of their values, figures keep the
digits that a reader can tell apart, and times and ids become differences to the trial before.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from ktuned.model import FrozenStruct, escape_controls

FINE = 5
"""Digits of figures that readers compare: latencies, metrics."""

COARSE = 3
"""Digits of figures that only explain: spreads, seconds of compilers and lanes."""

INSTANTS_PER_S = 50
"""Times are exact to 20 ms."""


class PackedColumns(FrozenStruct):
    """The columns of ``count`` trials; ``data`` is base64 of zlib of JSON: columns, or lists of figures, by name."""

    count: int
    data: str


class Codes(FrozenStruct):
    """A column of any values, as ``codes`` into ``values``."""

    values: Sequence[Any]
    codes: Sequence[int]


class Steps(FrozenStruct):
    """A column of numbers, in ``steps`` of one ``unit``; each is the difference to the value before, or to 0."""

    unit: float
    steps: Sequence[int]


Column = Codes | Steps | Sequence[float | None]
"""A column; a sequence holds its figures themselves."""


def code_values(values: Sequence[Any], known: Iterable[Any] = ()) -> Codes:
    """Return a column of any values; ``known`` values get the first codes, in their order."""
    # 1 and True are different values of a knob.
    keys = [(type(value), value) for value in values]
    found = dict.fromkeys([*((type(value), value) for value in known), *keys])
    places = {key: place for place, key in enumerate(found)}
    shown = [escape_controls(value) if isinstance(value, str) else value for _, value in found]
    return Codes(shown, [places[key] for key in keys])


def round_figures(values: Iterable[float | None], digits: int = FINE) -> list[float | None]:
    """Return figures with this many digits; ``None`` stands for an absent or infinite one."""
    return [float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None for value in values]


def step_times(values: Iterable[float]) -> Steps:
    """Return a column of Unix times in s."""
    return Steps(1 / INSTANTS_PER_S, _list_differences(round(value * INSTANTS_PER_S) for value in values))


def step_numbers(values: Iterable[int]) -> Steps:
    """Return a column of exact whole numbers."""
    return Steps(1, _list_differences(values))


def pack_columns(count: int, columns: Mapping[str, Column]) -> PackedColumns:
    """Return columns of ``count`` values each."""
    return PackedColumns(count, base64.b64encode(zlib.compress(msgspec.json.encode(columns))).decode("ascii"))


def _list_differences(values: Iterable[int]) -> list[int]:
    return [value - before for before, value in pairwise([0, *values])]
